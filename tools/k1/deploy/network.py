"""Each node's identity on the cluster's network, and frames as large as the whole way between the nodes carries."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface

from k1 import fleet as fleets
from k1.deploy.probe import NODE_CONF, Facts, Link, probe
from k1.deploy.session import Node
from k1.drivers.patience import scaled
from k1.errors import CheckFailed, K1Error
from k1.fleet import Fleet

# What every switch carries.
STANDARD_MTU = 1500
# IPv4's and ICMP's headers.
_HEADERS = 28
_WAIT = 60.0


@dataclass(frozen=True)
class Wanted:
    """What a node's network is to be; `mtu` in bytes."""

    node: Node
    mtu: int

    @property
    def conf(self) -> str:
        """The text of node.conf."""
        return fleets.node_conf(self.node.member.identity) + f"MTU={self.mtu}\n"


def link_of(fleet: Fleet, node: Node, facts: Facts) -> Link | None:
    """The node's interface in the cluster's network."""
    macs = frozenset({*(m.identity.mac for m in fleet.members), fleet.board.network.factory_mac.value})
    return facts.cluster_link(node.member.identity.address.ip, macs)


def mtu_to_keep(fleet: Fleet, nodes: Sequence[Node], facts: Mapping[str, Facts]) -> int:
    """The MTU to ask for: the smaller one when an earlier deploy has left all nodes with it, else the fleet's."""
    found = {f"MTU={STANDARD_MTU}" in facts[node.name].conf.splitlines() for node in nodes}
    return STANDARD_MTU if found == {True} else fleet.mtu


def need(fleet: Fleet, wanted: Wanted, facts: Facts, shared: Mapping[str, Sequence[str]]) -> str:
    """What differs on a node, in words; nothing when all is well. shared: MAC → names of the nodes that have it."""
    identity, link = wanted.node.member.identity, link_of(fleet, wanted.node, facts)
    if link is None:
        names = ", ".join(f"{each.name} {each.mac}" for each in facts.links)
        text = f"no interface has {identity.address.ip} or a MAC of the cluster (there are: {names})"
        raise K1Error(text, hint="wrong node at this address? else correct node.mac and node.address in fleet.toml")
    if facts.init != "busybox" or wanted.node.member.settings.userland_only:
        return _owners(identity.address, link, shared)
    if len(shared[link.mac]) > 1:
        return f"MAC {link.mac} is that of {' and '.join(shared[link.mac])}"
    if (link.mac, identity.address in map(IPv4Interface, link.addresses)) != (identity.mac, True):
        return f"{link.mac} {' '.join(link.addresses)} becomes {identity.mac} {identity.address}"
    if link.mtu != wanted.mtu:
        return f"MTU {link.mtu} becomes {wanted.mtu}"
    return "" if facts.conf == wanted.conf else "write node.conf"


def _owners(address: IPv4Interface, link: Link, shared: Mapping[str, Sequence[str]]) -> str:
    """The network of a node with another system is only looked at."""
    if len(shared[link.mac]) > 1:
        text = f"{link.name} has MAC {link.mac}, as on {' and '.join(shared[link.mac])}"
        raise K1Error(text, hint="give each its own: k1 fleet interfaces NODE prints a stanza for the node's system")
    if address not in map(IPv4Interface, link.addresses):
        text = f"{link.name} has {' '.join(link.addresses) or 'no address'}, not {address}"
        raise K1Error(text, hint="k1 fleet interfaces NODE prints a stanza for the node's system")
    return ""


def shared_macs(fleet: Fleet, nodes: Sequence[Node], facts: Mapping[str, Facts]) -> dict[str, list[str]]:
    """MAC → names of the nodes whose cluster interface has it."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if link := link_of(fleet, node, facts[node.name]):
            found.setdefault(link.mac, []).append(node.name)
    return found


def apply(fleet: Fleet, wanted: Wanted, model: str) -> Facts:
    """Write node.conf and make it true; the node's facts after that. It survives losing the connection on the way."""
    node, new = wanted.node, f"{NODE_CONF}.new"
    # In the background and a moment later: the interface may be the one that SSH comes by.
    reload = "setsid sh -c 'sleep 0.5; /etc/init.d/S20network reload' >/dev/null 2>&1 </dev/null &"
    node.sh(
        f"mkdir -p {NODE_CONF.rpartition('/')[0]} && cat >{new} && mv {new} {NODE_CONF} && sync; {reload}",
        stdin=wanted.conf,
    )
    deadline = time.monotonic() + scaled(_WAIT)
    identity = node.member.identity
    while True:
        node.wait(1.0)
        try:
            facts = probe(node, model)
            link = link_of(fleet, node, facts)
            if link and (link.mac, link.mtu) == (identity.mac, wanted.mtu) and str(identity.address) in link.addresses:
                return facts
        except CheckFailed:
            node.target.close()
        if time.monotonic() > deadline:
            text = f"did not come back as {identity.mac} {identity.address} within {scaled(_WAIT):.0f} s"
            raise CheckFailed(text, hint=f"on its serial console: cat {NODE_CONF}; /etc/init.d/S20network reload")


def unreached(head: Node, others: Sequence[Node], mtu: int) -> tuple[list[str], list[str]]:
    """Names of the nodes that a frame of `mtu` bytes does not reach from `head`, and of those that none reaches."""
    lost = _unanswered(head, others, mtu - _HEADERS)
    return lost, _unanswered(head, [node for node in others if node.name in lost], 56)


def _unanswered(head: Node, others: Sequence[Node], size: int) -> list[str]:
    if not others:
        return []
    tries = ("-c 1 -W 2", "-c 3 -W 3")  # the second for one that was lost by chance
    pings = " ".join(
        "("
        + " || ".join(f"ping {each} -s {size} {node.address} >/dev/null 2>&1" for each in tries)
        + f" || echo {node.name}) &"
        for node in others
    )
    return sorted(head.sh(f"{pings} wait").split())


def measure(source: Node, target: Node) -> str:
    """The way between two nodes as iperf3 finds it: small datagrams, then four TCP streams, a second each."""
    serve = f"iperf3 -s -B {target.address} -1 >/dev/null 2>&1 & sleep 1; echo on"

    def ask(options: str) -> dict[str, float]:
        target.sh(serve)
        text = source.sh(f"iperf3 -c {target.address} -t 1 -J {options}")
        end: dict[str, dict[str, float]] = json.loads(text)["end"]
        return end.get("sum_received") or end["sum"]

    try:
        small, bulk = ask("-u -b 0 -l 64"), ask("-P 4")
    except (K1Error, ValueError, KeyError) as error:
        raise CheckFailed(f"iperf3 to {target.name}: {error}", hint="install iperf3 on the nodes") from error
    lost = small.get("lost_percent", 0.0)
    return (
        f"{bulk['bits_per_second'] / 1e6:.0f} Mbit/s -P 4, "
        f"{small['bits_per_second'] / 1e6:.1f} Mbit/s -u -l 64 ({lost:.0f} % lost)"
    )
