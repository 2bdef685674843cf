"""`make bench-pipeline`: one stream over several local processes, against one process. Prints figures, asserts nothing.

Rank counts are taken in turn, so that what else the machine does hits all alike.
"""

from __future__ import annotations

import secrets
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from k1 import model, output, paths, userland
from k1.drivers.ports import free_port
from support.inferd import Daemon, wait_until

RANKS = (1, 2, 4)
ROUNDS = 5
REQUEST = {"prompt": "Once upon a time", "max_tokens": 64, "temperature": 0, "repeat_penalty": 1.1}


@contextmanager
def daemons(programs: Path, file: Path, folder: Path, n_ranks: int) -> Iterator[Daemon]:
    """Rank 0 of n_ranks daemons of one thread each that have agreed."""
    key = folder / "key"
    key.write_text(secrets.token_hex(32) + "\n")
    key.chmod(0o600)
    nodes = ",".join(f"127.0.0.1:{free_port()}" for _ in range(n_ranks))
    with ExitStack() as stack:
        for rank in reversed(range(n_ranks)):
            argv = [programs / "k1-inferd", "--model", file, "--port", "0", "--n_ctx", "512", "--n_threads", "1"]
            if n_ranks > 1:
                argv += ["--nodes", nodes, "--rpc_rank", str(rank), "--cluster_key_file", key]
            log = folder / f"log{n_ranks}.{rank}"
            process = stack.enter_context(subprocess.Popen(argv, stderr=log.open("w"), text=True))
            stack.callback(process.terminate)
            daemon = Daemon(process, log)
        wait_until("all ranks agree", lambda: daemon.health()["status"] == "ok")
        yield daemon


def main() -> None:
    programs = userland.build("native", jobs=2)
    with output.task("SmolLM2") as task:
        file = model.fetch("smollm2", paths.cache_dir(), task)
    timings: dict[int, list[Any]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for n_ranks in RANKS:
                with daemons(programs, file, Path(folder), n_ranks) as head:
                    timings[n_ranks].append(head.complete(**REQUEST).json["timings"])
    alone = median(t["predicted_per_second"] for t in timings[1])
    for n_ranks in RANKS:
        rate = median(t["predicted_per_second"] for t in timings[n_ranks])
        line = f"{n_ranks} process{'es' * (n_ranks > 1)}, one thread each: decode {rate:6.1f} tokens/s"
        if n_ranks > 1:
            hop = median(t["hop_ms"] for t in timings[n_ranks])
            line += f"   ratio to one {rate / alone:.2f}   a hop {1000 * hop:.0f} us"
        print(line)


if __name__ == "__main__":
    main()
