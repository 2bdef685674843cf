"""`k1 demo`: four virtual boards answer as one, twice, and say so when one of them is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k1 import model, output, paths, userland
from k1.drivers.patience import scaled
from k1.lab import Lab
from support.inferd import Daemon

NAME = f"demo-{os.getpid()}"
PROMPT, N_PREDICT = "The capital of France is", 4
LONG = "Once upon a time"

pytestmark = pytest.mark.timeout(scaled(900))


def demo(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "k1", "demo", PROMPT, "--n-predict", str(N_PREDICT), "--name", NAME, *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def first() -> Iterator[Any]:
    """What the first call says; its boards go on running."""
    done = demo("--json")
    try:
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)
    finally:
        Lab(NAME).down()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text that one process on this machine gives."""
    programs = userland.build("native", jobs=os.cpu_count() or 1)
    with output.task("SmolLM2") as task:
        file = model.fetch("smollm2", paths.cache_dir(), task)
    log: Path = tmp_path_factory.mktemp("log") / "log"
    argv = [programs / "k1-inferd", "--model", file, "--port", "0"]
    with log.open("w") as stderr, subprocess.Popen(argv, stderr=stderr, text=True) as process:
        try:
            return Daemon(process, log).complete(prompt=PROMPT, max_tokens=N_PREDICT, temperature=0, stop="\n").text
        finally:
            process.terminate()


def test_four_boards_answer_as_one_process_would(first: Any, expected: str) -> None:
    assert first["text"] == expected
    assert "Paris" in expected
    layers = [rank["layers"] for rank in first["health"]["ranks"]]
    assert (layers[0][0], layers[-1][1], len(layers)) == (0, 29, 4)
    assert all(stage["run_ms"] > 0 for stage in first["timings"]["stages"])


def test_the_second_call_uses_what_runs_and_tells_a_person(first: Any, expected: str) -> None:
    done = demo()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(PROMPT + expected)
    assert "192.168.1.103" in done.stdout
    assert f"k1 lab down --name {NAME}" in done.stderr


def test_a_board_without_power_ends_the_request_by_name(first: Any) -> None:
    argv = [sys.executable, "-m", "k1", "demo", LONG, "--n-predict", "200", "--name", NAME]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout
        running.stdout.read(len(LONG) + 3)  # it answers
        Lab(NAME).kill(2)
        begun = time.monotonic()
        _, stderr = running.communicate(timeout=scaled(120))
    assert running.returncode == 4
    assert "rank 2" in stderr
    assert "192.168.1.102" in stderr
    assert time.monotonic() - begun < scaled(60)
    assert Lab(NAME).is_on  # the other boards were not ours to take down
