"""Watching boards boot: how far each is by its serial log, ready when a command runs over SSH."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from k1.drivers import qemu
from k1.drivers.console import tail
from k1.drivers.patience import scaled
from k1.drivers.ssh import Target
from k1.errors import CheckFailed

STAGES = {
    "OpenSBI": r"OpenSBI v\d",
    "U-Boot": r"U-Boot (SPL )?\d{4}\.",
    "Linux": r"Linux version \d",
    "init": r"Run \S+ as init process",
    "login": r"login: ",
}
POWER, READY = "power on", "ssh"


class NotReady(CheckFailed):
    """A board started but did not come up; it is left as it is, to be looked at."""


@dataclass
class Boot:
    """One board on its way up. `seconds` is when it was ready, counted from the start of the wait."""

    title: str
    log: Path
    process: psutil.Process
    target: Target
    stage: str = POWER
    seconds: float | None = None
    _size: int = field(default=-1, repr=False)

    def update(self) -> None:
        """Look at the serial log for the last stage reached; NotReady when the board went off."""
        size = self.log.stat().st_size
        if size != self._size:
            self._size = size
            text = self.text()
            self.stage = next((name for name in reversed(STAGES) if re.search(STAGES[name], text)), POWER)
        if not qemu.is_alive(self.process):
            raise NotReady(f"{self.title} went off while booting, last stage {self.stage}{tail(self.text())}")

    def text(self) -> str:
        """Everything the board has written on its serial port."""
        return self.log.read_text(errors="replace")


def wait(boots: Sequence[Boot], timeout: float, report: Callable[[Sequence[Boot]], None]) -> None:
    """Return when every board runs commands over SSH; `report` is called whenever one gets further.

    timeout: seconds, scaled; then NotReady names the boards that are not there, their stage and last words.
    """
    started = time.monotonic()
    stop = threading.Event()
    try:
        answers = [_Answer(boot.target, stop) for boot in boots]
        before: list[str] = []
        while True:
            for boot, answer in zip(boots, answers, strict=True):
                if boot.seconds is None and answer.came:
                    boot.stage, boot.seconds = READY, time.monotonic() - started
                elif boot.seconds is None:
                    boot.update()
            stages = [boot.stage for boot in boots]
            if stages != before:
                report(boots)
                before = stages
            missing = [boot for boot in boots if boot.seconds is None]
            if not missing:
                return
            if time.monotonic() - started > scaled(timeout):
                raise _too_late(missing, scaled(timeout))
            time.sleep(0.1)
    finally:
        stop.set()


class _Answer:
    """Asks a board again and again whether it answers; a daemon thread, so that a stuck ssh holds nobody up."""

    def __init__(self, target: Target, stop: threading.Event) -> None:
        self.came = False
        threading.Thread(target=self._ask, args=(target, stop), daemon=True).start()

    def _ask(self, target: Target, stop: threading.Event) -> None:
        while not stop.is_set() and not self.came:
            self.came = target.answers()
            stop.wait(0.2)


def _too_late(missing: Sequence[Boot], timeout: float) -> NotReady:
    parts = [f"{boot.title} is not on SSH, last stage {boot.stage}{tail(boot.text())}" for boot in missing]
    return NotReady(f"boards did not come up within {timeout:.0f} s\n" + "\n".join(parts))
