"""Bring-up: watch boards come up on their serial consoles, stage by stage, and say what is wrong when they do not."""

from __future__ import annotations

import codecs
import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from k1.drivers import boot
from k1.drivers.console import Line
from k1.drivers.patience import scaled
from k1.drivers.serialport import SerialPort
from k1.errors import K1Error
from k1.facts import SerialLine
from k1.lab import Lab
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
    """One board's way up as a state machine: text and time in, stages and findings out.

    `reached`: stage → seconds since power-on; `stage`: the last one; `failure`: why `state` is failed.
    times are seconds of one clock; `started` is the moment from which the power is waited for.
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
            self.tail = [*self.tail[-_TAIL + 1 :], line]
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
            self._since = now
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
    return _ESCAPES.sub("", line).rstrip("\r ").rpartition("\r")[2]


@dataclass
class Board:
    """A board to be watched: its name, its console, and when its power came on, if that is known (time.monotonic)."""

    title: str
    line: Line
    power: float | None = None


@contextlib.contextmanager
def on_serial(names: Sequence[str], line: SerialLine) -> Iterator[list[Board]]:
    """Boards on serial lines; whoever stands at the desk switches them on, and with them may be their adapters."""
    with contextlib.ExitStack() as stack:
        yield [Board(name, stack.enter_context(SerialPort(name, line, wait=True))) for name in names]


@contextlib.contextmanager
def in_lab(lab: Lab, count: int | None, *, power_cycle: bool = False) -> Iterator[list[Board]]:
    """The boards of a lab, switched on. Boards that run already are a K1Error, or lose their power first."""
    if lab.is_on and not power_cycle:
        text = f"boards of lab {lab.name} run already"
        raise K1Error(text, hint="--power-cycle takes their power and starts them anew")
    if lab.is_on:
        for status in lab.status():
            if status.pid:
                lab.kill(status.rank)
    boards = lab.up(count, wait=False)
    now = time.monotonic()
    with contextlib.ExitStack() as stack:
        yield [
            Board(f"{lab.name}:{status.rank}", stack.enter_context(lab.console(status.rank)), now - status.uptime)
            for status in boards
        ]


def watch(
    boards: Sequence[Board],
    knowledge: Knowledge,
    *,
    until: str = READY,
    report: Callable[[Sequence[Bringup]], None] = lambda all_: None,
) -> list[Bringup]:
    """Watch until every board is ready or has failed; `report` is called whenever one gets further."""
    if until not in STAGES[1:]:
        raise K1Error(f"no stage named {until}", hint=f"one of {', '.join(STAGES[1:])}")
    now = time.monotonic()
    runs = [Bringup(knowledge, now, until) for _ in boards]
    decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in boards]
    for board, run in zip(boards, runs, strict=True):
        if board.power is not None:
            run.power(board.power)
    before: list[tuple[str, State]] = []
    while True:
        is_quiet = True
        for board, run, decoder in zip(boards, runs, decoders, strict=True):
            if run.state == "booting":
                is_quiet = not _step(board, run, decoder) and is_quiet
        now_at = [(run.stage, run.state) for run in runs]
        if now_at != before:
            report(runs)
            before = now_at
        if all(run.state != "booting" for run in runs):
            return runs
        if is_quiet:
            time.sleep(0.05)


def _step(board: Board, run: Bringup, decoder: codecs.IncrementalDecoder) -> bool:
    """Take what a console has to say now; whether it said anything."""
    data = board.line.read(0)
    now = time.monotonic()
    run.feed(decoder.decode(data), now)
    if data:
        return True
    if board.line.is_on:
        run.tick(now)
    else:
        run.end(now)
    return False


def as_data(board: Board, run: Bringup) -> dict[str, Any]:
    """A board's report, for programs: state, stages with their times, what was found."""
    return {
        "board": board.title,
        "state": run.state,
        "stage": run.stage,
        "waited_for": run.waits_for if run.state == "failed" else None,
        "stages": [{"stage": name, "seconds": run.reached[name]} for name in STAGES if name in run.reached],
        "restarts": run.restarts,
        "failure": asdict(run.failure) if run.failure else None,
        "warnings": [asdict(finding) for finding in run.findings],
        "last_lines": run.tail if run.state == "failed" else [],
    }
