"""Bring-up: watch boards come up on their serial consoles, stage by stage, and say what is wrong when they do not."""

from __future__ import annotations

import codecs
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from k1.bootstate import READY, STAGES, Bringup, State
from k1.drivers.console import Output
from k1.drivers.serialport import SerialPort
from k1.errors import K1Error
from k1.facts import SerialLine
from k1.lab import Lab
from k1.signatures import Knowledge


@dataclass
class Board:
    """A board to be watched: its name, what it says, and when its power came on, if that is known (time.monotonic)."""

    title: str
    output: Output
    power: float | None = None


@contextlib.contextmanager
def on_serial(names: Sequence[str], line: SerialLine) -> Iterator[list[Board]]:
    """Boards on serial lines; whoever stands at the desk switches them on, and with them may be their adapters."""
    with contextlib.ExitStack() as stack:
        yield [Board(name, stack.enter_context(SerialPort(name, line, wait=True))) for name in names]


@contextlib.contextmanager
def in_lab(lab: Lab, count: int | None, *, power_cycle: bool = False) -> Iterator[list[Board]]:
    """The boards of a lab, switched on. Boards that run already are a K1Error, or lose their power first."""
    if lab.is_on and not power_cycle:
        text = f"boards of lab {lab.name} run already"
        raise K1Error(text, hint="--power-cycle takes their power and starts them anew")
    if lab.is_on:
        for status in lab.status():
            if status.pid:
                lab.kill(status.rank)
    boards = lab.up(count, wait=False)
    now = time.monotonic()
    with contextlib.ExitStack() as stack:
        yield [
            Board(f"{lab.name}:{status.rank}", stack.enter_context(lab.listen(status.rank)), now - status.uptime)
            for status in boards
        ]


def watch(
    boards: Sequence[Board],
    knowledge: Knowledge,
    *,
    until: str = READY,
    report: Callable[[Sequence[Bringup]], None] = lambda all_: None,
) -> list[Bringup]:
    """Watch until every board is ready or has failed; `report` is called whenever one gets further."""
    now = time.monotonic()
    runs = [Bringup(knowledge, now, until) for _ in boards]
    decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in boards]
    for board, run in zip(boards, runs, strict=True):
        if board.power is not None:
            run.power(board.power)
    before: list[tuple[str, State]] = []
    while True:
        is_quiet = True
        for board, run, decoder in zip(boards, runs, decoders, strict=True):
            if run.state == "booting":
                is_quiet = not _step(board, run, decoder) and is_quiet
        now_at = [(run.stage, run.state) for run in runs]
        if now_at != before:
            report(runs)
            before = now_at
        if all(run.state != "booting" for run in runs):
            return runs
        if is_quiet:
            time.sleep(0.05)


def _step(board: Board, run: Bringup, decoder: codecs.IncrementalDecoder) -> bool:
    """Take what a console has to say now; whether it said anything."""
    data = board.output.read(0)
    now = time.monotonic()
    run.feed(decoder.decode(data), now)
    if data or board.output.is_on:
        run.tick(now)
    else:
        run.end(now)
    return bool(data)


def as_data(board: Board, run: Bringup) -> dict[str, Any]:
    """A board's report, for programs: state, stages with their times, what was found."""
    return {
        "board": board.title,
        "state": run.state,
        "stage": run.stage,
        "waited_for": run.waits_for if run.state == "failed" else None,
        "stages": [{"stage": name, "seconds": run.reached[name]} for name in STAGES if name in run.reached],
        "restarts": run.restarts,
        "failure": asdict(run.failure) if run.failure else None,
        "warnings": [asdict(finding) for finding in run.findings],
        "last_lines": run.tail if run.state == "failed" else [],
    }
