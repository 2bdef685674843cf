"""What a release consists of, and the script on the nodes that switches between releases."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from k1 import fleet, userland
from k1.deploy import release, weights
from k1.deploy.probe import Facts
from k1.errors import K1Error

HELPER = Path(__file__).parents[2] / "packaging" / "k1-release"
UNIT = Path(__file__).parents[2] / "packaging" / "systemd" / "k1-inferd.service"
ELF = b"\x7fELF" + b"\0" * 14 + b"\xf3\0" + b"\0" * 44
ARM = b"\x7fELF" + b"\0" * 14 + b"\xb7\0" + b"\0" * 44


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A fleet.toml with a model and programs beside it."""
    (tmp_path / "bin").mkdir()
    for name in ("k1-inferd", "k1-cli"):
        (tmp_path / "bin" / name).write_bytes(ELF)
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF and more")
    write(tmp_path)
    return tmp_path


def write(folder: Path, cluster: str = 'model = "tiny.gguf"', nodes: str = "") -> Path:
    path = folder / "fleet.toml"
    ranks = nodes or "[[node]]\nrank = 0\n[[node]]\nrank = 1\nn_threads = 3\n"
    path.write_text(f'[cluster]\nprograms = "bin"\n{cluster}\n{ranks}')
    return path


def prepared(folder: Path, *machines: str) -> release.Release:
    return release.prepare(fleet.read(folder / "fleet.toml")).release(machines or ("riscv64",))


def test_the_same_contents_have_the_same_name_and_any_change_another(folder: Path) -> None:
    first = prepared(folder).id
    assert prepared(folder).id == first
    seen = {first}
    for change in (
        lambda: write(folder, 'model = "tiny.gguf"\nn_ctx = 64'),
        lambda: (folder / "bin" / "k1-cli").write_bytes(ELF + b"x"),
        lambda: (folder / "cluster_key").write_text("ab" * 32 + "\n"),
        lambda: (folder / "tiny.gguf").write_bytes(b"GGUF and other"),
    ):
        change()
        seen.add(prepared(folder).id)
    assert len(seen) == 5


def test_each_node_gets_its_own_options_and_the_shared_key(folder: Path, tmp_path: Path) -> None:
    made = prepared(folder)
    stage = tmp_path / "stage"
    made.stage(made.draft.fleet.members[1], "riscv64", stage)
    options = (stage / "etc" / "inferd.conf").read_text().splitlines()
    assert "rpc_rank = 1" in options
    assert "nodes = 192.168.1.100,192.168.1.101" in options
    assert "n_threads = 3" in options
    assert f"model = /opt/k1/models/{made.model.name}" in options
    assert (stage / "etc" / "cluster_key").read_text() == (folder / "cluster_key").read_text()
    assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=stage).returncode == 0


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The machines that the userland is built for, in the order of the builds; each takes a folder of its own."""
    builds: list[str] = []

    def build(machine: str, *, jobs: int) -> Path:
        builds.append(machine)
        return tmp_path / "built" / machine

    def strip(machine: str, folder: Path, programs: tuple[Path, ...]) -> None:
        for program in programs:
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_bytes((ARM if machine == "aarch64" else ELF) + f"{folder.name} {program.name}".encode())

    monkeypatch.setenv("K1_BUILD", str(tmp_path / "build"))
    monkeypatch.setattr(userland, "build", build)
    monkeypatch.setattr(userland, "strip", strip)
    return builds


def staged(made: release.Release, machine: str, stage: Path) -> dict[str, bytes]:
    made.stage(made.draft.fleet.members[0], machine, stage)
    return {path.name: path.read_bytes() for path in (stage / "bin").iterdir() if path.name != HELPER.name}


def test_named_programs_go_to_nodes_of_their_architecture_and_built_ones_to_the_others(
    folder: Path, tmp_path: Path, built: list[str]
) -> None:
    made = prepared(folder, "aarch64", "riscv64")
    assert built == ["aarch64"]
    assert staged(made, "riscv64", tmp_path / "one") == {"k1-inferd": ELF, "k1-cli": ELF}
    arm = staged(made, "aarch64", tmp_path / "two")
    assert arm == {name: ARM + f"aarch64 {name}".encode() for name in ("k1-inferd", "k1-cli", "k1-bench")}
    assert (made.size("riscv64"), made.size("aarch64")) == (2 * len(ELF), sum(map(len, arm.values())))


def test_without_named_programs_each_architecture_of_the_fleet_is_built_once(folder: Path, built: list[str]) -> None:
    write(folder, 'model = "tiny.gguf"')
    path = folder / "fleet.toml"
    path.write_text(path.read_text().replace('programs = "bin"\n', ""))
    assert prepared(folder, "riscv64").programs.keys() == {"riscv64"}
    assert built == ["riscv64"]
    both = prepared(folder, "riscv64", "aarch64")
    assert built == ["riscv64", "aarch64"]
    assert [release.machine(programs[0]) for programs in both.programs.values()] == ["aarch64", "riscv64"]
    prepared(folder, "aarch64")
    assert built == ["riscv64", "aarch64"]


def test_a_release_has_one_name_that_follows_from_the_programs_of_all_architectures(
    folder: Path, tmp_path: Path, built: list[str]
) -> None:
    first = prepared(folder, "riscv64", "aarch64").id
    assert prepared(folder, "aarch64", "riscv64", "aarch64").id == first
    assert prepared(folder, "riscv64").id != first
    (tmp_path / "build" / "userland" / "deploy" / "aarch64" / "k1-cli").write_bytes(ARM + b"other")
    assert prepared(folder, "riscv64", "aarch64").id != first


def test_there_are_programs_for_the_named_and_the_built_architectures(folder: Path) -> None:
    assert release.prepare(fleet.read(folder / "fleet.toml")).machines == ["aarch64", "riscv64"]
    x86 = b"\x7fELF" + b"\0" * 14 + b"\x3e\0" + b"\0" * 44
    (folder / "bin" / "k1-inferd").write_bytes(x86)
    assert release.prepare(fleet.read(folder / "fleet.toml")).machines == ["aarch64", "riscv64", "x86_64"]


def test_a_single_node_needs_no_cluster(folder: Path) -> None:
    write(folder, nodes="[[node]]\nrank = 0\n")
    found = fleet.read(folder / "fleet.toml")
    assert "rpc_rank" not in release.options(found, found.members[0], "m.gguf")


def test_the_systemd_unit_names_files_that_a_release_has(folder: Path, tmp_path: Path) -> None:
    made = prepared(folder)
    made.stage(made.draft.fleet.members[0], "riscv64", tmp_path / "stage")
    named = set(re.findall(r"/opt/k1/current/(\S+)", UNIT.read_text()))
    assert {"bin/k1-inferd", "bin/k1-release", "etc/inferd.conf", "etc/cluster_key", "etc/api_tokens"} <= named
    assert all((tmp_path / "stage" / name).is_file() for name in named)


@pytest.mark.parametrize(
    ("cluster", "nodes", "message"),
    [
        ("", "", "cluster.model: is missing"),
        ('model = "none.gguf"', "", "cluster.model: there is no"),
        ('model = "fleet.toml"', "", "fleet.toml: is no GGUF file"),
        ('model = "tiny.gguf"\nkey_file = "tiny.gguf"', "", "tiny.gguf: is no cluster key"),
        ('model = "tiny.gguf"', "[[node]]\nrank = 1\n", "node.rank: 1 have gaps"),
    ],
)
def test_what_cannot_be_deployed_is_refused(folder: Path, cluster: str, nodes: str, message: str) -> None:
    write(folder, cluster, nodes)
    with pytest.raises(K1Error) as caught:
        prepared(folder)
    assert message in caught.value.message
    assert caught.value.hint


def test_programs_that_are_missing_or_none_are_refused(folder: Path) -> None:
    (folder / "bin" / "k1-inferd").write_bytes(b"#!/bin/sh\n")
    with pytest.raises(K1Error, match="is no program for Linux"):
        prepared(folder)
    (folder / "bin" / "k1-inferd").unlink()
    with pytest.raises(K1Error, match=r"cluster\.programs: there is no"):
        prepared(folder)


def facts(model: str, checked: str) -> Facts:
    return Facts(
        *("riscv64", "6.1", 0, "boot", "busybox", True, "image", 1, "", "", False, frozenset(), False, "", model),
        *(checked, "", "", (), 0.0, 1, 1, None),
    )


def test_a_model_counts_as_there_only_as_it_was_when_its_hash_was_checked() -> None:
    model = release.Model(Path("m.gguf"), "ab" * 32, 1000)
    assert weights.need(facts("1000 77", f"1000 77 {'ab' * 32}"), model) == ""
    assert weights.need(facts("1000 78", f"1000 77 {'ab' * 32}"), model) == "check its hash"
    assert weights.need(facts("1000 77", ""), model) == "check its hash"
    assert weights.need(facts("1000 77", f"1000 77 {'cd' * 32}"), model) == "check its hash"
    assert weights.need(facts("900 77", ""), model).startswith("send")
    assert weights.need(facts("", ""), model).startswith("send")


# --- k1-release


class Base:
    """A node's /opt/k1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("one", "two", "three"):
            self.add(name)

    def add(self, name: str) -> None:
        (self.folder / "releases" / name / "etc").mkdir(parents=True)
        (self.folder / "releases" / name / "SHA256SUMS").touch()

    def __call__(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            ["sh", HELPER, *words], env={**os.environ, "K1_BASE": str(self.folder)}, capture_output=True, text=True
        )
        assert done.returncode == code, done.stderr
        return done.stderr

    def link(self, name: str) -> str:
        path = self.folder / name
        return os.readlink(path).removeprefix("releases/") if path.is_symlink() else ""

    def reboot(self) -> None:
        """Another boot than the one in which the trial began."""
        trial = self.folder / "trial"
        if trial.exists():
            trial.write_text("another boot\n" + trial.read_text().split("\n", 1)[1])


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return Base(tmp_path)


def serve(base: Base, name: str) -> None:
    base("switch", name)
    base("confirm")


def test_a_confirmed_release_stays_and_the_one_before_is_kept(base: Base) -> None:
    serve(base, "one")
    base.add("four")
    serve(base, "four")
    base.reboot()
    base("boot")
    assert (base.link("current"), base.link("previous")) == ("four", "one")
    assert sorted(path.name for path in (base.folder / "releases").iterdir()) == ["four", "one"]


def test_a_release_on_trial_survives_restarts_but_no_reboot(base: Base) -> None:
    serve(base, "one")
    base.add("four")
    base("switch", "four")
    base("boot")
    assert base.link("current") == "four"
    base.reboot()
    base("boot")
    assert base.link("current") == "one"


def test_a_first_release_on_trial_leaves_the_image_after_a_reboot(base: Base) -> None:
    base("switch", "one")
    base.reboot()
    base("boot")
    assert base.link("current") == ""


def test_a_second_trial_goes_back_to_what_was_good(base: Base) -> None:
    serve(base, "one")
    for name in ("four", "five"):
        base.add(name)
        base("switch", name)
    base("revert")
    assert base.link("current") == "one"


def test_reverting_twice_leads_back(base: Base) -> None:
    serve(base, "one")
    base.add("four")
    serve(base, "four")
    base("revert")
    assert (base.link("current"), base.link("previous")) == ("one", "four")
    base("revert")
    assert (base.link("current"), base.link("previous")) == ("four", "one")


def test_models_that_no_kept_release_names_are_removed(base: Base) -> None:
    models = base.folder / "models"
    models.mkdir()
    for name in ("kept-0123456789abcdef.gguf", "old-fedcba9876543210.gguf", "mine.gguf"):
        (models / name).touch()
    conf = base.folder / "releases" / "one" / "etc" / "inferd.conf"
    conf.write_text("model = /opt/k1/models/kept-0123456789abcdef.gguf\n")
    serve(base, "one")
    assert sorted(path.name for path in models.iterdir()) == ["kept-0123456789abcdef.gguf", "mine.gguf"]


def test_what_is_not_there_is_refused(base: Base) -> None:
    assert "no release nine" in base("switch", "nine", code=2)
    assert "no previous release" in base("revert", code=2)
    assert "usage" in base("up", code=2)
