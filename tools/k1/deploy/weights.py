"""The model on the nodes: sent once from here, then from node to node, resumed after a break, checked by its hash."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from k1.deploy.probe import Facts
from k1.deploy.release import Model, stats
from k1.deploy.session import BASE, Node, Session, hint_for
from k1.drivers.patience import scaled
from k1.drivers.ssh import Unreachable
from k1.errors import CheckFailed, K1Error
from k1.run import CommandError, background

RELAY_PORT = 8730
_ATTEMPTS = 4
# rsync: socket, protocol, interrupted, time-out; what a second attempt may well mend.
_BROKEN = {10, 12, 20, 30, 35}
_PROGRESS = re.compile(r"(\d+)%\s+(\S+/s)")
CHECKING = "checking the hash"
_Report = Callable[[Node, str], None]


def is_there(facts: Facts, model: Model) -> bool:
    """Whether the node has the model and nobody touched the file since its hash was checked."""
    return bool(facts.model) and facts.checked == f"{facts.model} {model.sha256}" and _size(facts) == model.size


def need(facts: Facts, model: Model) -> str:
    """What is to be done with the model on a node; nothing when it is there."""
    if is_there(facts, model):
        return ""
    return "check its hash" if facts.model and _size(facts) == model.size else f"send {model.size / 1e6:.1f} MB"


def _size(facts: Facts) -> int:
    return int(facts.model.split()[0]) if facts.model else 0


def bring(session: Session, facts: dict[str, Facts], model: Model, lacking: Sequence[Node], report: _Report) -> int:
    """Bring the model onto the nodes that lack it; the bytes that left this machine for it.

    A node that has the file with the right content after all only gets that written down. One copy goes to the first
    that lacks it, and only when no node of the fleet has it; all others get theirs from a node that has it.
    """
    having = [node for node in session.nodes if node not in lacking]
    right = session.each("model", lacking, lambda node: bool(facts[node.name].model) and _accept(node, model, report))
    having += [node for node in lacking if right[node.name]]
    waiting = [node for node in lacking if not right[node.name]]
    uplink = 0
    if waiting and not having:
        first = waiting.pop(0)
        uplink = sum(session.each("model", [first], lambda node: _upload(node, model, report)).values())
        having.append(first)
    while waiting:
        pairs = {target.name: source for source, target in zip(having, waiting, strict=False)}
        now = [node for node in waiting if node.name in pairs]
        session.each("model", now, lambda node: _relay(pairs[node.name], node, model, report))  # noqa: B023
        having += now
        waiting = [node for node in waiting if node not in now]
    return uplink


def _accept(node: Node, model: Model, report: _Report, name: str = "") -> bool:
    """Whether the file there has the right hash; then that is written down beside it, under its final name."""
    report(node, CHECKING)
    final = f"{BASE}/models/{model.name}"
    file = f"{BASE}/models/{name or model.name}"
    found = node.sh(f"sha256sum {file}", timeout=900).split()[0]
    if found != model.sha256:
        return False
    stamp = f"{final.removesuffix('.gguf')}.ok"
    rename = f"mv {file} {final} && " if name else ""
    node.sh(
        f"sync; {rename}echo $(stat -c '%s %Y' {final}) {model.sha256} >{stamp}.new && mv {stamp}.new {stamp} && sync"
    )
    return True


def _upload(node: Node, model: Model, report: _Report) -> int:
    sent = 0

    def act(name: str, options: Sequence[str]) -> None:
        nonlocal sent
        words: list[str | Path] = [
            *options,
            "--stats",
            "--info=progress2",
            "--outbuf=N",
            model.file,
            f":{BASE}/models/{name}",
        ]
        result = node.rsync(*words, on_line=lambda line: _tell(report, node, line))
        sent += stats(result)["Total bytes sent"]

    _bring(node, model, act, report)
    return sent


def _relay(source: Node, node: Node, model: Model, report: _Report) -> None:
    """Let `node` fetch the model from `source`, over the cluster's network and without SSH's ciphers.

    rsync's own daemon on the source, read-only, for this one transfer; a random password lets the target in.
    """
    password = secrets.token_hex(16)
    url = f"rsync://k1@{source.address}:{RELAY_PORT}/models/{model.name}"

    def act(name: str, options: Sequence[str]) -> None:
        fetch = f"rsync {' '.join(options)} --timeout={scaled(60):.0f} {url} {BASE}/models/{name}"
        # 10: nobody listens yet.
        script = (
            "read -r RSYNC_PASSWORD; export RSYNC_PASSWORD; "
            f"for i in 1 2 3 4 5 6 7 8 9 10; do {fetch}; rc=$?; [ $rc = 10 ] || exit $rc; sleep 1; done; exit $rc"
        )
        begun = time.monotonic()
        result = node.ask(script, stdin=password + "\n", timeout=1800)
        if result.returncode != 0:
            raise CommandError(result)
        report(node, f"{model.size / 1e6 / max(time.monotonic() - begun, 0.001):.1f} MB/s from {source.name}")

    report(node, f"from {source.name}")
    with background(source.serving(_serve(source, node)), stdin=f"k1:{password}\n"):
        _bring(node, model, act, report)


def _serve(source: Node, target: Node) -> str:
    """A script that serves models/ until its input ends; the first line of it are name and password."""
    lines = (
        f"use chroot = no\\nlog file = /dev/null\\n[models]\\npath = {BASE}/models\\nread only = yes\\nlist = no\\n"
        f"uid = 0\\ngid = 0\\nauth users = k1\\nsecrets file = %s/secrets\\nhosts allow = {target.address}\\n"
    )
    return (
        'umask 077; d=$(mktemp -d); cat_secret() { read -r line; echo "$line" >$d/secrets; }; cat_secret; '
        f"printf '{lines}' $d >$d/conf; "
        f"rsync --daemon --no-detach --address={source.address} --port={RELAY_PORT} --config=$d/conf & p=$!; "
        "cat >/dev/null; kill $p; wait $p; rm -rf $d"
    )


def _bring(node: Node, model: Model, act: Callable[[str, Sequence[str]], None], report: _Report) -> None:
    """Have `act(name, rsync's options)` bring the file, on from where it broke off; accept only the right hash.

    A file that is there under its final name may be in use: only its damaged blocks are sent, and it is replaced whole.
    """
    part = f"{model.name}.part"
    node.sh(f"mkdir -p {BASE}/models && chmod 755 {BASE} {BASE}/models")
    if node.ask(f"[ -f {BASE}/models/{model.name} ]").returncode == 0:
        _persist(lambda: act(model.name, ["-pI", "--no-whole-file", "--chmod=F644"]), node, report)
        if _accept(node, model, report):
            return
    else:
        _persist(lambda: act(part, ["-p", "--inplace", "--append", "--chmod=F644"]), node, report)
        if _accept(node, model, report, part):
            return
        # Damaged on its way, or what had come earlier was: send the blocks that differ.
        _persist(lambda: act(part, ["-pI", "--inplace", "--no-whole-file", "--chmod=F644"]), node, report)
        if _accept(node, model, report, part):
            return
    hint = "suspect the node's eMMC or memory: k1 deploy --limit that node once more, then exchange the board"
    raise CheckFailed(f"{model.name} has a wrong hash there even after it was repaired", hint=hint)


def _persist(act: Callable[[], None], node: Node, report: _Report) -> None:
    """Try again when a transfer breaks off; rsync goes on where it was."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            act()
            return
        except (CommandError, Unreachable) as error:
            if attempt == _ATTEMPTS or not _may_mend(error):
                raise _explained(error) from error
            report(node, f"broke off, attempt {attempt + 1}")
            node.wait(0.5 * attempt)


def _may_mend(error: K1Error) -> bool:
    return not isinstance(error, CommandError) or error.result.returncode in _BROKEN


def _explained(error: K1Error) -> K1Error:
    if not isinstance(error, CommandError):
        return error
    words = error.result.stderr or error.result.output
    lines = [line for line in words.splitlines() if "rsync" in line] or words.splitlines()[-1:]
    return CheckFailed("; ".join(lines[:2]), hint=hint_for(words) or "k1 deploy again goes on from here")


def _tell(report: _Report, node: Node, line: str) -> None:
    if found := _PROGRESS.search(line):
        report(node, f"{found[1]} % at {found[2]}")
