"""Files: written whole or not at all, hashed, locked."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from k1.errors import K1Error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; rename it over `path` on success, remove it on any error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `content`; a reader sees the old file or the new one, never a part."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)
        temporary.chmod(mode)


def copy(source: Path, target: Path) -> None:
    """Replace `target` by a copy of `source`."""
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, if it is there; one that cannot be removed is an error."""
    if path.exists():
        shutil.rmtree(path)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as indented JSON with a final newline."""
    write(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(value: Any) -> str:
    """SHA-256 of a JSON-able value: the same value gives the same digest on every machine."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def tree_digest(paths: Iterable[Path], base: Path) -> str:
    """SHA-256 over names (relative to `base`), modes and contents of files and of folders' files."""
    entries: list[tuple[str, str, str]] = []
    for path in paths:
        found = sorted(path.rglob("*")) if path.is_dir() and not path.is_symlink() else [path]
        for entry in found:
            name = entry.relative_to(base).as_posix()
            if entry.is_symlink():
                entries.append((name, "link", os.readlink(entry)))
            elif entry.is_file():
                executable = bool(entry.stat().st_mode & stat.S_IXUSR)
                entries.append((name, "x" if executable else "-", sha256(entry)))
    return digest(sorted(entries))


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock on `path`; a second holder gets an error that names `what`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"{what} is in use by another k1 command"
            raise K1Error(message, hint="wait for it to end, then call again") from error
        yield
