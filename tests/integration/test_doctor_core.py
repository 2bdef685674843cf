"""`k1 doctor crash` reads real cores by gdb-multiarch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from k1 import board as boards
from k1.doctor import crash
from k1.doctor.check import Verdict
from k1.doctor.crash import Crash
from k1.doctor.system import Live
from k1.errors import K1Error

SOURCE = Path(__file__).parents[1] / "data" / "crash" / "vdso.c"


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A program that copied into the vdso, and its core."""
    folder = tmp_path_factory.mktemp("core")
    program, core = folder / "vdso", folder / "core"
    subprocess.run(["gcc", "-g", "-O0", "-fno-builtin", "-o", program, SOURCE], check=True)
    words = ["gdb-multiarch", "-nx", "-batch", "-ex", "run", "-ex", f"generate-core-file {core}", program]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    return program, core


def test_a_copy_into_the_vdso_is_recognized(dead: tuple[Path, Path]) -> None:
    program, core = dead
    found = {f.id: f for f in crash.examine(Crash(Live(), boards.load("k1"), program, core))}
    assert found["crash-core"].verdict is Verdict.OK
    assert "in write_ring (target=" in found["crash-core"].evidence
    assert found["crash-maps"].verdict is Verdict.FAIL
    assert "in [vdso]: a ring buffer that is not aligned to cache lines" in found["crash-maps"].evidence


def test_files_that_are_no_core_are_told(dead: tuple[Path, Path], tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_text("no core")
    with pytest.raises(K1Error, match="no backtrace from"):
        crash.read_core(dead[0], junk)
