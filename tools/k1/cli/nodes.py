"""`k1 status`, `k1 logs` and `k1 run`: look at the nodes of a fleet."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from pathlib import Path

import typer
from rich.live import Live
from rich.table import Table

from k1 import fleet as fleets
from k1 import output
from k1.cli.deploy import JSON, LIMIT, PARALLEL
from k1.cli.fleet import FILE
from k1.deploy import service, status
from k1.deploy.probe import probe
from k1.deploy.session import Node, Session
from k1.errors import Exit
from k1.run import run as run_program

_lock = threading.Lock()


def show_status(
    file: Path = FILE,
    watch: float | None = typer.Option(None, "--watch", min=0.2, help="Again every so many seconds, until Ctrl-C."),
    as_json: bool = JSON,
) -> None:
    """Show load, memory, temperature, ports, layers, speed and hashes of all nodes; what drifts is flagged."""
    with Session(fleets.read(file)) as session:
        api = service.Api(session)
        found = status.collect(session, api)
        if watch is not None and not as_json:
            with Live(_table(found), console=output.out, auto_refresh=False) as live:
                while True:
                    time.sleep(watch)
                    live.update(_table(status.collect(session, api)), refresh=True)
    if as_json:
        output.print_json(asdict(found))
    else:
        output.out.print(_table(found))
        _tell(found)
    if not found.serves:
        raise typer.Exit(Exit.FAILURES)
    if not found.is_well:
        raise typer.Exit(Exit.WARNINGS)


def _table(found: status.Status) -> Table:
    table = output.table("node", "load", "memory", "temp", "ports", "layers", "release", "model", "image", "drift")
    for row in found.nodes:
        heat = f"{row.temperature:.0f} °C" if row.temperature is not None else "-"
        layers = f"{row.layers[0]}-{row.layers[1]}" if row.layers else "-"
        used = f"{row.memory_used}/{row.memory} M" if row.reached else "-"
        cells = (f"{row.load:.2f}", used, heat, " ".join(row.ports) or "-", layers, row.release[:8] or "image")
        table.add_row(row.name, *cells, row.model or "-", row.image or "-", "; ".join(row.drift))
    return table


def _tell(found: status.Status) -> None:
    if not found.serves:
        output.warn(f"the cluster does not serve: {found.reason}")
        return
    speed = f", last answer {found.tokens_per_s} tokens/s" if found.tokens_per_s else ""
    output.note(f"serves: {found.running} running, {found.waiting} waiting{speed}")


def logs(
    limit: list[str] = typer.Argument(None, metavar="[NODE…]", help="Nodes; none means all."),
    file: Path = FILE,
    lines: int = typer.Option(20, "-n", "--lines", min=1, help="Lines of each node."),
    follow: bool = typer.Option(False, "--follow", help="Go on as lines come, until Ctrl-C."),
) -> None:
    """Print the daemons' logs, each line with its node."""
    with Session(fleets.read(file), limit or ()) as session:

        def show(node: Node) -> None:
            words = node.serving(service.log(probe(node), lines, follow=follow))
            run_program(words, log=node.log, on_line=lambda line: _line(node, line), check=False)

        session.each("logs", session.nodes, show)


def run(
    command: list[str] = typer.Argument(..., help="What to run, as root; after -- when it has options."),
    file: Path = FILE,
    limit: list[str] = LIMIT,
    parallel: int = PARALLEL,
) -> None:
    """Run a command on all nodes; each line of its output comes with its node. 4 when it fails on any."""
    with Session(fleets.read(file), limit, parallel) as session:

        def act(node: Node) -> int:
            result = node.ask(" ".join(command), timeout=600)
            for line in (result.output + result.stderr).splitlines():
                _line(node, line)
            return result.returncode

        statuses = session.each("run", session.nodes, act)
    failed = {name: code for name, code in statuses.items() if code != 0}
    if failed:
        output.warn("failed on " + ", ".join(f"{name} (status {code})" for name, code in failed.items()))
        raise typer.Exit(Exit.FAILURES)


def _line(node: Node, line: str) -> None:
    with _lock:
        output.out.print(f"{node.name}: {line}", markup=False, soft_wrap=True)
