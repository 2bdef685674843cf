"""A board on a serial line: a pty that comes and goes under one name, as an adapter on the board's power does."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import threading
import time
import tty
from collections.abc import Iterable
from pathlib import Path


class SerialBoard:
    """The far end of the line whose device is `path`; off at first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._master = -1
        self._player: threading.Thread | None = None

    def __enter__(self) -> SerialBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.power_off()

    def power_on(self, banner: bytes = b"") -> None:
        """The device appears; `banner` is said before anybody can have opened it."""
        self._master, slave = pty.openpty()
        tty.setraw(slave)  # else it echoes until somebody opens it
        os.write(self._master, banner)
        new = self.path.with_suffix(".new")
        new.symlink_to(os.ttyname(slave))
        new.replace(self.path)
        self._slave = slave

    def power_off(self) -> None:
        """The device is gone; who has it open gets an error."""
        master, self._master = self._master, -1
        if master < 0:
            return
        self.path.unlink()
        os.close(self._slave)
        os.close(master)
        if self._player:
            self._player.join()
            self._player = None

    def say(self, data: bytes) -> None:
        """Send all of `data`, as fast as it is taken."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._master, view) :]

    def play(self, parts: Iterable[tuple[float, bytes]]) -> None:
        """Send each text, the given seconds after the one before, on a thread."""

        def run() -> None:
            with contextlib.suppress(OSError):
                for seconds, text in parts:
                    time.sleep(seconds)
                    self.say(text)

        self._player = threading.Thread(target=run, daemon=True)
        self._player.start()

    def heard(self, wanted: bytes, seconds: float = 10.0) -> bytes:
        """What was typed, once it ends with `wanted` or the time is over."""
        data, deadline = b"", time.monotonic() + seconds
        while not data.endswith(wanted) and time.monotonic() < deadline:
            if select.select([self._master], [], [], 0.1)[0]:
                data += os.read(self._master, 1024)
        return data
