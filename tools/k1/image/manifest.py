"""manifest.json: every input and every output of an image, by name, version and SHA-256."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from k1 import files, sources
from k1.image.context import Context
from k1.steps import State

NAME = "manifest.json"


def write(ctx: Context, states: list[State]) -> Path:
    """Write images/manifest.json from the steps that have run; it holds no path, time or host name."""
    outputs = sorted(path for state in states for path in state.step.outputs)
    value = {
        "board": ctx.board.name,
        "builder": "debian",
        "epoch": ctx.epoch,
        "tools": ctx.tools,
        "sources": [_source(source) for source in (*ctx.fetched.values(), *ctx.packages, *ctx.sysroot)],
        "steps": {state.step.name: {"key": state.key, "inputs": dict(state.step.inputs)} for state in states},
        "images": {path.name: {"size": path.stat().st_size, "sha256": files.sha256(path)} for path in outputs},
    }
    target = ctx.images / NAME
    files.write_json(target, value)
    return target


def _source(source: sources.Source) -> dict[str, Any]:
    return source.model_dump(mode="json")
