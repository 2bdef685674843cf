"""Two builds of one commit, in two places and without a compiler cache, give the same bytes."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

IMAGES = ("fw_dynamic.bin", "u-boot.bin", "Image", "rootfs.squashfs", "sdcard.img", "manifest.json")


def build(folder: Path, keys: Path) -> dict[str, str]:
    """SHA-256 of each image of a build from nothing."""
    environment = os.environ | {"K1_BUILD": str(folder), "K1_AUTHORIZED_KEYS": str(keys), "CCACHE_DISABLE": "1"}
    subprocess.run([sys.executable, "-m", "k1", "image"], env=environment, check=True)
    images = folder / "virt" / "images"
    return {name: hashlib.sha256((images / name).read_bytes()).hexdigest() for name in IMAGES}


@pytest.mark.timeout(3600)
def test_two_builds_are_byte_identical(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", tmp_path / "key"], check=True)
    keys = tmp_path / "key.pub"
    first = build(tmp_path / "a", keys)
    second = build(tmp_path / "another place, with a longer name", keys)
    print("\n".join(f"{digest}  {name}" for name, digest in first.items()))
    assert first == second
