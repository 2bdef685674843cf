"""`k1 bringup` on virtual boards: the whole way to a ready engine, and boots that are made to fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from k1.lab import Lab
from k1.run import require
from support.babbler import write_babbler
from support.card import slots

MODEL = "/opt/k1/models/model.gguf"


def bring_up(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "k1", "bringup", *map(str, words)], capture_output=True, text=True)


@pytest.fixture
def own(own_build: Path) -> Iterator[Lab]:
    """A lab, not there yet, that boots a copy of the image."""
    lab = Lab("bringup")
    yield lab
    lab.down()


def test_two_boards_reach_a_ready_engine_with_times(own: Lab, tmp_path: Path) -> None:
    own.up(2)
    babbler = write_babbler(tmp_path / "babbler.gguf")
    for rank in (0, 1):
        own.ssh(rank).run(f"mkdir -p {Path(MODEL).parent} && cat > {MODEL} && sync", stdin=babbler)
    refused = bring_up("--lab", own.name)
    assert refused.returncode == 2
    assert "boards of lab bringup run already\n  try: --power-cycle" in refused.stderr

    own.down(keep=True)
    result = bring_up("--lab", own.name, "--json", "--svg", tmp_path / "boot.svg")
    assert result.returncode == 0, result.stderr
    for report in json.loads(result.stdout):
        assert report["state"] == "ready"
        times = {stage["stage"]: stage["seconds"] for stage in report["stages"]}
        assert list(times)[:5] == ["power on", "OpenSBI", "U-Boot", "Linux", "init"]
        assert 0 < times["OpenSBI"] < times["Linux"] < times["k1-inferd"]
    ElementTree.parse(tmp_path / "boot.svg")  # noqa: S314


def test_boards_without_a_model_are_up_with_a_warning(own: Lab) -> None:
    result = bring_up("--lab", own.name, "-n", "1")
    assert result.returncode == 3, result.stderr
    assert "bringup:0: no-model: the board is up, but it has no model to serve" in result.stderr


def test_a_damaged_model(own: Lab) -> None:
    own.up(1)
    own.ssh(0).run(f"mkdir -p {Path(MODEL).parent} && echo no model > {MODEL} && sync")
    own.down(keep=True)
    result = bring_up("--lab", own.name)
    assert result.returncode == 4
    assert "inferd-ended: k1-inferd is missing, or ended while it was starting" in result.stderr


def test_opensbi_without_uboot(own: Lab, own_build: Path) -> None:
    (own_build / "u-boot.bin").write_bytes(bytes(16))
    result = bring_up("--lab", own.name, "-n", "1")
    assert result.returncode == 4
    assert "bringup:0: stopped before U-Boot: no-uboot: OpenSBI runs" in result.stderr


def test_no_root_slot(own: Lab, own_build: Path) -> None:
    with (own_build / "sdcard.img").open("r+b") as card:
        for start, _size in slots(own_build / "sdcard.img"):
            card.seek(start)
            card.write(os.urandom(65536))
    result = bring_up("--lab", own.name, "-n", "1")
    assert result.returncode == 4
    assert "bringup:0: stopped before Linux: no-slot: neither slot of the card holds a kernel" in result.stderr
    assert "| k1: no bootable slot" in result.stderr


def test_a_corrupt_kernel(own: Lab, own_build: Path, tmp_path: Path) -> None:
    """Its header is right, so that U-Boot starts it."""
    kernel = tmp_path / "root" / "boot" / "Image"
    kernel.parent.mkdir(parents=True)
    image = (own_build / "Image").read_bytes()
    kernel.write_bytes(image[:64] + bytes(len(image) - 64))
    make = [require("mksquashfs"), tmp_path / "root", tmp_path / "slot", "-quiet", "-no-progress", "-no-fragments"]
    subprocess.run(make, check=True)
    with (own_build / "sdcard.img").open("r+b") as card:
        for start, size in slots(own_build / "sdcard.img"):
            assert (tmp_path / "slot").stat().st_size < size
            card.seek(start)
            shutil.copyfileobj((tmp_path / "slot").open("rb"), card)
    result = bring_up("--lab", own.name, "-n", "1")
    assert result.returncode == 4
    assert "bringup:0: stopped before Linux: uboot-exception: what U-Boot started" in result.stderr
    assert "| Unhandled exception: Illegal instruction" in result.stderr
