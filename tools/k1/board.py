"""Boards: the facts of `board/<name>/board.toml`, what its image is made of, and who each node of a cluster is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from k1 import typedtoml
from k1.errors import K1Error
from k1.facts import (
    L2,
    Count,
    Cpu,
    Ddr,
    Dfu,
    Fact,
    Facts,
    Gmac,
    Memory,
    Network,
    Power,
    Serial,
    Software,
    Storage,
    Uboot,
    Version,
)
from k1.paths import BOARDS
from k1.typedtoml import Model, fault, matching, shown, that

_HINT = "board/k1/README.md says how to give facts of your own"


def _below_root(path: str) -> str:
    if path != str(PurePosixPath(path)) or path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise fault("leaves the root file system", allowed="a relative path or pattern, such as usr/share/doc")
    return path


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise fault(f"{twice[0]!r} is given twice", allowed="each name once", got=twice[0])
    return names


Name = Annotated[str, matching(r"[a-z][a-z0-9-]*", "lower-case letters, digits and hyphens, a letter first")]
Plain = Annotated[str, matching(r"[\w.+/-]+", "letters, digits and _ . + / -")]
Package = Annotated[str, matching(r"[a-z0-9][a-z0-9+.-]+", "the name of a Debian package, such as libc6")]
_NOT_EMPTY = that(bool, "is empty", "at least one name")
Suites = Annotated[tuple[Name, ...], _NOT_EMPTY, AfterValidator(_once)]
RootPath = Annotated[str, AfterValidator(_below_root)]
Builder = Literal["debian", "buildroot"]


class Source(Model):
    """A Debian package that something is built from: a source package, or a binary one that holds sources.

    architecture: of a binary package; None for one that is the same everywhere (`all`), or a source.
    suites: in the order of preference.
    only: pattern for the names of the files needed of a source package, where not all are.
    """

    name: Name
    kind: Literal["source", "binary"]
    package: Package
    architecture: Literal["riscv64"] | None = None
    suites: Suites
    only: Annotated[str, StringConstraints(min_length=1)] = "*"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "source" and self.architecture:
            allowed = "no architecture beside kind source"
            raise fault("has no meaning here", allowed=allowed, key="architecture", got=self.architecture)
        if self.kind == "binary" and self.only != "*":
            raise fault("has no meaning here", allowed="no only beside kind binary", key="only", got=self.only)
        return self


def _distinct(sources: tuple[Source, ...]) -> tuple[Source, ...]:
    _once(tuple(source.name for source in sources))
    return sources


class Root(Model):
    """The root file system: Debian riscv64 packages, and what of them is left out."""

    suites: Suites
    packages: Annotated[tuple[Package, ...], _NOT_EMPTY, AfterValidator(_once)]
    prune: tuple[RootPath, ...] = ()
    only: dict[Package, tuple[RootPath, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for package in self.only:
            if package not in self.packages:
                raise fault("is not in image.root.packages", allowed="one of them", key="only", got=package)
        return self


class Buildroot(Model):
    """What Buildroot needs to know of the trees that it builds.

    opensbi_platform: OpenSBI's PLATFORM, a folder below platform/.
    uboot: version of U-Boot.
    uboot_defconfig, linux_defconfig: without `_defconfig`; no kernel's means the architecture's own.
    """

    opensbi_platform: Plain
    uboot: Version
    uboot_defconfig: Plain
    linux_defconfig: Plain | None = None


class Image(Model):
    """How the board's image is built, and from what."""

    builder: Builder
    sources: Annotated[tuple[Source, ...], AfterValidator(_distinct)] = ()
    root: Root | None = None
    buildroot: Buildroot | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.builder == "debian" and not (self.sources and self.root):
            raise fault(
                "has not all that builder debian needs",
                allowed="image.sources and image.root beside builder debian",
                got=self.builder,
            )
        if self.builder == "buildroot" and not self.buildroot:
            allowed = "image.buildroot beside builder buildroot"
            raise fault("has not all that builder buildroot needs", allowed=allowed, got=self.builder)
        return self


class Card(Model):
    """Sizes and fixed ids of the card's partitions, in their order on the card."""

    env_mib: Count
    slot_mib: Count
    data_mib: Count
    disk_uuid: UUID
    env_uuid: UUID
    slot_a_uuid: UUID
    slot_b_uuid: UUID
    data_uuid: UUID
    data_fs_uuid: UUID

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        seen: dict[UUID, str] = {}
        for key, value in self:
            if isinstance(value, UUID) and (other := seen.setdefault(value, key)) != key:
                raise fault(
                    "used twice", allowed=f"an id of its own, not that of card.{other}", key=key, got=str(value)
                )
        return self


class Qemu(Model):
    """The QEMU machine of a virtual board."""

    cpu: Annotated[str, matching(r"[a-z0-9-]+(,[\w-]+=[\w.]+)*", "a QEMU -cpu argument, such as rv64,zba=true")]


@dataclass(frozen=True)
class Identity:
    """Who a node is on the network."""

    rank: int
    hostname: str
    mac: str
    address: IPv4Interface


class Board(Model):
    """One board: facts, image, card."""

    name: Name
    title: Annotated[str, StringConstraints(min_length=1)]
    extends: str | None = None
    cpu: Cpu
    memory: Memory
    l2: L2
    storage: Storage
    gmac: Gmac
    network: Network
    dfu: Dfu
    serial: Serial
    software: Software
    power: Power
    ddr: Ddr
    uboot: Uboot
    image: Image
    card: Card
    qemu: Qemu | None = None

    @property
    def builder(self) -> Builder:
        """The builder to use when the user names none."""
        return self.image.builder

    def facts(self) -> Iterator[tuple[str, Fact[Any] | None]]:
        """Every fact under its key, such as `cpu.isa`; None for one that only the board's owner can give."""
        for section, table in self:
            if isinstance(table, Facts):
                yield from ((f"{section}.{key}", fact) for key, fact in table)

    @property
    def folders(self) -> tuple[Path, ...]:
        """The board's folder, and before it those of the boards it extends."""
        return (*(load(self.extends).folders if self.extends else ()), BOARDS / self.name)

    def find(self, name: str) -> Path:
        """A file from the board's folder, or from that of the nearest board it extends and that has one."""
        for folder in reversed(self.folders):
            if (folder / name).is_file():
                return folder / name
        raise K1Error(f"board {self.name} has no {name}", hint=f"add {shown(BOARDS / self.name / name)}")

    def identity(self, rank: int) -> Identity:
        """The node of that rank: name, MAC and address. A rank whose addresses cannot be used is refused."""
        network = self.network
        base, address = int(network.mac_base.value.replace(":", ""), 16), network.address_base.value
        last = int(address.network.broadcast_address) - 1 - int(address.ip)
        last = min(last, 0xFF - base % 0x100)
        if not 0 <= rank <= last:
            hint = f"use a rank from 0 to {last}, or other network.mac_base and network.address_base in board.toml"
            raise K1Error(f"board {self.name}: rank {rank} has no MAC and address of its own", hint=hint)
        mac = (base + rank).to_bytes(6, "big").hex(":")
        if mac == network.factory_mac.value:
            text = f"board {self.name}: rank {rank} would get {mac}, the MAC every board leaves the factory with"
            raise K1Error(text, hint=f"leave rank {rank} out, or change network.mac_base in board.toml")
        host = IPv4Interface((int(address.ip) + rank, address.network.prefixlen))
        return Identity(rank, f"k1-{rank}", mac, host)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        slot, budget = self.card.slot_mib, self.storage.root_budget_mb.value
        if budget * 1000**2 > slot * 1024**2:
            raise fault(
                f"smaller than storage.root_budget_mb ({budget} MB)",
                allowed="a slot that holds the root file system",
                key="card.slot_mib",
                got=slot,
            )
        whole, emmc = self.card.env_mib + 2 * slot + self.card.data_mib, self.storage.emmc_gb.value
        if whole * 1024**2 > emmc * 1000**3:
            raise fault(
                f"does not fit storage.emmc_gb ({emmc} GB)",
                allowed="env_mib + 2 x slot_mib + data_mib within the eMMC",
                key="card",
                got=whole,
            )
        return self


def names() -> list[str]:
    """Every board below `board/`."""
    return sorted(path.parent.name for path in BOARDS.glob("*/board.toml"))


def load(name: str) -> Board:
    """The board of that name. An unknown name, or any fault in its file, is a `K1Error`."""
    path = _path(name)
    if path is None:
        hint = " ".join(filter(None, (typedtoml.near(name, names()), f"boards: {', '.join(names())}")))
        raise K1Error(f"no board {name!r} below {shown(BOARDS)}/", hint=hint)
    board = load_file(path)
    if board.name != name:
        text = f'{shown(path)}: name: is not the folder\'s, got "{board.name}"; allowed: "{name}"'
        raise K1Error(text, hint="rename the folder or the board")
    return board


def load_file(path: Path) -> Board:
    """The board a file describes, wherever it lies. Any fault in it is a `K1Error`."""
    return _load(path, ())[0]


def _load(path: Path, below: tuple[Path, ...]) -> tuple[Board, dict[str, Any]]:
    """The board of a file and its merged tables. `below`: the files that extend this one."""
    data = typedtoml.read(path)
    parent = data.get("extends")
    if parent is not None:
        base = _path(parent) if isinstance(parent, str) else None
        if base is None or base in (path, *below):
            allowed = ", ".join(name for name in names() if _path(name) not in (path, *below))
            text = f"{shown(path)}: extends: not a board to build on, got {parent!r}; allowed: {allowed}"
            raise K1Error(text, hint=_HINT)
        # The base is checked on its own first, so that every fault found below is this file's.
        inherited = _load(base, (path, *below))[1]
        own = ("name", "title", "extends")
        data = typedtoml.merge({key: value for key, value in inherited.items() if key not in own}, data)
    return typedtoml.validate(Board, data, path, hint=_HINT), data


def _path(name: str) -> Path | None:
    return BOARDS / name / "board.toml" if name in names() else None
