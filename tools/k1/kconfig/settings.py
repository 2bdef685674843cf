"""The lines of a defconfig, a fragment or a .config."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SET = re.compile(r"(\w+)=(.*)")
_UNSET = re.compile(r"# (\w+) is not set")


@dataclass(frozen=True)
class Setting:
    """One line: a symbol with its prefix (`CONFIG_…`, `BR2_…`), and its value as written; `n` for "is not set"."""

    line: int
    symbol: str
    value: str


def parse(text: str) -> tuple[list[Setting], list[int]]:
    """The settings in their order, and the numbers of lines that are neither setting, comment nor blank."""
    settings, strange = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if match := _SET.fullmatch(line.rstrip()):
            settings.append(Setting(number, match[1], match[2]))
        elif match := _UNSET.fullmatch(line.rstrip()):
            settings.append(Setting(number, match[1], "n"))
        elif line.strip() and not line.startswith("#"):
            strange.append(number)
    return settings, strange
