"""Buildroot's post-image.sh and the debian builder make the same card."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from k1 import board as boards
from k1 import output
from k1.buildroot import external
from k1.image import card
from k1.image.context import EPOCH, Context
from k1.image.keys import Logins
from k1.paths import REPO

ENVIRONMENT = "slot_order=A B\nbootlimit=3\n"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """What Buildroot leaves for the script: an environment and a root (its content does not matter)."""
    folder = tmp_path / "binaries"
    folder.mkdir()
    (folder / "uboot.env.txt").write_text(ENVIRONMENT)
    (folder / "rootfs.squashfs").write_bytes(b"hsqs" + bytes(8188))
    return folder


def test_the_card_is_the_same_bytes_as_the_debian_builders(images: Path, tmp_path: Path) -> None:
    board = boards.load("k1")
    external.render(board, tmp_path / "tree")
    script = [tmp_path / "tree" / "board" / "post-image.sh", images, tmp_path / "tree" / "board" / "k1"]
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    subprocess.run(script, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH), "PATH": path})

    context = Context(board, tmp_path / "build", tmp_path / "cache", 1, {}, (), (), Logins(""))
    context.images.mkdir(parents=True)
    for name in ("uboot.env.txt", "rootfs.squashfs"):
        (context.images / name).write_bytes((images / name).read_bytes())
    card.step(context).build(output.Task(None, "card"))
    assert (images / "sdcard.img").read_bytes() == (context.images / "sdcard.img").read_bytes()


def write_os_release(target: Path) -> None:
    """As Buildroot does for each image."""
    (target / "usr" / "lib").mkdir(parents=True, exist_ok=True)
    (target / "usr" / "lib" / "os-release").write_text("NAME=Buildroot\nVERSION=2023.08\n")
    (target / "etc").mkdir(exist_ok=True)
    if not (target / "etc" / "os-release").is_symlink():
        (target / "etc" / "os-release").symlink_to("../usr/lib/os-release")


def test_post_build_names_the_image_by_a_hash_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "etc" / "init.d").mkdir(parents=True)

    def image() -> str:
        write_os_release(tmp_path)
        script = REPO / "buildroot-ext" / "board" / "post-build.sh"
        subprocess.run([script, tmp_path, REPO / "board" / "k1"], check=True)
        lines = (tmp_path / "etc" / "os-release").read_text().splitlines()
        assert lines[0] == "NAME=Buildroot"
        assert lines[-2] == "IMAGE_ID=k1-k1"
        return lines[-1].removeprefix("IMAGE_VERSION=")

    first = image()
    assert len(first) == 16
    assert image() == first
    (tmp_path / "etc" / "issue").write_text("another")
    assert image() != first


def test_post_build_leaves_no_service_twice_and_links_what_lives_on_data(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for name in ("S01syslogd", "S30dropbear", "rcS"):
        (target / "etc" / "init.d").mkdir(parents=True, exist_ok=True)
        (target / "etc" / "init.d" / name).write_text("")
    (target / "var" / "log").mkdir(parents=True)
    write_os_release(target)
    script = REPO / "buildroot-ext" / "board" / "post-build.sh"
    for _ in range(2):  # Buildroot calls it again when only an image is made anew
        subprocess.run([script, target, REPO / "board" / "k1"], check=True)
    assert sorted(path.name for path in (target / "etc" / "init.d").iterdir()) == ["S30dropbear", "rcS"]
    assert (target / "var" / "log").readlink() == Path("/data/log")
    assert (target / "boot" / "env").is_dir()
