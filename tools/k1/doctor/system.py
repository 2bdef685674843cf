"""Where evidence comes from: this machine, or a folder that holds what was captured of one."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path

from k1.errors import K1Error
from k1.run import CommandTimeout, run

TOOL_SECONDS = 5.0
# Beside etc/, proc/ and sys/ in a captured tree: what the tools said.
TOOL_FOLDER = "k1-doctor"
TOOLS: dict[str, tuple[str, ...]] = {
    "date": ("date", "+%s"),
    "dmesg": ("dmesg",),
    "ethtool-features": ("ethtool", "-k", "{interface}"),
    "ethtool-pause": ("ethtool", "-a", "{interface}"),
    "hailo-identify": ("hailortcli", "fw-control", "identify"),
    "hailo-packages": ("dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\\n", "*hailo*"),
    "hailo-version": ("hailortcli", "--version"),
    "inferd-version": ("k1-inferd", "--version"),
    "model-sha256": ("sha256sum", "{model}"),
    "nvidia-smi": ("nvidia-smi", "--query-gpu=index,name,memory.used,memory.free", "--format=csv"),
}
LOGS = ("/data/log/messages", "/var/log/messages", "/var/log/kern.log", "/var/log/syslog")
_LOG_BYTES = 1 << 20


class Skip(Exception):
    """A check cannot run; the text says why."""


class System(ABC):
    """Files and tool output of one machine; `root` is the folder its absolute paths start from."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        """Where the machine's file of that absolute name lies."""
        return self.root / name.lstrip("/")

    def find(self, name: str) -> str | None:
        """The text of a file without white space around it; None when it is not there or not readable."""
        try:
            data = self.path(name).read_bytes()[-_LOG_BYTES:]
        except OSError:
            return None
        return data.decode(errors="replace").replace("\0", " ").strip()

    def text(self, name: str) -> str:
        """The text of a file, or `Skip`."""
        found = self.find(name)
        if found is None:
            raise Skip(f"{name} is not there or not readable")
        return found

    def glob(self, pattern: str) -> list[str]:
        """Names of the files and folders that match, sorted."""
        found = self.root.glob(pattern.lstrip("/"))
        return sorted(f"/{path.relative_to(self.root).as_posix()}" for path in found)

    def tool(self, name: str, **values: str) -> tuple[int, str]:
        """Exit status and output of a tool of `TOOLS`; `values` fill its braces. `Skip` when it cannot run."""
        argv = tuple(word.format(**values) if word.startswith("{") else word for word in TOOLS[name])
        return self._tool(name, argv)

    @abstractmethod
    def _tool(self, name: str, argv: tuple[str, ...]) -> tuple[int, str]:
        """The same, its command line complete."""

    def output(self, name: str, **values: str) -> str:
        """Output of a tool that must have succeeded, else `Skip`."""
        status, text = self.tool(name, **values)
        if status != 0:
            last = text.strip().splitlines()[-1:] or [f"status {status}"]
            raise Skip(f"{TOOLS[name][0]} failed: {last[0]}")
        return text

    @cached_property
    def log(self) -> str:
        """The kernel's log and the system's, as far as they can be read; `Skip` when none can."""
        texts = [text for name in LOGS if (text := self.find(name))]
        try:
            texts.insert(0, self.output("dmesg"))
        except Skip as reason:
            if not texts:
                raise Skip(f"no log: {reason}") from None
        return "\n".join(texts)

    @cached_property
    def hailo(self) -> str | None:
        """The PCI device folder of a Hailo accelerator (vendor 1e60)."""
        for name in self.glob("/sys/bus/pci/devices/*/vendor"):
            if self.find(name) == "0x1e60":
                return name.removesuffix("/vendor")
        return None

    @cached_property
    def numa_nodes(self) -> int:
        """NUMA nodes that have memory; 0 when the kernel does not say."""
        ranges = re.findall(r"(\d+)(?:-(\d+))?", self.find("/sys/devices/system/node/has_memory") or "")
        return sum(int(last or first) - int(first) + 1 for first, last in ranges)


class Live(System):
    """This machine."""

    def __init__(self, root: Path = Path("/")) -> None:
        super().__init__(root)
        self._ran: dict[tuple[str, ...], tuple[int, str]] = {}

    def _tool(self, name: str, argv: tuple[str, ...]) -> tuple[int, str]:
        if argv not in self._ran:
            try:
                done = run(argv, check=False, timeout=TOOL_SECONDS, env={"LC_ALL": "C"})
            except CommandTimeout:
                raise Skip(f"{argv[0]} did not end within {TOOL_SECONDS:.0f} s") from None
            except K1Error as error:
                raise Skip(error.message) from None
            except OSError as error:
                raise Skip(f"{argv[0]} cannot be started: {error.strerror}") from None
            self._ran[argv] = (done.returncode, done.output + done.stderr)
        return self._ran[argv]


class Captured(System):
    """A tree made by `k1 doctor capture`, or by hand."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            hint = "name a folder made by `k1 doctor capture`"
            raise K1Error(f"{root} is not a folder with a captured machine", hint=hint)
        if not any((root / name).is_dir() for name in ("proc", "sys", TOOL_FOLDER)):
            hint = "name the folder that holds proc/ and sys/, as `k1 doctor capture` makes it"
            raise K1Error(f"{root} has none of proc/, sys/ and {TOOL_FOLDER}/", hint=hint)
        super().__init__(root)

    def _tool(self, name: str, argv: tuple[str, ...]) -> tuple[int, str]:
        text = self.find(f"{TOOL_FOLDER}/{name}.out")
        if text is None:
            raise Skip(f"{argv[0]} was not there when the machine was captured")
        status = self.find(f"{TOOL_FOLDER}/{name}.status") or "0"
        return (int(status) if status.isdecimal() else 1), text
