"""`k1 doctor crash`: the five steps after a segmentation fault."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from k1 import board as boards
from k1 import output
from k1.cli.doctor_show import BOARD, JSON, leave, show
from k1.doctor import check
from k1.doctor import crash as steps
from k1.doctor.system import Live
from k1.errors import K1Error


def crash(
    program: Path | None = typer.Option(None, help="The program that crashed, with symbols."),
    core: Path | None = typer.Option(None, help="Its core file, of any architecture."),
    maps: Path | None = typer.Option(None, exists=True, dir_okay=False, help="A copy of its /proc/PID/maps."),
    model: Path | None = typer.Option(None, exists=True, dir_okay=False, help="The model it ran."),
    sha256: str = typer.Option("", help="The model's hash at its source."),
    n_ctx: int = typer.Option(2048, "--n_ctx", min=1, help="The context length it ran with."),
    cli: str = typer.Option("k1-cli", help="The k1-cli that tries one node alone."),
    board: str = BOARD,
    as_json: bool = JSON,
) -> None:
    """Go through the five steps after a segmentation fault. Exit code 3: warnings found, 4: failures found."""
    if core and not program:
        raise K1Error("--core needs --program", hint="name the program with its symbols")
    asked = steps.Crash(Live(), boards.load(board), program, core, maps, model, sha256, n_ctx, cli)
    findings = steps.examine(asked)
    if as_json:
        output.print_json([asdict(finding) for finding in findings])
    else:
        show(findings, show_all=True, several=False)
    leave(check.worst(findings))
