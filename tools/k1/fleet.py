"""The fleet: which nodes a cluster has, who each is on the network and how it is reached; read from `fleet.toml`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from k1 import board as boards
from k1 import typedtoml
from k1.board import Board, Identity
from k1.errors import K1Error
from k1.facts import Address, Mac
from k1.typedtoml import Model, matching, near, shown

_HOSTNAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HINT = "docs/deploy.md describes fleet.toml"

Hostname = Annotated[str, matching(_HOSTNAME, "a host name of lower-case letters, digits and hyphens")]
Port = Annotated[int, Field(ge=1, le=65535)]
_Word = Annotated[str, matching(r"[^\s-]\S*", "one word, not beginning with a hyphen")]
Factor = Annotated[float, Field(gt=0, le=1000)]


class Ssh(Model):
    """How a node is reached. Left out: the node's address, port 22, root, and the keys of the user's own."""

    host: _Word | None = None
    port: Port | None = None
    user: _Word | None = None
    key: str | None = None


class Cluster(Model):
    """What all nodes share. Files are looked for beside fleet.toml.

    model: a GGUF file, or a name of `k1 model list`.
    programs: folder with k1-inferd and k1-cli for the nodes of its architecture; the others get the userland that is
    built here (riscv64, aarch64).
    key_file, api_token_file: made at the first deploy when they are not there.
    mtu: bytes; left out, the board's.
    timeout_scale: factor on the time-outs between nodes, for slow ones.
    """

    model: str | None = None
    programs: str | None = None
    n_ctx: Annotated[int, Field(ge=8, le=1 << 20)] = 2048
    n_batch: Annotated[int, Field(ge=1, le=1 << 16)] = 128
    n_parallel: Annotated[int, Field(ge=1, le=16)] = 1
    mtu: Annotated[int, Field(ge=576, le=9216)] | None = None
    key_file: str = "cluster_key"
    api_token_file: str = "api_tokens"  # noqa: S105 - a file name
    timeout_scale: Factor = 1.0


class Node(Model):
    """One board. What is left out follows from the rank, as board.toml says.

    serial, usb_path: where the operator's machine has the board's console and its USB, for flashing.
    cpu_weight: the operator's factor on the share of layers; kept for the scheduler.
    userland_only: another system than our image; its network is its owner's.
    """

    rank: Annotated[int, Field(ge=0, le=255)]
    name: Hostname | None = None
    mac: Mac | None = None
    address: Address | None = None
    serial: str | None = None
    usb_path: str | None = None
    cpu_weight: Annotated[float, Field(ge=0, le=10)] = 1.0
    n_threads: Annotated[int, Field(ge=1, le=64)] | None = None
    userland_only: bool = False
    ssh: Ssh = Ssh()


class _File(Model):
    """fleet.toml as a whole; `ssh` holds what the nodes leave out."""

    board: str = "k1"
    cluster: Cluster = Cluster()
    ssh: Ssh = Ssh()
    node: Annotated[tuple[Node, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Login:
    """Where and as whom SSH reaches a node; `key`: private key file, None for the user's own."""

    host: str
    port: int
    user: str
    key: Path | None


@dataclass(frozen=True)
class Member:
    """A node with all that follows from its rank and the file's defaults."""

    identity: Identity
    login: Login
    settings: Node

    @property
    def rank(self) -> int:
        """The node's rank."""
        return self.identity.rank

    @property
    def name(self) -> str:
        """The node's host name."""
        return self.identity.hostname


@dataclass(frozen=True)
class Fleet:
    """fleet.toml, checked; `members` by rank."""

    path: Path
    board: Board
    cluster: Cluster
    members: tuple[Member, ...]

    @property
    def known_hosts(self) -> Path:
        """The file with the host keys that were seen at first contact."""
        return self.path.with_suffix(".known_hosts")

    @property
    def mtu(self) -> int:
        """MTU of the cluster's network in bytes."""
        return self.cluster.mtu or self.board.network.mtu.value

    def beside(self, name: str) -> Path:
        """A file that fleet.toml names: beside it, when the name is not absolute."""
        return self.path.absolute().parent / Path(name).expanduser()

    def chosen(self, names: Iterable[str]) -> tuple[Member, ...]:
        """The members of these names, all when there are none; an unknown one is a `K1Error`."""
        wanted = {find([member.identity for member in self.members], name).rank for name in names}
        return tuple(member for member in self.members if not wanted or member.rank in wanted)


def read(path: Path) -> Fleet:
    """The fleet of a file. A fault of the file, or two nodes that share anything, is a `K1Error`."""
    if not path.is_file():
        raise K1Error(f"{path}: no such file", hint=f"k1 fleet init --addresses … makes one; {_HINT}")
    return parse(typedtoml.read(path), path)


def parse(tables: Mapping[str, Any], path: Path) -> Fleet:
    """The fleet of the tables of the file `path`; errors as of `read`."""
    file = typedtoml.validate(_File, tables, path, hint=_HINT)
    board = boards.load(file.board)
    _distinct(path, "rank", ((node.rank, node.rank) for node in file.node))
    members = tuple(sorted((_member(node, file, board, path) for node in file.node), key=lambda member: member.rank))
    checks: tuple[tuple[str, Callable[[Member], Hashable]], ...] = (
        ("name", lambda member: member.name),
        ("mac", lambda member: member.identity.mac),
        ("address", lambda member: member.identity.address.ip),
        ("ssh", lambda member: f"{member.login.host} port {member.login.port}"),
        ("serial", lambda member: member.settings.serial),
        ("usb_path", lambda member: member.settings.usb_path),
    )
    for key, of in checks:
        _distinct(path, key, ((of(member), member.rank) for member in members if of(member) is not None))
    _check_network(path, board, [member.identity for member in members])
    return Fleet(path, board, file.cluster, members)


def load(path: Path) -> list[Identity]:
    """Who each node of the file is, by rank; errors as of `read`."""
    return [member.identity for member in read(path).members]


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


def render(board: str, cluster: dict[str, Any], ssh: dict[str, Any], nodes: Sequence[dict[str, Any]]) -> str:
    """The text of a fleet.toml; a node's `ssh` is a table of its own."""
    about = "# The nodes of a cluster and what they share; docs/deploy.md describes every key."
    lines = [about, f"board = {_toml(board)}"]
    for title, table in (("[cluster]", cluster), ("[ssh]", ssh), *(("[[node]]", node) for node in nodes)):
        if table:
            lines += ["", title, *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _member(node: Node, file: _File, board: Board, path: Path) -> Member:
    identity = _identity(node, board)
    key = node.ssh.key or file.ssh.key
    login = Login(
        host=node.ssh.host or file.ssh.host or str(identity.address.ip),
        port=node.ssh.port or file.ssh.port or 22,
        user=node.ssh.user or file.ssh.user or "root",
        key=path.absolute().parent / Path(key).expanduser() if key else None,
    )
    return Member(identity, login, node)


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
