"""The fleet: which nodes a cluster has, and who each of them is on the network; read from `fleet.toml`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Annotated

from pydantic import Field

from k1 import board as boards
from k1 import typedtoml
from k1.board import Board, Identity
from k1.errors import K1Error
from k1.facts import Address, Mac
from k1.typedtoml import Model, matching, near, shown

_HOSTNAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HINT = "docs/firmware.md describes fleet.toml"

Hostname = Annotated[str, matching(_HOSTNAME, "a host name of lower-case letters, digits and hyphens")]


class Node(Model):
    """One board. What is left out follows from the rank, as board.toml says."""

    rank: Annotated[int, Field(ge=0, le=255)]
    name: Hostname | None = None
    mac: Mac | None = None
    address: Address | None = None


class Fleet(Model):
    """All nodes of a cluster and the board that they are."""

    board: str = "k1"
    node: Annotated[tuple[Node, ...], Field(min_length=1)]


def load(path: Path) -> list[Identity]:
    """Who each node is, by rank. A fault of the file, or two nodes that share anything, is a `K1Error`."""
    if not path.is_file():
        raise K1Error(f"{path}: no such file", hint=_HINT)
    fleet = typedtoml.validate(Fleet, typedtoml.read(path), path, hint=_HINT)
    board = boards.load(fleet.board)
    _distinct(path, "rank", ((node.rank, node.rank) for node in fleet.node))
    found = sorted((_identity(node, board) for node in fleet.node), key=lambda identity: identity.rank)
    checks: tuple[tuple[str, Callable[[Identity], Hashable]], ...] = (
        ("name", lambda identity: identity.hostname),
        ("mac", lambda identity: identity.mac),
        ("address", lambda identity: identity.address.ip),
    )
    for key, of in checks:
        _distinct(path, key, ((of(identity), identity.rank) for identity in found))
    _check_network(path, board, found)
    return found


def find(fleet: Iterable[Identity], name: str) -> Identity:
    """The node of that name."""
    nodes = {identity.hostname: identity for identity in fleet}
    if name not in nodes:
        raise K1Error(f"no node {name!r} in the fleet", hint=near(name, nodes) or f"nodes: {', '.join(nodes)}")
    return nodes[name]


def interfaces(node: Identity, interface: str, mtu: int) -> str:
    """The node's stanza for /etc/network/interfaces, with the MAC that is its own."""
    lines = (f"address {node.address}", f"hwaddress ether {node.mac}", f"mtu {mtu}")
    head = f"# {node.hostname}\nauto {interface}\niface {interface} inet static\n"
    return head + "".join(f"\t{line}\n" for line in lines)


def node_conf(node: Identity) -> str:
    """/data/etc/k1/node.conf of the node, which our image's network script reads."""
    return f"RANK={node.rank}\nNAME={node.hostname}\nADDRESS={node.address}\nMAC={node.mac}\n"


def _identity(node: Node, board: Board) -> Identity:
    if node.name and node.mac and node.address:
        return Identity(node.rank, node.name, node.mac, node.address)
    standard = board.identity(node.rank)
    return Identity(
        node.rank, node.name or standard.hostname, node.mac or standard.mac, node.address or standard.address
    )


def _distinct(path: Path, key: str, values: Iterable[tuple[Hashable, int]]) -> None:
    seen: dict[Hashable, int] = {}
    for value, rank in values:
        if value in seen:
            where = f"rank {seen[value]} and rank {rank}" if key != "rank" else "two nodes"
            raise K1Error(f"{shown(path)}: node.{key}: {where} both have {value}", hint="give each node its own")
        seen[value] = rank


def _check_network(path: Path, board: Board, fleet: Iterable[Identity]) -> None:
    factory = board.network.factory_mac.value
    networks: dict[IPv4Interface, int] = {}
    for node in fleet:
        if node.mac == factory:
            text = f"{shown(path)}: node.mac: rank {node.rank} has {factory}, with which every board leaves the factory"
            raise K1Error(text, hint="give it another: two boards with one MAC break the network of both")
        networks.setdefault(IPv4Interface(node.address.network), node.rank)
    if len(networks) > 1:
        (one, first), (other, second) = list(networks.items())[:2]
        text = f"{shown(path)}: node.address: rank {first} is in {one}, rank {second} in {other}"
        raise K1Error(text, hint="nodes find each other by multicast: put them into one network")
