"""What is refused of a built kernel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from k1.errors import CheckFailed
from k1.image.linux import check_vdso


def build_library(folder: Path, source: str) -> Path:
    (folder / "lib.c").write_text(source)
    gcc = ["riscv64-linux-gnu-gcc", "-shared", "-fPIC", "-nostdlib", "-o", folder / "lib.so", folder / "lib.c"]
    subprocess.run(gcc, check=True)
    return folder / "lib.so"


def test_a_vdso_that_needs_the_kernels_symbols_is_refused(tmp_path: Path) -> None:
    vdso = build_library(tmp_path, "extern int riscv_isa_ext_keys[]; int f(void) { return riscv_isa_ext_keys[1]; }")
    with pytest.raises(CheckFailed, match="lacks riscv_isa_ext_keys") as caught:
        check_vdso(vdso)
    assert "CONFIG_JUMP_LABEL=y" in caught.value.hint


def test_a_vdso_that_stands_alone_passes(tmp_path: Path) -> None:
    check_vdso(build_library(tmp_path, "int f(void) { return 1; }"))
