"""`k1 render`: a board's templates into the build tree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import typer

from k1 import board as boards
from k1 import render as renderer
from k1.output import note, out, print_json
from k1.paths import build_dir


def render(
    board: str = typer.Option("virt", "--board", help="Name of a board."),
    only_diff: bool = typer.Option(False, "--diff", help="Show what would change; write nothing."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Render the templates (*.j2) of a board, and of those it extends, into build/BOARD/rendered."""
    facts, target = boards.load(board), build_dir(board) / "rendered"
    if only_diff and not as_json:
        print(renderer.diff(facts, facts.folders, target), end="")
        return
    done = (
        renderer.changes(facts, facts.folders, target) if only_diff else renderer.render(facts, facts.folders, target)
    )
    if as_json:
        print_json([{"path": change.path.as_posix(), "status": change.status} for change in done])
    else:
        _report(done, target)


def _report(done: list[renderer.Change], target: Path) -> None:
    for change in done:
        if change.status != "same":
            out.print(f"{change.status:8} {change.path}", markup=False, soft_wrap=True)
    counts = Counter(change.status for change in done)
    note(f"{target}: " + (", ".join(f"{n} {status}" for status, n in counts.items()) or "no templates"))
