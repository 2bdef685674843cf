"""`make bench-engine`: how fast the engine is on this machine. Prints figures, asserts nothing.

LLAMA_BENCH=path of llama.cpp's llama-bench adds its figures, taken in turn with ours, and the ratio.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from gguf import GGUFReader

from k1 import model, output, paths, userland

N_PROMPT, N_DECODE, ROUNDS = 128, 64, 3
THREADS = (1, 2)

Rates = dict[tuple[int, str], list[float]]


def run_ours(programs: Path, file: Path, threads: int, rates: Rates) -> None:
    """One round of k1-bench."""
    words = ["-p", N_PROMPT, "-n", N_DECODE, "-t", threads, "-r", 1, "--json"]
    (row,) = run_json([programs / "k1-bench", "engine", "-m", file, *words])
    rates[threads, "prefill"].append(row["prefill_tokens_per_s"])
    rates[threads, "decode"].append(row["decode_tokens_per_s"])


def run_llama(llama_bench: str, file: Path, threads: int, rates: Rates) -> None:
    """One round of llama-bench."""
    words = ["-p", N_PROMPT, "-n", N_DECODE, "-t", threads, "-r", 1, "-o", "json"]
    for row in run_json([llama_bench, "-m", file, *words]):
        rates[threads, "prefill" if row["n_prompt"] else "decode"].append(row["avg_ts"])


def run_json(words: list[Any]) -> Any:
    return json.loads(subprocess.run(list(map(str, words)), check=True, capture_output=True).stdout)


def show_rates(ours: Rates, theirs: Rates) -> None:
    for key, values in ours.items():
        line = f"{key[0]} thread{'s' * (key[0] > 1)}  {key[1]:8} {median(values):8.1f} tokens/s"
        if key in theirs:
            line += f"   llama.cpp {median(theirs[key]):8.1f}   ratio {median(values) / median(theirs[key]):.2f}"
        print(line)


class Daemon:
    """A k1-inferd on a free port, and how long it took until /health answered."""

    def __init__(self, programs: Path, file: Path) -> None:
        begun = time.monotonic()
        argv = [programs / "k1-inferd", "--model", file, "--port", "0"]
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        found = re.search(r"port=(\d+)", self.process.stderr.readline())
        assert found
        self.url = f"http://127.0.0.1:{found[1]}"
        with urllib.request.urlopen(self.url + "/health") as answer:  # noqa: S310
            assert answer.status == 200
        self.start_ms = 1000 * (time.monotonic() - begun)

    def complete(self, **fields: Any) -> Any:
        with urllib.request.urlopen(self.url + "/v1/completions", json.dumps(fields).encode()) as answer:  # noqa: S310
            return json.loads(answer.read())

    def resident(self, file: Path) -> tuple[float, float]:
        """MiB resident: all, and of the mapped model."""
        total = weights = 0
        mapped = False
        for line in Path(f"/proc/{self.process.pid}/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                mapped = line.endswith(str(file))
            elif line.startswith("Rss:"):
                kib = int(line.split()[1])
                total += kib
                weights += kib * mapped
        return total / 1024, weights / 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def kv_mib(file: Path, tokens: int) -> float:
    """The KV cache that so many tokens fill."""
    fields = GGUFReader(file).fields
    arch = fields["general.architecture"].contents()

    def number(suffix: str) -> int:
        return int(fields[f"{arch}.{suffix}"].contents())

    heads, kv_heads = number("attention.head_count"), number("attention.head_count_kv")
    return number("block_count") * kv_heads * number("embedding_length") // heads * 2 * 2 * tokens / 2**20


def show_daemon(programs: Path, file: Path) -> None:
    starts = []
    for _ in range(ROUNDS):
        daemon = Daemon(programs, file)
        starts.append(daemon.start_ms)
        if len(starts) < ROUNDS:
            daemon.stop()
    usage = daemon.complete(prompt="word " * N_PROMPT, max_tokens=N_DECODE)["usage"]
    total, weights = daemon.resident(file)
    daemon.stop()
    kv = kv_mib(file, usage["total_tokens"])
    print(f"exec to /health 200: {median(starts):.0f} ms")
    print(
        f"resident after {usage['total_tokens']} tokens: {total:.1f} MiB = weights {weights:.1f} + KV {kv:.1f}", end=""
    )
    print(f" + {total - weights - kv:.1f}")


def main() -> None:
    programs = userland.build("native", jobs=os.cpu_count() or 1)
    given = os.environ.get("K1_SMOLLM2")
    with output.task("SmolLM2") as task:
        file = Path(given) if given else model.fetch("smollm2", paths.cache_dir(), task)
    file = file.resolve()
    llama_bench = os.environ.get("LLAMA_BENCH")
    ours: Rates = defaultdict(list)
    theirs: Rates = defaultdict(list)
    for _ in range(ROUNDS):
        for threads in THREADS:
            run_ours(programs, file, threads, ours)
            if llama_bench:
                run_llama(llama_bench, file, threads, theirs)
    show_rates(ours, theirs)
    show_daemon(programs, file)


if __name__ == "__main__":
    main()
