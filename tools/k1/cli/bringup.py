"""`k1 bringup`: watch boards come up, and say what is wrong when they do not."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import typer

from k1 import board as boards
from k1 import bringup as library
from k1 import files, output, signatures, timeline
from k1.bootstate import READY, STAGES, Bringup
from k1.bringup import Board
from k1.drivers import serialport
from k1.drivers.console import tail
from k1.errors import CheckFailed, Exit, K1Error
from k1.lab import Lab
from k1.record import Recorder


def bringup(
    ports: list[str] = typer.Argument(None, metavar="[PORT]…", help="Serial lines, named as for k1 console."),
    all_: bool = typer.Option(False, "--all", help="Every USB serial adapter."),
    lab: str | None = typer.Option(None, "--lab", metavar="NAME", help="The virtual boards of this lab, switched on."),
    count: int | None = typer.Option(None, "-n", "--count", min=1, help="With --lab: boards."),
    power_cycle: bool = typer.Option(False, "--power-cycle", help="With --lab: running boards lose power first."),
    until: str = typer.Option(READY, "--until", help=f"The last stage wanted: {', '.join(STAGES[1:])}."),
    board: str = typer.Option("k1", "--board", "-b", help="Whose line settings (see: k1 board list)."),
    log_dir: Path | None = typer.Option(None, "--log-dir", help="Record each console to a file there."),
    svg: Path | None = typer.Option(None, "--svg", help="Draw the boot timeline to this file."),
    json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Watch boards from power-on until k1-inferd is ready; a failure is told with its cause and remedy."""
    if lab is None and (count or power_cycle):
        raise K1Error("-n and --power-cycle need --lab", hint="add --lab NAME")
    if lab is not None and (ports or all_):
        raise K1Error("--lab excludes serial lines and --all", hint="drop one of them")
    if until not in STAGES[1:]:
        raise K1Error(f"no stage named {until}", hint=f"one of {', '.join(STAGES[1:])}")
    knowledge = signatures.load()
    line = boards.load(board).serial.line.value
    if lab is not None:
        source = library.in_lab(Lab(lab), count, power_cycle=power_cycle)
    else:
        names = ports or (list(serialport.adapters()) if all_ else []) or [serialport.only_adapter()]
        source = library.on_serial(names, line)
    with source as found, contextlib.ExitStack() as stack, output.task("bring-up") as task:
        if lab is None:
            output.note("switch the power on now")
        if log_dir:
            for one in found:
                log = log_dir / f"{one.title.strip('/').replace('/', '-')}.log"
                one.output = stack.enter_context(Recorder(one.output, log, stamps=False))

        def report(runs: Sequence[Bringup]) -> None:
            task.advance(sum(len(run.reached) for run in runs), len(runs) * (STAGES.index(until) + 1))
            task.detail("  ".join(f"{i}:{run.stage or 'off'}" for i, run in enumerate(runs)))

        runs = library.watch(found, knowledge, until=until, report=report)
    _finish(found, runs, svg, as_json=json)


def _finish(found: Sequence[Board], runs: Sequence[Bringup], svg: Path | None, *, as_json: bool) -> None:
    both = list(zip(found, runs, strict=True))
    if svg:
        reached = {board.title: run.reached for board, run in both}
        failed = {board.title: run.failure.signature for board, run in both if run.failure}
        files.write(svg, timeline.svg(reached, failed, STAGES))
    if as_json:
        output.print_json([library.as_data(board, run) for board, run in both])
    else:
        table = output.table("board", "state", *STAGES)
        for board, run in both:
            times = (output.duration(run.reached[name]) if name in run.reached else "-" for name in STAGES)
            table.add_row(board.title, run.state, *times)
        output.out.print(table)
    for board, run in both:
        for finding in run.findings:
            output.warn(
                f"{board.title}: {finding.signature}: {finding.cause}\n  | {finding.line}\n  try: {finding.remedy}"
            )
    failures = [_failure(board, run) for board, run in both if run.failure]
    if failures:
        raise CheckFailed("\n".join((f"{len(failures)} of {len(both)} boards did not come up", *failures)))
    if any(run.findings for run in runs):
        raise typer.Exit(Exit.WARNINGS)


def _failure(board: Board, run: Bringup) -> str:
    finding = run.failure
    assert finding
    where = f"{board.title}: stopped before {run.waits_for}: {finding.signature}: {finding.cause}"
    return f"{where}{tail(chr(10).join(run.tail))}\n  try: {finding.remedy}"
