"""Machines that have no Python: a small shell script, sent over SSH, prints what the checks look at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from k1.board import Board
from k1.doctor import system
from k1.doctor.check import Finding, Fix, Verdict
from k1.doctor.script import bash_word
from k1.doctor.system import LOGS, TOOL_FOLDER, Skip, System
from k1.errors import CheckFailed, K1Error
from k1.render import render_text
from k1.run import run

_TEMPLATE = Path(__file__).parents[1] / "data" / "doctor" / "collect.sh.j2"
_SECONDS = 120.0
_CONNECT_SECONDS = 10
# Every file that a check reads; a test holds the verdicts of collected machines against those of captured ones.
FILES = (
    *LOGS,
    "/boot/armbianEnv.txt",
    "/data/etc/k1/inferd.conf",
    "/etc/k1/board.conf",
    "/etc/k1/inferd.conf",
    "/proc/buddyinfo",
    "/proc/cpuinfo",
    "/proc/device-tree/compatible",
    "/proc/device-tree/model",
    "/proc/driver/nvidia/version",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/rknpu/version",
    "/proc/self/limits",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/kernel/osrelease",
    "/sys/block/mmcblk?/device/life_time",
    "/sys/block/mmcblk?/device/pre_eol_info",
    *(f"/sys/bus/pci/devices/*/{name}" for name in ("vendor", "device")),
    *(f"/sys/bus/pci/devices/*/{end}_link_{name}" for end in ("current", "max") for name in ("speed", "width")),
    "/sys/class/net/*/addr_assign_type",
    "/sys/class/net/*/address",
    "/sys/class/net/*/mtu",
    "/sys/class/net/*/operstate",
    "/sys/class/thermal/cooling_device*/cur_state",
    "/sys/devices/system/cpu/cpu*/cpufreq/scaling_driver",
    "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    "/sys/devices/system/node/has_memory",
    "/sys/kernel/debug/rknpu/version",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/module/hailo*/version",
    *(
        f"/{folder}/python3*/*-packages/ktransformers-*.dist-info/METADATA"
        for folder in ("usr/lib", "usr/local/lib", "opt/*/lib", "opt/*/envs/*/lib")
    ),
)


class Collected(System):
    """A machine as the script printed it."""

    def __init__(self, text: str) -> None:
        super().__init__(Path("/"))
        self.texts = _parse(text)
        folders = {str(folder) for name in self.texts for folder in PurePosixPath(name).parents}
        self._names = sorted((self.texts.keys() | folders) - {"/"})

    def find(self, name: str) -> str | None:
        """As `System.find`."""
        return self.texts.get(f"/{name.lstrip('/')}")

    def glob(self, pattern: str) -> list[str]:
        """As `System.glob`."""
        wanted = re.compile(_expression(f"/{pattern.lstrip('/')}"))
        return [name for name in self._names if wanted.fullmatch(name)]

    def _tool(self, name: str, argv: tuple[str, ...]) -> tuple[int, str]:
        text = self.find(f"{TOOL_FOLDER}/{name}.out")
        if text is None:
            raise Skip(f"{argv[0]} is not installed there")
        status = self.find(f"{TOOL_FOLDER}/{name}.status") or "0"
        return (int(status) if status.isdecimal() else 1), text


def _expression(pattern: str) -> str:
    """A shell pattern, whose signs stop at a slash, as a regular expression."""
    signs = {"*": "[^/]*", "?": "[^/]"}
    return "".join(signs.get(char) or re.escape(char) for char in pattern)


def _parse(text: str) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("/"):
            lines = texts.setdefault(line, [])
        elif line.startswith(" "):
            lines.append(line[1:])
    return {name: "\n".join(lines).strip() for name, lines in texts.items()}


def collector(board: Board) -> str:
    """The script's text."""
    return render_text(
        _TEMPLATE,
        board,
        patterns=" ".join(f'"$ROOT"{name}' for name in FILES),
        tools=[(name, " ".join(map(bash_word, argv))) for name, argv in sorted(system.TOOLS.items())],
        mac_prefix=board.network.mac_base.value[:14],
        folder=TOOL_FOLDER,
        seconds=f"{system.TOOL_SECONDS:.0f}",
    )


def ssh(host: str) -> list[str]:
    """The ssh command line for a host, with the user's own SSH settings and known hosts."""
    if host.startswith("-") or not host.strip():
        raise K1Error(f"not a host: {host!r}", hint="--host root@192.168.1.101")
    return ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}", "--", host]


def collect(command: Sequence[str], board: Board) -> Collected:
    """Ask the machine behind an ssh command line; one that cannot be reached is a `CheckFailed`."""
    done = run([*command, "sh", "-s"], stdin=collector(board), check=False, timeout=_SECONDS)
    found = Collected(done.output)
    if not found.texts:
        last = (done.stderr.strip().splitlines() or [f"ssh ended with status {done.returncode}"])[-1]
        raise CheckFailed(f"nothing came back: {last}")
    return found


def unreachable(where: str, reason: str) -> Finding:
    """The finding for a machine that could not be asked."""
    return Finding(
        where=where,
        id="ssh",
        title="reached over SSH",
        applies_to="a host given by --host or --lab",
        verdict=Verdict.FAIL,
        evidence=reason,
        cause="The node is off, its network is down, or its host key or your key is not known to the other.",
        fixes=(Fix((f"ssh {where} true", "k1 doctor ask k1-network")),),
        reference="docs/doctor.md",
    )
