"""`k1 console`: a board's serial line."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from k1 import board as boards
from k1 import output
from k1.drivers import serialport
from k1.drivers.console import attach
from k1.record import STAMPED, RecordedLine


def console(
    port: str | None = typer.Argument(
        None, help="Device, place on the USB (1-1.4) or URL (socket://HOST:PORT); by default the one adapter."
    ),
    board: str = typer.Option("k1", "--board", "-b", help="Whose line settings (see: k1 board list)."),
    baud: int | None = typer.Option(None, "--baud", min=1200, max=4_000_000, help="Another speed than the board's."),
    log: Path | None = typer.Option(None, "--log", help=f"Add every byte to FILE, lines with times to FILE{STAMPED}."),
    times: bool = typer.Option(False, "--times", "-t", help="Show the time before every line."),
    list_: bool = typer.Option(False, "--list", help="List the USB serial adapters."),
    json: bool = typer.Option(False, "--json", help="With --list: as JSON."),
) -> None:
    """Connect to a board's serial line; Ctrl-] leaves. A line that vanishes with the board's power is opened again."""
    if list_:
        _list(as_json=json)
        return
    line = boards.load(board).serial.line.value
    line = line.model_copy(update={"baud": baud}) if baud else line
    name = port or serialport.only_adapter()

    def note(text: str) -> None:
        output.note(f"\r\nk1: {text}\r")  # the terminal is raw

    with (
        serialport.SerialPort(name, line, on_change=note) as opened,
        RecordedLine(opened, log, stamps=times) as recorder,
    ):
        output.note(f"{name} at {line}; Ctrl-] leaves")
        attach(recorder, sys.stdin.fileno(), sys.stdout.fileno())
    output.note("\nleft the console")


def _list(*, as_json: bool) -> None:
    found = serialport.adapters()
    if as_json:
        output.print_json([{"device": device, "usb": place} for device, place in found.items()])
        return
    table = output.table("device", "USB")
    for device, place in found.items():
        table.add_row(device, place)
    output.out.print(table)
