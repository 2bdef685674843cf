"""`k1 userland`: build the C programs and run their tests."""

from __future__ import annotations

import os

import typer

from k1 import files, output, paths, userland

app = typer.Typer(help="Build the userland's C programs.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def build(
    flavour: list[str] = typer.Option(
        ["native"], "--flavour", "-f", help=f"{', '.join(userland.FLAVOURS)}; may be given several times."
    ),
    test: bool = typer.Option(False, "--test", help="Run the unit tests too, where needed under qemu-user."),
    jobs: int = typer.Option(len(os.sched_getaffinity(0)), "--jobs", "-j", min=1, help="Parallel compilations."),
) -> None:
    """Build one or several flavours in build/userland/<flavour>."""
    with files.locked(paths.build_dir("userland") / "lock", "the build of the userland"):
        for name in flavour:
            folder = userland.build(name, jobs=jobs, test=test)
            output.note(f"{name}: {'tested' if test else 'built'} in {folder}")


@app.command()
def flavours(as_json: bool = typer.Option(False, "--json", help="As JSON.")) -> None:
    """List the flavours."""
    if as_json:
        output.print_json({name: flavour.about for name, flavour in userland.FLAVOURS.items()})
        return
    table = output.table("flavour", "for")
    for name, flavour in userland.FLAVOURS.items():
        table.add_row(name, flavour.about)
    output.out.print(table)
