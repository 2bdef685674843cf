"""Buildroot itself: a shallow clone of the pinned commit, kept in the cache."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from k1 import output
from k1.errors import CheckFailed, K1Error
from k1.run import CommandError, run

URL = "https://gitlab.com/buildroot.org/buildroot.git"
# The commit of each release's tag: git itself makes sure that its content is what it was.
COMMITS = {"2023.08": "d8ce1deff96c48a5d5dacf0ab82d9bce92c8cc6c"}


def fetch(version: str, cache: Path, task: output.Task) -> Path:
    """The tree of a release, cloned at the first call from `$K1_BUILDROOT_GIT` or the project's own repository."""
    folder = cache / f"buildroot-{version}"
    if folder.is_dir():
        return folder
    commit = COMMITS.get(version)
    if commit is None:
        hint = f"give a tree by --buildroot; known: {', '.join(COMMITS)}"
        raise K1Error(f"no commit of Buildroot {version} is pinned", hint=hint)
    url = os.environ.get("K1_BUILDROOT_GIT") or URL
    task.detail(url)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        tree = Path(temporary) / "tree"
        _clone(url, version, tree)
        got = run(["git", "-C", tree, "rev-parse", "HEAD"]).output.strip()
        if got != commit:
            hint = f"the tag {version} of {url} is not Buildroot's own; use another repository"
            raise CheckFailed(f"Buildroot {version} is commit {got}, not the pinned {commit}", hint=hint)
        tree.rename(folder)
    return folder


def _clone(url: str, version: str, tree: Path) -> None:
    try:
        run(["git", "-c", "advice.detachedHead=false", "clone", "-q", "--depth=1", "--branch", version, url, tree])
    except CommandError as error:
        lines = error.result.stderr.strip().splitlines() or [""]
        hint = "give a tree that you have by --buildroot, or another repository by K1_BUILDROOT_GIT"
        raise K1Error(f"Buildroot {version} cannot be cloned from {url}: {lines[-1]}", hint=hint) from error
