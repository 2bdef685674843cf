"""SSH to one board through the host's OpenSSH client, independent of the user's own SSH settings."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from k1.drivers.patience import scaled
from k1.errors import K1Error
from k1.run import CommandTimeout, Result, run


@dataclass(frozen=True)
class Target:
    """Where and how.

    port: on the loopback; key: private key of the build; known_hosts: file that keeps the board's host key
    under the name `alias`, because ports change.
    """

    port: int
    key: Path
    known_hosts: Path
    alias: str

    def command(self, *words: str, connect_timeout: float = 20.0) -> list[str]:
        """The ssh command line; `words` are joined and read by the board's shell, as ssh always does."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": f"{scaled(connect_timeout):.0f}",
            "HostKeyAlias": self.alias,
            "LogLevel": "ERROR",
            "StrictHostKeyChecking": "accept-new",
            "UserKnownHostsFile": _quoted(self.known_hosts),
        }
        settings = [f"{key}={value}" for key, value in options.items()]
        settings += [f"IdentityFile={_quoted(key)}" for key in self._identities()]
        pairs = [word for setting in settings for word in ("-o", setting)]
        return ["ssh", "-F", "none", *pairs, "-p", str(self.port), "root@127.0.0.1", *words]

    def _identities(self) -> list[Path]:
        """Keys to try: the build's own, and the user's, for an image that was made with --authorized-keys."""
        own = [Path.home() / ".ssh" / f"id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")]
        found = [key for key in (self.key, *own) if os.access(key, os.R_OK)]
        if not found and not os.environ.get("SSH_AUTH_SOCK"):
            hint = "make image; or run k1 as the user who built it"
            raise K1Error(f"the boards' SSH key {self.key} is missing or not readable", hint=hint)
        return found

    def run(
        self, command: str, *, check: bool = True, timeout: float = 60.0, stdin: str | Path | None = None
    ) -> Result:
        """Run `command` on the board; `timeout` in seconds, scaled."""
        return run(self.command(command), check=check, timeout=scaled(timeout), stdin=stdin)

    def answers(self) -> bool:
        """Whether a command runs on the board just now."""
        # QEMU accepts for a board that does not listen yet; only the banner tells, and costs no key exchange.
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as probe:
                if probe.recv(4) != b"SSH-":
                    return False
        except OSError:
            return False
        try:
            return self.run("true", check=False, timeout=30.0).returncode == 0
        except CommandTimeout:
            return False


def _quoted(path: Path) -> str:
    """`path` as a value in ssh's configuration language: spaces quoted, no percent expansion."""
    return '"' + str(path).replace("%", "%%") + '"'
