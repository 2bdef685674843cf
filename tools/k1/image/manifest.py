"""manifest.json: every input and every output of an image, by name, version and SHA-256."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from k1 import files, paths, sources
from k1.errors import K1Error
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


def built(board: str, name: str, given: Path | None) -> Path:
    """The file `given`, or else the image `name` of the board's build; K1Error when it is not there, or empty."""
    path = given or paths.build_dir(board) / "images" / name
    if not path.is_file():
        raise K1Error(f"{path}: no such file", hint="give another" if given else f"make image BOARD={board}, or --file")
    if not path.stat().st_size:
        raise K1Error(f"{path}: is empty", hint="build or copy the file again")
    return path


def require(board: str, path: Path, *digests: str) -> None:
    """Refuse the file `path` unless one of its SHA-256 `digests` is that of an image of the board's build."""
    manifest = paths.build_dir(board) / "images" / NAME
    try:
        known = {image["sha256"] for image in json.loads(manifest.read_text())["images"].values()}
    except FileNotFoundError:
        known = set()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise K1Error(f"{manifest}: damaged: no list of images", hint="make the image again") from error
    if not known.intersection(digests):
        text = f"{path}: is no image of this build: {manifest} does not know its SHA-256"
        raise K1Error(text, hint="make the image again, or give --any-file if you know where the file comes from")
