"""Firmware onto boards in USB download mode: which boards, which file, written side by side."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from k1 import files, paths, render
from k1.board import Board
from k1.drivers import dfu, usb
from k1.drivers.patience import scaled
from k1.drivers.usb import Device
from k1.errors import CheckFailed, K1Error
from k1.image import manifest
from k1.run import run

DEFAULT_FILE = "opensbi-k1-fixed.bin"
RULES = Path("/etc/udev/rules.d/70-k1.rules")
_TEMPLATE = paths.REPO / "packaging" / "udev" / "70-k1.rules.j2"
_HOW = "connect its USB port, hold the BOOT key, switch the power on, release the key"


@dataclass(frozen=True)
class Firmware:
    """What is to be written: a file's content without DFU suffix."""

    path: Path
    data: bytes
    sha256: str


@dataclass(frozen=True)
class Outcome:
    """What happened to one board; `error` is empty when it was written. `seconds` for all of it."""

    path: str
    serial: str
    bytes: int
    seconds: float
    verified: bool
    reset: bool
    error: str = ""


def firmware(board: Board, file: Path | None, *, any_file: bool = False) -> Firmware:
    """Read and check the file: by default the built OpenSBI; one that the board's build did not make is refused."""
    path = manifest.built(board.name, DEFAULT_FILE, file)
    whole = path.read_bytes()
    data, usb_id = dfu.split(whole, str(path))
    if not data:
        raise K1Error(f"{path}: is empty but for its DFU suffix", hint="build or copy the file again")
    wanted = board.dfu.usb_id.value
    if usb_id not in (None, wanted, "ffff:ffff"):
        text = f"{path}: is for the device {usb_id}, not for {wanted} ({board.name})"
        raise K1Error(text, hint="give another --file")
    found = Firmware(path, data, hashlib.sha256(data).hexdigest())
    if not any_file:
        manifest.require(board.name, path, found.sha256, hashlib.sha256(whole).hexdigest())
    return found


# --- boards


@dataclass(frozen=True)
class Wanted:
    """Which boards: those at `paths` and with `serials`; or every one of them; else the only one there is.

    count: with `everyone`, how many at least.
    """

    paths: tuple[str, ...] = ()
    serials: tuple[str, ...] = ()
    everyone: bool = False
    count: int = 1

    def of(self, board: Board, devices: Sequence[Device]) -> list[Device]:
        """The devices that are meant. K1Error says what is missing or not clear, and what else is on the bus."""
        matching = [device for device in devices if device.usb_id == board.dfu.usb_id.value and device.dfu]
        if self.paths or self.serials:
            return self._named(board, devices, matching)
        if len(matching) < (self.count if self.everyone else 1):
            raise _missing(board, devices, matching, count=self.count)
        if len(matching) > 1 and not self.everyone:
            listed = "".join(f"\n  | {device}" for device in matching)
            text = f"{len(matching)} boards are in download mode{listed}"
            raise K1Error(text, hint=f"--path {matching[0].path}, --serial, or --all")
        return matching

    def _named(self, board: Board, devices: Sequence[Device], matching: Sequence[Device]) -> list[Device]:
        chosen: dict[str, Device] = {}
        for option, names in (("path", self.paths), ("serial", self.serials)):
            for name in names:
                found = [device for device in matching if getattr(device, option) == name]
                if len(found) > 1:
                    where = ", ".join(device.path for device in found)
                    raise K1Error(f"{len(found)} boards have the serial {name}: {where}", hint="name them by --path")
                if not found:
                    raise _missing(board, devices, matching, which=f"{option} {name}")
                chosen[found[0].path] = found[0]
        return [chosen[path] for path in sorted(chosen)]


def _missing(
    board: Board, devices: Sequence[Device], matching: Sequence[Device], *, count: int = 1, which: str = ""
) -> K1Error:
    """The error for boards that are not there; near misses are named."""
    wanted = board.dfu.usb_id.value
    text = f"no board{which and f' with {which}'} in download mode ({wanted})"
    if matching and not which:
        text = f"only {len(matching)} of {count} boards in download mode ({wanted})"
    maker = wanted.split(":")[0]
    near = [device for device in devices if device in matching or device.dfu or device.usb_id.startswith(maker)]
    listed = "".join(f"\n  | {device}" for device in near)
    return K1Error(f"{text}; there is{listed}" if listed else text, hint=f"{_HOW}; --wait waits for it")


def find(board: Board, wanted: Wanted, *, wait: float | None = None) -> list[Device]:
    """The boards that are meant; `wait` is how many seconds, scaled, they may take to come."""

    def enough(devices: list[Device]) -> bool:
        try:
            return bool(wanted.of(board, devices))
        except K1Error:
            return False

    return wanted.of(board, usb.devices() if wait is None else usb.wait(enough, scaled(wait)))


# --- writing


def write(
    board: Board, devices: Sequence[Device], firmware: Firmware, report: Callable[[dict[str, int]], None]
) -> list[Outcome]:
    """Write all `devices` side by side; one that fails does not stop the others.

    report: is told, at each step, the bytes sent by each board's path. An interruption lets the boards that are
    being written finish, for half a firmware is worse than none.
    """
    sent = dict.fromkeys((device.path for device in devices), 0)

    def one(device: Device) -> Outcome:
        def tell(count: int) -> None:
            sent[device.path] = count
            report(sent)

        return _write(board, device, firmware, tell)

    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(one, devices))


def _write(board: Board, device: Device, firmware: Firmware, report: Callable[[int], None]) -> Outcome:
    started = time.monotonic()
    alt = board.dfu.alt.value
    verify = bool(device.dfu and device.dfu.can_upload and device.dfu.tolerant)
    verdict = dfu.Verdict(False, False, 0)
    error = ""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "firmware.dfu"
        file.write_bytes(dfu.join(firmware.data, board.dfu.usb_id.value))
        try:
            verdict = dfu.download(device, alt, file, reset=not verify, report=report)
            if not verdict.written:
                error = f"not written after {verdict.sent} bytes: {verdict.cause}\n  try: {verdict.try_}"
            elif verify:
                _verify(device, alt, Path(folder) / "read", firmware.data, report)
        except K1Error as failure:
            error = str(failure)
    done = verdict.written and not error
    seconds = round(time.monotonic() - started, 3)
    count = len(firmware.data) if verdict.written else verdict.sent
    return Outcome(device.path, device.serial, count, seconds, verify and done, done and verdict.reset, error)


def _verify(device: Device, alt: int, target: Path, data: bytes, report: Callable[[int], None]) -> None:
    """Read back and compare; a board may give more than was written."""
    dfu.upload(device, alt, target, len(data), report=report)
    read = target.read_bytes()[: len(data)]
    if read != data:
        at = next((i for i, (a, b) in enumerate(zip(read, data, strict=False)) if a != b), len(read))
        text = f"{device.path}: reads back other bytes than were written, first at {at:#x} of {len(data):#x}"
        raise CheckFailed(text, hint="write it again; if that does not help, its flash is worn")


# --- rights


def rules(board: Board) -> str:
    """The udev rule that lets users of the group plugdev, and who sits at the machine, write boards of that kind."""
    return render.render_text(_TEMPLATE, board)


def install_rules(text: str, target: Path) -> bool:
    """Write the rules and have udev read them; whether udev runs here. K1Error when only root can do it."""
    try:
        files.write(target, text)
    except PermissionError as error:
        hint = f"sudo k1 flash install-udev, or: k1 flash install-udev --dry-run | sudo tee {target}"
        raise K1Error(f"{target}: no rights to write it", hint=hint) from error
    if not Path("/run/udev/control").exists():
        return False
    run(["udevadm", "control", "--reload"])
    run(["udevadm", "trigger", "--subsystem-match=usb"])
    return True
