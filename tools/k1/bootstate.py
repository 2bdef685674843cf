"""One board's way up as a state machine: text and time in, stages and findings out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from k1.drivers import boot
from k1.drivers.patience import scaled
from k1.signatures import Knowledge, Signature

POWER, READY = boot.POWER, "k1-inferd"
# What ends each stage's wait: any byte at all for the power, then the banners.
PATTERNS = {name: re.compile(pattern) for name, pattern in boot.STAGES.items()} | {
    READY: re.compile(r"k1: k1-inferd is ready")
}
STAGES = (POWER, *PATTERNS)
_FIRMWARE, _PROMPT = "OpenSBI", "login"
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78])|[\x00\x07\x08]")
# A line that never ends must not fill the memory.
_LONGEST = 4096
_TAIL = 15
State = Literal["booting", "ready", "failed"]


@dataclass(frozen=True)
class Finding:
    """A signature that was seen: when, in seconds since power-on, at which line, what it means."""

    signature: str
    verdict: str
    seconds: float
    line: str
    cause: str
    remedy: str


@dataclass
class Bringup:
    """One board's way up; all times that come in are seconds of one clock.

    started: from when the power is waited for; until: the last stage wanted.
    reached: stage → seconds since power-on; failure: why `state` is failed; tail: the last lines.
    """

    knowledge: Knowledge
    started: float
    until: str = READY
    state: State = "booting"
    reached: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    failure: Finding | None = None
    restarts: int = 0
    tail: list[str] = field(default_factory=list)
    _power: float | None = None
    _since: float = 0.0
    _partial: str = ""
    _counts: dict[str, int] = field(default_factory=dict)
    _clue: Finding | None = None

    def __post_init__(self) -> None:
        self._since = self.started

    @property
    def stage(self) -> str:
        """The last stage reached; empty before any byte came."""
        return next((name for name in reversed(STAGES) if name in self.reached), "")

    @property
    def waits_for(self) -> str:
        """The stage that must come next."""
        return STAGES[min(STAGES.index(self.stage) + 1, len(STAGES) - 1)] if self.stage else POWER

    def power(self, now: float) -> None:
        """The power is known to have come on at `now`; else the first byte counts as that."""
        self._power = self._since = now

    def feed(self, text: str, now: float) -> None:
        """Take what the console has said by `now`."""
        if text and POWER not in self.reached:
            self._power = now if self._power is None else self._power
            self._reach(POWER, now)
        self._partial += text
        *lines, self._partial = self._partial.split("\n")
        for line in lines:
            self._line(_clean(line), now)
        if len(self._partial) > _LONGEST:
            self._line(_clean(self._partial), now)
            self._partial = ""
        if PATTERNS[_PROMPT].search(self._partial):  # a prompt has no end of line
            self._meet(_PROMPT, now)

    def tick(self, now: float) -> None:
        """Fail when the stage that must come next is late."""
        stage = self.knowledge.stages[self.waits_for] if self.state == "booting" else None
        if stage is None or now - self._since <= scaled(stage.deadline_s):
            return
        self._fail(
            self._clue
            or Finding(stage.signature, "failure", self._seconds(now), "", cause=stage.cause, remedy=stage.remedy)
        )

    def end(self, now: float) -> None:
        """Nothing more will come: the board went off."""
        if self.state == "booting":
            text = "the console ended: the board went off"
            self._fail(
                Finding("went-off", "failure", self._seconds(now), "", text, "check its power, then start again")
            )

    # --- inside

    def _seconds(self, now: float) -> float:
        return round(now - (self.started if self._power is None else self._power), 3)

    def _line(self, line: str, now: float) -> None:
        if line.strip():
            self.tail = [*self.tail[-_TAIL + 1 :], line.rstrip()]
        for name, pattern in PATTERNS.items():
            if pattern.search(line):
                self._meet(name, now)
        for name, signature in self.knowledge.signatures.items():
            if self.state == "booting" and signature.regex.search(line):
                self._count(name, signature, line, now)

    def _meet(self, name: str, now: float) -> None:
        """A stage's banner was seen."""
        if self.state != "booting":
            return
        if name == _FIRMWARE and name in self.reached:  # it starts anew, and what was reached is lost
            self.restarts += 1
            self.reached = {stage: at for stage, at in self.reached.items() if stage in (POWER, _FIRMWARE)}
            self._since, self._clue = now, None
        elif name not in self.reached:
            self._reach(name, now)

    def _reach(self, name: str, now: float) -> None:
        self.reached[name] = self._seconds(now)
        self._since, self._clue = now, None
        if STAGES.index(name) >= STAGES.index(self.until):
            self.state = "ready"

    def _count(self, name: str, signature: Signature, line: str, now: float) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1
        if self._counts[name] != signature.count:
            return
        finding = Finding(name, signature.verdict, self._seconds(now), line.strip(), signature.cause, signature.remedy)
        if signature.verdict == "failure":
            self._fail(finding)
        elif signature.verdict == "clue":
            self._clue = finding
            self._counts[name] = 0
        else:
            self.findings.append(finding)
            if signature.ends:
                self.until = _PROMPT
                self.state = "ready" if _PROMPT in self.reached else self.state

    def _fail(self, finding: Finding) -> None:
        self.failure, self.state = finding, "failed"


def _clean(line: str) -> str:
    """A line as a person sees it: without escape sequences, and only what was written last."""
    return _ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2]
