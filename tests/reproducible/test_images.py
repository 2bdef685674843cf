"""Two builds of one commit give the same bytes: other place, umask, time zone and number of jobs, no compiler cache."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

IMAGES = ("fw_dynamic.bin", "u-boot.bin", "Image", "rootfs.squashfs", "sdcard.img", "manifest.json")


def build(folder: Path, keys: Path, umask: int, zone: str, jobs: int) -> dict[str, str]:
    """SHA-256 of each image of a build from nothing."""
    environment = {"K1_BUILD": str(folder), "K1_AUTHORIZED_KEYS": str(keys), "CCACHE_DISABLE": "1", "TZ": zone}
    command = [sys.executable, "-m", "k1", "image"]
    subprocess.run([*command, "--jobs", str(jobs)], env=os.environ | environment, umask=umask, check=True)
    images = folder / "virt" / "images"
    found = {name: hashlib.sha256((images / name).read_bytes()).hexdigest() for name in IMAGES}
    subprocess.run([*command, "clean", "--all"], env=os.environ | environment, check=True)
    return found


@pytest.mark.timeout(3600)
def test_two_builds_are_byte_identical(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", tmp_path / "key"], check=True)
    keys = tmp_path / "key.pub"
    first = build(tmp_path / "a", keys, 0o022, "UTC", 2)
    second = build(tmp_path / "another place, with a longer name", keys, 0o027, "Asia/Tokyo", 3)
    print("\n".join(f"{digest}  {name}" for name, digest in first.items()))
    assert first == second
