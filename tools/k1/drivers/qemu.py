"""QEMU: one virtual board is one process that is found again by its name, never by a number in a file.

QEMU runs with the board's folder as its working directory and is given names relative to it, so a folder
with spaces or with a path longer than a Unix socket allows does not matter.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from k1.drivers.patience import scaled
from k1.errors import CheckFailed
from k1.run import CommandError, run

PROGRAM = "qemu-system-riscv64"
DISK, SERIAL, SERIAL_LOG, QMP = "disk.qcow2", "serial.sock", "serial.log", "qmp.sock"
CLUSTER_LINK = "cluster"


@dataclass(frozen=True)
class Machine:
    """The hardware QEMU shows: CPU model, physical cores, threads per core, memory in MiB."""

    cpu: str
    cores: int
    threads: int
    memory: int

    def arguments(self) -> list[str]:
        """The options that shape the device tree."""
        smp = f"{self.cores * self.threads},sockets=1,cores={self.cores},threads={self.threads}"
        return ["-machine", "virt", "-cpu", self.cpu, "-smp", smp, "-m", f"{self.memory}M"]


@dataclass(frozen=True)
class Network:
    """Both interfaces of a board: the cluster's (a multicast group on the loopback), and SSH and API from the host."""

    mac: str
    mtu: int
    group: str
    port: int
    ssh_port: int
    api_port: int

    def arguments(self) -> list[str]:
        """The options for both interfaces. The group needs no tap, bridge, namespace or root."""
        cluster = f"socket,id={CLUSTER_LINK},mcast={self.group}:{self.port},localaddr=127.0.0.1"
        ways = "".join(f",hostfwd=tcp:127.0.0.1:{a}-:{b}" for a, b in ((self.ssh_port, 22), (self.api_port, 8080)))
        host = f"user,id=host,ipv6=off{ways}"
        return [
            *("-netdev", cluster),
            *("-device", f"virtio-net-device,netdev={CLUSTER_LINK},mac={self.mac},host_mtu={self.mtu}"),
            *("-netdev", host, "-device", "virtio-net-device,netdev=host"),
        ]


def command(title: str, machine: Machine, firmware: Path, kernel: Path, dtb: Path, network: Network) -> list[str]:
    """The command line of one board; `title` from name(), `kernel` is what the firmware starts, here U-Boot."""
    return [
        *(PROGRAM, "-name", title, "-nodefaults", "-no-user-config", "-display", "none"),
        *machine.arguments(),
        # Linux and U-Boot speak both; the modern one does not need the guest's page size.
        *("-global", "virtio-mmio.force-legacy=false"),
        *("-bios", str(firmware), "-kernel", str(kernel), "-dtb", str(dtb)),
        *("-chardev", f"socket,id=serial,path={SERIAL},server=on,wait=off,logfile={SERIAL_LOG}"),
        *("-serial", "chardev:serial"),
        *("-chardev", f"socket,id=qmp,path={QMP},server=on,wait=off", "-mon", "chardev=qmp,mode=control"),
        # Flushes are honoured, so that killing QEMU is a power cut and not a lie about the disk.
        *("-drive", f"file={DISK},format=qcow2,if=none,id=disk", "-device", "virtio-blk-device,drive=disk"),
        *network.arguments(),
        *("-device", "virtio-rng-device"),
    ]


def start(argv: Sequence[str], folder: Path, title: str) -> None:
    """Start the board `title` in `folder` and return once its sockets listen; CheckFailed with QEMU's own words."""
    log = folder / SERIAL_LOG
    if log.exists():
        log.replace(folder / f"{SERIAL_LOG}.old")
    try:
        run([*argv, "-daemonize"], cwd=folder, timeout=scaled(30.0))
    except CommandError as error:
        words = error.result.stderr.strip() or f"status {error.result.returncode}"
        raise CheckFailed(f"{title}: QEMU did not start: {words}") from error


def create_disk(path: Path, base: Path, size: int) -> None:
    """Make a disk of `size` bytes at `path` that begins as `base` and leaves it alone."""
    temporary = path.with_suffix(".new")
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, temporary, str(size)])
    temporary.replace(path)


def name(lab: str, rank: int) -> str:
    """What a board's process is called, on its command line."""
    return f"{lab}:{rank}"


def running(lab: str) -> dict[int, psutil.Process]:
    """The living boards of `lab`, by rank."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ValueError, IndexError):
            words = process.cmdline()
            owner, _, rank = words[words.index("-name") + 1].partition(":")
            if owner == lab:
                found[int(rank)] = process
    return found


def is_alive(process: psutil.Process) -> bool:
    """Whether the process still runs; one that nobody collects does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(lab: str) -> None:
    """End every board of `lab`: disks are flushed; one that does not listen is killed."""
    processes = running(lab).values()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    wait_end(processes, 5.0)
    kill(lab)


def kill(lab: str, ranks: Collection[int] | None = None) -> None:
    """End boards of `lab` (all, or those of `ranks`) without warning, as a power cut does."""
    deadline = time.monotonic() + scaled(10.0)
    # Again and again: one that is just becoming a daemon forks while we look.
    while found := [process for rank, process in running(lab).items() if ranks is None or rank in ranks]:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        wait_end(found, 1.0)
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in found)
            raise CheckFailed(f"QEMU does not end (process {pids})", hint="look at it with ps; is it yours?")


def wait_end(processes: Collection[psutil.Process], seconds: float) -> None:
    """Return when all have ended, or after `seconds`, scaled."""
    deadline = time.monotonic() + scaled(seconds)
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
