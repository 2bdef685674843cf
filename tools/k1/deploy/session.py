"""The nodes of a fleet as a command works with them: one SSH connection each, the same done on several at once."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from k1.closing import Closing
from k1.drivers.patience import scaled
from k1.drivers.ssh import Target
from k1.errors import CheckFailed, Exit, K1Error
from k1.fleet import Fleet, Member
from k1.run import CommandError, CommandTimeout, Result, run
from k1.together import together

BASE = "/opt/k1"
_T = TypeVar("_T")


class NodesFailed(CheckFailed):
    """What went wrong on which node; `faults` by node name."""

    def __init__(self, step: str, faults: dict[str, K1Error]) -> None:
        self.step, self.faults = step, faults
        lines = [f"{name}: {step}: {error}" for name, error in faults.items()]
        super().__init__("\n".join(lines))
        if all(error.exit_code == Exit.USER for error in faults.values()):
            self.exit_code = Exit.USER


@dataclass
class Node:
    """A member that can be talked to."""

    member: Member
    target: Target
    log: Path
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def name(self) -> str:
        """The node's host name."""
        return self.member.name

    @property
    def rank(self) -> int:
        """The node's rank."""
        return self.member.rank

    @property
    def address(self) -> str:
        """The node's address in the cluster's network."""
        return str(self.member.identity.address.ip)

    def ask(self, script: str, *, stdin: str | None = None, timeout: float = 60.0) -> Result:
        """Run a shell script as root, whatever it ends with; `timeout` in seconds, scaled."""
        self._go_on()
        try:
            result = self.target.run(self._as_root(script), check=False, timeout=timeout, stdin=stdin)
        except CommandTimeout as error:
            text = f"did not answer within {scaled(timeout):.0f} s"
            hint = "K1_TIMEOUT_SCALE=3 waits longer; k1 deploy again goes on from here"
            raise CheckFailed(text, hint=hint) from error
        self._check_way(result.returncode, result.stderr)
        return result

    def sh(self, script: str, *, stdin: str | None = None, timeout: float = 60.0) -> str:
        """What a shell script prints that must end well; its last words are the error's."""
        result = self.ask(script, stdin=stdin, timeout=timeout)
        if result.returncode != 0:
            raise _failed(result.stderr or result.output)
        return result.output

    def rsync(self, *words: str | Path, on_line: Callable[[str], None] | None = None) -> Result:
        """Run the host's rsync over this node's connection; `:PATH` among the words is a path on the node."""
        self._go_on()
        places: list[str | Path] = [
            f"{self.target.host}{word}" if str(word).startswith(":") else word for word in words
        ]
        remote = ["--rsync-path=sudo -n rsync"] if self.target.user != "root" else []
        argv = ["rsync", "-e", rsh(self.target.options()), f"--timeout={scaled(60):.0f}", *remote, *places]
        self.log.unlink(missing_ok=True)
        result = run(argv, log=self.log, on_line=on_line, check=False)
        words_said = self.log.read_text(errors="replace")
        self._check_way(result.returncode, words_said)
        if result.returncode != 0:
            raise CommandError(Result(("rsync",), result.returncode, words_said, "", result.seconds))
        return Result(result.argv, 0, words_said, "", result.seconds)

    def serving(self, script: str) -> list[str]:
        """The command line that runs a script as root for as long as its input is open."""
        return self.target.command(self._as_root(script))

    def wait(self, seconds: float) -> None:
        """Wait so long, scaled, or until the user wants to end."""
        self.stop.wait(scaled(seconds))
        self._go_on()

    def _go_on(self) -> None:
        if self.stop.is_set():
            raise CheckFailed("was interrupted", hint="k1 deploy again goes on from here")

    def _as_root(self, script: str) -> str:
        sudo = "" if self.target.user == "root" else "sudo -n "
        # Accounts other than root may not have the system's programs on their path.
        # The exit keeps busybox's shell from becoming the last command: if a signal ended that, it would look like ssh.
        whole = f"export PATH=$PATH:/usr/sbin:/sbin\n{script}\nexit $?"
        return f"{sudo}sh -c {shlex.quote(whole)}"

    def _check_way(self, status: int, stderr: str) -> None:
        trouble = self.target.trouble(status, stderr)
        if trouble:
            raise trouble
        # sudo warns of a host name that is not in /etc/hosts, and goes on.
        refused = [line for line in stderr.splitlines() if "sudo:" in line and "unable to resolve host" not in line]
        if self.target.user != "root" and refused and status in (1, 127):
            hint = f"let {self.target.user} use sudo without a password on that node, or log in as root"
            raise K1Error(f"{self.target.user} may not use sudo: {refused[-1]}", hint=hint)


def _failed(words: str) -> K1Error:
    last = "; ".join(words.strip().splitlines()[-3:]) or "the command failed without a word"
    return CheckFailed(last, hint=hint_for(words))


def hint_for(words: str) -> str:
    """What to try, going by a program's words."""
    if "No space left on device" in words:
        return f"free some space on the node's disk ({BASE}/models, /data/log), then k1 deploy again"
    return ""


def rsh(words: Iterable[str]) -> str:
    """A command line in rsync's own quoting, in which a quote within quotes is doubled."""
    return " ".join("'" + word.replace("'", "''") + "'" for word in words)


@dataclass
class Session(Closing):
    """The connections of one command; close it, or use it in a `with`. parallel: nodes worked on at once."""

    fleet: Fleet
    names: Iterable[str] = ()
    parallel: int = 16
    nodes: list[Node] = field(init=False)
    folder: Path = field(init=False)
    _stop: threading.Event = field(init=False, default_factory=threading.Event)

    def __post_init__(self) -> None:
        members = self.fleet.chosen(self.names)
        # Sockets have short names; rsync and ssh need one without blanks.
        self.folder = Path(tempfile.mkdtemp(prefix="k1-"))
        self.nodes = [self.node(member) for member in members]

    def node(self, member: Member) -> Node:
        """A member to talk to, chosen or not."""
        login = member.login
        control = self.folder / f"{member.rank}.ssh"
        target = Target(
            login.port, login.key, self.fleet.known_hosts, f"{member.name}", login.host, login.user, control
        )
        return Node(member, target, self.folder / f"{member.rank}.log", self._stop)

    def head(self) -> Node:
        """Rank 0, chosen or not."""
        return self.node(self.fleet.members[0])

    def each(self, step: str, nodes: Iterable[Node], act: Callable[[Node], _T]) -> dict[str, _T]:
        """Do the same on all; when all have ended, the faults of all are one `NodesFailed`."""
        nodes = list(nodes)
        try:
            ended = together(nodes, act, parallel=self.parallel, stop=self._interrupt)
        finally:
            self._stop.clear()  # commands run again, for taking back what was switched
        faults = {node.name: error for node, each in zip(nodes, ended, strict=True) if (error := each.exception())}
        for error in faults.values():
            if not isinstance(error, K1Error):
                raise error
        if faults:
            raise NodesFailed(step, {name: error for name, error in faults.items() if isinstance(error, K1Error)})
        return {node.name: each.result() for node, each in zip(nodes, ended, strict=True)}

    def _interrupt(self) -> None:
        """Begin nothing more, and end the connections with what runs over them."""
        self._stop.set()
        self.disconnect()

    def disconnect(self) -> None:
        """End all connections, and with them what runs over them; the next command makes new ones."""
        for member in self.fleet.members:
            with suppress(K1Error):  # one that does not answer ends by itself
                self.node(member).target.close()

    def close(self) -> None:
        """End all connections for good."""
        self.disconnect()
        shutil.rmtree(self.folder, ignore_errors=True)
