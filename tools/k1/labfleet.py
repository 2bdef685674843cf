"""The fleet.toml of a lab: virtual boards are deployed to as real ones are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k1 import fleet, paths
from k1.lab import BOARD, Status

# What a board under emulation needs more than a real one between two signs of life.
PATIENCE = 10.0


def text(boards: Sequence[Status], model: str, n_ctx: int, key: Path | None = None) -> str:
    """For these boards; model: a GGUF file or a known name; key: private SSH key, None for the build's own.

    They get the programs of the image they were booted from.
    """
    built = paths.build_dir(BOARD)
    cluster: dict[str, Any] = {"model": model, "n_ctx": n_ctx, "n_batch": 64, "timeout_scale": PATIENCE}
    programs = built / "images" / "bin"
    if programs.is_dir():
        cluster["programs"] = str(programs)
    nodes = [{"rank": board.rank, "ssh": {"host": "127.0.0.1", "port": board.ssh_port}} for board in boards]
    return fleet.render(BOARD, cluster, {"key": str((key or built / "ssh" / "id_ed25519").absolute())}, nodes)
