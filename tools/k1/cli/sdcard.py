"""`k1 sdcard`: write a card image to an SD card or eMMC."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import typer

from k1 import board as boards
from k1 import output, sdcard
from k1.drivers import blockdev
from k1.errors import K1Error

app = typer.Typer(help="Write a card image to an SD card or eMMC.", no_args_is_help=True)

_Json = typer.Option(False, "--json", help="As JSON.")


@app.command(name="list")
def list_(json: bool = _Json) -> None:
    """List the disks of this machine, and which of them k1 would write to."""
    disks = blockdev.Host().disks()
    if json:
        output.print_json([asdict(disk) for disk in disks])
        return
    table = output.table("device", "model", "size", "a card?")
    for disk in disks:
        state = "this system" if disk.is_system else "in use" if disk.uses else "yes" if disk.is_removable else "fixed"
        table.add_row(str(disk.node), disk.model, output.size(disk.size) if disk.size else "no card", state)
    output.out.print(table)


@app.command()
def write(
    device: Path = typer.Argument(..., help="The whole card, such as /dev/sdb; or a plain file."),
    board: str = typer.Option("k1", "--board", "-b", help="Whose image (see: k1 board list)."),
    file: Path | None = typer.Option(None, "--file", "-f", help="Another image."),
    device_ok: bool = typer.Option(False, "--device-ok", help="Also a disk that is not removable: eMMC, some readers."),
    any_file: bool = typer.Option(False, "--any-file", help="Also an image that this tree's build did not make."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask before a card is overwritten."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Check everything; write nothing."),
    json: bool = _Json,
) -> None:
    """Write an image to a card and compare it; after an interruption, repeat the command to go on."""
    image, sha256 = sdcard.image(boards.load(board), file, any_file=any_file)
    size = image.stat().st_size
    target = sdcard.target(device, size, device_ok=device_ok)
    if dry_run:
        output.note(f"would write {image} ({output.size(size)}) to {target}")
        return
    if target.disk and not target.disk.is_loop and not yes:
        _ask(target)
    with output.task(f"{image.name} to {target.path}") as task:

        def report(step: str, done: int, total: int) -> None:
            task.advance(done, total)
            rate = output.size(int(done / max(task.seconds, 0.001)))
            task.detail(f"{step}: {output.size(done)} of {output.size(total)}, {rate}/s")

        outcome = sdcard.write(image, sha256, target, report)
    if json:
        output.print_json(asdict(outcome))
        return
    table = output.table("target", "image", "written", "zeroed", "was right", "time", "verified")
    amounts = (output.size(count) for count in (outcome.written, outcome.zeroed, outcome.kept))
    table.add_row(outcome.target, image.name, *amounts, output.duration(outcome.seconds), "yes")
    output.out.print(table)


def _ask(target: sdcard.Target) -> None:
    if not sys.stdin.isatty():
        raise K1Error(f"{target} would be overwritten, and there is nobody to ask", hint="add --yes")
    if not typer.confirm(f"overwrite all of {target}?", err=True):
        raise K1Error("nothing was written", hint="k1 sdcard list shows the cards")
