"""A release: programs, options and keys of a node in one folder; its name follows from the contents of all nodes.

What fleet.toml asks for is known before any node is; which programs those are only when the nodes have said which
machines they are. So there is first a `Draft`, and then the `Release`.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from k1 import files, output, paths, userland
from k1 import model as models
from k1.deploy.probe import Facts
from k1.deploy.session import BASE, Node, Session
from k1.errors import CheckFailed, K1Error
from k1.fleet import Fleet, Member
from k1.run import Result

PROGRAMS = ("k1-inferd", "k1-cli", "k1-bench")
_NEEDED = PROGRAMS[:2]
_HELPER = paths.REPO / "packaging" / "k1-release"
_UNIT = paths.REPO / "packaging" / "systemd" / "k1-inferd.service"
_ETC = f"{BASE}/current/etc"
# e_machine of the ELF header, and what `uname -m` says there.
_MACHINES = {243: "riscv64", 183: "aarch64", 62: "x86_64"}
_STATS = re.compile(r"^(Literal data|Total bytes sent): ([\d,.]+)", re.MULTILINE)


@dataclass(frozen=True)
class Model:
    """The model to deploy: the local file, and its name on the nodes."""

    file: Path
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """Its file name below models/ on a node: another content has another name."""
        return f"{self.file.stem}-{self.sha256[:16]}.gguf"


@dataclass(frozen=True)
class Draft:
    """What fleet.toml asks for. named: the programs of its folder, by their machine; empty when it names none."""

    fleet: Fleet
    model: Model
    key: str
    tokens: str
    named: Mapping[str, tuple[Path, ...]]

    @property
    def machines(self) -> list[str]:
        """The machines, as `uname -m` calls them, for which there are programs."""
        return sorted({*self.named, *userland.MACHINES})

    def release(self, machines: Iterable[str]) -> Release:
        """The release for nodes that are these machines; builds the programs that are not there."""
        programs = {name: self.named.get(name) or _built(name) for name in sorted(set(machines))}
        contents = [[name, *map(files.sha256, paths)] for name, paths in programs.items()]
        shared = [files.sha256(path) for path in (_HELPER, _UNIT)]
        each = [options(self.fleet, member, self.model.name) for member in self.fleet.members]
        digest = files.digest([contents, shared, each, self.key, self.tokens, self.model.sha256])
        return Release(digest[:16], self, programs)


@dataclass(frozen=True)
class Release:
    """What all nodes are to run. id: follows from programs, options of all nodes, keys and model.

    programs: by the machine they are for.
    """

    id: str
    draft: Draft
    programs: Mapping[str, tuple[Path, ...]]

    @property
    def model(self) -> Model:
        """The model to serve."""
        return self.draft.model

    def size(self, machine: str) -> int:
        """Bytes on a node that is such a machine, about."""
        return sum(path.stat().st_size for path in self.programs[machine])

    def stage(self, member: Member, machine: str, folder: Path) -> None:
        """Write the release of a node that is such a machine into `folder`, with the list of its hashes."""
        for name in ("bin", "etc"):
            (folder / name).mkdir(parents=True)
        for program in (*self.programs[machine], _HELPER):
            shutil.copy2(program, folder / "bin" / program.name)
        files.write(folder / "etc" / "inferd.conf", options(self.draft.fleet, member, self.model.name))
        files.write(folder / "etc" / "cluster_key", self.draft.key, mode=0o600)
        files.write(folder / "etc" / "api_tokens", self.draft.tokens, mode=0o600)
        shutil.copy2(_UNIT, folder / "etc" / _UNIT.name)
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        sums = "".join(f"{files.sha256(path)}  {path.relative_to(folder)}\n" for path in found)
        files.write(folder / "SHA256SUMS", sums)


def options(fleet: Fleet, member: Member, model: str) -> str:
    """The options of k1-inferd on one node; `model`: its file name below models/."""
    shared = fleet.cluster
    lines: dict[str, object] = {
        "model": f"{BASE}/models/{model}",
        "host": "0.0.0.0",  # noqa: S104 - inside the node; a token is asked for
        "port": 8080,
        "api_token_file": f"{_ETC}/api_tokens",
        "n_ctx": shared.n_ctx,
        "n_batch": shared.n_batch,
        "n_parallel": shared.n_parallel,
        "timeout_scale": shared.timeout_scale,
    }
    if len(fleet.members) > 1:
        addresses = [str(each.identity.address.ip) for each in fleet.members]
        lines |= {
            "nodes": ",".join(addresses),
            "rpc_rank": member.rank,
            "rpc_master": addresses[0],
            "cluster_key_file": f"{_ETC}/cluster_key",
        }
    if member.settings.n_threads:
        lines["n_threads"] = member.settings.n_threads
    return "# Written by k1 deploy.\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())


def prepare(fleet: Fleet) -> Draft:
    """What fleet.toml asks for; makes the keys when they are not there.

    Raises K1Error when the ranks have gaps, or a file that fleet.toml names is missing or wrong.
    """
    ranks = [member.rank for member in fleet.members]
    if ranks != list(range(len(ranks))):
        hint = f"number the nodes from 0 to {len(ranks) - 1}"
        raise K1Error(f"{fleet.path}: node.rank: {', '.join(map(str, ranks))} have gaps", hint=hint)
    named = _named(fleet)
    model = find_model(fleet)
    key = secret(fleet.beside(fleet.cluster.key_file), 32)
    if not re.fullmatch(r"[0-9a-f]{64}\n?", key):
        text = f"{fleet.beside(fleet.cluster.key_file)}: is no cluster key"
        raise K1Error(text, hint="64 hex digits; openssl rand -hex 32, or remove the file and one is made")
    tokens = secret(fleet.beside(fleet.cluster.api_token_file), 16)
    return Draft(fleet, model, key, tokens, named)


def find_model(fleet: Fleet) -> Model:
    """The local file of the model that fleet.toml names; a known one is fetched."""
    name = fleet.cluster.model
    if name is None:
        raise K1Error(f"{fleet.path}: cluster.model: is missing", hint="a GGUF file, or a name of `k1 model list`")
    file = fleet.beside(name)
    if not file.is_file() and name in models.known():
        with output.task(f"model {name}") as task:
            file = models.fetch(name, paths.cache_dir(), task)
    if not file.is_file():
        hint = f"a GGUF file, or one of {', '.join(models.known())}"
        raise K1Error(f"{fleet.path}: cluster.model: there is no {file}", hint=hint)
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise K1Error(f"{file}: is no GGUF file", hint="k1 model list shows models that can be fetched")
    if not re.fullmatch(r"[\w.+-]+", file.stem):
        raise K1Error(f"{file}: its name does not suit the nodes", hint="letters, digits and _ . + - only")
    return Model(file, files.sha256(file), file.stat().st_size)


def secret(path: Path, count: int) -> str:
    """The text of a file with a secret, which is made from `count` random bytes when it is not there."""
    if not path.is_file():
        files.write(path, secrets.token_hex(count) + "\n", mode=0o600)
    return path.read_text()


def machine(program: Path) -> str:
    """What `uname -m` says on the machines a program is for."""
    with program.open("rb") as stream:
        head = stream.read(20)
    if head[:4] != b"\x7fELF" or len(head) < 20:
        raise K1Error(f"{program}: is no program for Linux", hint="k1 userland build -f riscv64 (or aarch64) makes it")
    number = struct.unpack_from("<H", head, 18)[0]
    return _MACHINES.get(number, f"machine {number}")


def _named(fleet: Fleet) -> dict[str, tuple[Path, ...]]:
    if fleet.cluster.programs is None:
        return {}
    folder = fleet.beside(fleet.cluster.programs)
    for name in _NEEDED:
        if not (folder / name).is_file():
            hint = "a folder with k1-inferd and k1-cli; left out, the userland is built"
            raise K1Error(f"{fleet.path}: cluster.programs: there is no {folder / name}", hint=hint)
    programs = tuple(folder / name for name in PROGRAMS if (folder / name).is_file())
    return {machine(programs[0]): programs}


def _built(machine: str) -> tuple[Path, ...]:
    """The userland for a machine as the image has it, without symbols."""
    folder = paths.build_dir("userland") / "deploy" / machine
    programs = tuple(folder / name for name in PROGRAMS)
    stamp, source = folder / "source", files.tree_digest([userland.SOURCE], userland.SOURCE)
    if stamp.is_file() and stamp.read_text() == source and all(path.is_file() for path in programs):
        return programs
    with files.locked(paths.build_dir("userland") / "lock", "the build of the userland"):
        built = userland.build(machine, jobs=len(os.sched_getaffinity(0)))
        userland.strip(machine, built, programs)
    files.write(stamp, source)
    return programs


def send(session: Session, node: Node, release: Release, facts: Facts) -> dict[str, int]:
    """Bring the release onto a node, checked by its hashes; nothing there changes but its own new folder.

    rsync takes what is the same from the release that is current there, or else from the image.
    Returns rsync's `Literal data` and `Total bytes sent`.
    """
    stage = session.folder / f"{node.rank}.release"
    files.remove_tree(stage)
    release.stage(node.member, facts.arch, stage)
    final = f"{BASE}/releases/{release.id}"
    node.sh(f"umask 077; mkdir -p {final}.new && chmod 755 {BASE}/releases {final}.new")
    # Our image has the programs it was built with.
    basis = f"--link-dest={BASE}/releases/{facts.current}" if facts.current else "--copy-dest=/usr"
    words = ["-rptc", "-z", "--stats", "--delete", basis, f"{stage}/", f":{final}.new/"]
    sent = stats(node.rsync(*words))
    checked = node.ask(f"cd {final}.new && sha256sum -c SHA256SUMS 2>&1", timeout=120)
    if checked.returncode != 0:
        damaged = "; ".join(line for line in checked.output.splitlines() if not line.endswith(": OK"))
        raise CheckFailed(f"arrived damaged: {damaged}", hint="k1 deploy again; then suspect the node's disk or memory")
    tried = node.ask(f"{final}.new/bin/k1-inferd --version 2>&1")
    if tried.returncode != 0:
        said = tried.output.strip() or f"status {tried.returncode}"
        hint = "made for another processor? cluster.programs names a folder with programs for it; or is /opt/k1 noexec?"
        raise CheckFailed(f"k1-inferd does not run there: {said}", hint=hint)
    node.sh(
        f"cd {final}.new && chown -R root:root . && chmod 755 . bin etc bin/* && chmod 600 etc/cluster_key && "
        "chmod 640 etc/api_tokens && if id inferd >/dev/null 2>&1; then "
        "chown inferd etc/cluster_key && chown root:inferd etc/api_tokens; fi && sync && "
        f"if [ -e {final} ]; then rm -rf {final}.old && mv {final} {final}.old; fi && mv {final}.new {final} && "
        f"rm -rf {final}.old && sync"
    )
    return sent


def stats(result: Result) -> dict[str, int]:
    """rsync's own count of bytes."""
    return {name: int(re.sub(r"\D", "", number)) for name, number in _STATS.findall(result.output)}
