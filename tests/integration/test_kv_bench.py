"""The comparison of KV layouts: the program that decodes, and the target that counts its misses."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from k1 import paths
from support.inferd import Run


def test_both_layouts_hold_the_same_values(userland_build: Path) -> None:
    runs = [Run(userland_build / "kv_layout", "--layout", layout, "--n_past", "70") for layout in ("layer", "head")]
    assert [run.code for run in runs] == [0, 0]
    assert runs[0].out == runs[1].out
    assert float(runs[0].out) != 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layout", "pos"], 'layout: "pos" is neither layer nor head'),
        (["--n_head", "8"], "n_head: 8 is no multiple of n_head_kv 3"),
        (["--n_past", "2045"], "n_past: 2045 and 4 tokens do not fit into n_rows 2048"),
        (["--n_tokens", "2049", "--n_past", "0"], "n_past: 0 and 2049 tokens do not fit into n_rows 2048"),
    ],
)
def test_what_cannot_be_decoded_is_said(userland_build: Path, options: list[str], message: str) -> None:
    run = Run(userland_build / "kv_layout", *options)
    assert run.code == 2
    assert message in run.err


BENCH = paths.REPO / "tests" / "bench" / "kv.py"


def test_bench_kv_names_the_package_it_lacks(tmp_path: Path) -> None:
    run = Run(sys.executable, BENCH, env={"PATH": str(tmp_path)})
    assert run.code == 2
    assert "valgrind is not installed" in run.err
    assert "apt install valgrind" in run.err
    assert run.err.count("\n") <= 2


def test_bench_kv_prints_both_miss_rates_and_their_ratio() -> None:
    run = Run(sys.executable, BENCH, "4")
    assert run.code == 0, run.err
    rows = re.findall(r"^ +(\d+) +4 +([\d.]+)% +([\d.]+)% +([\d.]+)$", run.out, re.MULTILINE)
    assert [row[0] for row in rows] == ["2048", "2056"]
    # All runs of a power of two begin in the same set, which has fewer ways than there are runs.
    assert all(float(aligned) > 5 * float(apart) for aligned, apart in zip(rows[0][1:3], rows[1][1:3], strict=True))
