"""`k1 flash`: write firmware to boards in USB download mode."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from k1 import board as boards
from k1 import flash, output
from k1.drivers import dfu, usb
from k1.errors import CheckFailed, Exit, K1Error

app = typer.Typer(help="Write firmware to boards in USB download mode (DFU).", invoke_without_command=True)

_Board = typer.Option("k1", "--board", "-b", help="Kind of board (see: k1 board list).")
_Json = typer.Option(False, "--json", help="As JSON.")


@app.callback()
def write(
    context: typer.Context,
    board: str = _Board,
    file: Path | None = typer.Option(None, "--file", "-D", help="What to write; by default the built OpenSBI."),
    path: list[str] = typer.Option([], "--path", "-p", help="Place of a board on the USB, such as 1-1.4; repeatable."),
    serial: list[str] = typer.Option([], "--serial", "-S", help="Serial number of a board; repeatable."),
    all_: bool = typer.Option(False, "--all", help="Every board in download mode, side by side."),
    count: int | None = typer.Option(None, "--count", "-n", min=1, help="With --all: this many boards at least."),
    wait: bool = typer.Option(False, "--wait", "-w", help="Wait for the boards to come."),
    timeout: float = typer.Option(120.0, "--timeout", min=0.1, help="Seconds that --wait waits at most."),
    any_file: bool = typer.Option(False, "--any-file", help="Also a file that this tree's build did not make."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Check everything and show what would run; write nothing."),
    json: bool = _Json,
) -> None:
    """Write firmware to one board, or with --all to every one."""
    if context.invoked_subcommand:
        return
    if all_ and (path or serial):
        raise K1Error("--all excludes --path and --serial", hint="drop one of them")
    if count is not None and not all_:
        raise K1Error("--count needs --all", hint="add --all")
    profile = boards.load(board)
    firmware = flash.firmware(profile, file, any_file=any_file)
    wanted = flash.Wanted(tuple(path), tuple(serial), all_, count or 1)
    if wait:
        output.note(f"waiting up to {timeout:.0f} s for boards in download mode")
    devices = flash.find(profile, wanted, wait=timeout if wait else None)
    if dry_run:
        _show_plan(profile, devices, firmware, as_json=json)
        return
    with output.task(f"writing {firmware.path.name}") as task:

        def report(sent: dict[str, int]) -> None:
            done, size = sum(sent.values()), len(firmware.data) * len(devices)
            task.advance(done, size)
            rate = output.size(int(done / max(task.seconds, 0.001)))
            task.detail(f"{output.size(done)} of {output.size(size)}, {rate}/s")

        outcomes = flash.write(profile, devices, firmware, report)
    _show(outcomes, as_json=json)


def _show_plan(board: boards.Board, devices: Sequence[usb.Device], firmware: flash.Firmware, *, as_json: bool) -> None:
    rows = [
        {
            "path": device.path,
            "serial": device.serial,
            "file": str(firmware.path),
            "bytes": len(firmware.data),
            "sha256": firmware.sha256,
            "command": shlex.join([*dfu.command(device, board.dfu.alt.value), "-D", str(firmware.path), "-R"]),
        }
        for device in devices
    ]
    if as_json:
        output.print_json(rows)
        return
    for row in rows:
        output.out.print(row["command"], markup=False, soft_wrap=True)
    output.note(f"{firmware.path}: {len(firmware.data)} bytes, SHA-256 {firmware.sha256}; nothing was written")


def _show(outcomes: Sequence[flash.Outcome], *, as_json: bool) -> None:
    failed = [outcome for outcome in outcomes if outcome.error]
    if as_json:
        output.print_json([asdict(outcome) for outcome in outcomes])
    else:
        table = output.table("board", "serial", "result", "bytes", "time", "rate")
        for one in outcomes:
            result = "FAILED" if one.error else "written, read back" if one.verified else "written"
            rate = f"{output.size(int(one.bytes / max(one.seconds, 0.001)))}/s"
            table.add_row(one.path, one.serial, result, str(one.bytes), output.duration(one.seconds), rate)
        output.out.print(table)
    for one in outcomes:
        if not one.error and not one.reset:
            output.warn(f"{one.path}: written, but it did not reset: switch it off and on")
    if failed:
        text = "".join(f"\n  {one.path}: {one.error}" for one in failed)
        raise CheckFailed(f"{len(failed)} of {len(outcomes)} boards failed{text}")
    if any(not one.reset for one in outcomes):
        raise typer.Exit(Exit.WARNINGS)


@app.command(name="list")
def list_(board: str = _Board, json: bool = _Json) -> None:
    """List the boards in download mode."""
    wanted = boards.load(board).dfu.usb_id.value
    found = [device for device in usb.devices() if device.usb_id == wanted and device.dfu]
    if json:
        output.print_json([asdict(device) | {"node": str(device.node)} for device in found])
        return
    table = output.table("path", "id", "serial", "product", "mode", "node")
    for device in found:
        mode = "run-time" if device.dfu and device.dfu.is_run_time else "download"
        table.add_row(device.path, device.usb_id, device.serial, device.product, mode, str(device.node))
    output.out.print(table)


@app.command(name="install-udev")
def install_udev(
    board: str = _Board,
    target: Path = typer.Option(flash.RULES, "--target", help="The rules file."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the rules; write nothing."),
) -> None:
    """Let users write boards without root: install a udev rule. It needs root itself, once."""
    text = flash.rules(boards.load(board))
    if dry_run:
        print(text, end="")
        return
    if flash.install_rules(text, target):
        output.note(f"{target} is in force; boards that are connected have it too")
    else:
        output.note(f"{target} is written; no udev runs here to read it")
