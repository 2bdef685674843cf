"""Going back by hand: the release before the current one, on all nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from k1.deploy import service
from k1.deploy.plan import Event, Outcome
from k1.deploy.probe import Facts, probe
from k1.deploy.session import Node, NodesFailed, Session
from k1.errors import K1Error

_READY = 30.0


def run(session: Session, report: Callable[[Event], None]) -> Outcome:
    """Switch every node to its previous release and wait until the cluster serves; nodes must agree which one it is.

    Called twice it leads back to where it began.
    """
    nodes = session.nodes
    facts = session.each("preflight", nodes, probe)
    target = _target(nodes, facts)
    outcome = Outcome(target, changed=True)

    def back(node: Node) -> None:
        report(Event(node.name, "rollback", "running"))
        if facts[node.name].current != target:
            service.revert(node, facts[node.name].current)
        service.restart(node, facts[node.name])
        report(Event(node.name, "rollback", "done", f"{facts[node.name].current} to {target}"))

    session.each("rollback", nodes, back)
    api = service.Api(session)
    fleet = session.fleet

    def waiting(reason: str) -> None:
        report(Event(nodes[0].name, "health", "running", reason))

    try:
        outcome.health = service.wait_ready(api, len(fleet.members), _READY * fleet.cluster.timeout_scale, waiting)
    except K1Error as error:
        raise NodesFailed("health", {nodes[0].name: error}) from error
    for node in nodes:
        report(Event(node.name, "health", "ok"))
    return outcome


def _target(nodes: list[Node], facts: dict[str, Facts]) -> str:
    """The release to go back to: where nodes differ, most have their say if the others have it too."""
    wanted = Counter(facts[node.name].previous for node in nodes if facts[node.name].previous)
    if not wanted:
        raise K1Error("no node has a release before the current one", hint="k1 status shows what they have")
    target, _ = wanted.most_common(1)[0]
    for node in nodes:
        found = facts[node.name]
        if target not in (found.current, found.previous) and not found.on_trial:
            text = f"{node.name} has {found.previous or 'nothing'} before {found.current or 'nothing'}, not {target}"
            raise K1Error(text, hint="k1 deploy brings all nodes to one release first")
    return target
