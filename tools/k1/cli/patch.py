"""`k1 patch`: the patches for the vendor's sources, rendered against the tree they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from k1 import board as boards
from k1 import output, paths
from k1.errors import Exit, K1Error
from k1.facts import Fact
from k1.patches import series, template
from k1.patches.series import Patch
from k1.patches.template import Component

app = typer.Typer(help="Render and check the patches for the vendor's sources.", no_args_is_help=True)

_COMPONENT = typer.Option(..., "--component", "-c", help=f"{', '.join(template.COMPONENTS)}.")
_SOURCE = typer.Option(..., "--source", "-s", help="Top folder of the vendor's source tree; it is only read.")
_BOARD = typer.Option("k1", "--board", "-b", help="Board whose facts go into the patches.")
_SKIP = typer.Option([], "--skip", help="Leave a patch out, by its name or number (0002); may be given several times.")
_JSON = typer.Option(False, "--json", help="Print JSON.")


_STYLES = {"fits": "green", "present": "green", "unconfirmed": "yellow", "fault": "red"}


@app.command(name="list")
def list_(board: str = _BOARD, as_json: bool = _JSON) -> None:
    """List the patches, the facts they rest on, and whether silicon has confirmed these."""
    facts = dict(boards.load(board).facts())
    rows: list[dict[str, Any]] = []
    for component in template.COMPONENTS:
        for path in template.paths(component):
            outline = template.outline(path)
            states = {key: _state(facts[key]) for key in outline.facts}
            rows.append({"component": component, "subject": outline.subject, "facts": states})
    if as_json:
        output.print_json(rows)
        return
    table = output.table("component", "subject", "rests on")
    for row in rows:
        table.add_row(row["component"], row["subject"], "\n".join(f"{key}: {is_}" for key, is_ in row["facts"].items()))
    output.out.print(table)


@app.command()
def check(
    component: str = _COMPONENT,
    source: Path = _SOURCE,
    board: str = _BOARD,
    skip: list[str] = _SKIP,
    as_json: bool = _JSON,
) -> None:
    """Tell which patches fit the tree, which it has already, and which do not fit; write nothing."""
    patches = series.check(_component(component), boards.load(board), source, skip)
    _show(patches, as_json=as_json)
    states = {patch.state for patch in patches}
    if "fault" in states:
        raise typer.Exit(Exit.FAILURES)
    if "unconfirmed" in states:
        raise typer.Exit(Exit.WARNINGS)


@app.command()
def render(
    component: str = _COMPONENT,
    source: Path = _SOURCE,
    board: str = _BOARD,
    skip: list[str] = _SKIP,
    into: Path | None = typer.Option(None, "--output", "-o", help="Folder; by default build/BOARD/patches/COMPONENT."),
    as_json: bool = _JSON,
) -> None:
    """Write the patches that fit the tree, with a series file; a patch that does not fit stops it before that."""
    name = _component(component)
    patches = series.check(name, boards.load(board), source, skip)
    series.refuse_faults(patches)
    folder = into or paths.build_dir(board) / "patches" / name
    written = series.write(patches, folder)
    _show(patches, as_json=as_json)
    for patch in patches:
        if patch.state == "unconfirmed":
            output.warn(f"{patch.name} is not rendered: {patch.detail}")
    output.note(f"{folder}: {len(written)} patches; apply with `git am --keep-cr` or `quilt push -a`")


def _component(name: str) -> Component:
    for known in template.COMPONENTS:
        if name == known:
            return known
    raise K1Error(f"no component named {name}", hint=f"one of {', '.join(template.COMPONENTS)}")


def _state(fact: Fact[Any] | None) -> str:
    return "not published" if fact is None else "confirmed" if fact.confirmed else "unconfirmed"


def _show(patches: list[Patch], *, as_json: bool) -> None:
    if as_json:
        keys = ("name", "subject", "state", "detail", "confirmed")
        output.print_json([{key: getattr(patch, key) for key in keys} for patch in patches])
        return
    table = output.table("patch", "state", "detail")
    table.columns[0].overflow = "fold"
    for patch in patches:
        table.add_row(patch.name, Text(patch.state, style=_STYLES.get(patch.state, "")), Text(patch.detail))
    output.out.print(table)
