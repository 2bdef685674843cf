"""What integration tests share: the userland built for this machine, and a real model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from k1 import model, output, paths, userland


@pytest.fixture(scope="session")
def userland_build() -> Path:
    """The build folder of the userland for this machine, made or renewed."""
    return userland.build("native", jobs=os.cpu_count() or 1)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct: `$K1_SMOLLM2`, else from the cache, fetched when it is not there."""
    if given := os.environ.get("K1_SMOLLM2"):
        return Path(given)
    with output.task("SmolLM2") as task:
        return model.fetch("smollm2", paths.cache_dir(), task)
