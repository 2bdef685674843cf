"""A virtual machine with Debian and systemd, as boards people already own have it: an account with sudo, SSH, rsync."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k1 import board as boards
from k1.drivers import ports, qemu
from k1.drivers.patience import scaled
from k1.drivers.ssh import Target
from support import debianroot
from support.debianroot import RANK, Root

USER = "owner"
_DISK_SIZE = 4 << 30
_START = 240.0


@dataclass
class DebianVm:
    """One machine; its disk lies in `folder`. network: group and port of the cluster's network."""

    root: Root
    folder: Path
    network: tuple[str, int]

    def __post_init__(self) -> None:
        self.identity = boards.load("virt").identity(RANK)
        self.ssh_port, self.api_port = ports.free_port(), ports.free_port()
        self._lab = f"debian-{self.ssh_port}"
        self.target = Target(self.ssh_port, self.root.key, self.folder / "known_hosts", "debian", user=USER)
        self.folder.mkdir(parents=True, exist_ok=True)
        qemu.create_disk(self.folder / qemu.DISK, self.root.disk, _DISK_SIZE)

    def on(self) -> None:
        """Start it, and wait until it lets one in."""
        mtu = boards.load("virt").network.mtu.value
        ways = qemu.Network(self.identity.mac, mtu, *self.network, self.ssh_port, self.api_port)
        title = qemu.name(self._lab, RANK)
        words = [*debianroot.disk(Path(qemu.DISK), "qcow2"), *ways.arguments()]
        qemu.start(debianroot.command(self.root, title, *words), self.folder, title)
        deadline = time.monotonic() + scaled(_START)
        while not self.target.answers():
            assert qemu.running(self._lab), f"the machine went off: {self.log}"
            assert time.monotonic() < deadline, f"the machine does not answer: {self.log}"
            time.sleep(0.5)

    def off(self) -> None:
        """Cut its power."""
        qemu.kill(self._lab)

    def ask(self, command: str, *, check: bool = True) -> str:
        """What a command of the owner prints."""
        return self.target.run(command, check=check).output.strip()

    @property
    def log(self) -> str:
        """The last that it wrote on its serial port."""
        return (self.folder / qemu.SERIAL_LOG).read_text(errors="replace")[-2000:]

    def complete(self, token: str, prompt: str, count: int) -> Any:
        """What the API answers to a request from outside the machine."""
        connection = http.client.HTTPConnection("127.0.0.1", self.api_port, timeout=scaled(60))
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        body = json.dumps({"prompt": prompt, "max_tokens": count, "temperature": 0})
        try:
            connection.request("POST", "/v1/completions", body, headers)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()
