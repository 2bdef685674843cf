"""A board's serial console: everything since power-on, then live.

QEMU writes all output to a log from the first byte on, so nothing is lost before a reader comes. The socket
carries the input, and tells when there is something new in the log.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import psutil

from k1 import files
from k1.closing import Closing
from k1.drivers import qemu, unixsocket
from k1.drivers.patience import scaled
from k1.errors import CheckFailed

ESCAPE = b"\x1d"  # Ctrl-]
_TAIL = 15


class Output(Protocol):
    """What a board says: of a virtual board, or on a serial line."""

    @property
    def is_on(self) -> bool:
        """False once nothing more can come."""

    def read(self, timeout: float) -> bytes:
        """The output since the last call, waiting for some up to `timeout` seconds."""


class Line(Output, Protocol):
    """A console to type on too."""

    def fileno(self) -> int:
        """For select(): readable when there may be output."""

    def send(self, text: str | bytes) -> None:
        """Type `text`."""


class Listener(Closing):
    """All that a board says, by QEMU's log alone.

    QEMU 7.2 logs a byte again each time the console's socket has no room for it. A reader that is not always quick
    therefore must not hold the socket.
    """

    def __init__(self, folder: Path, process: psutil.Process) -> None:
        """Listen to the board in `folder`, which `process` runs; to be closed by the caller."""
        self._log = (folder / qemu.SERIAL_LOG).open("rb")
        self._process = process
        self.is_on = True

    def close(self) -> None:
        """End listening."""
        self._log.close()

    def read(self, timeout: float) -> bytes:
        """The output since the last call, waiting for some up to `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            was_on = qemu.is_alive(self._process)
            if data := self._log.read():
                return data
            self.is_on = was_on
            if not was_on or time.monotonic() >= deadline:
                return b""
            time.sleep(0.05)


class Console(Closing):
    """The console of one board; one holder at a time, because two would share the input."""

    def __init__(self, folder: Path, title: str) -> None:
        """Open the console of the board in `folder`; `title` names it in errors. K1Error when it is held or off."""
        self._title = title
        self._held = contextlib.ExitStack()
        self._held.enter_context(files.locked(folder / "console.lock", f"the console of {title}"))
        try:
            self._log = self._held.enter_context((folder / qemu.SERIAL_LOG).open("rb"))
            self._socket = self._held.enter_context(unixsocket.connect(folder / qemu.SERIAL, scaled(5.0)))
        except OSError as error:
            self._held.close()
            raise CheckFailed(f"{title} is off: its serial port does not answer ({error})", hint="k1 lab up") from error
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self.is_on = True

    def close(self) -> None:
        """Leave the console to the next holder."""
        self._held.close()

    def fileno(self) -> int:
        """For select(): readable when there may be output, or when the board went off."""
        return self._socket.fileno()

    def read(self, timeout: float) -> bytes:
        """The output since the last call, waiting for some up to `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            self._drain()
            data = self._log.read()
            left = deadline - time.monotonic()
            if data or left <= 0 or not self.is_on:
                return data
            select.select([self._socket], [], [], min(left, 0.1))

    def send(self, text: str | bytes) -> None:
        """Type `text`; a carriage return is what Enter sends."""
        data = text.encode() if isinstance(text, str) else text
        deadline = time.monotonic() + scaled(30.0)
        while data and self.is_on:
            if not select.select([], [self._socket], [], 0.1)[1]:
                self._drain()
                if time.monotonic() > deadline:
                    raise CheckFailed(f"{self._title} does not take input on its serial port")
                continue
            try:
                data = data[self._socket.send(data[:256]) :]
            except (BrokenPipeError, ConnectionResetError):
                self.is_on = False
        if data:
            raise CheckFailed(f"{self._title} is off", hint="k1 lab up")

    def expect(self, pattern: str, timeout: float) -> re.Match[str]:
        """Wait until `pattern` appears after what was matched before; `timeout` in seconds, scaled."""
        deadline = time.monotonic() + scaled(timeout)
        while True:
            if found := re.search(pattern, self._text):
                self._text = self._text[found.end() :]
                return found
            left = deadline - time.monotonic()
            data = self.read(max(left, 0))
            self._keep(data)
            if data:
                continue
            if not self.is_on:
                raise CheckFailed(f"{self._title} went off before /{pattern}/ appeared{tail(self._text)}")
            if left <= 0:
                raise CheckFailed(f"{self._title}: no /{pattern}/ within {scaled(timeout):.0f} s{tail(self._text)}")

    def _drain(self) -> None:
        """Throw away the socket's copy of the output; left there, QEMU would wait for us."""
        while self.is_on and select.select([self._socket], [], [], 0)[0]:
            try:
                self.is_on = bool(self._socket.recv(65536))
            except ConnectionResetError:
                self.is_on = False

    def _keep(self, data: bytes) -> None:
        self._text += self._decoder.decode(data)


def tail(text: str) -> str:
    """The last lines of console output, set off for an error message."""
    lines = [line for line in (line.strip() for line in text.splitlines()) if line]
    return "".join(f"\n  | {line}" for line in lines[-_TAIL:]) or "\n  | (no output at all)"


def attach(console: Line, source: int, target: int) -> None:
    """Connect the descriptors `source` and `target` to the console, until Ctrl-] or until the board goes off.

    A source that ends (a pipe) leaves the console once the board has been quiet for two seconds.
    """
    open_end: int | None = source
    quiet_since = time.monotonic()
    with _raw(source):
        while console.is_on:
            if data := console.read(0):
                _write(target, data)
                quiet_since = time.monotonic()
            if open_end is None and time.monotonic() - quiet_since > scaled(2.0):
                return
            wanted = [console.fileno()] if open_end is None else [console.fileno(), open_end]
            if open_end in select.select(wanted, [], [], 0.1)[0]:
                typed = os.read(source, 1024)
                keys, escape, _ = typed.partition(ESCAPE)
                console.send(keys)
                if escape:
                    return
                if not typed:
                    open_end, quiet_since = None, time.monotonic()
        _write(target, console.read(0))


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


@contextlib.contextmanager
def _raw(source: int) -> Iterator[None]:
    """Pass every key on, Ctrl-C too, while a person types; a pipe is left as it is."""
    if not os.isatty(source):
        yield
        return
    before = termios.tcgetattr(source)
    try:
        tty.setraw(source)
        yield
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)
