"""Checks of a Raspberry Pi 5, or another host, with a Hailo accelerator."""

from __future__ import annotations

import re

from k1.doctor.check import Case, Check, Fix, Outcome, fail, ok, version, warn
from k1.doctor.system import Skip

_HAILO_8 = "0x2864"


def _reinstall(right: str, wrong: str) -> Fix:
    return Fix((f"sudo apt purge {wrong} && sudo apt autoremove --purge", f"sudo apt install {right}", "sudo reboot"))


_CLEAN_INSTALL = _reinstall("hailo-h10-all", "hailo-all")
_POWER_CYCLE = Fix(("sudo poweroff    # then take the power away for ten seconds: a reboot keeps the chip's firmware",))


class _Hailo(Check):
    applies_to = "a host with a Hailo accelerator or its packages"

    def _applies(self, case: Case) -> bool:
        return case.system.hailo is not None or bool(_packages(case))


def _packages(case: Case) -> dict[str, str]:
    """Installed packages of Hailo: name → version; empty where there is no dpkg."""
    try:
        _, text = case.system.tool("hailo-packages")
    except Skip:
        return {}
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


def _is_hailo_10h(case: Case) -> bool:
    """Whether the chip is of the second generation; `Skip` without a chip."""
    if case.system.hailo is None:
        raise Skip("no Hailo device on PCIe that would tell its generation")
    return case.system.text(f"{case.system.hailo}/device") != _HAILO_8


def _library(case: Case) -> str:
    found = re.search(r"\d+\.\d+\.\d+", case.system.output("hailo-version"))
    if not found:
        raise Skip("hailortcli --version names no version")
    return found[0]


class Device(_Hailo):
    """The packages are there, the device is not."""

    id = "hailo-device"
    title = "Hailo device on PCIe"
    cause = "The HAT's flat cable is loose or the wrong way round, PCIe is off, or the board has no power."
    fixes = (Fix(("lspci -d 1e60:    # after seating the flat cable anew", "sudo rpi-eeprom-update -a")),)
    reference = "guide 004, part 2"

    def _examine(self, case: Case) -> Outcome:
        if case.system.hailo is None:
            return fail("packages are installed but no PCI device of vendor 1e60 is there")
        kind = "Hailo-10H" if _is_hailo_10h(case) else "Hailo-8 or 8L"
        return ok(f"{kind} at {case.system.hailo.rsplit('/', 1)[1]}")


class Packages(_Hailo):
    """Packages of the other generation, or of both."""

    id = "hailo-packages"
    title = "Hailo packages for the chip"
    cause = (
        "hailo-all brings HailoRT 4.x for Hailo-8 and 8L, hailo-h10-all HailoRT 5.x for Hailo-10H; the wrong one, or "
        "both, give HAILO_INVALID_FIRMWARE or no device."
    )
    fixes = (_CLEAN_INSTALL,)
    reference = "guide 004, part 2"

    def _examine(self, case: Case) -> Outcome:
        right, wrong = ("hailo-h10-all", "hailo-all") if _is_hailo_10h(case) else ("hailo-all", "hailo-h10-all")
        found = _packages(case)
        if not found:
            raise Skip("no hailo package is known here (no dpkg, or installed by other means)")
        if right in found and wrong not in found:
            return ok(f"{right} {found[right]}")
        place = "beside" if right in found else "instead of"
        text = f"{wrong} is installed {place} {right}" if wrong in found else f"{right} is not installed"
        return fail(text, fixes=(_reinstall(right, wrong),))


class Library(_Hailo):
    """HailoRT of the other generation, or older than the tested version."""

    id = "hailo-library"
    title = "HailoRT version"
    cause = "Hailo-10H needs HailoRT 5.x; 4.x knows only Hailo-8 and 8L and does not see the 8 GB on the module."
    fixes = (_CLEAN_INSTALL,)
    reference = "guide 004, part 2"

    def _examine(self, case: Case) -> Outcome:
        new = _is_hailo_10h(case)
        found, tested = _library(case), case.limits.tested.hailort
        if (version(found)[0] >= 5) != new:
            return fail(f"HailoRT {found} is not for {'Hailo-10H' if new else 'Hailo-8'}")
        text = f"{found}, tested {tested}"
        return warn(text) if new and version(found) < version(tested) else ok(found)


class Versions(_Hailo):
    """Driver, library and firmware are not of one version."""

    id = "hailo-versions"
    title = "driver, library and firmware agree"
    cause = "Packages of several versions are mixed, or the chip still runs the firmware from before an upgrade."
    fixes = (Fix(("sudo apt full-upgrade",)), _POWER_CYCLE)
    reference = "public reports: driver version is different from library version"

    def _examine(self, case: Case) -> Outcome:
        found = {"library": _library(case)}
        for name in case.system.glob("/sys/module/hailo*/version"):
            found[f"driver {name.split('/')[3]}"] = case.system.text(name)
        status, text = case.system.tool("hailo-identify")
        if status == 0 and (firmware := re.search(r"Firmware Version: *(\d+\.\d+\.\d+)", text)):
            found["firmware"] = firmware[1]
        if len(found) == 1:
            raise Skip("neither driver nor firmware tells its version")
        text = ", ".join(f"{part} {number}" for part, number in found.items())
        return ok(text) if len(set(found.values())) == 1 else fail(text)


class Firmware(_Hailo):
    """The chip does not answer."""

    id = "hailo-firmware"
    title = "hailortcli fw-control identify"
    cause = "HAILO_INVALID_FIRMWARE and its like: a driver of the other generation gave the chip its firmware."
    fixes = (_CLEAN_INSTALL, _POWER_CYCLE)
    reference = "guide 004, part 2"

    def _examine(self, case: Case) -> Outcome:
        status, text = case.system.tool("hailo-identify")
        if status == 0:
            return ok("the chip answers")
        error = re.search(r"HAILO_[A-Z_]+", text)
        return fail(error[0] if error else f"status {status}")


class Pcie(_Hailo):
    """The link is slower or narrower than it can be."""

    id = "hailo-pcie"
    title = "PCIe speed and width"
    cause = "The link trained at a lower speed or width: Gen 3 is not enabled, or the cable is bad."
    fixes = (Fix(("echo dtparam=pciex1_gen=3 | sudo tee -a /boot/firmware/config.txt", "sudo reboot")),)
    reference = "guide 004, script part 3"

    def _examine(self, case: Case) -> Outcome:
        if case.system.hailo is None:
            raise Skip("no Hailo device on PCIe")
        names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
        speed, width, best, widest = (_number(case, f"{case.system.hailo}/{name}") for name in names)
        text = f"{speed} GT/s x{width:g}; the chip can {best} GT/s x{widest:g}"
        # A Raspberry Pi 5 has one lane, and no more than Gen 3, whatever the module can.
        on_pi = "Raspberry Pi 5" in (case.system.find("/proc/device-tree/model") or "")
        wanted, lanes = (min(best, 8.0), 1.0) if on_pi else (best, widest)
        return warn(text) if speed < wanted or width < lanes else ok(text)


def _number(case: Case, name: str) -> float:
    found = re.match(r"\d+(\.\d+)?", case.system.text(name))
    if not found:
        raise Skip(f"{name} starts with no number")
    return float(found[0])


class ChipMemory(_Hailo):
    """The chip's own Linux has no contiguous memory left."""

    id = "hailo-memory"
    title = "memory on the module"
    cause = "Models that stay loaded (keep_alive) fill the 8 GB on the module; a new one finds no contiguous block."
    fixes = (Fix(("k1 doctor hailo unload",)), _POWER_CYCLE)
    reference = "guide 004, questions; public reports: cma_alloc on the chip's side"

    def _examine(self, case: Case) -> Outcome:
        found = re.findall(r"^.*hailo.*cma_alloc.*$|^.*cma_alloc.*hailo.*$", case.system.log, re.MULTILINE)
        return warn(found[-1].strip()) if found else ok("no failed cma_alloc in the log")


CHECKS: tuple[Check, ...] = (
    *(Device(), Packages(), Library(), Versions()),
    *(Firmware(), Pcie(), ChipMemory()),
)
