"""Checks of a node of the cluster: a K1 board, real or virtual."""

from __future__ import annotations

import re
import time

from k1.doctor.check import Case, Check, Fix, Outcome, fail, ok, warn
from k1.doctor.system import Skip, System

_CONF = "/etc/k1/board.conf"
OLDEST_CLOCK = 1735689600  # 2025-01-01: before any K1 image was made


class _K1(Check):
    applies_to = "a node of the cluster (/etc/k1/board.conf)"

    def _applies(self, case: Case) -> bool:
        return case.system.find(_CONF) is not None


def interface(case: Case) -> str:
    """The cluster's interface, the one with a MAC of the cluster's range; `Skip` without one."""
    prefix = case.board.network.mac_base.value.rpartition(":")[0]
    for name in case.system.glob("/sys/class/net/*/address"):
        if (case.system.find(name) or "").startswith(f"{prefix}:"):
            return name.split("/")[-2]
    raise Skip(f"no interface with a MAC of the cluster ({prefix}:xx)")


def attribute(case: Case, name: str) -> str:
    """An attribute of the cluster's interface below /sys/class/net."""
    return case.system.text(f"/sys/class/net/{interface(case)}/{name}")


def inferd_setting(system: System, name: str) -> str | None:
    """A setting of k1-inferd's configuration; the last one wins, /data's file hides /etc's."""
    text = system.find("/data/etc/k1/inferd.conf")
    text = system.find("/etc/k1/inferd.conf") if text is None else text
    found = re.findall(rf"^[ \t]*{name}[ \t]*=[ \t]*(.*?)[ \t]*$", text or "", re.MULTILINE)
    return found[-1] if found else None


class Link(_K1):
    """The cluster's interface has no link."""

    id = "k1-link"
    title = "Ethernet link"
    cause = (
        "Not the cable, mostly: (1) the PHY gets power after its MAC's clock, (2) pause frames that a cheap switch "
        "does not understand, (3) boards with the factory's MAC."
    )
    fixes = (
        Fix(("k1 image --board k1    # its U-Boot waits before gmac_init(), its kernel advertises no pause frames",)),
        Fix(("echo RANK=1 >/data/etc/k1/node.conf && reboot    # on each board another rank: a MAC of its own",)),
    )
    reference = "reference 000, 5.1"

    def _examine(self, case: Case) -> Outcome:
        try:
            name = interface(case)
        except Skip as reason:
            return fail(str(reason))
        state = attribute(case, "operstate")
        if state == "up":
            return ok(f"{name} is up")
        return fail(f"{name} is {state}{_last_link_line(case)}")


def _last_link_line(case: Case) -> str:
    try:
        lines = re.findall(r"^.*(?:gmac|eth\d).*link.*down.*$", case.system.log, re.MULTILINE | re.IGNORECASE)
    except Skip:
        return ""
    return f"; log: {lines[-1].strip()}" if lines else ""


class Mac(_K1):
    """The MAC is the factory's, or made up at boot."""

    id = "k1-mac"
    title = "MAC address"
    cause = "All boards leave the factory with one MAC, and two of them on one switch confuse every ARP table."
    fixes = (Fix(("echo RANK=1 >/data/etc/k1/node.conf && reboot    # on each board another rank",)),)
    reference = "reference 000, 5.1"

    def _examine(self, case: Case) -> Outcome:
        mac = attribute(case, "address")
        if mac == case.board.network.factory_mac.value:
            return fail(f"{mac}, the one of every new board")
        kind = case.system.find(f"/sys/class/net/{interface(case)}/addr_assign_type")
        return warn(f"{mac}, another one at each boot") if kind == "1" else ok(mac)


class Mtu(_K1):
    """The MTU is not the cluster's."""

    id = "k1-mtu"
    title = "MTU"
    cause = "Jumbo frames are not on here, or the switch does not take them; nodes that differ lose large frames."
    fixes = (Fix(("ip link set eth0 mtu 9000", "ping -M do -s 8972 192.168.1.100    # from another node")),)
    reference = "reference 000, 2.3"

    def _examine(self, case: Case) -> Outcome:
        mtu, wanted = attribute(case, "mtu"), case.board.network.mtu.value
        return ok(mtu) if mtu == str(wanted) else warn(f"{mtu}, the cluster's is {wanted}")


class Pause(_K1):
    """Pause frames are negotiated."""

    id = "k1-pause"
    title = "pause frames"
    cause = "The driver advertises pause frames by default; cheap switches answer with floods of them (0x8808)."
    fixes = (Fix(("ethtool -A eth0 autoneg off rx off tx off",)),)
    reference = "reference 000, 5.1"

    def _examine(self, case: Case) -> Outcome:
        text = case.system.output("ethtool-pause", interface=interface(case))
        on = re.findall(r"^(RX|TX):\s+on", text, re.MULTILINE)
        return warn(f"{' and '.join(on)} on") if on else ok("off")


class Offloads(_K1):
    """TSO or LRO is off although the interface has it."""

    id = "k1-offloads"
    title = "TSO and LRO"
    cause = "The CPU cuts and joins TCP segments itself; the old vendor kernel (5.10) lacks these offloads."
    fixes = (Fix(("ethtool -K eth0 tso on lro on",)),)
    reference = "reference 000, 4.2"

    def _examine(self, case: Case) -> Outcome:
        text = case.system.output("ethtool-features", interface=interface(case))
        # "off [fixed]" is hardware without it.
        off = re.findall(r"^(tcp-segmentation-offload|large-receive-offload): off$", text, re.MULTILINE)
        return warn(f"{' and '.join(off)} off") if off else ok("on, or not in the hardware")


class Model(_K1):
    """The model file is not the one that was deployed."""

    id = "k1-model"
    title = "model file"
    cause = "The copy was cut short, or the eMMC wrote a wrong bit: it happens with large files."
    fixes = (Fix(("scp MODEL.gguf root@192.168.1.101:/opt/k1/models/model.gguf    # copy it again, then compare",)),)
    reference = "reference 000, 5.2 step 3"

    def _examine(self, case: Case) -> Outcome:
        model = inferd_setting(case.system, "model")
        if not model:
            raise Skip("inferd.conf names no model")
        recorded = case.system.text(f"{model}.sha256").split(" ")[0]
        found = case.system.output("model-sha256", model=model).split(" ")[0]
        return ok(found) if found == recorded else fail(f"{found}, recorded {recorded}")


class Context(_K1):
    """n_ctx does not fit in memory."""

    id = "k1-n-ctx"
    title = "n_ctx against memory"
    cause = "Weights, KV cache and scratch exceed the board's memory; k1-inferd refuses to start and says what fits."
    fixes = (Fix(("vi /data/etc/k1/inferd.conf    # n_ctx = the largest that fits", "/etc/init.d/S50inferd restart")),)
    reference = "reference 000, 5.2 step 4"

    def _examine(self, case: Case) -> Outcome:
        lines = re.findall(r"^.*k1-inferd.*(?: n_ctx=\d+| largest n_ctx that fits is \d+).*$", case.system.log, re.M)
        if not lines:
            raise Skip("the log has no start of k1-inferd")
        found = re.search(r"n_ctx \d+ needs .* fits is \d+|n_ctx=\d+", lines[-1])
        assert found
        return fail(found[0]) if "fits is" in found[0] else ok(found[0])


class Threads(_K1):
    """More compute threads than cores."""

    id = "k1-threads"
    title = "compute threads"
    cause = "Two threads of one core share its L1 cache and pipelines: four instead of two cost 18 % of the speed."
    fixes = (Fix(("vi /data/etc/k1/inferd.conf    # n_threads = 2, cpu_list = 0,2", "/etc/init.d/S50inferd restart")),)
    reference = "reference 000, 4.4"

    def _examine(self, case: Case) -> Outcome:
        given, cores = inferd_setting(case.system, "n_threads"), case.board.cpu.cores.value
        if not (given or "").isdecimal():
            return ok("n_threads is not set: one per core")
        text = f"n_threads = {given}, {cores} cores"
        return warn(text) if int(given or "") > cores else ok(text)


class Clock(_K1):
    """The date is wrong."""

    id = "k1-clock"
    title = "date"
    cause = "The board has no battery-backed clock and no time server: logs of several nodes cannot be compared."
    fixes = (Fix(("sed -i 's/^NTP_SERVERS=.*/NTP_SERVERS=\"192.168.1.1\"/' /etc/k1/board.conf && reboot",)),)
    reference = "board/k1/overlay/etc/init.d/S10clock"

    def _examine(self, case: Case) -> Outcome:
        text = case.system.output("date").strip()
        if not text.isdecimal():
            raise Skip("date does not tell seconds")
        shown = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(min(int(text), 1 << 36)))
        return warn(shown) if int(text) < OLDEST_CLOCK else ok(shown)


class Throttling(_K1):
    """The kernel holds the clock down because of heat."""

    id = "k1-throttling"
    title = "throttling"
    cause = "The board is too hot, or its supply too weak: 4.6 V instead of 5 V under load also resets it."
    fixes = (Fix(("cat /sys/class/thermal/thermal_zone*/temp    # give it air, and the maker's own 5 V/3 A supply",)),)
    reference = "reference 000, 4.1"

    def _examine(self, case: Case) -> Outcome:
        names = case.system.glob("/sys/class/thermal/cooling_device*/cur_state")
        if not names:
            raise Skip("the kernel knows no cooling device")
        active = [name.split("/")[-2] for name in names if case.system.find(name) not in ("0", None)]
        return warn(f"{', '.join(active)} active") if active else ok("no cooling device is active")


class Emmc(_K1):
    """The eMMC reports errors or is worn."""

    id = "k1-emmc"
    title = "eMMC"
    cause = "Flash cells are failing or used up; a model file of hundreds of MB is the first to show wrong bits."
    fixes = (Fix(("sha256sum /opt/k1/models/model.gguf    # compare, back up, and replace the board",)),)
    reference = "reference 000, 5.2 step 3"

    def _examine(self, case: Case) -> Outcome:
        errors = re.findall(r"^.*(?:I/O error.*mmcblk|mmcblk.*I/O error|mmc\d: .*error -\d+).*$", case.system.log, re.M)
        if errors:
            return fail(errors[-1].strip())
        folders = case.system.glob("/sys/block/mmcblk?/device/life_time")
        # JEDEC eMMC 5.1, EXT_CSD 267 to 269: life time in steps of 10 % (0x0b: exceeded), pre-EOL 2 warning, 3 urgent.
        for name in folders:
            used = max((int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", case.system.text(name))), default=0)
            eol = case.system.find(name.replace("life_time", "pre_eol_info")) or "0x01"
            text = f"life time 0x{used:02x}, pre_eol_info {eol}"
            if used >= 11 or eol == "0x03":
                return fail(text)
            if used >= 9 or eol == "0x02":
                return warn(text)
        return ok("no errors in the log" + ("" if folders else "; wear is not told"))


class Load(_K1):
    """The node has more to do than it can."""

    id = "k1-load"
    title = "load"
    cause = "More threads want to run than there are: the scheduler gives this node too many layers."
    fixes = (Fix(("# on http://192.168.1.100:8081 lower the node's cpu_weight from 1.0 to 0.7",)),)
    reference = "reference 000, 4.4 step 7"

    def _examine(self, case: Case) -> Outcome:
        words = case.system.text("/proc/loadavg").split()
        if len(words) < 3 or not re.fullmatch(r"\d+\.\d+", words[1]):
            raise Skip("/proc/loadavg has another form")
        text = f"{words[1]} over five minutes, limit {case.limits.max_load:g}"
        return warn(text) if float(words[1]) > case.limits.max_load else ok(text)


class OutOfMemory(_K1):
    """The kernel killed a program for want of memory."""

    id = "k1-oom"
    title = "out of memory"
    cause = "A worker that is killed shows on the head only as a failed socket write; the reason is here."
    fixes = (Fix(("vi /data/etc/k1/inferd.conf    # a smaller n_ctx", "/etc/init.d/S50inferd restart")),)
    reference = "public reports: a 2 GB worker dies"

    def _examine(self, case: Case) -> Outcome:
        found = re.findall(r"Out of memory: Killed process \d+ \([^)]*\)", case.system.log)
        return fail(found[-1]) if found else ok("nobody was killed")


CHECKS: tuple[Check, ...] = (
    *(Link(), Mac(), Mtu(), Pause(), Offloads(), Model(), Context(), Threads()),
    *(Clock(), Throttling(), Emmc(), Load(), OutOfMemory()),
)
