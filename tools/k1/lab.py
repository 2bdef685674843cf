"""A lab: N virtual boards that boot the image, on one network, each with a serial port and SSH.

All of a lab's state is the folder build/virt/lab/<name>. Processes are found by the name on their command
line, which follows from that folder, so whatever a crash left behind is found by the next command.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil
from pydantic import BaseModel, Field, ValidationError

from k1 import board as boards
from k1 import files, paths, render
from k1.drivers import boot, devicetree, ports, qemu
from k1.drivers.console import Console, Listener
from k1.drivers.qmp import Qmp
from k1.drivers.ssh import Target
from k1.errors import K1Error

BOARD = "virt"
DEFAULT_NAME = "default"
DEFAULT_COUNT = 4
DEFAULT_TIMEOUT = 120.0
MEMORY_MIB = range(256, 65537)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class _Node(BaseModel):
    """What is chosen once for one board."""

    ssh_port: int
    api_port: int = 0
    cut: bool = False


class _State(BaseModel):
    """lab.json: what is chosen once for the whole lab, and its boards by rank."""

    image: str
    memory: int
    group: str
    port: int
    nodes: list[_Node] = Field(default_factory=list)


@dataclass(frozen=True)
class Status:
    """One board of a lab as it is now; `uptime` in seconds, 0 when it is off."""

    rank: int
    hostname: str
    state: str
    link: str
    pid: int | None
    ssh_port: int
    api_port: int
    mac: str
    address: str
    uptime: float
    console: str


@dataclass(frozen=True)
class Image:
    """The image a lab boots, and what tells it from another one."""

    firmware: Path
    kernel: Path
    card: Path
    digest: str

    @classmethod
    def find(cls) -> Image:
        """The built image of the virtual board; K1Error when a part is missing."""
        folder = paths.build_dir(BOARD) / "images"
        found = [folder / name for name in ("fw_dynamic.bin", "u-boot.bin", "sdcard.img", "manifest.json")]
        for path in found:
            if not path.is_file():
                raise K1Error(f"no image for the virtual boards: {path} is missing", hint="make image")
        firmware, kernel, card, manifest = found
        return cls(firmware, kernel, card, _card_digest(manifest))


def running() -> list[str]:
    """Names of the labs of this build folder with a board that runs."""
    folder = paths.build_dir(BOARD) / "lab"
    return [path.name for path in sorted(folder.glob("*/")) if Lab(path.name).is_on]


class Lab:
    """The lab called `name`, whether it exists or not."""

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        """Raise K1Error when `name` cannot be part of a file name."""
        if not _NAME.fullmatch(name):
            allowed = "letters, digits, - and _, at most 32, the first a letter or digit"
            raise K1Error(f"{name!r} is no name for a lab", hint=allowed)
        self.name = name
        self.folder = paths.build_dir(BOARD) / "lab" / name
        self._id = f"k1-{name}-{files.digest(str(self.folder.resolve()))[:12]}"

    @cached_property
    def _board(self) -> boards.Board:
        # Only when it is needed: a fault in board.toml must not keep a lab from being taken down.
        return boards.load(BOARD)

    @property
    def is_on(self) -> bool:
        """Whether any of its boards runs."""
        return bool(qemu.running(self._id))

    # --- commands

    def up(
        self,
        count: int | None = None,
        *,
        memory: int | None = None,
        ssh_port: int | None = None,
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT,
        report: Callable[[Sequence[boot.Boot]], None] = lambda boots: None,
    ) -> list[Status]:
        """Start the boards that do not run, and wait until all answer on SSH.

        count: boards wanted; None means those the lab has, or four. More than there are are added.
        memory: MiB of each board; ssh_port: rank r listens on ssh_port + r, else free ports are chosen.
        timeout: seconds, scaled. When it is over the boards are left running, to be looked at.
        """
        image = Image.find()
        with self._locked():
            fresh = not self._state_file.is_file()
            if fresh:
                # What a crash left: processes without a lab, or a lab without its state.
                qemu.kill(self._id)
                shutil.rmtree(self.folder, ignore_errors=True)
            state = self._new_state(image) if fresh else self._load()
            running = qemu.running(self._id)
            self._plan(state, image, count, memory, bool(running))
            missing = [rank for rank in range(len(state.nodes)) if rank not in running]
            try:
                self._start(state, image, missing, ssh_port)
                if wait:
                    boot.wait(self._boots(state), timeout, report)
            except boot.NotReady as error:
                error.hint = (
                    f"the boards still run: k1 lab console --name {self.name} N shows one, "
                    f"k1 lab down --name {self.name} ends them; on a slow host give --timeout or K1_TIMEOUT_SCALE"
                )
                raise
            except BaseException:
                self._undo(missing, fresh)
                raise
            return self._status(state)

    def status(self) -> list[Status]:
        """Every board of the lab; K1Error when there is no such lab."""
        return self._status(self._load())

    def down(self, *, keep: bool = False) -> bool:
        """Take the power from all boards and remove the lab; whether there was one.

        keep: shut the boards down properly first and keep their disks, so that the next up continues.
        """
        with self._locked():
            existed = self.folder.exists() or bool(qemu.running(self._id))
            if keep and existed:
                self._power_off()
            qemu.stop(self._id)
            if not keep and self.folder.exists():
                shutil.rmtree(self.folder)
            return existed

    def kill(self, rank: int) -> None:
        """Cut the power of one board; its disk stays as it was at that moment."""
        with self._locked():
            self._require_running(rank)
            qemu.kill(self._id, {rank})

    def cut(self, rank: int, *, restore: bool = False) -> None:
        """Unplug one board from the cluster's network, or plug it in again; SSH is not touched."""
        with self._locked():
            state = self._require_running(rank)
            with self.qmp(rank) as control:
                control.execute("set_link", name=qemu.CLUSTER_LINK, up=restore)
            state.nodes[rank].cut = not restore
            self._save(state)

    def ssh(self, rank: int) -> Target:
        """How to reach one board by SSH; K1Error when it is off."""
        state = self._require_running(rank)
        return self._target(state, rank)

    def console(self, rank: int) -> Console:
        """The serial console of one board, to be closed by the caller; K1Error when it is off or held."""
        self._require_running(rank)
        return Console(self._node(rank), self._title(rank))

    def listen(self, rank: int) -> Listener:
        """All that one board says, without a line to it; to be closed by the caller. K1Error when it is off."""
        self._require_running(rank)
        process = qemu.running(self._id).get(rank)
        if process is None:
            raise K1Error(f"{self._title(rank)} went off", hint=f"k1 lab up --name {self.name}")
        return Listener(self._node(rank), process)

    def qmp(self, rank: int) -> Qmp:
        """A control connection to one board's QEMU, to be closed by the caller."""
        return Qmp(self._node(rank) / qemu.QMP, self._title(rank))

    # --- state

    @property
    def _state_file(self) -> Path:
        return self.folder / "lab.json"

    def _node(self, rank: int) -> Path:
        return self.folder / f"node{rank}"

    def _title(self, rank: int) -> str:
        return f"board {rank} of lab {self.name}"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with files.locked(self.folder.with_suffix(".lock"), f"lab {self.name}"):
            yield

    def _load(self) -> _State:
        try:
            return _State.model_validate_json(self._state_file.read_bytes())
        except FileNotFoundError as error:
            others = ", ".join(sorted(path.parent.name for path in self.folder.parent.glob("*/lab.json")))
            hint = f"k1 lab up --name {self.name}" + (f"; there are: {others}" if others else "")
            raise K1Error(f"there is no lab {self.name}", hint=hint) from error
        except ValidationError as error:
            hint = f"k1 lab down --name {self.name}, then up"
            raise K1Error(f"{self._state_file}: damaged ({error.error_count()} faults)", hint=hint) from error

    def _save(self, state: _State) -> None:
        files.write_json(self._state_file, state.model_dump())

    def _new_state(self, image: Image) -> _State:
        group, port = ports.free_group()
        return _State(image=image.digest, memory=self._board.memory.total_mib.value, group=group, port=port)

    def _require_running(self, rank: int) -> _State:
        state = self._load()
        if not 0 <= rank < len(state.nodes):
            last = len(state.nodes) - 1
            raise K1Error(f"lab {self.name} has no board {rank}", hint=f"it has boards 0 to {last}")
        if rank not in qemu.running(self._id):
            raise K1Error(f"{self._title(rank)} is off", hint=f"k1 lab up --name {self.name}")
        return state

    def _status(self, state: _State) -> list[Status]:
        running = qemu.running(self._id)
        return [self._status_of(rank, node, running.get(rank)) for rank, node in enumerate(state.nodes)]

    def _status_of(self, rank: int, node: _Node, process: psutil.Process | None) -> Status:
        identity = self._board.identity(rank)
        return Status(
            rank=rank,
            hostname=identity.hostname,
            state="running" if process else "off",
            link="cut" if node.cut else "up",
            pid=process.pid if process else None,
            ssh_port=node.ssh_port,
            api_port=node.api_port,
            mac=identity.mac,
            address=str(identity.address.ip),
            uptime=round(time.time() - process.create_time(), 1) if process else 0.0,
            console=str(self._node(rank) / qemu.SERIAL),
        )

    # --- up

    def _plan(self, state: _State, image: Image, count: int | None, memory: int | None, running: bool) -> None:
        """Fit `state` to what is asked for, or say why that is not possible."""
        down = f"k1 lab down --name {self.name}"
        if state.image != image.digest:
            text = f"lab {self.name} has disks of an older image; {image.card} was built anew since"
            raise K1Error(text, hint=f"{down} (this removes the lab's disks), then up")
        if count is not None and count < len(state.nodes):
            raise K1Error(f"lab {self.name} has {len(state.nodes)} boards, more than {count}", hint=f"{down}, then up")
        if memory is not None and memory not in MEMORY_MIB:
            raise K1Error(f"{memory} MiB is no memory for a board", hint=f"{MEMORY_MIB[0]} to {MEMORY_MIB[-1]}")
        if memory is not None and memory != state.memory and running:
            raise K1Error(f"lab {self.name} runs with {state.memory} MiB a board", hint=f"{down} --keep, then up")
        state.memory = memory or state.memory
        wanted = count or len(state.nodes) or DEFAULT_COUNT
        self._board.identity(wanted - 1)
        state.nodes += [_Node(ssh_port=0) for _ in range(wanted - len(state.nodes))]

    def _start(self, state: _State, image: Image, ranks: Sequence[int], ssh_port: int | None) -> None:
        if not ranks:
            return
        machine = self._machine(state)
        dtb = self.folder / "board.dtb"
        overlay = render.render_text(self._board.find("dts/k1.dtsi.j2"), self._board)
        devicetree.build(machine.arguments(), overlay, dtb)
        size = self._board.storage.emmc_gb.value * 10**9
        for rank in ranks:
            before = state.nodes[rank]
            state.nodes[rank] = _Node(
                ssh_port=_ssh_port(rank, before.ssh_port, ssh_port), api_port=_port(before.api_port)
            )
            self._save(state)
            folder = self._node(rank)
            folder.mkdir(exist_ok=True)
            if not (folder / qemu.DISK).exists():
                qemu.create_disk(folder / qemu.DISK, image.card, size)
            network = self._network(state, rank)
            words = qemu.command(qemu.name(self._id, rank), machine, image.firmware, image.kernel, dtb, network)
            qemu.start(words, folder, self._title(rank))

    def _machine(self, state: _State) -> qemu.Machine:
        cpu, shown = self._board.cpu, self._board.qemu
        if shown is None:
            raise K1Error(f"board {BOARD} has no table [qemu] in its board.toml", hint="git checkout board/virt")
        return qemu.Machine(shown.cpu, cpu.cores.value, cpu.threads_per_core.value, state.memory)

    def _network(self, state: _State, rank: int) -> qemu.Network:
        mac, mtu = self._board.identity(rank).mac, self._board.network.mtu.value
        return qemu.Network(mac, mtu, state.group, state.port, state.nodes[rank].ssh_port, state.nodes[rank].api_port)

    def _boots(self, state: _State) -> list[boot.Boot]:
        running = qemu.running(self._id)
        for rank in range(len(state.nodes)):
            if rank not in running:
                raise boot.NotReady(f"{self._title(rank)} went off at once, see {self._node(rank)}")
        return [
            boot.Boot(self._title(rank), self._node(rank) / qemu.SERIAL_LOG, process, self._target(state, rank))
            for rank, process in sorted(running.items())
        ]

    def _target(self, state: _State, rank: int) -> Target:
        return Target(
            port=state.nodes[rank].ssh_port,
            key=paths.build_dir(BOARD) / "ssh" / "id_ed25519",
            known_hosts=self.folder / "known_hosts",
            alias=self._board.identity(rank).hostname,
        )

    def _undo(self, ranks: Sequence[int], fresh: bool) -> None:
        qemu.kill(self._id, set(ranks))
        if fresh:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _power_off(self) -> None:
        """Shut down the boards that answer, all at once; give them time to go off."""
        state = self._load()
        asked = []
        for rank, process in qemu.running(self._id).items():
            target = self._target(state, rank)
            if target.answers() and target.run("poweroff", check=False).returncode == 0:
                asked.append(process)
        qemu.wait_end(asked, 20.0)


def _card_digest(manifest: Path) -> str:
    try:
        digest: str = json.loads(manifest.read_text())["images"]["sdcard.img"]["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise K1Error(f"{manifest}: does not name sdcard.img and its sha256", hint="make image") from error
    return digest


def _port(before: int) -> int:
    """A free port, as before if possible."""
    return before if before and ports.is_free(before) else ports.free_port()


def _ssh_port(rank: int, before: int, base: int | None) -> int:
    """The port for the SSH of board `rank`: as asked for, as before, or a free one."""
    if base is None:
        return _port(before)
    port = base + rank
    if not 1024 <= port <= 65535:
        raise K1Error(f"port {port} for the SSH of board {rank} is not possible", hint="--ssh-port from 1024 to 65000")
    if not ports.is_free(port):
        hint = "give another --ssh-port, or none: then free ports are chosen"
        raise K1Error(f"port {port} for the SSH of board {rank} is taken by another program", hint=hint)
    return port
