"""The deploy itself: steps over all nodes in an order that leaves the old service alone until everything new is there.

Each step first asks what is to be done on a node; nothing to do is nothing done. Only when every node has release and
model is the link `current` switched, and a cluster that does not come up on it is taken back everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from k1.deploy import network, release, service, weights
from k1.deploy.probe import Facts, probe
from k1.deploy.session import BASE, Node, NodesFailed, Session
from k1.drivers.patience import scaled
from k1.errors import CheckFailed, K1Error
from k1.typedtoml import near

STEPS = ("preflight", "network", "release", "model", "switch", "services", "health")
ROLLBACK = "rollback"
_SERVE = STEPS[4:]
# Seconds; an answer on the way counts in.
_CLOCK = 300
# What a node must keep free, in KiB, for logs and the next release.
_RESERVE = 32 << 10
_READY = 30.0


@dataclass(frozen=True)
class Event:
    """Something a person watches: a step of a node. state: running, ok, done, would, failed."""

    node: str
    step: str
    state: str
    detail: str = ""


@dataclass(frozen=True)
class Options:
    """What is asked for beside the fleet. only: one of STEPS; verify: read every byte of the model again."""

    only: str | None = None
    dry_run: bool = False
    verify: bool = False
    measure: bool = False
    userland_only: bool = False

    def __post_init__(self) -> None:
        if self.only is not None and self.only not in STEPS:
            hint = near(self.only, STEPS) or f"one of {', '.join(STEPS)}"
            raise K1Error(f"there is no step {self.only!r}", hint=hint)


@dataclass
class Outcome:
    """What a deploy did. uplink: bytes of the model that left this machine; literal: bytes of the release, by node."""

    release: str
    changed: bool = False
    uplink: int = 0
    literal: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    nodes: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)


class Deploy:
    """One run over the nodes of a session."""

    def __init__(
        self, session: Session, draft: release.Draft, options: Options, report: Callable[[Event], None]
    ) -> None:
        self.session, self.draft, self.options, self._tell = session, draft, options, report
        self.release: release.Release  # known from preflight on
        self.nodes: Sequence[Node] = session.nodes
        self.facts: dict[str, Facts] = {}
        self.outcome = Outcome("", nodes={node.name: {} for node in self.nodes})
        self._begun: dict[tuple[str, str], float] = {}
        self._api = service.Api(session)

    def run(self) -> Outcome:
        """Do what is to be done. `NodesFailed` names node, step and remedy; by then the old service is back."""
        self._preflight()
        for name, act in (("network", self._network), ("release", self._send), ("model", self._model)):
            if self.options.only in (None, name):
                act()
        if self.options.only in (None, *_SERVE):
            self._serve()
        return self.outcome

    # --- how it is told

    def _report(self, node: Node, step: str, state: str, detail: str = "") -> None:
        now = time.monotonic()
        begun = self._begun.setdefault((node.name, step), now)
        if state != "running":
            row = {"state": state, "detail": detail, "seconds": round(now - begun, 2)}
            self.outcome.nodes.setdefault(node.name, {})[step] = row
        self.outcome.changed |= state == "done"
        self._tell(Event(node.name, step, state, detail))

    def _each(self, step: str, nodes: Sequence[Node], act: Callable[[Node], str]) -> None:
        """`act` on each node; what it returns is the detail of a step that changed something."""

        def tried(node: Node) -> None:
            self._report(node, step, "running")
            with self._failing(step, node):
                self._report(node, step, "done", act(node))

        self.session.each(step, nodes, tried)

    @contextmanager
    def _failing(self, step: str, node: Node) -> Iterator[None]:
        try:
            yield
        except K1Error as error:
            if not node.stop.is_set():
                self._report(node, step, "failed", error.message)
            raise

    def _sorted_out(self, step: str, need: Callable[[Node], str]) -> list[Node]:
        """The nodes where the step has something to do; in a dry run that is told, and none."""
        todo = []
        for node in self.nodes:
            with self._failing_of(step, node):
                found = need(node)
            if not found:
                self._report(node, step, "ok")
            elif self.options.dry_run:
                self._report(node, step, "would", found)
            else:
                todo.append(node)
        return todo

    @contextmanager
    def _failing_of(self, step: str, node: Node) -> Iterator[None]:
        try:
            with self._failing(step, node):
                yield
        except NodesFailed:
            raise
        except K1Error as error:
            raise NodesFailed(step, {node.name: error}) from error

    def _fail(self, step: str, faults: Mapping[str, K1Error]) -> None:
        """End the deploy when there are faults, by node name."""
        for node in self.nodes:
            if node.name in faults:
                self._report(node, step, "failed", faults[node.name].message)
        if faults:
            raise NodesFailed(step, dict(faults))

    def _warn(self, text: str) -> None:
        self.outcome.warnings.append(text)

    # --- the steps

    def _preflight(self) -> None:
        def look(node: Node) -> None:
            self._report(node, "preflight", "running")
            with self._failing("preflight", node):
                facts = self.facts[node.name] = probe(node, self.draft.model.name)
                self._check(node, facts)

        def make_sure(node: Node) -> None:
            facts = self.facts[node.name]
            with self._failing("preflight", node):
                self._check_space(facts)
                self._report(node, "preflight", "ok", f"{facts.arch}, Linux {facts.kernel}, {facts.init}")

        self.session.each("preflight", self.nodes, look)
        self.release = self.draft.release(self._machines())
        self.outcome.release = self.release.id
        self.session.each("preflight", self.nodes, make_sure)

    def _machines(self) -> set[str]:
        """The machines of all nodes, those too that --limit leaves out: the release is one for all."""

        def ask(node: Node) -> str:
            try:
                return node.sh("uname -m").strip()
            except K1Error as error:
                self._warn(f"{node.name}: {error.message}; the release is made without it")
                return ""

        others = [self.session.node(each) for each in self.session.fleet.members if each.name not in self.facts]
        found = {*self.session.each("preflight", others, ask).values(), *(each.arch for each in self.facts.values())}
        return found & set(self.draft.machines)

    def _check(self, node: Node, facts: Facts) -> None:
        if facts.arch not in self.draft.machines:
            text = f"is {facts.arch}, and the programs are for {', '.join(self.draft.machines)}"
            raise K1Error(text, hint="name a folder with programs for it: cluster.programs in fleet.toml")
        if not facts.init:
            text = "has neither systemd nor our image's /etc/init.d/S50inferd"
            raise K1Error(text, hint="flash the image (docs/image.md), or install a system with systemd")
        if not facts.rsync:
            raise K1Error("has no rsync", hint="apt install rsync there; our image brings it from this version on")
        if abs(facts.now - time.time()) > _CLOCK:
            text = (
                f"{node.name}: its clock is {abs(facts.now - time.time()):.0f} s off; NTP_SERVERS in board.conf sets it"
            )
            self._warn(text)

    def _check_space(self, facts: Facts) -> None:
        model = self.release.model
        needed = _RESERVE + (0 if self.release.id in facts.releases else self.release.size(facts.arch) // 1024)
        if not facts.model:
            needed += model.size // 1024
        if facts.free < needed:
            text = f"has {facts.free >> 10} MiB free below {BASE}, and {needed >> 10} MiB are needed"
            raise CheckFailed(text, hint=f"free some on the node: ls -l {BASE}/models {BASE}/releases, /data/log")

    def _network(self) -> None:
        fleet = self.session.fleet
        keep = network.mtu_to_keep(fleet, self.nodes, self.facts) if self.options.only is None else fleet.mtu
        todo = self._settle(keep)
        if self.options.dry_run:
            return
        ours = [node for node in self.nodes if self._is_ours(node)]
        lost = self._carried(self._smallest(keep))
        if lost and ours and keep > network.STANDARD_MTU:
            keep = network.STANDARD_MTU
            todo += self._settle(keep)
            lost = self._carried(keep)
        error = CheckFailed(f"frames of {keep} bytes do not arrive", hint="set cluster.mtu in fleet.toml to less")
        self._fail("network", dict.fromkeys(lost, error))
        if keep < fleet.mtu:
            self._warn(
                f"the network carries no frames of {fleet.mtu} bytes, so MTU is {keep}: a switch without jumbo frames? "
                "k1 deploy --only network tries again"
            )
        self._measure()

    def _settle(self, mtu: int) -> list[Node]:
        """Make node.conf and the interfaces as wanted."""
        fleet = self.session.fleet
        shared = network.shared_macs(fleet, self.nodes, self.facts)

        def need(node: Node) -> str:
            wanted = network.Wanted(node, mtu)
            facts = self.facts[node.name]
            return "" if self._is_foreign(node) else network.need(fleet, wanted, facts, shared)

        def act(node: Node) -> str:
            todo = need(node)
            self.facts[node.name] = network.apply(fleet, network.Wanted(node, mtu), self.release.model.name)
            return todo

        todo = self._sorted_out("network", need)
        self._each("network", todo, act)
        return todo

    def _is_foreign(self, node: Node) -> bool:
        """With --userland-only not even the addresses are looked at: they may be behind other interfaces."""
        return self.options.userland_only and not self._is_ours(node)

    def _is_ours(self, node: Node) -> bool:
        """Whether the node's network is ours to set: it runs our image, and its owner has not said otherwise."""
        alone = node.member.settings.userland_only or self.options.userland_only
        return self.facts[node.name].init == "busybox" and not alone

    def _smallest(self, mtu: int) -> int:
        links = [network.link_of(self.session.fleet, node, self.facts[node.name]) for node in self.nodes]
        return min([mtu, *(link.mtu for link in links if link)])

    def _carried(self, mtu: int) -> list[str]:
        """Names of the nodes that a frame of `mtu` bytes does not reach from the first; one that none reaches fails."""
        head, *others = self.nodes
        with self._failing_of("network", head):
            lost, silent = network.unreached(head, others, mtu)
        hint = "look at the switch, the cables, and for two boards with one address"
        error = CheckFailed(f"no answer to {head.name} over the cluster's network", hint=hint)
        self._fail("network", dict.fromkeys(silent, error))
        return lost

    def _measure(self) -> None:
        head, *others = self.nodes
        for node in others:
            if self.options.measure:
                with self._failing_of("network", node):
                    self._report(node, "network", "running", "iperf3")
                    self._report(node, "network", "ok", network.measure(head, node))

    def _send(self) -> None:
        def need(node: Node) -> str:
            facts = self.facts[node.name]
            if self.release.id not in facts.releases:
                return f"send {self.release.id}"
            return "" if facts.current != self.release.id or facts.intact else f"mend {self.release.id}"

        def act(node: Node) -> str:
            sent = release.send(self.session, node, self.release, self.facts[node.name])
            self.outcome.literal[node.name] = sent.get("Literal data", 0)
            return f"{sent.get('Literal data', 0) / 1e3:.1f} kB new"

        self._each("release", self._sorted_out("release", need), act)

    def _model(self) -> None:
        model = self.release.model

        def need(node: Node) -> str:
            return f"check {model.name}" if self.options.verify else weights.need(self.facts[node.name], model)

        lacking = self._sorted_out("model", need)
        if not lacking:
            return
        for node in lacking:
            self._report(node, "model", "running", "waiting")
        begun = time.monotonic()
        sent: dict[str, str] = {}

        def report(node: Node, text: str) -> None:
            if text != weights.CHECKING:
                sent[node.name] = text
            self._report(node, "model", "running", text)

        try:
            self.outcome.uplink = weights.bring(self.session, self.facts, model, lacking, report)
        except NodesFailed as error:
            self._fail("model", error.faults)
        for node in lacking:
            how = sent.get(node.name, "was there, hash checked")
            self._report(node, "model", "done", f"{how}, {time.monotonic() - begun:.0f} s")

    def _serve(self) -> None:
        """Switch, restart, and look whether it serves; else take it back everywhere."""
        switched: list[Node] = []
        try:
            self._switch(switched)
            self._services()
            self._health()
        except BaseException:
            if switched:
                self._roll_back(switched)
            raise

    def _switch(self, switched: list[Node]) -> None:
        def need(node: Node) -> str:
            facts = self.facts[node.name]
            if facts.current == self.release.id and not facts.on_trial:
                return ""
            return f"{facts.current or 'none'} becomes {self.release.id}"

        def act(node: Node) -> str:
            switched.append(node)
            service.switch(node, self.release.id)
            return need(node)

        if self.options.only in (None, "switch"):
            self._each("switch", self._sorted_out("switch", need), act)

    def _services(self) -> None:
        def need(node: Node) -> str:
            running = self.facts[node.name].running
            if self.outcome.nodes[node.name].get("release", {}).get("state") == "done":
                return f"restart {running or 'from nothing'}"  # mended, if it is the one that runs
            return "" if running == self.release.id else f"restart from {running or 'nothing'}"

        def act(node: Node) -> str:
            service.restart(node, self.facts[node.name])
            return need(node)

        if self.options.only != "health":
            self._each("services", self._sorted_out("services", need), act)

    def _health(self) -> None:
        """All ranks agree; after a change also one token, and only then is the release off trial."""
        if self.options.dry_run:
            return
        changed = [node for node in self.nodes if self._has_served_anew(node)]
        head = self.nodes[0]
        for node in self.nodes:
            self._report(node, "health", "running", "waiting for all ranks")
        with self._failing_of("health", head):
            health = self.outcome.health = self._wait_ready()
        if changed:
            self.session.each("health", changed, self._must_run)
            with self._failing_of("health", head):
                self._report(head, "health", "running", "one token")
                self._api.complete("Hello", 1, timeout=60 * self.session.fleet.cluster.timeout_scale)
            self.session.each("health", changed, service.confirm)
        layers = {rank["rank"]: rank["layers"] for rank in health.get("ranks", ()) if rank.get("layers")}
        for node in self.nodes:
            own = layers.get(node.rank)
            self._report(node, "health", "ok", f"layers {own[0]}-{own[1]}" if own else "serves")

    def _has_served_anew(self, node: Node) -> bool:
        rows = self.outcome.nodes[node.name]
        return any(rows.get(step, {}).get("state") == "done" for step in ("switch", "services"))

    def _wait_ready(self) -> dict[str, Any]:
        fleet = self.session.fleet
        looked = time.monotonic()

        def look(reason: str) -> None:
            nonlocal looked
            self._report(self.nodes[0], "health", "running", reason)
            if time.monotonic() - looked > scaled(3.0):
                self.session.each("health", self.nodes, self._must_run)
                looked = time.monotonic()

        return service.wait_ready(self._api, len(fleet.members), _READY * fleet.cluster.timeout_scale, look)

    def _must_run(self, node: Node) -> None:
        """A daemon that has ended will not come to agree, and one of another release does not count."""
        running = service.running(node)
        if f"/releases/{self.release.id}/" in running:
            return
        if running:
            raise CheckFailed(f"still runs {running}", hint=f"k1 logs {node.name}; does it end when it is stopped?")
        words = node.ask(service.log(self.facts[node.name], 1)).output.strip().rpartition("k1-inferd: ")[2]
        raise CheckFailed(f"the daemon does not run: {words}", hint=f"k1 logs {node.name}")

    def _roll_back(self, switched: Sequence[Node]) -> None:
        """Every node back to the release before; what fails at that heals itself at the node's next start."""

        def back(node: Node) -> None:
            self._report(node, ROLLBACK, "running")
            old = self.facts[node.name].current
            try:
                service.abort(node, self.release.id)
                service.restart(node, self.facts[node.name])
                self._report(node, ROLLBACK, "done", f"to {old or 'the image'}")
            except K1Error as error:
                self._report(node, ROLLBACK, "failed", f"{error.message}; at its next start it goes back by itself")

        self.session.each(ROLLBACK, switched, back)

    def aftermath(self) -> str:
        """For a person after a failure: whether the cluster serves, and with what."""
        went_back = any(ROLLBACK in rows for rows in self.outcome.nodes.values())
        if not went_back:
            return "what ran before runs on; k1 deploy again goes on from here"
        if away := [
            name for name, rows in self.outcome.nodes.items() if rows.get(ROLLBACK, {}).get("state") == "failed"
        ]:
            return f"the release before is back on the others; {', '.join(away)} takes it at its next start by itself"
        if not self.facts[self.nodes[0].name].current:
            return "there was no release before, so nothing serves now; k1 logs shows why the new one did not"
        fleet = self.session.fleet
        try:
            service.wait_ready(
                self._api, len(fleet.members), _READY * fleet.cluster.timeout_scale, lambda _reason: None
            )
        except K1Error as error:
            return f"the release before is back, but does not serve: {error.message}; k1 status"
        return "the release before is back and serves; k1 logs shows why the new one did not"
