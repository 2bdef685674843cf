"""`k1 kconfig`: check defconfigs and fragments before a build does, or does not, tell."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from k1 import board as boards
from k1 import output
from k1.errors import Exit, K1Error
from k1.kconfig import check as checker
from k1.kconfig import table as tables
from k1.kconfig import tree

app = typer.Typer(help="Check defconfigs and fragments against a Kconfig tree.", no_args_is_help=True)


@app.command()
def check(
    files: list[Path] = typer.Argument(..., help="Defconfigs or fragments; later ones go on top of former ones."),
    source: Path | None = typer.Option(
        None, "--source", "-s", help="A Buildroot, Linux or U-Boot tree; without, Buildroot names and types only."
    ),
    base: Path | None = typer.Option(None, help="A defconfig below the files, not checked itself."),
    allnoconfig: bool = typer.Option(False, help="What no file names is off, as for the virtual board's kernel."),
    external: list[Path] = typer.Option([], help="A BR2_EXTERNAL tree; may be given several times."),
    arch: str = typer.Option("riscv", help="The kernel's ARCH."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Tell of each line that Kconfig would drop or change, and why."""
    for path in [*files, *([base] if base else [])]:
        if not path.is_file():
            raise K1Error(f"{path} is no file", hint="give a defconfig or fragment")
    if source is None and (base or external or allnoconfig):
        raise K1Error("--base, --external and --allnoconfig need --source", hint="give the tree they belong to")
    if source:
        found = checker.check(files, source, externals=external, base=base, allnoconfig=allnoconfig, arch=arch)
    else:
        found = tables.check(files, tables.path(boards.load("k1").software.buildroot.value))
    if as_json:
        output.print_json([asdict(finding) for finding in found])
    else:
        for finding in found:
            output.out.print(str(finding), markup=False, soft_wrap=True)
        lines = "1 line" if len(found) == 1 else f"{len(found)} lines"
        output.note(f"{lines} will not be as written" if found else "every line will be as written")
        if source is None:
            output.note("dependencies were not looked at: that needs the tree, --source DIR")
    if found:
        raise typer.Exit(
            Exit.WARNINGS if all(finding.fault in checker.HARMLESS for finding in found) else Exit.FAILURES
        )


@app.command()
def table(source: Path = typer.Option(..., "--source", "-s", help="A Buildroot tree.")) -> None:
    """Print the table for checks without the tree, to be kept in tools/k1/data/."""
    if tree.kind(source) != "buildroot":
        raise K1Error(f"{source} is no Buildroot tree", hint="give the top folder of one")
    print(tables.make(tree.read(source), tree.buildroot_version(source)), end="")
