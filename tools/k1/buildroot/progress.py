"""Buildroot's output: which package is at what, and a log of its own for each."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

from k1 import output

_BOLD = re.compile(r"\x1b(\[[0-9;]*m|\(B)")
_MARK = re.compile(r">>> (?P<name>\S*) (?P<version>\S*) (?P<step>.*)")
_OWN = "buildroot"  # what make does between the packages
_TAIL = 30


class Follower:
    """Takes make's output line by line: shows packages and steps, and writes `<folder>/<package>.log`."""

    def __init__(self, task: output.Task, folder: Path, total: int) -> None:
        self.package = _OWN
        self.step = ""
        self._task, self._folder, self._total = task, folder, total
        self._seen: set[str] = set()
        self._tail: deque[str] = deque(maxlen=_TAIL)

    def __call__(self, line: str) -> None:
        """Take one line."""
        line = _BOLD.sub("", line)
        if mark := _MARK.match(line):
            self._enter(mark["name"] or _OWN, mark["step"].strip())
        self._tail.append(line)
        with self.log.open("a") as stream:
            stream.write(f"{line}\n")

    @property
    def log(self) -> Path:
        """The log of the package that is being built."""
        return self._folder / f"{self.package}.log"

    def tail(self) -> str:
        """The last lines of that package, indented for an error message."""
        return "".join(f"\n  | {line}" for line in self._tail)

    def _enter(self, package: str, step: str) -> None:
        if package != self.package:
            self._tail.clear()
            self.package = package
            if package not in self._seen:
                self.log.unlink(missing_ok=True)  # that of a former build
        self._seen.add(package)
        self.step = step
        self._task.detail(f"{package}: {step}")
        self._task.advance(len(self._seen - {_OWN}), max(self._total, len(self._seen)))
