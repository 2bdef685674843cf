"""`k1 doctor tensors`: what -ot moves and what the card needs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import typer
from rich.text import Text

from k1 import output
from k1.cli.doctor_show import JSON, MAX_VRAM, STYLE, THRESHOLDS, leave
from k1.doctor import check, llama_command, model_table, tensor_report
from k1.doctor.check import Verdict
from k1.doctor.tensor_report import Report
from k1.doctor.tensors import Fault
from k1.errors import K1Error

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def tensors(
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
        moved = f"moves {len(effect.moved)} tensors, {_mib(effect.size)}, to {effect.override.buffer}"
        output.out.print(Text(f"-ot {effect.override.text}: {moved}"), soft_wrap=True)
        _show_faults(effect.faults)
    _show_faults(report.faults)
    rows = output.table("card", "weights", "KV cache", "compute", "total", "limit", "")
    for number, card in enumerate(report.budget.cards):
        kinds = ", ".join(f"{kind} {_mib(count)}" for kind, count in sorted(card.weights.items()))
        weights = kinds + (f", made at start {_mib(card.derived)}" if card.derived else "")
        verdict = Verdict.OK if card.total <= report.limit else Verdict.FAIL
        sizes = (_mib(card.kv), _mib(card.compute), _mib(card.total), _mib(report.limit))
        rows.add_row(str(number), weights or "none", *sizes, Text(verdict, STYLE[verdict]))
    output.out.print(rows)
    output.note(f"main memory: {_mib(report.budget.host)}; context {report.budget.ctx}")
    for one in report.proposals:
        output.out.print(Text(f"fits: {one.text}   ({_mib(one.peak)} on the fullest card)"), soft_wrap=True)


def _show_faults(faults: tuple[Fault, ...]) -> None:
    for fault in faults:
        output.out.print(Text(f"  {fault.verdict}: {fault.text}", STYLE[fault.verdict]), soft_wrap=True)
        output.out.print(Text(f"        try: {fault.remedy}"), soft_wrap=True)


def _mib(count: int) -> str:
    """Bytes as nvidia-smi shows them, rounded up."""
    return f"{-(-count // (1 << 20))} MiB"
