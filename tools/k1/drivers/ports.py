"""Free ports and multicast groups of this host."""

from __future__ import annotations

import contextlib
import random
import socket

from k1.errors import CheckFailed


def is_free(port: int) -> bool:
    """Whether a program could listen on this TCP port of the loopback."""
    with socket.socket() as probe:
        # As servers do it: what a closed connection left behind does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def free_group() -> tuple[str, int]:
    """A multicast group for use inside a site (239.192.0.0/14), and a UDP port that nobody on this host uses."""
    for _ in range(100):
        group = f"239.192.{random.randrange(256)}.{random.randrange(1, 255)}"  # noqa: S311
        port = random.randrange(20000, 32000)  # noqa: S311
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return group, port
    raise CheckFailed("no free UDP port for a multicast group", hint="end other labs: k1 lab down --name NAME")
