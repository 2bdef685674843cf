"""What the subcommands of `k1 doctor` share: options, findings and remedies as a person sees them, exit codes."""

from __future__ import annotations

import typer
from rich.text import Text

from k1 import output
from k1.doctor.check import Finding, Verdict
from k1.errors import Exit, K1Error

JSON = typer.Option(False, "--json", help="As JSON.")
MIN_CMA = typer.Option(None, "--min-cma", min=1, help="Contiguous memory that an NPU needs, in MB (256).")
MAX_VRAM = typer.Option(None, "--max-vram", min=1, help="VRAM that must be free on a card, in MB (22500).")
THRESHOLDS = typer.Option(None, "--thresholds", exists=True, dir_okay=False, help="TOML file with other limits.")
BOARD = typer.Option("k1", "--board", "-b", help="Board whose facts the nodes of a cluster must meet.")
STYLE = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.SKIP: "dim"}
_EXIT = {Verdict.OK: Exit.OK, Verdict.WARN: Exit.WARNINGS, Verdict.FAIL: Exit.FAILURES}


def leave(verdict: Verdict) -> None:
    """End the command with the exit code of its worst verdict."""
    raise typer.Exit(_EXIT[verdict])


def show(findings: list[Finding], *, show_all: bool, several: bool) -> None:
    """The findings as a table, then each that is bad with its cause and fixes."""
    table = output.table(*(["machine"] if several else []), "", "check", "found")
    table.columns[-1].overflow = "fold"  # hashes, whose ends differ
    shown = [finding for finding in findings if show_all or finding.verdict is not Verdict.SKIP]
    for found in shown:
        cells = [found.where] if several else []
        table.add_row(*cells, Text(found.verdict, STYLE[found.verdict]), found.id, Text(found.evidence))
    output.out.print(table)
    for found in findings:
        if found.verdict in (Verdict.WARN, Verdict.FAIL):
            _explain(found, several=several)
    if not shown:
        output.note("no check applies to this machine")
    if skipped := sum(finding.verdict is Verdict.SKIP for finding in findings):
        output.note(f"{skipped} checks skipped" + ("" if show_all else "; --all shows why"))


def _explain(found: Finding, *, several: bool) -> None:
    where = f"{found.where}: " if several else ""
    output.out.print()
    output.out.print(Text(f"{where}{found.title} ({found.id})", STYLE[found.verdict]), soft_wrap=True)
    print_remedy(found.cause, [fix.commands for fix in found.fixes], found.reference)


def print_remedy(cause: str, fixes: list[tuple[str, ...]], reference: str = "") -> None:
    """The cause, the ways to mend it as commands, and where that is from."""
    output.out.print(f"  cause: {cause}", markup=False, soft_wrap=True)
    for number, commands in enumerate(fixes):
        for line, command in enumerate(commands):
            lead = ("  fix:   " if number == 0 else "  or:    ") if line == 0 else "         "
            output.out.print(lead + command, markup=False, soft_wrap=True)
    if reference:
        output.out.print(f"  from:  {reference}", markup=False, soft_wrap=True)


def read_line(prompt: str) -> str:
    """A line from the user; the end of the input is a user error."""
    output.err.print(prompt, end="", markup=False)
    try:
        return input().strip()
    except EOFError as error:
        raise K1Error("there is nobody to answer", hint="give the answers as options") from error
