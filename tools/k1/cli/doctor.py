"""`k1 doctor`: find the cause, show the fix."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import typer

from k1 import board as boards
from k1 import files, output
from k1 import fleet as fleets
from k1 import lab as labs
from k1.board import Board
from k1.cli import doctor_ask, doctor_crash, doctor_hailo, doctor_log, doctor_tensors
from k1.cli.doctor_show import BOARD, JSON, MAX_VRAM, MIN_CMA, THRESHOLDS, leave, read_line, show
from k1.doctor import capture, catalogue, check, fixing, remote, script
from k1.doctor.check import Case, Finding
from k1.doctor.system import Captured, Live, System
from k1.errors import CheckFailed, K1Error

app = typer.Typer(
    help="Find the cause of a fault, and show the fix.", invoke_without_command=True, rich_markup_mode=None
)


@app.callback()
def examine(
    context: typer.Context,
    root: list[Path] | None = typer.Option(
        None, "--root", help="Examine a captured machine instead; several are compared with each other too."
    ),
    host: list[str] | None = typer.Option(
        None, "--host", help="Examine a machine over SSH, such as root@192.168.1.101."
    ),
    lab: str = typer.Option("", "--lab", help="Examine the running boards of this lab."),
    fleet: Path | None = typer.Option(None, "--fleet", help="Examine the nodes of this fleet.toml over SSH."),
    show_all: bool = typer.Option(False, "--all", "-a", help="Show skipped checks too, each with its reason."),
    fix: bool = typer.Option(False, "--fix", help="Offer to apply the safe fixes, and note how to undo them."),
    yes: bool = typer.Option(False, "--yes", "-y", help="With --fix: apply them without asking."),
    min_cma: int | None = MIN_CMA,
    max_vram: int | None = MAX_VRAM,
    thresholds: Path | None = THRESHOLDS,
    board: str = BOARD,
    as_json: bool = JSON,
) -> None:
    """Examine this machine (or captured ones). Exit code 3: warnings found, 4: failures found."""
    if context.invoked_subcommand:
        return
    if fix and (root or host or lab or fleet or as_json):
        raise K1Error(
            "--fix works on this machine only, and asks", hint="drop --root, --host, --lab, --fleet and --json"
        )
    limits = check.load_limits(thresholds, min_cma_mb=min_cma, max_vram_mb=max_vram)
    facts = boards.load(board)
    commands = {name: remote.ssh(name) for name in host or []}
    commands |= (_lab_commands(lab) if lab else {}) | (_fleet_commands(fleet) if fleet else {})
    short = len({folder.name for folder in root or []}) == len(root or [])
    systems: dict[str, System] = {
        folder.name if short and folder.name else str(folder): Captured(folder) for folder in root or []
    }
    lost = _collect(commands, facts, systems)
    if not systems and not lost:
        systems["here"] = Live()
    findings = lost + catalogue.examine({name: Case(system, limits, facts) for name, system in systems.items()})
    if as_json:
        output.print_json([asdict(finding) for finding in findings])
    else:
        show(findings, show_all=show_all, several=len(systems) + len(lost) > 1)
    if fix:
        _fix(systems["here"], findings, yes=yes)
    leave(check.worst(findings))


def _lab_commands(name: str) -> dict[str, list[str]]:
    found = labs.Lab(name)
    return {board.hostname: found.ssh(board.rank).command() for board in found.status()}


def _fleet_commands(path: Path) -> dict[str, list[str]]:
    return {node.hostname: remote.ssh(f"root@{node.address.ip}") for node in fleets.load(path)}


def _collect(commands: dict[str, list[str]], board: Board, systems: dict[str, System]) -> list[Finding]:
    """Add what each machine prints to `systems`, asked all at once; returns findings for those that cannot be."""
    lost: list[Finding] = []
    if not commands:
        return lost
    with output.task(f"asking {', '.join(commands)}"), ThreadPoolExecutor() as pool:
        asked = {name: pool.submit(remote.collect, command, board) for name, command in commands.items()}
        for name, answer in asked.items():
            try:
                systems[name] = answer.result()
            except CheckFailed as error:
                lost.append(remote.unreachable(name, error.message))
    return lost


def _fix(system: System, findings: list[Finding], *, yes: bool) -> None:
    fixes = fixing.safe(findings)
    if not fixes:
        output.note("there is no fix that can be applied safely")
    for fix in fixes:
        output.out.print()
        for command in fix.commands:
            output.out.print(f"apply: {command}", markup=False, soft_wrap=True)
        for command in fixing.undo_commands(system, fix):
            output.out.print(f"undo:  {command}", markup=False, soft_wrap=True)
        if yes or read_line("apply? [y/N] ").lower() in ("y", "yes"):
            fixing.apply(system, fix)
            output.note(f"done; {fixing.UNDO} undoes it")


@app.command(name="script")
def script_(
    out: Path | None = typer.Option(None, "--output", "-o", help="File to write instead of standard output."),
    min_cma: int | None = MIN_CMA,
    max_vram: int | None = MAX_VRAM,
    thresholds: Path | None = THRESHOLDS,
    board: str = BOARD,
) -> None:
    """Write the checks of one machine as a bash script that needs no Python."""
    limits = check.load_limits(thresholds, min_cma_mb=min_cma, max_vram_mb=max_vram)
    text = script.render(limits, boards.load(board))
    if out:
        files.write(out, text, mode=0o755)
    else:
        sys.stdout.write(text)


@app.command(name="capture")
def capture_(target: Path = typer.Argument(..., help="A new folder."), board: str = BOARD) -> None:
    """Put what the checks see of this machine into a folder, without personal data, for `--root`."""
    recorder = capture.Recorder()
    count = capture.capture(recorder, boards.load(board), target)
    output.note(f"{count} files in {target}; look through them before you give them away")


app.command(name="log")(doctor_log.log)
app.command(name="tensors", context_settings=doctor_tensors.PASS_ON)(doctor_tensors.tensors)
app.command(name="ask")(doctor_ask.ask)
app.command(name="crash")(doctor_crash.crash)
app.add_typer(doctor_hailo.app, name="hailo")
