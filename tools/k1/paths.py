"""Where things are: the checkout, the build tree, the cache."""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
BOARDS = REPO / "board"
PATCHES = REPO / "patches"


def cache_dir() -> Path:
    """Downloads, package indexes and ccache: `$K1_CACHE`, else `~/.cache/k1`. Never relied on."""
    return Path(os.environ.get("K1_CACHE") or Path.home() / ".cache" / "k1").absolute()


def build_dir(board: str) -> Path:
    """Everything rendered or built for one board: `$K1_BUILD/<board>`, else `build/<board>`."""
    return Path(os.environ.get("K1_BUILD") or REPO / "build").absolute() / board


def has_make_hostile_name(path: Path) -> bool:
    """True when the kernel's, U-Boot's and OpenSBI's makefiles cannot work below `path`."""
    return any(c.isspace() or c in ":'\"$\\" for c in str(path))
