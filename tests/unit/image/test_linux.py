"""What is refused of a built kernel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from k1.errors import CheckFailed
from k1.image.linux import check_vdso


def build_vdso(folder: Path, source: str) -> Path:
    """As the kernel's makefile leaves it: an object, and the library made of it."""
    gcc = ["riscv64-linux-gnu-gcc", "-fPIC"]
    (folder / "vgettimeofday.c").write_text(source)
    subprocess.run([*gcc, "-c", "vgettimeofday.c"], cwd=folder, check=True)
    subprocess.run([*gcc, "-shared", "-nostdlib", "-o", "vdso.so.dbg", "vgettimeofday.o"], cwd=folder, check=True)
    return folder


def test_a_vdso_whose_code_needs_the_kernels_symbols_is_refused(tmp_path: Path) -> None:
    vdso = build_vdso(tmp_path, "extern int riscv_isa_ext_keys[]; int f(void) { return riscv_isa_ext_keys[1]; }")
    with pytest.raises(CheckFailed, match="lacks riscv_isa_ext_keys") as caught:
        check_vdso(vdso)
    assert "CONFIG_JUMP_LABEL=y" in caught.value.hint


def test_a_table_that_no_code_reads_passes(tmp_path: Path) -> None:
    check_vdso(build_vdso(tmp_path, "extern int key; int *table[] = {&key}; int f(void) { return 1; }"))
