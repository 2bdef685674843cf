"""What each node is and does just now, and where nodes differ from each other or from what they should be."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from k1.deploy import service
from k1.deploy.probe import Facts, probe
from k1.deploy.session import BASE, Node, Session
from k1.errors import K1Error

_PORTS = {8080: "API", 8081: "scheduler", 8090: "RPC"}
_COMPLETION = re.compile(r" completion .*outcome=done .*generated=(\d+) .*predicted_ms=([\d.]+)")


@dataclass
class Row:
    """One node. load: of the last minute; memory: MiB in use and in all; temperature: degrees Celsius.

    own_system: whether it has another system than our image, and so a kernel of its owner's choice.
    drift: what is not as it should be, in words.
    """

    name: str
    rank: int
    address: str
    reached: bool = False
    release: str = ""
    running: str = ""
    model: str = ""
    kernel: str = ""
    own_system: bool = False
    load: float = 0.0
    memory_used: int = 0
    memory: int = 0
    temperature: float | None = None
    ports: list[str] = field(default_factory=list)
    layers: list[int] | None = None
    drift: list[str] = field(default_factory=list)


@dataclass
class Status:
    """The whole cluster. tokens_per_s: of the last answer's generated tokens, None when there was none."""

    serves: bool
    reason: str
    running: int
    waiting: int
    tokens_per_s: float | None
    nodes: list[Row]

    @property
    def is_well(self) -> bool:
        """Whether it serves, and nothing drifts."""
        return self.serves and not any(row.drift for row in self.nodes)


def collect(session: Session, api: service.Api) -> Status:
    """Ask all nodes and rank 0's API; a node that is not reached is a row that says so."""
    found = session.each("status", session.nodes, _ask)
    health = api.health()
    layers = {rank["rank"]: rank["layers"] for rank in health.get("ranks", ())}
    rows = [_row(node, found[node.name]) for node in session.nodes]
    for row in rows:
        row.layers = layers.get(row.rank)
    _mark_drift(rows)
    reached = [answer for node in session.nodes if node.rank == 0 and isinstance(answer := found[node.name], _Answer)]
    return Status(
        serves=health.get("status") == "ok",
        reason=str(health.get("reason", "")) if health else "k1-inferd on rank 0 does not answer",
        running=int(health.get("running", 0)),
        waiting=int(health.get("waiting", 0)),
        tokens_per_s=_rate(reached[0].log) if reached else None,
        nodes=rows,
    )


@dataclass(frozen=True)
class _Answer:
    facts: Facts
    model: str
    log: str


def _ask(node: Node) -> _Answer | K1Error:
    try:
        facts = probe(node)
        text = node.ask(f"sed -n 's/^model = //p' {BASE}/current/etc/inferd.conf 2>/dev/null").output.strip()
        log = node.ask(service.log(facts, 200)).output if node.rank == 0 else ""
    except K1Error as error:
        return error
    return _Answer(facts, text.rpartition("/")[2], log)


def _row(node: Node, answer: _Answer | K1Error) -> Row:
    row = Row(node.name, node.rank, node.address)
    if isinstance(answer, K1Error):
        row.drift.append(answer.message)
        return row
    facts = answer.facts
    row.reached, row.release, row.running, row.model = True, facts.current, facts.running, answer.model
    row.kernel, row.load, row.memory = facts.kernel, facts.load, facts.memory >> 10
    row.own_system = facts.init != "busybox"
    row.memory_used = (facts.memory - facts.available) >> 10
    row.temperature = facts.temperature / 1000 if facts.temperature is not None else None
    row.ports = [name for port, name in _PORTS.items() if port in facts.ports]
    if not facts.running:
        row.drift.append("the daemon does not run")
    elif facts.running != facts.current:
        row.drift.append(f"runs {facts.running}, not {facts.current or 'a release'}")
    if facts.current and not facts.intact:
        row.drift.append("files of the release were changed on the node")
    if facts.on_trial:
        row.drift.append("its release is on trial: a deploy has not ended")
    return row


def _mark_drift(rows: list[Row]) -> None:
    """Whatever most nodes have is taken for right."""
    for key in ("release", "model", "kernel"):
        alike = [row for row in rows if row.reached and not (key == "kernel" and row.own_system)]
        values = Counter(getattr(row, key) for row in alike)
        usual = values.most_common(1)[0][0] if values else ""
        for row in alike:
            if getattr(row, key) != usual:
                row.drift.append(f"{key} {getattr(row, key) or 'none'}, others {usual or 'none'}")


def _rate(log: str) -> float | None:
    found = [(int(count), float(ms)) for count, ms in _COMPLETION.findall(log) if float(ms) > 0]
    # The first token comes with the prompt.
    return round((found[-1][0] - 1) * 1000 / found[-1][1], 2) if found and found[-1][0] > 1 else None
