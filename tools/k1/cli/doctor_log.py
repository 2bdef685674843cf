"""`k1 doctor log`: what the lines of a log mean."""

from __future__ import annotations

import typer
from rich.text import Text

from k1 import output
from k1.cli.doctor_show import JSON, STYLE, leave, print_remedy
from k1.doctor import signatures
from k1.doctor.check import Verdict


def log(
    file: typer.FileText = typer.Argument(..., errors="replace", help="A log, or - for standard input."),
    as_json: bool = JSON,
) -> None:
    """Say what the lines of a log mean. Exit code 3: warnings found, 4: failures found."""
    known = signatures.load()
    hits = signatures.scan(file, known)
    if as_json:
        rows = [
            {"count": hit.count, "line_number": hit.number, "line": hit.line} | hit.signature.model_dump(mode="json")
            for hit in hits
        ]
        output.print_json(rows)
    for hit in hits if not as_json else []:
        times = f", {hit.count} times" if hit.count > 1 else ""
        title = f"line {hit.number}{times}: {hit.signature.id} ({hit.signature.area})"
        output.out.print(Text(title, STYLE[Verdict(hit.signature.found)]), soft_wrap=True)
        output.out.print(f"  | {hit.line}", markup=False, soft_wrap=True)
        print_remedy(hit.signature.cause, [(fix,) for fix in hit.signature.fix], hit.signature.reference)
        output.out.print()
    if not hits:
        output.note(f"none of the {len(known)} known faults is in this log")
    leave(signatures.worst(hits))
