"""Where things are: the checkout, the build tree, the cache."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from k1.errors import K1Error

REPO = Path(__file__).resolve().parents[2]
BOARDS = REPO / "board"
PATCHES = REPO / "patches"


def cache_dir() -> Path:
    """Downloads, package indexes and ccache: `$K1_CACHE`, else `~/.cache/k1`. Never relied on."""
    if given := os.environ.get("K1_CACHE"):
        return Path(given).absolute()
    try:
        return Path.home() / ".cache" / "k1"
    except RuntimeError as error:
        raise K1Error("there is no home folder for the cache", hint="set K1_CACHE to a folder you can write") from error


def build_dir(board: str) -> Path:
    """Everything rendered or built for one board: `$K1_BUILD/<board>`, else `build/<board>`."""
    return Path(os.environ.get("K1_BUILD") or REPO / "build").absolute() / board


def has_make_hostile_name(path: Path) -> bool:
    """True when the kernel's, U-Boot's and OpenSBI's makefiles cannot work below `path`: only plain names are safe."""
    return re.search(r"[^\w./+-]", str(path), re.ASCII) is not None


def private_temporary() -> Path:
    """A folder with a plain name that belongs to this user alone."""
    path = Path("/var/tmp") / f"k1-{os.getuid()}"  # noqa: S108 - checked to be ours
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise K1Error(f"{path} is not a folder of your own", hint="set K1_BUILD to a folder with a plain name")
    return path
