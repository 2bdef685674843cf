"""A command line of llama.cpp examined against a model and a card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from k1.doctor import tensors, vram
from k1.doctor.check import Verdict
from k1.doctor.llama_command import Command
from k1.doctor.model_table import Model
from k1.doctor.tensors import Fault, Placement
from k1.doctor.vram import Budget, Proposal


@dataclass(frozen=True)
class Report:
    """Where the tensors are, the budget against `limit` bytes a card, faults, and what would fit."""

    placement: Placement
    budget: Budget
    limit: int
    faults: tuple[Fault, ...]
    proposals: tuple[Proposal, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of all faults, those of the overrides included."""
        found = {fault.verdict for fault in self.faults}
        found |= {fault.verdict for effect in self.placement.effects for fault in effect.faults}
        return next((v for v in (Verdict.FAIL, Verdict.WARN) if v in found), Verdict.OK)


def examine(model: Model, command: Command, limit: int, cores: int) -> Report:
    """Examine a command; `limit` in bytes for each card, `cores` physical ones of the machine (0: not known)."""
    placement = tensors.place(model, command)
    budget = vram.budget(placement, command)
    faults = [*_notes(model, command, cores), *_experts(placement, budget.fits(limit)), *_too_large(budget, limit)]
    near = () if budget.fits(limit) else tuple(vram.proposals(model, command, limit))
    return Report(placement, budget, limit, tuple(faults), near)


def _notes(model: Model, command: Command, cores: int) -> Iterator[Fault]:
    """What the options themselves tell."""
    if "ngl" not in command.given:
        yield Fault(Verdict.WARN, "no -ngl: nothing goes to the card", "-ngl 99")
    if command.ctx <= 0:
        trained = model.number("context_length")
        yield Fault(Verdict.WARN, f"no -c: counted with what the model was trained with, {trained}", "-c 32768")
    if command.fa_takes:
        text = f"-fa is followed by {command.fa_takes}: newer versions take that for its value and stop"
        yield Fault(Verdict.WARN, text, "-fa on, where the version knows values for it")
    if not command.fa and command.ctv not in ("f16", "bf16", "f32"):
        yield Fault(Verdict.FAIL, f"-ctv {command.ctv} needs flash attention", "-fa")
    if 0 < cores < command.threads:
        text = f"-t {command.threads} exceeds the {cores} physical cores of this machine"
        yield Fault(Verdict.WARN, text, f"-t {cores}, or --cores when the command is for another machine")
    if command.split_mode not in ("layer", "none"):
        text = f"-sm {command.split_mode}: the budget is counted for -sm layer"
        yield Fault(Verdict.WARN, text, "compare with the buffer sizes that the program prints")


def _experts(placement: Placement, fits: bool) -> Iterator[Fault]:
    """Routed experts that stay on cards: wanted as long as they fit."""
    staying = placement.experts_on_cards
    if staying:
        layers = tensors.ranges(sorted({tensor.layer for tensor in staying if tensor.layer is not None}))
        size = sum(tensor.size for tensor in staying)
        text = f"{len(staying)} tensors of routed experts ({_mib(size)} MiB) stay on cards: layers {layers}"
        yield Fault(Verdict.OK if fits else Verdict.WARN, text, f"-ot '{tensors.EXPERTS}=CPU' moves all of them")


def _too_large(budget: Budget, limit: int) -> Iterator[Fault]:
    for number, card in enumerate(budget.cards):
        if card.total > limit:
            text = f"card {number} would need {_mib(card.total)} MiB of {_mib(limit)}"
            yield Fault(Verdict.FAIL, text, "take one of the settings that fit")


def _mib(count: int) -> int:
    return -(-count // (1 << 20))
