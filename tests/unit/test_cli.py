"""The command line: exit codes, one clear line for bad input, JSON where a program reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def k1(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "k1", *words], capture_output=True, text=True, env=os.environ | environment
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["image", "--board", "vrit"], "did you mean virt?"),
        (["image", "--board", "k1"], "board k1 cannot be built, for want of"),
        (["image", "--builder", "yocto"], "no builder named yocto"),
        (["image", "--force"], "--force needs --step"),
        (["image", "--locked", "--refresh"], "--locked excludes"),
        (["image", "--jobs", "0"], "--jobs"),
        (["image", "--authorized-keys", "/nowhere.pub"], "/nowhere.pub: cannot be read as public keys"),
        (["image", "--step", "kernel"], "no step named kernel"),
        (["lab", "ssh", "--name", "none", "0"], "there is no lab none"),
        (["frobnicate"], "No such command"),
    ],
)
def test_bad_input_is_one_error_and_exit_code_2(tmp_path: Path, words: list[str], message: str) -> None:
    result = k1(*words, K1_BUILD=str(tmp_path), K1_CACHE=str(tmp_path), K1_DEBIAN_MIRROR="file:/nowhere")
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_dry_run_builds_nothing_and_speaks_json(tmp_path: Path) -> None:
    result = k1("image", "--dry-run", "--json", K1_BUILD=str(tmp_path), K1_CACHE=str(tmp_path))
    rows = json.loads(result.stdout)
    assert [row["step"] for row in rows] == ["sources", "opensbi", "uboot", "linux", "programs", "rootfs", "card"]
    assert not (tmp_path / "virt" / "images").exists()


def test_two_builds_of_one_board_at_once_are_refused(tmp_path: Path) -> None:
    from k1 import files

    with files.locked(tmp_path / "virt" / "lock", "test"):
        result = k1("image", K1_BUILD=str(tmp_path))
    assert result.returncode == 2
    assert "the build of virt is in use by another k1 command" in result.stderr


def test_a_reader_that_goes_away_is_no_fault_of_ours() -> None:
    words = [sys.executable, "-m", "k1", "board", "show", "k1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == ""
