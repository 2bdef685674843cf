"""Nodes on a network of their own: a network namespace each, joined by a bridge in one more. Needs root."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """Node r has the address 10.77.0.(1 + r)."""

    def __init__(self, n: int) -> None:
        self.names = [f"k1-{os.getpid()}-{r}" for r in range(n)]
        self.hub = f"k1-{os.getpid()}-hub"

    def address(self, r: int) -> str:
        return f"10.77.0.{1 + r}"

    def up(self) -> None:
        for name in (self.hub, *self.names):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        ip("-n", self.hub, "link", "set", "br0", "up")
        for r, name in enumerate(self.names):
            ip("-n", self.hub, "link", "add", f"n{r}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", self.hub, "link", "set", f"n{r}", "master", "br0", "up")
            ip("-n", name, "address", "add", f"{self.address(r)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")

    def down(self) -> None:
        for name in (self.hub, *self.names):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def plug(self, r: int, state: str) -> None:
        """Pull a node's cable ("down") or put it back ("up"), at the switch's end."""
        ip("-n", self.hub, "link", "set", f"n{r}", state)

    def command(self, r: int, *argv: str | Path) -> list[str]:
        """A command line that runs on node r."""
        return ["ip", "netns", "exec", self.names[r], *map(str, argv)]

    def dial(self, r: int, port: int, timeout: float) -> socket.socket:
        """Connect to a port on node r's own loopback."""
        found: list[socket.socket] = []

        def connect() -> None:  # a thread that moves into the namespace stays there and ends
            with Path(f"/run/netns/{self.names[r]}").open() as ns:
                if ctypes.CDLL(None, use_errno=True).setns(ns.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            found.append(socket.create_connection(("127.0.0.1", port), timeout=timeout))

        thread = threading.Thread(target=connect)
        thread.start()
        thread.join()
        if not found:
            raise ConnectionRefusedError(f"node {r} does not answer on port {port}")
        return found[0]


@contextmanager
def network(n: int) -> Iterator[Network]:
    net = Network(n)
    try:
        net.up()
        yield net
    finally:
        net.down()
