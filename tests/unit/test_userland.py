"""The userland's build as far as no compiler is needed, and one real build of its core."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from k1 import run as runner
from k1 import sources, userland
from k1.errors import K1Error
from k1.output import Task
from k1.run import CommandError, run
from k1.sources import Source, SourceFile


def quiet() -> Task:
    return Task(None, "userland")


@pytest.fixture(autouse=True)
def build_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("K1_BUILD", str(tmp_path / "build"))
    monkeypatch.setenv("K1_CACHE", str(tmp_path / "cache"))
    return tmp_path / "build"


def debian_package(cache: Path, name: str, content: str) -> Source:
    """A real .deb in the cache, with one file and two links."""
    tree = cache / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: k1\nDescription: test\n"
    (tree / "DEBIAN" / "control").write_text(control)
    folder = tree / "usr" / "lib" / "riscv64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / f"{name}.a").write_text(content)
    (folder / f"{name}.so").symlink_to(f"/usr/lib/riscv64-linux-gnu/{name}.a")
    (tree / "lib").mkdir()
    (tree / "lib" / f"{name}.old").write_text(content)
    deb = cache / f"{name}.deb"
    run(["dpkg-deb", "--root-owner-group", "-b", tree, deb])
    shutil.rmtree(tree)
    digest = userland.files.sha256(deb)
    file = SourceFile(filename=deb.name, size=deb.stat().st_size, sha256=digest)
    file.path(cache).parent.mkdir(parents=True)
    deb.rename(file.path(cache))
    return Source(name=f"sysroot/{name}", kind="binary", package=name, version="1", suite="trixie", files=(file,))


def test_the_sysroot_has_every_package_below_its_own_name(tmp_path: Path) -> None:
    packages = [debian_package(tmp_path, "one", "1"), debian_package(tmp_path, "two", "2")]
    root = userland.unpack(packages, tmp_path, quiet())
    library = root / "usr/lib/riscv64-linux-gnu"
    assert (library / "one.a").read_text() == "1"
    assert (library / "two.a").read_text() == "2"


def test_absolute_links_of_packages_stay_inside_the_sysroot(tmp_path: Path) -> None:
    root = userland.unpack([debian_package(tmp_path, "one", "1")], tmp_path, quiet())
    link = root / "usr/lib/riscv64-linux-gnu/one.so"
    assert os.readlink(link) == "one.a"
    assert link.read_text() == "1"


def test_old_places_lead_to_usr(tmp_path: Path) -> None:
    root = userland.unpack([debian_package(tmp_path, "one", "1")], tmp_path, quiet())
    assert os.readlink(root / "lib") == "usr/lib"
    assert (root / "usr/lib/one.old").read_text() == "1"


def test_the_same_packages_are_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = debian_package(tmp_path, "one", "1")
    first = userland.unpack([package], tmp_path, quiet())
    monkeypatch.setattr(userland, "run", lambda *_, **__: pytest.fail("unpacked again"))
    assert userland.unpack([package], tmp_path, quiet()) == first


def test_other_packages_have_another_folder(tmp_path: Path) -> None:
    first = userland.unpack([debian_package(tmp_path, "one", "1")], tmp_path, quiet())
    assert userland.unpack([debian_package(tmp_path, "one", "2")], tmp_path, quiet()) != first


def test_an_unpacking_that_broke_off_leaves_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = [debian_package(tmp_path, "one", "1"), debian_package(tmp_path, "two", "2")]
    real = sources.verify

    def interrupted(package: Source, cache: Path, task: Task) -> None:
        if package.package == "two":
            raise KeyboardInterrupt
        real(package, cache, task)

    monkeypatch.setattr(sources, "verify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        userland.unpack(packages, tmp_path, quiet())
    monkeypatch.setattr(sources, "verify", real)
    root = userland.unpack(packages, tmp_path, quiet())
    assert (root / "usr/lib/riscv64-linux-gnu/two.a").is_file()


@pytest.mark.parametrize(("flavour", "architecture"), [("riscv64", "riscv64"), ("aarch64", "arm64")])
def test_a_cross_build_links_against_packages_of_its_machine(
    monkeypatch: pytest.MonkeyPatch, flavour: str, architecture: str
) -> None:
    asked: list[sources.Wanted] = []

    def fetch(wanted: list[sources.Wanted], **_: object) -> list[Source]:
        asked.extend(wanted)
        raise K1Error("no network")

    monkeypatch.setattr(userland, "require", lambda program: program)
    monkeypatch.setattr(sources, "fetch", fetch)
    with pytest.raises(K1Error, match="no network"):
        userland.build(flavour, jobs=1)
    assert {(w.kind, w.architecture) for w in asked} == {("binary", architecture)}
    assert {"libc6-dev", "libevent-dev"} <= {w.package for w in asked}


def test_there_are_builds_for_the_k1_and_for_arm() -> None:
    assert set(userland.MACHINES) == {"riscv64", "aarch64"}


def test_an_unknown_flavour_names_the_known() -> None:
    with pytest.raises(K1Error, match="no flavour named vax") as caught:
        userland.build("vax", jobs=1)
    assert "riscv64" in caught.value.hint


def test_a_missing_compiler_is_named_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, build_tree: Path
) -> None:
    real = runner.require
    monkeypatch.setattr(userland, "require", lambda program: real("no-such" if program == "musl-gcc" else program))
    with pytest.raises(K1Error, match="no-such is not installed"):
        userland.build("musl", jobs=1)
    assert not build_tree.exists()


@pytest.fixture
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A userland of one program and one test."""
    source = tmp_path / "source"
    (source / "cross").mkdir(parents=True)
    (source / "meson.build").write_text("project('small', 'c')\ntest('main', executable('main', 'main.c'))\n")
    (source / "main.c").write_text("int main(void) { return 0; }\n")
    (source / "cross" / "debug.ini").write_text("[built-in options]\noptimization = '1'\n")
    monkeypatch.setattr(userland, "SOURCE", source)
    return source


def test_a_build_is_made_anew_when_its_machine_file_changes(small_source: Path) -> None:
    folder = userland.build("debug", jobs=1, test=True)
    assert (folder / "main").is_file()
    marker = folder / "marker"
    marker.touch()
    userland.build("debug", jobs=1)
    assert marker.exists()
    (small_source / "cross" / "debug.ini").write_text("[built-in options]\noptimization = '2'\n")
    userland.build("debug", jobs=1)
    assert not marker.exists()


def test_a_compiler_error_is_shown(small_source: Path) -> None:
    (small_source / "main.c").write_text("int main(void) { return nothing; }\n")
    with pytest.raises(CommandError, match=r"nothing.* undeclared"):
        userland.build("debug", jobs=1)


def test_a_failing_test_fails_the_build(small_source: Path) -> None:
    (small_source / "main.c").write_text("int main(void) { return 1; }\n")
    userland.build("debug", jobs=1)
    with pytest.raises(CommandError, match="exit status 1"):
        userland.build("debug", jobs=1, test=True)
