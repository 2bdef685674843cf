"""`k1 deploy` and `k1 rollback`: bring a release into service on all nodes, or the one before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from k1 import files, output
from k1 import fleet as fleets
from k1.cli.fleet import FILE
from k1.deploy import plan, release, rollback
from k1.deploy.plan import Event, Options, Outcome
from k1.deploy.session import NodesFailed, Session

_STYLES = {"ok": "green", "done": "bold green", "would": "yellow", "failed": "bold red", "running": "cyan"}
JSON = typer.Option(False, "--json", help="Print JSON.")
LIMIT = typer.Option([], "--limit", help="Only this node; may be given several times.")
PARALLEL = typer.Option(16, "--parallel", min=1, help="Nodes worked on at once.")


def deploy(
    file: Path = FILE,
    limit: list[str] = LIMIT,
    only: str | None = typer.Option(None, "--only", help=f"One step: {', '.join(plan.STEPS)}."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Tell what would be done; change nothing."),
    serial: bool = typer.Option(False, "--serial", help="One node after the other."),
    parallel: int = PARALLEL,
    verify: bool = typer.Option(False, "--verify", help="Read and hash every model file on the nodes again."),
    measure: bool = typer.Option(False, "--measure", help="Measure the links from rank 0 with iperf3."),
    userland_only: bool = typer.Option(False, "--userland-only", help="Leave the nodes' networks alone."),
    as_json: bool = JSON,
) -> None:
    """Bring programs, options, keys and model of fleet.toml into service on all nodes; do only what is still to do."""
    fleet = fleets.read(file)
    options = Options(only, dry_run, verify, measure, userland_only)
    with locked(fleet), Session(fleet, limit, 1 if serial else parallel) as session:
        wanted = release.prepare(fleet)
        with watching([node.name for node in session.nodes], quiet=as_json) as view:
            outcome = run(plan.Deploy(session, wanted, options, view.tell))
    tell(outcome, only=only, dry_run=dry_run, as_json=as_json)


def run(todo: plan.Deploy) -> Outcome:
    """Add to an error how things are now."""
    try:
        return todo.run()
    except NodesFailed as error:
        error.message += f"\n{todo.aftermath()}"
        raise


def roll_back(file: Path = FILE, as_json: bool = JSON) -> None:
    """Bring the release before the current one back into service on all nodes."""
    fleet = fleets.read(file)
    names = [member.name for member in fleet.members]
    with locked(fleet), Session(fleet) as session, watching(names, quiet=as_json) as view:
        outcome = rollback.run(session, view.tell)
    tell(outcome, dry_run=False, as_json=as_json)


@contextmanager
def locked(fleet: fleets.Fleet) -> Iterator[None]:
    """One change of a fleet at a time."""
    with files.locked(fleet.path.with_suffix(".lock"), f"fleet {fleet.path}"):
        yield


class View:
    """Nodes by steps: a live table on a terminal, a line for each end of a step elsewhere."""

    def __init__(self, names: list[str], *, quiet: bool) -> None:
        self._cells: dict[str, dict[str, Event]] = {name: {} for name in names}
        self._lock = threading.Lock()
        self._quiet = quiet
        self.live: Live | None = None

    def tell(self, event: Event) -> None:
        """Take in what has happened; called from several threads."""
        with self._lock:
            self._cells.setdefault(event.node, {})[event.step] = event
            if self.live:
                self.live.update(self.table())
            elif event.state not in ("running", "ok") and not self._quiet:
                output.note(f"{event.node}: {event.step}: {event.state}  {event.detail}".rstrip())

    def table(self) -> Table:
        """All that is known."""
        steps = [step for step in (*plan.STEPS, plan.ROLLBACK) if any(step in row for row in self._cells.values())]
        found = output.table("node", *steps)
        for name, row in self._cells.items():
            found.add_row(name, *(_cell(row.get(step)) for step in steps))
        return found


def _cell(event: Event | None) -> Text:
    if event is None:
        return Text("")
    text = (
        f"{event.state} {event.detail}" if event.state in ("would", "failed", "done") else event.detail or event.state
    )
    return Text(text[:40], style=_STYLES.get(event.state, ""))


@contextmanager
def watching(names: list[str], *, quiet: bool) -> Iterator[View]:
    """Show what a deploy does, on stderr."""
    view = View(names, quiet=quiet)
    if quiet or not output.err.is_terminal:
        yield view
        return
    with Live(view.table(), console=output.err, refresh_per_second=8) as live:
        view.live = live
        yield view


def tell(outcome: Outcome, *, only: str | None = None, dry_run: bool, as_json: bool) -> None:
    """Print what was done."""
    if as_json:
        output.print_json(asdict(outcome))
    for warning in outcome.warnings:
        output.warn(warning)
    if as_json:
        return
    would = any(row["state"] == "would" for steps in outcome.nodes.values() for row in steps.values())
    if dry_run:
        well = "nothing is to be done" if only else f"release {outcome.release} is in service; nothing is to be done"
        output.note("nothing was changed" if would else well)
        return
    if only in plan.STEPS[:4]:
        output.note(f"step {only}: {'done' if outcome.changed else 'nothing is to be done'}; no other was taken")
    else:
        said = "is in service" if outcome.changed else "is in service already; nothing was changed"
        output.note(f"release {outcome.release} {said}")
    if outcome.uplink:
        output.note(f"{output.size(outcome.uplink)} of the model left this machine")
