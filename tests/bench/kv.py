"""`make bench-kv`: what the KV layouts miss in the K1's L2, simulated by cachegrind. Prints figures, asserts nothing.

The program decodes against a cache of SmolLM2's shape. Filling it is taken off by a run that decodes nothing. A rate is
misses of the L2 by accesses to it, which are the misses of the L1.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from k1 import userland
from k1.errors import K1Error
from k1.run import require, run

L1 = "32768,8,64"
L2 = "2097152,16,64"  # board/k1/board.toml: 2 MB, 16-way, lines of 64 bytes
LAYOUTS = {"layer": "[layer][kv_head]", "head": "[kv_head][layer]"}
POSITIONS = (32, 128, 512)
N_ROWS = (2048, 2056)  # for n_ctx 2048: as many, and what k1_kv_rows makes of it, which sets the heads' runs apart
N_TOKENS = 4


@dataclass(frozen=True)
class Misses:
    """Of data: in the L1, and of these in the L2."""

    first: int
    second: int

    def __sub__(self, other: Misses) -> Misses:
        return Misses(self.first - other.first, self.second - other.second)

    @property
    def rate(self) -> float:
        return self.second / self.first


def simulate(program: Path, layout: str, n_rows: int, n_past: int, n_tokens: int) -> Misses:
    """One run under cachegrind."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        caches = [f"--I1={L1}", f"--D1={L1}", f"--LL={L2}"]
        options = {"layout": layout, "n_rows": n_rows, "n_past": n_past, "n_tokens": n_tokens}
        words = [f"--{name}={value}" for name, value in options.items()]
        run(["valgrind", "--tool=cachegrind", *caches, f"--cachegrind-out-file={out}", program, *words])
        lines = dict(line.split(": ", 1) for line in out.read_text().splitlines() if line[:7] in ("events:", "summary"))
    counts = dict(zip(lines["events"].split(), map(int, lines["summary"].split()), strict=True))
    return Misses(counts["D1mr"] + counts["D1mw"], counts["DLmr"] + counts["DLmw"])


def decode(program: Path, layout: str, n_rows: int, n_past: int) -> Misses:
    return simulate(program, layout, n_rows, n_past, N_TOKENS) - simulate(program, layout, n_rows, n_past, 0)


def compare(positions: list[int]) -> None:
    require("valgrind")
    program = userland.build("native", jobs=os.cpu_count() or 1) / "kv_layout"
    print(
        f"KV cache of SmolLM2's shape, {N_TOKENS} tokens decoded; misses by accesses of an L2 of {L2} (bytes,ways,line)"
    )
    print(f"{'rows':>6} {'full':>6}   {LAYOUTS['layer']:>16} {LAYOUTS['head']:>16}   {'ratio of misses':>16}")
    engine: dict[tuple[int, int], int] = {}
    for n_rows in N_ROWS:
        for n_past in positions:
            layer, head = (decode(program, layout, n_rows, n_past) for layout in LAYOUTS)
            engine[n_rows, n_past] = layer.second
            ratio = head.second / layer.second if layer.second else float("nan")
            print(f"{n_rows:6} {n_past:6}   {layer.rate:16.1%} {head.rate:16.1%}   {ratio:16.2f}", flush=True)
    few, many = (sum(engine[n_rows, n_past] for n_past in positions) for n_rows in reversed(N_ROWS))
    print(
        f"{N_ROWS[1]} rows, which the engine takes for n_ctx {N_ROWS[0]}, miss {few / many:.2f} of what {N_ROWS[0]} do"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the KV layouts' cache misses.")
    parser.add_argument("positions", nargs="*", type=int, default=POSITIONS, help="how many are full before")
    try:
        compare(parser.parse_args().positions)
    except K1Error as error:
        parser.exit(error.exit_code, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
