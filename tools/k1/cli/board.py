"""`k1 board`: which boards there are, and what is known about one."""

from __future__ import annotations

import typer
from rich.text import Text

from k1 import board as boards
from k1.output import out, print_json, table

app = typer.Typer(help="List boards and show their facts.", no_args_is_help=True)

_JSON = typer.Option(False, "--json", help="Print JSON.")


@app.command(name="list")
def list_(as_json: bool = _JSON) -> None:
    """List the boards below board/."""
    found = [boards.load(name) for name in boards.names()]
    if as_json:
        print_json([{"name": b.name, "title": b.title, "builder": b.builder, "extends": b.extends} for b in found])
        return
    rows = table("name", "title", "builder", "extends")
    for b in found:
        rows.add_row(b.name, b.title, b.builder, b.extends or "")
    out.print(rows)


@app.command()
def show(name: str = typer.Argument(..., help="Name of a board."), as_json: bool = _JSON) -> None:
    """Show a board's facts, each with its source and whether silicon has confirmed it."""
    found = boards.load(name)
    if as_json:
        print_json({key: fact and fact.model_dump(mode="json") for key, fact in found.facts()})
        return
    rows = table("key", "value", "source", "confirmed")
    rows.columns[0].no_wrap = True
    rows.columns[1].overflow = "fold"
    for key, fact in found.facts():
        if fact:
            rows.add_row(key, Text(str(fact)), Text(fact.source), "yes" if fact.confirmed else "no")
        else:
            rows.add_row(key, "not published", "the board's owner", "no")
    out.print(rows)
