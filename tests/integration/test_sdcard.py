"""`k1 sdcard write` to loop devices and files: what the card holds afterwards, also after a kill half-way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from k1 import sdcard
from k1.drivers import blockdev
from k1.errors import CheckFailed
from k1.run import require

K1 = (sys.executable, "-m", "k1", "sdcard", "write")
MIB = 1 << 20
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes loop devices")


def k1(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*K1, *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL)


def make_image(path: Path, mib: int) -> Path:
    """An image of random data with a hole of an eighth in the middle."""
    block = os.urandom(MIB)
    with path.open("wb") as stream:
        for at in range(mib):
            if not mib // 2 <= at < mib // 2 + mib // 8:
                stream.seek(at * MIB)
                stream.write(at.to_bytes(4, "little") + block[4:])
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return make_image(tmp_path / "card.img", 32)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Path]:
    """A card of 200 MiB full of old data."""
    backing = tmp_path / "backing"
    with backing.open("wb") as stream:
        for _ in range(200):
            stream.write(b"\xa5" * MIB)
    losetup = require("losetup")
    device = subprocess.run([losetup, "-f", "--show", backing], capture_output=True, text=True, check=True).stdout
    yield Path(device.strip())
    subprocess.run([losetup, "-d", device.strip()], check=True)


def content(path: Path, size: int) -> bytes:
    with path.open("rb") as stream:
        return stream.read(size)


@needs_root
def test_a_loop_device_holds_the_image_byte_for_byte(loop: Path, image: Path) -> None:
    result = k1(loop, "--file", image, "--any-file", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["written"], report["zeroed"], report["verified"]) == (28 * MIB, 4 * MIB, True)
    assert content(loop, 32 * MIB) == image.read_bytes()


@needs_root
def test_an_old_backup_partition_table_at_the_end_is_gone(loop: Path, image: Path) -> None:
    assert k1(loop, "--file", image, "--any-file").returncode == 0
    whole = content(loop, 200 * MIB)
    assert whole[-MIB:] == bytes(MIB)
    assert whole[-MIB - 512 : -MIB] == b"\xa5" * 512


@needs_root
def test_killed_half_way_and_repeated_it_goes_on_and_is_verified(loop: Path, tmp_path: Path) -> None:
    image = make_image(tmp_path / "large.img", 192)
    process = subprocess.Popen([*K1, loop, "--file", image, "--any-file"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    with loop.open("rb", buffering=0) as card:
        while os.pread(card.fileno(), 4, 48 * MIB) != (48).to_bytes(4, "little"):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert os.pread(card.fileno(), 4, 191 * MIB) == b"\xa5" * 4, "it was not killed half-way"
    result = k1(loop, "--file", image, "--any-file", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["verified"]
    assert report["kept"] >= 48 * MIB
    assert content(loop, 192 * MIB) == image.read_bytes()


@needs_root
def test_a_second_writer_of_the_same_card_is_refused(loop: Path, image: Path) -> None:
    holder = os.open(loop, os.O_RDWR | os.O_EXCL)
    try:
        result = k1(loop, "--file", image, "--any-file")
    finally:
        os.close(holder)
    assert result.returncode == 2
    assert f"{loop}: is in use" in result.stderr


@needs_root
def test_a_mounted_device_is_refused_and_untouched(loop: Path, image: Path, tmp_path: Path) -> None:
    point = tmp_path / "mnt"
    point.mkdir()
    subprocess.run([require("mke2fs"), "-q", "-t", "ext4", loop], check=True)
    subprocess.run(["mount", loop, point], check=True)
    try:
        (tmp_path / "link").symlink_to(loop)
        for name in (loop, tmp_path / "link"):
            result = k1(name, "--file", image, "--any-file", "--device-ok", "--yes")
            assert result.returncode == 2
            assert f"{loop.name} is mounted on {point}" in result.stderr
        (point / "file").write_text("still here")
    finally:
        subprocess.run(["umount", point], check=True)


@needs_root
def test_a_symbolic_link_to_a_card_writes_the_card(loop: Path, image: Path, tmp_path: Path) -> None:
    link = tmp_path / "card"
    link.symlink_to(loop)
    assert k1(link, "--file", image, "--any-file").returncode == 0
    assert link.is_symlink()
    assert content(loop, 32 * MIB) == image.read_bytes()


def test_the_disk_this_machine_runs_from_is_refused(image: Path) -> None:
    system = [disk for disk in blockdev.Host().disks() if disk.is_system]
    if not system:
        pytest.skip("the root of this machine is on no disk it can see")
    # A dry run makes the same checks, and a fault in them must not cost the machine.
    result = k1(system[0].node, "--file", image, "--any-file", "--device-ok", "--yes", "--dry-run")
    assert result.returncode == 2
    assert f"{system[0].node}: this system runs from it" in result.stderr


def test_a_plain_file_becomes_the_image_and_stays_sparse(image: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.img"
    result = k1(target, "--file", image, "--any-file")
    assert result.returncode == 0, result.stderr
    assert target.read_bytes() == image.read_bytes()
    assert target.stat().st_blocks * 512 <= 29 * MIB


def test_a_damaged_copy_is_mended_from_the_first_wrong_byte(image: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.img"
    assert k1(target, "--file", image, "--any-file").returncode == 0
    with target.open("r+b") as stream:
        stream.seek(9 * MIB)
        stream.write(b"wrong")
        stream.seek(17 * MIB)  # in the hole
        stream.write(b"wrong")
    report = json.loads(k1(target, "--file", image, "--any-file", "--json").stdout)
    assert target.read_bytes() == image.read_bytes()
    assert report["kept"] >= 8 * MIB


@needs_root
def test_a_target_that_runs_full_is_one_error(image: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", small], check=True)
    try:
        result = k1(small / "card.img", "--file", image, "--any-file")
    finally:
        subprocess.run(["umount", small], check=True)
    assert result.returncode == 4
    assert "card.img: No space left on device after" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_card_that_loses_data_is_found(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(stream: BinaryIO, start: int, data: bytes) -> None:
        os.pwrite(stream.fileno(), data if start != 8 * MIB else bytes(len(data)), start)

    monkeypatch.setattr(sdcard, "_write_all", forgetful)
    with pytest.raises(CheckFailed, match=r"copy\.img: reads back other bytes than were written, at 8\.4 MB"):
        sdcard.write(image, "", sdcard.target(tmp_path / "copy.img", 32 * MIB), lambda *_: None)


def test_an_image_that_the_build_did_not_make_is_refused(image: Path, tmp_path: Path) -> None:
    result = k1(tmp_path / "copy.img", "--file", image)
    assert result.returncode == 2
    assert f"{image}: is no image of this build" in result.stderr
    assert not (tmp_path / "copy.img").exists()


def test_dry_run_writes_nothing(image: Path, tmp_path: Path) -> None:
    result = k1(tmp_path / "copy.img", "--file", image, "--any-file", "--dry-run")
    assert result.returncode == 0
    assert f"would write {image} (33.6 MB) to {tmp_path / 'copy.img'}" in result.stderr
    assert not (tmp_path / "copy.img").exists()
