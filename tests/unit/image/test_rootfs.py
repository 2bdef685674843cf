"""The root: complete, within budget, and the same bytes from the same content."""

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from k1 import board as boards
from k1.errors import CheckFailed, K1Error
from k1.image import rootfs
from k1.run import run


def small_root(folder: Path) -> Path:
    root = folder / "root"
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / "tool").write_text("#!/bin/sh\n")
    (root / "usr" / "bin" / "tool").chmod(0o775)
    (root / "etc").mkdir()
    (root / "etc" / "shadow").write_text("root:*:::::::\n")
    (root / "etc" / "motd").write_text("hello\n")
    return root


def archive_of(root: Path) -> Path:
    archive = root.parent / "root.tar"
    rootfs.write_tar(root, archive, epoch=1000)
    return archive


def test_tar_is_the_same_whatever_the_umask_order_and_time(tmp_path: Path) -> None:
    one = small_root(tmp_path / "one")
    two = small_root(tmp_path / "two")
    os.utime(two / "etc" / "motd", (5, 5))
    (two / "etc" / "motd").chmod(0o664)
    assert archive_of(one).read_bytes() == archive_of(two).read_bytes()


def test_tar_gives_root_everything_with_plain_modes(tmp_path: Path) -> None:
    root = small_root(tmp_path)
    rootfs.merge_usr(root)
    with tarfile.open(archive_of(root)) as tar:
        found = {member.name.removeprefix("./"): member for member in tar}
    assert {(m.uid, m.gid, m.mtime) for m in found.values()} == {(0, 0, 1000)}
    modes = {name: found[name].mode for name in ("usr/bin/tool", "etc/motd", "etc/shadow", "tmp", "root/.ssh")}
    assert modes == {
        "usr/bin/tool": 0o755,
        "etc/motd": 0o644,
        "etc/shadow": 0o600,
        "tmp": 0o1777,
        "root/.ssh": 0o700,
    }
    assert found["bin"].linkname == "usr/bin"


def test_hard_links_keep_their_content(tmp_path: Path) -> None:
    root = small_root(tmp_path)
    os.link(root / "etc" / "motd", root / "etc" / "motd2")
    with tarfile.open(archive_of(root)) as tar:
        for name in ("./etc/motd", "./etc/motd2"):
            stream = tar.extractfile(name)
            assert stream and stream.read() == b"hello\n"


def test_squashfs_is_the_same_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000")
    archive = archive_of(small_root(tmp_path))
    digests = set()
    for name in ("a", "b"):
        rootfs.make_squashfs(archive, tmp_path / name, 1000, tmp_path / "log")
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_root_over_its_budget_names_the_biggest_files(tmp_path: Path) -> None:
    root = small_root(tmp_path)
    (root / "usr" / "bin" / "giant").write_bytes(bytes(1_500_000))
    assert rootfs.check_budget(root, 2)["bytes"] > 1_500_000
    with pytest.raises(CheckFailed, match="over its budget of 1 MB") as caught:
        rootfs.check_budget(root, 1)
    assert "1.5 MB  /usr/bin/giant" in str(caught.value)


def test_missing_library_is_named_with_its_user(tmp_path: Path) -> None:
    root = small_root(tmp_path)
    source = tmp_path / "x.c"
    source.write_text("int main(void) { return 0; }\n")
    run(["riscv64-linux-gnu-gcc", "-o", root / "usr" / "bin" / "prog", source])
    with pytest.raises(K1Error, match=r"the root lacks libc\.so\.6 \(for usr/bin/prog\)"):
        rootfs.check_libraries(root)
    (root / "usr" / "lib").mkdir()
    (root / "usr" / "lib" / "libc.so.6").touch()
    rootfs.check_libraries(root)


def test_prune_keeps_licences(tmp_path: Path) -> None:
    root = small_root(tmp_path)
    for name in ("doc/a/copyright", "doc/a/changelog.gz", "man/man1/a.1.gz"):
        (root / "usr" / "share" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "usr" / "share" / name).touch()
    rootfs.prune(root, ["usr/share/doc", "usr/share/man", "usr/share/none"])
    left = [p.relative_to(root).as_posix() for p in (root / "usr" / "share").rglob("*") if p.is_file()]
    assert left == ["usr/share/doc/a/copyright"]
    assert not (root / "usr" / "share" / "man").exists()


def test_old_places_are_merged_into_usr(tmp_path: Path) -> None:
    root = small_root(tmp_path)
    (root / "sbin").mkdir()
    (root / "sbin" / "fsck").write_text("x")
    rootfs.merge_usr(root)
    assert (root / "sbin").readlink() == Path("usr/sbin")
    assert (root / "usr" / "sbin" / "fsck").read_text() == "x"


def test_an_overlay_replaces_links_instead_of_writing_through_them(tmp_path: Path) -> None:
    root, overlay, outside = small_root(tmp_path), tmp_path / "overlay", tmp_path / "outside"
    outside.write_text("the host's")
    (root / "usr" / "bin" / "poweroff").symlink_to(outside)
    (overlay / "usr" / "bin").mkdir(parents=True)
    (overlay / "usr" / "bin" / "poweroff").write_text("ours")
    (overlay / "mtu.j2").write_text("{{ board.network.mtu.value }}")
    rootfs.lay_over(overlay, root, boards.load("virt"))
    assert outside.read_text() == "the host's"
    assert (root / "usr" / "bin" / "poweroff").read_text() == "ours"
    assert (root / "mtu").read_text() == "9000"


def test_applets_never_hide_a_real_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_root(tmp_path)
    (root / "usr" / "sbin").mkdir()
    (root / "usr" / "sbin" / "sfdisk").touch()
    listing = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(rootfs, "run", lambda _argv: listing)
    listing.output = "bin/ls\nsbin/sfdisk\nusr/bin/tool\nusr/sbin/tool\nsbin/ip\n"  # type: ignore[attr-defined]
    rootfs.link_applets(root)
    links = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_symlink())
    assert links == ["usr/bin/ls", "usr/sbin/ip"]
