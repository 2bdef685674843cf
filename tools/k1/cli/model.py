"""`k1 model`: models for the cluster."""

from __future__ import annotations

import typer

from k1 import model as models
from k1 import output, paths

app = typer.Typer(help="Models for the cluster.", no_args_is_help=True)


@app.command(name="list")
def list_(as_json: bool = typer.Option(False, "--json", help="As JSON.")) -> None:
    """List the models that can be fetched."""
    cache = paths.cache_dir()
    if as_json:
        output.print_json({n: m.model_dump() | {"path": str(models.path(n, cache))} for n, m in models.known().items()})
        return
    table = output.table("name", "title", "size", "license", "in the cache")
    for name, model in models.known().items():
        here = models.path(name, cache).is_file()
        table.add_row(name, model.title, output.size(model.size), model.license, "yes" if here else "no")
    output.out.print(table)


@app.command()
def fetch(name: str = typer.Argument(..., help="A name of `k1 model list`.")) -> None:
    """Bring a model into the cache, checked by its hash, and print where it is."""
    with output.task(f"model {name}") as task:
        found = models.fetch(name, paths.cache_dir(), task)
    print(found)
