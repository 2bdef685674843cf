"""Recordings of a console: the bytes as they are, and a view with a time before every line."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path

from k1.closing import Closing
from k1.drivers.console import Line, Output

STAMPED = ".stamped"


class Stamper:
    """Puts the time before every line of a stream of bytes, whatever the bytes are."""

    def __init__(self) -> None:
        self._is_at_start = True

    def feed(self, data: bytes, now: float) -> bytes:
        """The stamped bytes; `now` in seconds since 1970. A line gets the time of its first byte."""
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
        stamp = f"[{whole}.{int(now % 1 * 1000):03d}] ".encode()
        found = bytearray()
        # Only a line feed ends a line: serial consoles send carriage returns inside of lines too.
        for line in re.findall(rb"[^\n]*\n|[^\n]+", data):
            if self._is_at_start:
                found += stamp
            found += line
            self._is_at_start = line.endswith(b"\n")
        return bytes(found)


class Recorder(Closing):
    """What a board says, also to files; with `stamps`, what is read has times before its lines."""

    def __init__(self, output: Output, log: Path | None, *, stamps: bool) -> None:
        """log: takes the bytes as they are; beside it, with .stamped added to the name, a view with times.

        Both are added to when they exist.
        """
        self._output = output
        self._files = ExitStack()
        self._stamper = Stamper()
        self._stamps = stamps
        self._raw = self._stamped = None
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._raw = self._files.enter_context(log.open("ab"))
            self._stamped = self._files.enter_context(log.with_name(log.name + STAMPED).open("ab"))

    def close(self) -> None:
        """End the recording; the line itself stays open."""
        self._files.close()

    @property
    def is_on(self) -> bool:
        """Whether more can come."""
        return self._output.is_on

    def read(self, timeout: float) -> bytes:
        """What came since the last call, recorded."""
        data = self._output.read(timeout)
        if not data or not (self._stamps or self._raw):
            return data
        stamped = self._stamper.feed(data, time.time())
        for file, content in ((self._raw, data), (self._stamped, stamped)):
            if file:
                file.write(content)
                file.flush()
        return stamped if self._stamps else data


class RecordedLine(Recorder):
    """The same of a console that is typed on; what is typed is in no log, but for the board's echo."""

    def __init__(self, line: Line, log: Path | None, *, stamps: bool) -> None:
        super().__init__(line, log, stamps=stamps)
        self._line = line

    def fileno(self) -> int:
        """For select()."""
        return self._line.fileno()

    def send(self, text: str | bytes) -> None:
        """Type `text`."""
        self._line.send(text)
