"""What a person sees: messages and progress on stderr, results on stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """Write `value` for a program: JSON on stdout, nothing else."""
    json.dump(value, sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")


def table(*columns: str) -> Table:
    """An empty table in the tool's one style."""
    found = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        found.add_column(column)
    return found


def note(text: str) -> None:
    """One line for the user that is neither a result nor an error."""
    err.print(text, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """One line about something that may hurt later."""
    err.print("k1: warning:", text, style="yellow", markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Seconds for people: `0.4 s`, `43 s`, `5:45`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def size(count: int) -> str:
    """Bytes for people, in powers of 1000 as the budgets of board.toml are."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


class Task:
    """A running piece of work; tell it how far it is."""

    def __init__(self, progress: Progress | None, title: str) -> None:
        self._progress = progress
        self._id = progress.add_task(title, total=None, detail="") if progress else None
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time since the task began."""
        return time.monotonic() - self.started

    def detail(self, text: str) -> None:
        """Show what is being done just now."""
        if self._progress and self._id is not None:
            self._progress.update(self._id, detail=text[:60])

    def advance(self, done: float, total: float) -> None:
        """Show how much is done, in any unit."""
        if self._progress and self._id is not None:
            self._progress.update(self._id, completed=done, total=total)


@contextmanager
def task(title: str) -> Iterator[Task]:
    """Show `title` with a spinner, a bar and the elapsed time; on a pipe or file, a line at the start."""
    if not err.is_terminal:
        note(f"{title} …")
        yield Task(None, title)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}", style="dim", markup=False),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        yield Task(progress, title)
