"""Time-outs that grow on slow machines."""

from __future__ import annotations

import os

from k1.errors import K1Error


def scaled(seconds: float) -> float:
    """`seconds` times `$K1_TIMEOUT_SCALE` (default 1), for loaded or emulated hosts."""
    text = os.environ.get("K1_TIMEOUT_SCALE") or "1"
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 0 < scale < float("inf"):
        raise K1Error(f"K1_TIMEOUT_SCALE={text} is not a positive number", hint="unset it, or give a number such as 3")
    return seconds * scale
