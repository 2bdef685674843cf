"""`k1 lab`: virtual boards that boot the real image."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from k1 import lab, output
from k1.drivers import boot
from k1.drivers.console import attach
from k1.run import require

app = typer.Typer(help="Virtual boards that boot the real image.", no_args_is_help=True)

_Name = typer.Option(lab.DEFAULT_NAME, "--name", help="Which lab; several can run side by side.")
_Rank = typer.Argument(..., metavar="N", help="Rank of the board, from 0.")
# Options behind N belong to the program on the board.
_PASS_ON = {"allow_interspersed_args": False, "ignore_unknown_options": True}


@app.command()
def up(
    count: int | None = typer.Option(None, "-n", "--count", min=1, help="Boards; default 4, or as many as there are."),
    name: str = _Name,
    memory: int | None = typer.Option(None, "--memory", metavar="MIB", help="Memory of a board; default: the board's."),
    ssh_port: int | None = typer.Option(None, "--ssh-port", metavar="BASE", help="SSH of board N on port BASE+N."),
    wait: bool = typer.Option(True, "--wait/--no-wait", help="Wait until every board answers on SSH."),
    timeout: float = typer.Option(lab.DEFAULT_TIMEOUT, "--timeout", min=1, help="Seconds to wait at most."),
) -> None:
    """Start boards and wait for them; those that run already are left alone."""
    started = time.monotonic()
    boards = start(lab.Lab(name), count, memory=memory, ssh_port=ssh_port, wait=wait, timeout=timeout)
    _show(boards)
    what = "boards on SSH" if wait else "boards started"
    output.note(f"{len(boards)} {what} after {output.duration(time.monotonic() - started)}")
    option = "" if name == lab.DEFAULT_NAME else f" --name {name}"
    for text in ("ssh{} 0", "console{} 0   (Ctrl-] leaves)", "status{}", "down{}"):
        output.note(f"  k1 lab {text.format(option)}")


def start(found: lab.Lab, count: int | None, **options: Any) -> list[lab.Status]:
    """Start the boards of a lab and show how far each is; `options` as of Lab.up."""
    with output.task(f"lab {found.name}") as task:

        def report(boots: Sequence[boot.Boot]) -> None:
            task.advance(sum(one.seconds is not None for one in boots), len(boots))
            task.detail("  ".join(f"{rank}:{one.stage}" for rank, one in enumerate(boots)))

        return found.up(count, report=report, **options)


@app.command()
def status(
    name: str = _Name,
    as_json: bool = typer.Option(False, "--json", help="As JSON."),
) -> None:
    """Show every board of a lab."""
    boards = lab.Lab(name).status()
    if as_json:
        output.print_json([asdict(board) for board in boards])
    else:
        _show(boards)


@app.command(context_settings=_PASS_ON)
def ssh(
    name: str = _Name,
    rank: int = _Rank,
    command: list[str] | None = typer.Argument(None, metavar="[COMMAND…]", help="What to run; none: a shell."),
) -> None:
    """Run a command on a board, or log in; its exit code is the command's."""
    words = lab.Lab(name).ssh(rank).command(*(command or []))
    sys.stdout.flush()
    os.execv(require(words[0]), words)  # noqa: S606


@app.command()
def console(name: str = _Name, rank: int = _Rank) -> None:
    """Connect to a board's serial console: all it has written, then live; Ctrl-] leaves."""
    with lab.Lab(name).console(rank) as opened:
        output.note(f"console of board {rank}; Ctrl-] leaves")
        attach(opened, sys.stdin.fileno(), sys.stdout.fileno())
    output.note("\nleft the console" if opened.is_on else "\nthe board went off")


@app.command()
def kill(name: str = _Name, rank: int = _Rank) -> None:
    """Cut a board's power; `k1 lab up` starts it again with its disk."""
    lab.Lab(name).kill(rank)


@app.command()
def cut(
    name: str = _Name,
    rank: int = _Rank,
    restore: bool = typer.Option(False, "--restore", help="Plug it in again."),
) -> None:
    """Unplug a board from the cluster's network; SSH and console still work."""
    lab.Lab(name).cut(rank, restore=restore)


@app.command()
def down(
    name: str = _Name,
    keep: bool = typer.Option(False, "--keep", help="Shut down properly and keep the disks for the next up."),
) -> None:
    """Take the power from all boards and remove the lab."""
    if not lab.Lab(name).down(keep=keep):
        output.note(f"there is no lab {name}")


def _show(boards: Sequence[lab.Status]) -> None:
    table = output.table("rank", "host", "state", "pid", "ssh", "API", "MAC", "address", "up")
    for board in boards:
        state = f"{board.state}, cut" if board.link == "cut" else board.state
        uptime = output.duration(board.uptime) if board.pid else "-"
        shown = (board.rank, board.hostname, state, board.pid or "-", board.ssh_port, board.api_port)
        table.add_row(*map(str, shown), board.mac, board.address, uptime)
    output.out.print(table)
    output.note(f"serial ports: {Path(boards[0].console).parents[1]}/nodeN/serial.sock, all they wrote: serial.log")
