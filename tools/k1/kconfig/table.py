"""The offline form: a committed list of Buildroot's symbols with their types, for a check without its sources.

It knows names, types and what was removed. It does not know dependencies: only the tree itself does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kconfiglib import Kconfig

from k1.errors import K1Error
from k1.kconfig.check import TYPES, Finding, form_problem, is_legacy, repeated, strange
from k1.kconfig.settings import parse
from k1.typedtoml import near, read_text, shown

DATA = Path(__file__).parents[1] / "data"
_LEGACY = "legacy"
# What our own external tree adds.
EXTERNAL = {"BR2_PACKAGE_K1_USERLAND": "bool"}


def path(version: str) -> Path:
    """The table of a Buildroot version; a version without one is a `K1Error`."""
    found = DATA / f"buildroot-{version}.symbols"
    if not found.is_file():
        hint = "give the tree itself with --source, or make the table: k1 kconfig table --source DIR"
        raise K1Error(f"there is no table of Buildroot {version}", hint=hint)
    return found


def make(kconfig: Kconfig, version: str) -> str:
    """The table of a tree: per type the symbols that a file can set, and those that are legacy."""
    groups: dict[str, list[str]] = {}
    for symbol in kconfig.unique_defined_syms:
        if is_legacy(symbol):
            groups.setdefault(_LEGACY, []).append(symbol.name)
        elif any(node.prompt for node in symbol.nodes):
            groups.setdefault(TYPES[symbol.orig_type], []).append(symbol.name)
    head = f"# Buildroot {version}: what a defconfig can set. Made by: k1 kconfig table --source DIR\n"
    return head + "".join(f"[{type_}]\n" + "\n".join(sorted(groups[type_])) + "\n" for type_ in sorted(groups))


def load(table: Path) -> dict[str, str]:
    """Symbol → its type, or `legacy`."""
    found, type_ = {}, ""
    for line in table.read_text().splitlines():
        if line.startswith("["):
            type_ = line.strip("[]")
        elif not line.startswith("#"):
            found[line] = type_
    return found


def check(files: Sequence[Path], table: Path) -> list[Finding]:
    """Check names and types of a Buildroot defconfig's lines."""
    types = load(table) | EXTERNAL
    return [finding for file in files for finding in sorted(_check_file(file, types), key=lambda found: found.line)]


def _check_file(file: Path, types: dict[str, str]) -> Iterator[Finding]:
    settings, odd = parse(read_text(file))
    yield from strange(odd, shown(file))
    yield from repeated(settings, shown(file))
    for setting in settings:
        type_ = types.get(setting.symbol)
        if type_ is None:
            text = "; ".join(filter(None, ("no such symbol, or none that a file can set", near(setting.symbol, types))))
            yield Finding(shown(file), setting.line, setting.symbol, "unknown", text)
        elif type_ == _LEGACY:
            if setting.value not in ("n", '""'):
                yield Finding(shown(file), setting.line, setting.symbol, "legacy", "was removed")
        elif problem := form_problem(type_, setting.value):
            yield Finding(shown(file), setting.line, setting.symbol, "type", problem)
