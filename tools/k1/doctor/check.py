"""What a check is: it looks at evidence and gives a verdict, a cause and a fix."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Protocol

from pydantic import Field

from k1 import typedtoml
from k1.board import Board
from k1.doctor.system import Skip, System
from k1.facts import Count, Version
from k1.typedtoml import Model

_THRESHOLDS = Path(__file__).parents[1] / "data" / "doctor" / "thresholds.toml"


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Fix:
    """What helps: commands as a person types them.

    writes: file name → new content. A fix that has them is safe: `--fix` can apply it, and undo it.
    """

    commands: tuple[str, ...]
    writes: tuple[tuple[str, str], ...] = ()


def sysctl(key: str, value: int, file: str) -> Fix:
    """Set a kernel parameter now and at every boot."""
    name, line = f"/etc/sysctl.d/{file}", f"{key}={value}"
    commands = (f"sudo sysctl -w {line}", f'echo "{line}" | sudo tee {name}')
    return Fix(commands, ((f"/proc/sys/{key.replace('.', '/')}", f"{value}\n"), (name, f"{line}\n")))


class Tested(Model):
    """Versions that the guide was tested with; older ones are suspects."""

    ktransformers: Version
    hailort: Version
    rkllm: Version
    rknpu: Version


class Limits(Model):
    """Thresholds: memory in MB as the guide counts it (1 MB = 2^20 bytes), load as in /proc/loadavg."""

    min_cma_mb: Count
    max_vram_mb: Count
    max_load: Annotated[float, Field(gt=0)]
    large_block_order: Annotated[int, Field(ge=1, le=10)]
    tested: Tested


def load_limits(path: Path | None = None, **given: int | float | None) -> Limits:
    """The tool's thresholds, a file of the user's on top, and options on top of that."""
    data = typedtoml.read(_THRESHOLDS)
    if path:
        data = typedtoml.merge(data, typedtoml.read(path))
    data |= {key: value for key, value in given.items() if value is not None}
    return typedtoml.validate(Limits, data, path or _THRESHOLDS, hint=f"thresholds and their form: {_THRESHOLDS}")


@dataclass(frozen=True)
class Case:
    """What a check looks at."""

    system: System
    limits: Limits
    board: Board


@dataclass(frozen=True)
class Outcome:
    """Verdict and the evidence for it, in words; `fixes` where the check's own do not fit the machine."""

    verdict: Verdict
    evidence: str
    fixes: tuple[Fix, ...] = ()


def ok(evidence: str) -> Outcome:
    """Nothing wrong."""
    return Outcome(Verdict.OK, evidence)


def warn(evidence: str) -> Outcome:
    """It works, but badly or not for long."""
    return Outcome(Verdict.WARN, evidence)


def fail(evidence: str, *, fixes: tuple[Fix, ...] = ()) -> Outcome:
    """It cannot work like this."""
    return Outcome(Verdict.FAIL, evidence, fixes)


class Question(Protocol):
    """What a check, a comparison of nodes and a step after a crash have in common."""

    @property
    def id(self) -> str:
        """A short name, such as `k1-mtu`."""

    @property
    def title(self) -> str:
        """What is looked at."""

    @property
    def cause(self) -> str:
        """Why it is so when something is wrong."""

    @property
    def reference(self) -> str:
        """Where cause and fix are from."""


@dataclass(frozen=True)
class Finding:
    """A check with its outcome on one machine (`where`)."""

    where: str
    id: str
    title: str
    applies_to: str
    verdict: Verdict
    evidence: str
    cause: str
    fixes: tuple[Fix, ...]
    reference: str


def finding(question: Question, where: str, applies_to: str, outcome: Outcome, fixes: tuple[Fix, ...]) -> Finding:
    """A finding; cause and fixes only where something is wrong."""
    bad = outcome.verdict in (Verdict.WARN, Verdict.FAIL)
    return Finding(
        where=where,
        id=question.id,
        title=question.title,
        applies_to=applies_to,
        verdict=outcome.verdict,
        evidence=outcome.evidence,
        cause=question.cause if bad else "",
        fixes=(outcome.fixes or fixes) if bad else (),
        reference=question.reference,
    )


class Check(ABC):
    """One question to a machine. Title, cause and fixes are what the user reads."""

    id: ClassVar[str]
    title: ClassVar[str]
    applies_to: ClassVar[str]
    cause: ClassVar[str]
    fixes: ClassVar[tuple[Fix, ...]] = ()
    reference: ClassVar[str]

    @abstractmethod
    def _applies(self, case: Case) -> bool:
        """Whether the machine is one that the check is for."""

    @abstractmethod
    def _examine(self, case: Case) -> Outcome:
        """The outcome on this machine, or `Skip`."""

    def run(self, case: Case, where: str) -> Finding:
        """Examine one machine; a check that cannot run is skipped, with its reason."""
        try:
            if not self._applies(case):
                raise Skip(f"not {self.applies_to}")
            outcome = self._examine(case)
        except Skip as reason:
            outcome = Outcome(Verdict.SKIP, str(reason))
        return finding(self, where, self.applies_to, outcome, self.fixes)


def version(text: str) -> tuple[int, ...]:
    """A version as numbers that compare: `v0.9.8` is (0, 9, 8)."""
    return tuple(map(int, re.findall(r"\d+", text)))


def worst(findings: list[Finding]) -> Verdict:
    """The worst verdict of all."""
    found = {one.verdict for one in findings}
    return next((v for v in (Verdict.FAIL, Verdict.WARN) if v in found), Verdict.OK)
