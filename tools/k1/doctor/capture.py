"""A machine as a folder: exactly the files and tool outputs that the checks look at, without personal data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from k1 import files
from k1.board import Board
from k1.doctor import fleet, signatures
from k1.doctor.catalogue import CHECKS
from k1.doctor.check import Case, load_limits
from k1.doctor.system import TOOL_FOLDER, Live
from k1.errors import K1Error

# Lines of logs that checks look for, besides those of known faults; all others are left out.
_LOG_LINE = re.compile(
    r"hailo|\bcma\b|rknpu|rkllm|rknn|gmac|\beth\d|mmc(?:blk)?\d|k1-inferd|\bk1: |Out of memory", re.I
)
_LOG_NAME = re.compile(r"/log/|dmesg")


class Recorder(Live):
    """This machine, keeping all that is read of it."""

    def __init__(self, root: Path = Path("/")) -> None:
        super().__init__(root)
        self.texts: dict[str, str] = {}
        self.names: set[str] = set()

    def find(self, name: str) -> str | None:
        """As `System.find`; the text is kept."""
        text = super().find(name)
        if text is not None:
            self.texts[name] = text
        return text

    def glob(self, pattern: str) -> list[str]:
        """As `System.glob`; the names are kept."""
        found = super().glob(pattern)
        self.names.update(found)
        return found

    def _tool(self, name: str, argv: tuple[str, ...]) -> tuple[int, str]:
        status, text = super()._tool(name, argv)
        self.texts[f"/{TOOL_FOLDER}/{name}.out"] = text
        if status:
            self.texts[f"/{TOOL_FOLDER}/{name}.status"] = str(status)
        return status, text


def capture(recorder: Recorder, board: Board, target: Path) -> int:
    """Write what the checks see to the folder `target`, which must be new or empty; returns the number of files."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise K1Error(f"{target} is not empty", hint="name a new folder")
    case = Case(recorder, load_limits(), board)
    for check in CHECKS:
        check.run(case, "here")
    fleet.compare({"a": case, "b": case})
    clean = _cleaner(recorder, board.network.mac_base.value[:14])
    for name, text in recorder.texts.items():
        lines = _log_lines(text) if _LOG_NAME.search(name) else text
        files.write(target / name.lstrip("/"), clean(lines).strip() + "\n")
    for name in recorder.names - recorder.texts.keys():
        (target / name.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (target / "proc").mkdir(exist_ok=True)
    return len(recorder.texts)


def _log_lines(text: str) -> str:
    known = signatures.load()
    lines = text.splitlines()
    return "\n".join(
        line for line in lines if _LOG_LINE.search(line) or any(s.regex.search(line.lower()) for s in known)
    )


def _cleaner(recorder: Recorder, cluster: str) -> Callable[[str], str]:
    """What takes names, addresses and serial numbers out of a text; MACs of the cluster stay."""
    rules = [
        (re.compile(r"\b([0-9a-f]{2}:[0-9a-f]{2}:[0-9a-f]{2})(?::[0-9a-f]{2}){3}\b", re.I), _mac(cluster)),
        (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), lambda _: "user@removed"),
        (re.compile(r"(?<![\w:])(?:(?:[0-9a-f]{1,4}:){7}|(?:[0-9a-f]{1,4}:){1,6}:)[0-9a-f:]*", re.I), lambda _: "ipv6"),
        (re.compile(r"\b(?!127\.|0\.0\.0\.0|192\.168\.1\.)(?:\d{1,3}\.){3}\d{1,3}\b"), lambda _: "ipv4"),
        (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.I), lambda _: "uuid"),
        (re.compile(r"(serial ?(?:number)?\s*[:=]\s*)[^\s,;]+", re.I), lambda found: f"{found[1]}removed"),
        (re.compile(r"(/home/)[^/\s,;]+"), lambda found: f"{found[1]}user"),
    ]
    for name, instead in _names(recorder):
        rules.append((re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])"), lambda _, instead=instead: instead))  # type: ignore[misc]

    def clean(text: str) -> str:
        for pattern, instead in rules:
            text = pattern.sub(instead, text)
        return text

    return clean


def _mac(cluster: str) -> Callable[[re.Match[str]], str]:
    return lambda found: found[0] if found[0].lower().startswith(cluster) else f"{found[1]}:00:00:00"


def _names(recorder: Recorder) -> list[tuple[str, str]]:
    """Names of the host and of people, and what stands for them."""
    host = _own(recorder, "/etc/hostname") or os.uname().nodename
    rows = [line.split(":") for line in _own(recorder, "/etc/passwd").splitlines()]
    people = [row[0] for row in rows if len(row) > 2 and row[2].isdecimal() and 1000 <= int(row[2]) < 65534]
    return [(name, "user") for name in people] + ([] if re.fullmatch(r"k1(-\d+)?", host) else [(host, "host")])


def _own(recorder: Recorder, name: str) -> str:
    """A file that tells names; it is not captured itself."""
    path = recorder.path(name)
    return path.read_text(errors="replace").strip() if path.is_file() else ""
