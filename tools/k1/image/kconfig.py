"""Fragments of Kconfig settings, and what became of them after `olddefconfig`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from k1.errors import CheckFailed
from k1.kconfig.settings import parse


def settings(text: str) -> dict[str, str]:
    """Symbol → value (`n` for "is not set") of a fragment or a .config."""
    return {setting.symbol: setting.value for setting in parse(text)[0]}


def check(fragments: Iterable[Path], config: Path) -> None:
    """Every line of the fragments must stand in `config`; a dropped one is an error that names both values."""
    got = settings(config.read_text())
    faults = [
        f"{fragment}: {symbol} asked {asked}, got {got.get(symbol, 'n')}"
        for fragment in fragments
        for symbol, asked in settings(fragment.read_text()).items()
        if got.get(symbol, "n") != asked
    ]
    if faults:
        raise CheckFailed(
            "Kconfig did not keep these settings:\n  " + "\n  ".join(faults),
            hint="look up what the symbol depends on in the source's Kconfig files, or drop the line",
        )
