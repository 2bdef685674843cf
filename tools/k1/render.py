"""Templates: every `*.j2` of a board becomes a file in the build tree, the same bytes each time."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2

from k1.board import Board
from k1.errors import K1Error
from k1.files import write
from k1.typedtoml import read_text, shown

_SUFFIX = ".j2"
# Names of the files that the last call wrote into a folder, so that strangers in it are left alone.
_LIST = ".rendered"

_ENVIRONMENT = jinja2.Environment(
    undefined=jinja2.StrictUndefined,
    autoescape=False,  # noqa: S701 - configuration files, not HTML
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
)

Status = Literal["new", "changed", "same", "removed"]


@dataclass(frozen=True)
class Change:
    """What rendering does to one file; `path` is relative to the target folder."""

    path: Path
    status: Status


@dataclass(frozen=True)
class _Step:
    """A change with the texts before and after, and the file mode after."""

    change: Change
    old: str
    new: str
    mode: int


def render(board: Board, folders: Sequence[Path], target: Path) -> list[Change]:
    """Render every `*.j2` below `folders` to the same place below `target`, without the suffix.

    A template hides that of the same name in a former folder.
    A file that is right already is not touched. One that a former call wrote and that has no template any more is
    removed. Nothing is written when any template has a fault (`K1Error` with template, line and variable).
    """
    steps = list(_plan(board, folders, target))
    for step in steps:
        path = target / step.change.path
        if step.change.status == "removed":
            _remove(path, target)
        elif step.change.status != "same":
            write(path, step.new, mode=step.mode)
    kept = "".join(f"{s.change.path.as_posix()}\n" for s in steps if s.change.status != "removed")
    if kept != _list(target):
        write(target / _LIST, kept)
    return [step.change for step in steps]


def changes(board: Board, folders: Sequence[Path], target: Path) -> list[Change]:
    """What `render` would do; nothing is written."""
    return [step.change for step in _plan(board, folders, target)]


def diff(board: Board, folders: Sequence[Path], target: Path) -> str:
    """What `render` would change, as a unified diff; empty for no change. Nothing is written."""
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for step in _plan(board, folders, target)
        for line in difflib.unified_diff(
            step.old.splitlines(keepends=True),
            step.new.splitlines(keepends=True),
            "/dev/null" if step.change.status == "new" else f"a/{step.change.path.as_posix()}",
            "/dev/null" if step.change.status == "removed" else f"b/{step.change.path.as_posix()}",
        )
    )


def render_text(template: Path, board: Board, **extra: Any) -> str:
    """The text of one template, with `board` and `extra` as its variables. A fault is a `K1Error`."""
    source = read_text(template)
    try:
        code = _ENVIRONMENT.compile(source, template.name, str(template))
        return jinja2.Template.from_code(_ENVIRONMENT, code, _ENVIRONMENT.make_globals(None)).render(
            board=board, **extra
        )
    except jinja2.TemplateSyntaxError as error:
        hint = "mend the template's syntax at that line"
        raise K1Error(f"{shown(template)}:{error.lineno}: {error.message}", hint=hint) from error
    except Exception as error:  # A template's expressions can raise anything.
        raise _fault(template, source, board, error) from error


def _fault(template: Path, source: str, board: Board, error: Exception) -> K1Error:
    """The error of an expression, with its line: jinja2 puts the template's own lines into the traceback."""
    line, trace = 1, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == str(template):
            line = trace.tb_lineno
        trace = trace.tb_next
    hint = f"`k1 board show {board.name}` lists the facts; one that is not published must be given in board.toml"
    return K1Error(f"{shown(template)}:{line}: {error}, in: {source.splitlines()[line - 1].strip()}", hint=hint)


def _plan(board: Board, folders: Sequence[Path], target: Path) -> Iterator[_Step]:
    """Every step, in the order of the paths; all templates are rendered before the first is yielded."""
    wanted = {
        name.with_suffix(""): (render_text(template, board), _mode(template))
        for name, template in _templates(folders).items()
    }
    former = {Path(name) for name in _list(target).splitlines()}
    for path in sorted(wanted.keys() | former):
        file = target / path
        exists = file.is_file()
        old = file.read_bytes().decode(errors="replace") if exists else ""
        if path not in wanted:
            yield _Step(Change(path, "removed"), old, "", 0)
            continue
        new, mode = wanted[path]
        same = exists and old == new and _mode(file) == mode
        status: Status = "same" if same else "changed" if exists else "new"
        yield _Step(Change(path, status), old, new, mode)


def _templates(folders: Sequence[Path]) -> dict[Path, Path]:
    """Name → template; those of later folders win."""
    return {path.relative_to(folder): path for folder in folders for path in folder.rglob(f"*{_SUFFIX}")}


def _mode(path: Path) -> int:
    return 0o755 if os.access(path, os.X_OK) else 0o644


def _list(target: Path) -> str:
    path = target / _LIST
    return path.read_text() if path.is_file() else ""


def _remove(path: Path, target: Path) -> None:
    """Remove a file and the folders that it leaves empty."""
    path.unlink(missing_ok=True)
    for folder in path.parents:
        if folder == target or not folder.is_dir() or any(folder.iterdir()):
            break
        folder.rmdir()
