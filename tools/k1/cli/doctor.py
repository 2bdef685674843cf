"""`k1 doctor`: find the cause, show the fix."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import typer
from rich.text import Text

from k1 import board as boards
from k1 import files, output
from k1 import lab as labs
from k1.board import Board
from k1.doctor import (
    capture,
    catalogue,
    check,
    crash,
    fixing,
    hailo_ollama,
    llama_command,
    model_table,
    remote,
    script,
    signatures,
    tensor_report,
    trees,
)
from k1.doctor.check import Case, Finding, Verdict
from k1.doctor.system import Captured, Live, System
from k1.doctor.tensor_report import Report
from k1.doctor.tensors import Fault
from k1.errors import CheckFailed, Exit, K1Error

app = typer.Typer(
    help="Find the cause of a fault, and show the fix.", invoke_without_command=True, rich_markup_mode=None
)

JSON = typer.Option(False, "--json", help="As JSON.")
MIN_CMA = typer.Option(None, "--min-cma", min=1, help="Contiguous memory that an NPU needs, in MB (256).")
MAX_VRAM = typer.Option(None, "--max-vram", min=1, help="VRAM that must be free on a card, in MB (22500).")
THRESHOLDS = typer.Option(None, "--thresholds", exists=True, dir_okay=False, help="TOML file with other limits.")
BOARD = typer.Option("k1", "--board", "-b", help="Board whose facts the nodes of a cluster must meet.")
_STYLE = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.SKIP: "dim"}
_EXIT = {Verdict.OK: Exit.OK, Verdict.WARN: Exit.WARNINGS, Verdict.FAIL: Exit.FAILURES}


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
    if fix and (root or host or lab or as_json):
        raise K1Error("--fix works on this machine only, and asks", hint="drop --root, --host, --lab and --json")
    limits = check.load_limits(thresholds, min_cma_mb=min_cma, max_vram_mb=max_vram)
    facts = boards.load(board)
    commands = {name: remote.ssh(name) for name in host or []} | (_lab_commands(lab) if lab else {})
    systems: dict[str, System] = {str(folder): Captured(folder) for folder in root or []}
    lost = _collect(commands, facts, systems)
    if not systems and not lost:
        systems["here"] = Live()
    findings = lost + catalogue.examine({name: Case(system, limits, facts) for name, system in systems.items()})
    if as_json:
        output.print_json([asdict(finding) for finding in findings])
    else:
        _show(findings, show_all=show_all, several=len(systems) + len(lost) > 1)
    if fix:
        _fix(systems["here"], findings, yes=yes)
    leave(check.worst(findings))


def _lab_commands(name: str) -> dict[str, list[str]]:
    found = labs.Lab(name)
    return {board.hostname: found.ssh(board.rank).command() for board in found.status()}


def _collect(commands: dict[str, list[str]], board: Board, systems: dict[str, System]) -> list[Finding]:
    """Add what each machine prints to `systems`; returns findings for those that cannot be asked."""
    lost: list[Finding] = []
    for name, command in commands.items():
        with output.task(f"asking {name}"):
            try:
                systems[name] = remote.collect(command, board)
            except CheckFailed as error:
                lost.append(remote.unreachable(name, error.message))
    return lost


def leave(verdict: Verdict) -> None:
    """End the command with the exit code of its worst verdict."""
    raise typer.Exit(_EXIT[verdict])


def _show(findings: list[Finding], *, show_all: bool, several: bool) -> None:
    table = output.table(*(["machine"] if several else []), "", "check", "found")
    shown = [finding for finding in findings if show_all or finding.verdict is not Verdict.SKIP]
    for found in shown:
        cells = [found.where] if several else []
        table.add_row(*cells, Text(found.verdict, _STYLE[found.verdict]), found.id, Text(found.evidence))
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
    output.out.print(Text(f"{where}{found.title} ({found.id})", _STYLE[found.verdict]), soft_wrap=True)
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


def read_line(prompt: str) -> str:
    """A line from the user; the end of the input is a user error."""
    output.err.print(prompt, end="", markup=False)
    try:
        return input().strip()
    except EOFError as error:
        raise K1Error("there is nobody to answer", hint="give the answers as options") from error


@app.command()
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
        output.out.print(Text(title, _STYLE[Verdict(hit.signature.found)]), soft_wrap=True)
        output.out.print(f"  | {hit.line}", markup=False, soft_wrap=True)
        print_remedy(hit.signature.cause, [(fix,) for fix in hit.signature.fix], hit.signature.reference)
        output.out.print()
    if not hits:
        output.note(f"none of the {len(known)} known faults is in this log")
    leave(signatures.worst(hits))


@app.command(name="tensors", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def tensors_(
    words: list[str] | None = typer.Argument(None, metavar="[MODEL] [OPTIONS OF llama-server…]"),
    command: str = typer.Option("", "--command", help="The whole command as one text, as a shell would read it."),
    max_vram: int | None = MAX_VRAM,
    thresholds: Path | None = THRESHOLDS,
    cores: int | None = typer.Option(None, "--cores", min=1, help="Physical cores of the machine it is for."),
    as_json: bool = JSON,
) -> None:
    """Say what -ot moves and what the card needs. MODEL: a GGUF, or a list of tensors. Exit codes 3 and 4 as above."""
    given = [*llama_command.split(command), *(words or [])]
    parsed = llama_command.parse(given)
    if not parsed.model:
        raise K1Error("no model is named", hint="k1 doctor tensors MODEL.gguf -ngl 99 -ot '…'")
    limit = check.load_limits(thresholds, max_vram_mb=max_vram).max_vram_mb << 20
    model = model_table.read(Path(parsed.model))
    report = tensor_report.examine(model, parsed, limit, cores or psutil.cpu_count(logical=False) or 0)
    if as_json:
        output.print_json(_report_json(report))
    else:
        _show_report(report)
    leave(report.verdict)


def _report_json(report: Report) -> dict[str, Any]:
    effects = [
        {
            "override": effect.override.text,
            "tensors": [tensor.name for tensor in effect.moved],
            "bytes": effect.size,
            "faults": [asdict(fault) for fault in effect.faults],
        }
        for effect in report.placement.effects
    ]
    return {
        "overrides": effects,
        "experts_on_cards": [tensor.name for tensor in report.placement.experts_on_cards],
        "cards": [asdict(card) | {"total": card.total} for card in report.budget.cards],
        "host_bytes": report.budget.host,
        "n_ctx": report.budget.ctx,
        "limit_bytes": report.limit,
        "faults": [asdict(fault) for fault in report.faults],
        "fitting": [
            {"change": one.text, "words": one.command.words(), "peak_bytes": one.peak} for one in report.proposals
        ],
        "verdict": report.verdict,
    }


def _show_report(report: Report) -> None:
    for effect in report.placement.effects:
        moved = f"moves {len(effect.moved)} tensors, {mib(effect.size)}, to {effect.override.buffer}"
        output.out.print(Text(f"-ot {effect.override.text}: {moved}"), soft_wrap=True)
        _show_faults(effect.faults)
    _show_faults(report.faults)
    rows = output.table("card", "weights", "KV cache", "compute", "total", "limit", "")
    for number, card in enumerate(report.budget.cards):
        kinds = ", ".join(f"{kind} {mib(count)}" for kind, count in sorted(card.weights.items()))
        weights = kinds + (f", made at start {mib(card.derived)}" if card.derived else "")
        verdict = Verdict.OK if card.total <= report.limit else Verdict.FAIL
        sizes = (mib(card.kv), mib(card.compute), mib(card.total), mib(report.limit))
        rows.add_row(str(number), weights or "none", *sizes, Text(verdict, _STYLE[verdict]))
    output.out.print(rows)
    output.note(f"main memory: {mib(report.budget.host)}; context {report.budget.ctx}")
    for one in report.proposals:
        output.out.print(Text(f"fits: {one.text}   ({mib(one.peak)} on the fullest card)"), soft_wrap=True)


def _show_faults(faults: tuple[Fault, ...]) -> None:
    for fault in faults:
        output.out.print(Text(f"  {fault.verdict}: {fault.text}", _STYLE[fault.verdict]), soft_wrap=True)
        output.out.print(Text(f"        try: {fault.remedy}"), soft_wrap=True)


def mib(count: int) -> str:
    """Bytes as nvidia-smi shows them, rounded up."""
    return f"{-(-count // (1 << 20))} MiB"


@app.command()
def ask(
    tree: str | None = typer.Argument(None, help="A decision tree; none: list them."),
    answers: str = typer.Option("", "--answers", help="Keys of the answers, joined by commas, instead of asking."),
    as_json: bool = JSON,
) -> None:
    """Ask questions that lead to the cause and its fix."""
    if tree is None:
        titles = {name: trees.load(name).title for name in trees.names()}
        if as_json:
            output.print_json(titles)
            return
        rows = output.table("tree", "for")
        for name, title in titles.items():
            rows.add_row(name, title)
        output.out.print(rows)
        return
    loaded = trees.load(tree)
    way = trees.replay(loaded, answers.split(",")) if answers else trees.walk(loaded, _put)
    if as_json:
        steps = [{"question": question.text, "answer": answer.key} for question, answer in way.steps]
        output.print_json({"steps": steps} | way.leaf.model_dump(mode="json"))
        return
    output.note(f"{tree}: {' > '.join(answer.key for _, answer in way.steps)}")
    print_remedy(way.leaf.cause, [(fix,) for fix in way.leaf.fix], way.leaf.reference)


def _put(question: trees.Question) -> str:
    output.note(f"\n{question.text}")
    for number, answer in enumerate(question.answers, 1):
        output.note(f"  {number}  {answer.key}: {answer.text}")
    return read_line("> ")


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


@app.command(name="crash")
def crash_(
    program: Path | None = typer.Option(None, help="The program that crashed, with symbols."),
    core: Path | None = typer.Option(None, help="Its core file, of any architecture."),
    maps: Path | None = typer.Option(None, exists=True, dir_okay=False, help="A copy of its /proc/PID/maps."),
    model: Path | None = typer.Option(None, exists=True, dir_okay=False, help="The model it ran."),
    sha256: str = typer.Option("", help="The model's hash at its source."),
    n_ctx: int = typer.Option(2048, "--n_ctx", min=1, help="The context length it ran with."),
    cli: str = typer.Option("k1-cli", help="The k1-cli that tries one node alone."),
    board: str = BOARD,
    as_json: bool = JSON,
) -> None:
    """Go through the five steps after a segmentation fault. Exit code 3: warnings found, 4: failures found."""
    if core and not program:
        raise K1Error("--core needs --program", hint="name the program with its symbols")
    asked = crash.Crash(Live(), boards.load(board), program, core, maps, model, sha256, n_ctx, cli)
    findings = crash.examine(asked)
    if as_json:
        output.print_json([asdict(finding) for finding in findings])
    else:
        _show(findings, show_all=True, several=False)
    leave(check.worst(findings))


hailo = typer.Typer(help="A Hailo accelerator's own memory.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(hailo, name="hailo")


@hailo.command()
def unload(
    model: list[str] | None = typer.Argument(None, help="Models to unload; none: all that are loaded."),
    host: str = typer.Option("127.0.0.1", help="Where hailo-ollama runs."),
    port: int = typer.Option(11434, min=1, max=65535),
    dry_run: bool = typer.Option(False, "--dry-run", "-n", help="Only say what would be unloaded."),
) -> None:
    """Free the memory on the module: send models keep_alive 0."""
    server = f"http://{host}:{port}"
    models = model or hailo_ollama.loaded(server)
    if not dry_run:
        hailo_ollama.unload(server, models)
    for name in models:
        output.note(f"{'would unload' if dry_run else 'unloaded'} {name}")
    if not models:
        output.note("no model is loaded")
