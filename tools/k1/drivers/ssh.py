"""SSH to one node through the host's OpenSSH client, independent of the user's own SSH settings."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from k1.drivers.patience import scaled
from k1.errors import CheckFailed, K1Error
from k1.run import CommandTimeout, Result, run

# ssh's own status, as against that of the command it ran.
_SSH_FAILED = 255


class Unreachable(CheckFailed):
    """SSH did not get to the node, or lost it."""


@dataclass(frozen=True)
class Target:
    """Where and how.

    key: private key; None for those of the user. known_hosts: file that keeps the node's host key under the name
    `alias`, because ports change.
    control: socket of a connection that later commands share; None for one connection a command.
    """

    port: int
    key: Path | None
    known_hosts: Path
    alias: str
    host: str = "127.0.0.1"
    user: str = "root"
    control: Path | None = None

    def options(self, connect_timeout: float = 20.0) -> list[str]:
        """The ssh command line up to the host."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": f"{scaled(connect_timeout):.0f}",
            "HostKeyAlias": self.alias,
            "LogLevel": "ERROR",
            "StrictHostKeyChecking": "accept-new",
            "UserKnownHostsFile": _quoted(self.known_hosts),
        }
        if self.control:
            options |= {
                "ControlMaster": "auto",
                "ControlPath": _quoted(self.control),
                # Ends by itself if we are killed.
                "ControlPersist": "60",
                "ServerAliveInterval": f"{scaled(5):.0f}",
                "ServerAliveCountMax": "4",
            }
        settings = [f"{key}={value}" for key, value in options.items()]
        settings += [f"IdentityFile={_quoted(key)}" for key in self._identities()]
        pairs = [word for setting in settings for word in ("-o", setting)]
        return ["ssh", "-F", "none", *pairs, "-p", str(self.port), "-l", self.user]

    def command(self, *words: str, connect_timeout: float = 20.0) -> list[str]:
        """The ssh command line; `words` are joined and read by the node's shell, as ssh always does."""
        return [*self.options(connect_timeout), self.host, *words]

    def _identities(self) -> list[Path]:
        """Keys to try: the one given, and the user's, for an image that was made with --authorized-keys."""
        own = [Path.home() / ".ssh" / f"id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")]
        found = [key for key in (self.key, *own) if key and os.access(key, os.R_OK)]
        if not found and not os.environ.get("SSH_AUTH_SOCK"):
            if self.key is None:
                raise K1Error("you have no SSH key", hint="ssh-keygen; or name one with ssh.key in fleet.toml")
            hint = "make image; or run k1 as the user who built it"
            raise K1Error(f"the boards' SSH key {self.key} is missing or not readable", hint=hint)
        return found

    def run(
        self, command: str, *, check: bool = True, timeout: float = 60.0, stdin: str | Path | None = None
    ) -> Result:
        """Run `command` on the node; `timeout` in seconds, scaled."""
        return run(self.command(command), check=check, timeout=scaled(timeout), stdin=stdin)

    def answers(self) -> bool:
        """Whether a command runs on the node just now."""
        # QEMU accepts for a board that does not listen yet; only the banner tells, and costs no key exchange.
        try:
            with socket.create_connection((self.host, self.port), timeout=1.0) as probe:
                if probe.recv(4) != b"SSH-":
                    return False
        except OSError:
            return False
        try:
            return self.run("true", check=False, timeout=30.0).returncode == 0
        except CommandTimeout:
            return False

    def forward(self, local: Path, port: int) -> None:
        """Let the Unix socket `local` lead to a TCP port of the node's loopback, for as long as `control` lives."""
        command = [*self.options(), "-O", "forward", "-L", f"{local}:127.0.0.1:{port}", self.host]
        run(command, timeout=scaled(20.0))

    def close(self) -> None:
        """End the shared connection and all that runs over it."""
        if self.control and self.control.exists():
            run([*self.options(), "-O", "exit", self.host], check=False, timeout=10.0)

    def trouble(self, status: int, stderr: str) -> K1Error | None:
        """What kept ssh from doing its work, going by its status and words; None when the trouble is another one."""
        if status != _SSH_FAILED:
            return None
        where = f"{self.user}@{self.host} port {self.port}"
        if "HOST IDENTIFICATION HAS CHANGED" in stderr or "Host key verification failed" in stderr:
            return K1Error(
                f"{where} shows another host key than at first contact: another machine, one set up anew, "
                "or somebody in between",
                hint=f"when you know why it changed: ssh-keygen -R {self.alias} -f {self.known_hosts}",
            )
        if "Permission denied" in stderr:
            hint = f"ssh-copy-id -p {self.port} {self.user}@{self.host}; or other ssh.user, ssh.key in fleet.toml"
            return Unreachable(f"{where} refuses the key", hint=hint)
        last = (stderr.strip().splitlines() or ["the connection broke off"])[-1]
        return Unreachable(f"{where} is not reached: {last}", hint="is it on, plugged in, and ssh.host its address?")


def _quoted(path: Path) -> str:
    """`path` as a value in ssh's configuration language: spaces quoted, no percent expansion."""
    return '"' + str(path).replace("%", "%%") + '"'
