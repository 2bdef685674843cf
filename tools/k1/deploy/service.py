"""The daemon on the nodes: the release it runs from, under busybox init and systemd, and what the cluster says."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from k1.deploy.probe import Facts
from k1.deploy.session import BASE, Node, Session
from k1.drivers import unixsocket
from k1.drivers.patience import scaled
from k1.errors import CheckFailed, K1Error

_PORT = 8080
_UNIT = "k1-inferd.service"
_HELPER = "bin/k1-release"


def switch(node: Node, release: str) -> None:
    """Let `current` name the release from now on; what runs goes on running."""
    node.sh(f"{BASE}/releases/{release}/{_HELPER} switch {release}")


def confirm(node: Node) -> None:
    """The release on trial is good."""
    node.sh(f"{BASE}/current/{_HELPER} confirm")


def abort(node: Node, release: str) -> None:
    """Back to the release before the one on trial, when one is; `release` is one whose helper does it."""
    node.sh(f"{BASE}/releases/{release}/{_HELPER} abort")


def revert(node: Node, release: str) -> None:
    """Back to the release before; `release` is one whose helper does it."""
    node.sh(f"{BASE}/releases/{release}/{_HELPER} revert")


def restart(node: Node, facts: Facts) -> None:
    """Run the daemon of the current release, and of none when there is none."""
    if facts.init == "systemd":
        unit = f"/etc/systemd/system/{_UNIT}"
        node.sh(
            f"if [ -e {BASE}/current ]; then cmp -s {BASE}/current/etc/{_UNIT} {unit} || "
            f"{{ cp {BASE}/current/etc/{_UNIT} {unit}.new && mv {unit}.new {unit} && systemctl daemon-reload; }}; "
            f"systemctl enable -q {_UNIT}; systemctl restart {_UNIT}; "
            f"else systemctl disable -q --now {_UNIT}; fi",
            timeout=120,
        )
    else:
        # It hands its output on for as long as it runs: SSH must not wait for that.
        node.sh("/etc/init.d/S50inferd restart >/dev/null 2>&1 </dev/null", timeout=120)


def running(node: Node) -> str:
    """The path of the daemon that runs on a node, empty for none."""
    return node.ask("readlink $(grep -lsx k1-inferd /proc/[0-9]*/comm | sed 's/comm$/exe/;q')").output.strip()


def log(facts: Facts, lines: int, *, follow: bool = False) -> str:
    """A command that prints the daemon's last lines on a node."""
    if facts.init == "systemd":
        return f"journalctl -u {_UNIT} -n {lines} --no-pager -o short-iso" + (" -f" if follow else "")
    show = f"grep -h k1-inferd /data/log/messages | tail -n {lines}"
    return show + ("; tail -n 0 -F /data/log/messages | grep --line-buffered k1-inferd" if follow else "")


class Api:
    """The cluster's HTTP interface as this machine reaches it: through rank 0's SSH connection."""

    def __init__(self, session: Session) -> None:
        """Its token is the first in the fleet's file, when that is there: without one /health tells little."""
        self._head, self._socket = session.head(), session.folder / "api"
        tokens = session.fleet.beside(session.fleet.cluster.api_token_file)
        self._token = (tokens.read_text().split() or [""])[0] if tokens.is_file() else ""

    def health(self) -> dict[str, Any]:
        """What /health says; empty when nobody answers."""
        try:
            return self._ask("GET", "/health", None, 10.0)
        except (OSError, http.client.HTTPException, ValueError, K1Error):
            return {}

    def complete(self, prompt: str, count: int, timeout: float = 300.0) -> dict[str, Any]:
        """Let the cluster go on from `prompt` by `count` tokens."""
        wanted = {"prompt": prompt, "max_tokens": count, "temperature": 0}
        try:
            found = self._ask("POST", "/v1/completions", wanted, timeout)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise CheckFailed(
                f"no answer from the cluster: {error}", hint="k1 logs shows the daemons' words"
            ) from error
        if "error" in found:
            raise CheckFailed(f"the cluster refuses: {found['error'].get('message')}", hint="k1 logs")
        return found

    def _ask(self, method: str, path: str, body: Any, timeout: float) -> dict[str, Any]:
        connection = http.client.HTTPConnection("localhost", timeout=scaled(timeout))
        connection.sock = self._connect(timeout)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found
        finally:
            connection.close()

    def _connect(self, timeout: float) -> socket.socket:
        if not self._socket.exists():
            control = self._head.target.control
            if control and not control.exists():
                self._head.sh(":")  # rank 0 may be none of the nodes that are worked on
            self._head.target.forward(self._socket, _PORT)
        return unixsocket.connect(self._socket, scaled(timeout))


def wait_ready(api: Api, n_ranks: int, timeout: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Wait until rank 0 says that all ranks agree; its /health. `timeout` in seconds, scaled."""
    deadline = time.monotonic() + scaled(timeout)
    reason = "k1-inferd on rank 0 does not answer"
    while True:
        health = api.health()
        ranks = len(health.get("ranks", [None]))
        if health.get("status") == "ok" and ranks == n_ranks:
            return health
        if health:
            reason = str(health.get("reason") or f"rank 0 serves {ranks} ranks, not {n_ranks}")
        report(reason)
        if time.monotonic() > deadline:
            raise CheckFailed(f"no agreement within {scaled(timeout):.0f} s: {reason}", hint="k1 logs shows why")
        time.sleep(0.5)
