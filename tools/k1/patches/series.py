"""A component's patches for one source tree: each fits, is there already, is skipped, or has a fault."""

from __future__ import annotations

import difflib
import re
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Literal

from k1 import files
from k1.board import Board
from k1.errors import K1Error
from k1.image.context import EPOCH
from k1.patches import csource, edit, template
from k1.patches.template import Component, Template
from k1.run import run
from k1.typedtoml import near

_AUTHOR = "K1 cluster stack <k1@k1.invalid>"
_SPDX = re.compile(r"SPDX-License-Identifier:[ \t]*(.*?)[ \t]*(?:\*/)?[ \t]*$", re.MULTILINE)
_FOUND_AT_MOST = 3

State = Literal["fits", "present", "skipped", "unconfirmed", "fault"]


@dataclass(frozen=True)
class Patch:
    """One patch of the series and what became of it against the tree.

    state: fits (text is the patch), present (the tree has it), skipped (the user or the board's facts want it not),
    unconfirmed (facts that only the board's owner can give are missing), fault (detail says what).
    """

    name: str
    subject: str
    state: State
    detail: str = ""
    text: str = ""
    confirmed: bool = False


def check(component: Component, board: Board, source: Path, skip: Collection[str] = ()) -> list[Patch]:
    """What each patch of the component would do to the tree at `source`, which is only read.

    skip: names of patches, or beginnings of them such as `0002`, to leave out.
    """
    if not source.is_dir():
        raise K1Error(f"{source} is no folder", hint=f"--source is the top folder of the vendor's {component} tree")
    templates = template.paths(component)
    _check_skip(skip, [_name(path) for path in templates])
    tree = _Tree(source)
    patches = [_try(path, board, tree, skip) for path in templates]
    _verify(patches, tree)
    return patches


def refuse_faults(patches: Collection[Patch]) -> None:
    """Raise one error for all patches that have a fault."""
    if faults := [f"{patch.name}: {patch.detail}" for patch in patches if patch.state == "fault"]:
        raise K1Error("\n".join(faults), hint="nothing was written; `k1 patch check` shows all patches")


def write(patches: Collection[Patch], target: Path) -> list[Path]:
    """Write the patches that fit and their series file to `target`, and remove all others there."""
    fitting = [patch for patch in patches if patch.state == "fits"]
    for old in sorted(target.glob("*.patch")):
        if old.name not in {patch.name for patch in fitting}:
            old.unlink()
    for patch in fitting:
        path = target / patch.name
        if not path.is_file() or path.read_bytes() != _encode(patch.text):
            files.write(path, _encode(patch.text))
    files.write(target / "series", "".join(f"{patch.name}\n" for patch in fitting))
    return [target / patch.name for patch in fitting]


def apply(patch: Path, folder: Path) -> None:
    """Apply a rendered patch to the tree at `folder`, without fuzz, with its line endings."""
    run(["patch", "-p1", "-F0", "--binary", "--batch", "--forward", "-i", patch], cwd=folder)


class _Tree:
    """The files of a source tree as the patches so far leave them."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.before: dict[str, str] = {}
        self.after: dict[str, str] = {}

    def text(self, name: str) -> str:
        if name not in self.after:
            self.before[name] = self.after[name] = self._read(name)
        return self.after[name]

    def _read(self, name: str) -> str:
        path = self.source / name
        if path.is_file():
            return path.read_bytes().decode("utf-8", "surrogateescape")
        found = sorted(other.relative_to(self.source).as_posix() for other in self.source.rglob(Path(name).name))
        elsewhere = f"; the tree has {', '.join(found[:_FOUND_AT_MOST])}" if found else ""
        hint = "give the top folder of the vendor's tree for this board, not the upstream one"
        raise K1Error(f"{name}: not in {self.source}{elsewhere}", hint=hint)


def _name(path: Path) -> str:
    return path.name.removesuffix(".toml.j2") + ".patch"


def _check_skip(skip: Collection[str], names: Collection[str]) -> None:
    for wanted in skip:
        if not any(name.startswith(wanted) for name in names):
            hint = near(wanted, names) or f"patches: {', '.join(names)}"
            raise K1Error(f"--skip {wanted}: no patch of that name", hint=hint)


def _try(path: Path, board: Board, tree: _Tree, skip: Collection[str]) -> Patch:
    name, outline, facts = _name(path), template.outline(path), dict(board.facts())
    subject = outline.subject
    if any(name.startswith(wanted) for wanted in skip):
        return Patch(name, subject, "skipped", "by --skip")
    if missing := [key for key in outline.facts if facts[key] is None]:
        return Patch(name, subject, "unconfirmed", f"board.toml lacks {', '.join(missing)}, which are not published")
    found = template.load(path, board)
    for key, value in found.only_if.items():
        if (fact := facts[key]) and fact.value is not value:
            return Patch(name, subject, "skipped", f"board.toml says {key} = {fact}")
    confirmed = all(fact.confirmed for key in found.facts if (fact := facts[key]))
    try:
        before = tree.text(found.file)
        after = _edited(before, found, tree.source)
    except K1Error as error:
        return Patch(name, subject, "fault", str(error))
    if after == before:
        return Patch(name, subject, "present", found.file, confirmed=confirmed)
    tree.after[found.file] = after
    return Patch(name, subject, "fits", found.file, _mail(found, before, after, confirmed), confirmed)


def _edited(text: str, found: Template, source: Path) -> str:
    for one in found.edit:
        if one.if_exists and not (source / one.if_exists).exists():
            continue
        if one.if_matches and not re.search(one.if_matches, csource.code(text), re.MULTILINE):
            continue
        text = edit.apply(text, one, found.file)
    return text


def _mail(found: Template, before: str, after: str, confirmed: bool) -> str:
    """The patch as `git am` and quilt take it; its lines keep the line endings of the file."""
    spdx = _SPDX.search(before)
    head = [
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001",
        f"From: {_AUTHOR}",
        f"Date: {formatdate(EPOCH)}",
        f"Subject: [PATCH] {found.subject}",
        "",
        *found.message.strip().splitlines(),
        "",
        f"Confirmed on silicon: {'yes' if confirmed else 'no'}",
        f"License: {spdx[1] if spdx else found.license}, as {found.file}",
        "Upstream: no, the vendor's sources are not public",
        f"Signed-off-by: {_AUTHOR}",
        "---",
        f"diff --git a/{found.file} b/{found.file}",
    ]
    return "".join(f"{line}\n" for line in head) + "".join(_diff(before, after, found.file)) + "-- \nk1\n"


def _diff(before: str, after: str, name: str) -> Iterator[str]:
    old, new = (re.findall(r"[^\n]*\n|[^\n]+\Z", text) for text in (before, after))
    for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _verify(patches: Collection[Patch], tree: _Tree) -> None:
    """Apply what fits to a copy of the files by patch(1), without fuzz, and compare: a difference is our bug."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for name, text in tree.before.items():
            files.write(scratch / name, _encode(text))
        for patch in patches:
            if patch.state != "fits":
                continue
            mail = scratch / patch.name
            mail.write_bytes(_encode(patch.text))
            apply(mail, scratch)
        for name, text in tree.after.items():
            if (scratch / name).read_bytes() != _encode(text):
                raise RuntimeError(f"patch(1) makes another {name} than meant")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
