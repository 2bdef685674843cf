"""The programs for other machines, in an emulator on this one: they serve, and give the bits that it gives itself."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from k1 import userland
from support.babbler import write_babbler
from support.inferd import SCALE, Daemon, Run, wait_until
from support.netns import network
from support.tiny import N_VOCAB, TinyModel

GREEDY = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
SAMPLED = {"prompt": "abab cd " * 9, "max_tokens": 24, "temperature": 0.9, "seed": 7, "repeat_penalty": 1.2}
OPTIONS = ("--n_ctx", "512", "--n_threads", "2")
Words = list[str | Path]


@dataclass(frozen=True)
class Machine:
    """A build, and the words before its programs that let them run here."""

    folder: Path
    emulator: tuple[str, ...] = ()

    def run(self, program: str) -> Words:
        return [*self.emulator, self.folder / program]


@pytest.fixture(scope="module")
def here(userland_build: Path) -> Machine:
    return Machine(userland_build)


@pytest.fixture(scope="module", params=["riscv64", pytest.param("aarch64", marks=pytest.mark.slow)])
def other(request: pytest.FixtureRequest) -> Machine:
    built = userland.build(request.param, jobs=os.cpu_count() or 1)
    return Machine(built, (f"qemu-{request.param}-static",))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_babbler(tmp_path_factory.mktemp("model") / "babbler.gguf", layers=3)


@contextmanager
def started(words: Sequence[str | Path], log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as stderr, subprocess.Popen(words, stderr=stderr, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def serving(machine: Machine, model: Path, log: Path) -> Iterator[Daemon]:
    words = [*machine.run("k1-inferd"), "--model", model, "--port", "0", *OPTIONS]
    with started(words, log) as process:
        yield Daemon(process, log)


def texts(daemon: Daemon) -> list[str]:
    return [daemon.complete(**request).text for request in (GREEDY, SAMPLED)]


@pytest.fixture(scope="module")
def expected(here: Machine, model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What this machine answers."""
    with serving(here, model, tmp_path_factory.mktemp("log") / "here.log") as daemon:
        found = texts(daemon)
    assert len(set(found)) == 2
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("arch", "kind"), [("llama", "Q4_1"), ("qwen2", "Q8_0"), ("qwen3", "F16"), ("llama", "Q6_K")])
def test_every_machine_computes_the_same_bits(
    here: Machine, other: Machine, tmp_path: Path, arch: str, kind: str
) -> None:
    path = tmp_path / "tiny.gguf"
    TinyModel(path, arch, kind)
    ids = " ".join(map(str, np.random.default_rng(2).integers(0, N_VOCAB, 40)))
    logits = [
        subprocess.run([*each.run("tests/logits"), path], input=ids.encode(), capture_output=True, check=True).stdout
        for each in (here, other)
    ]
    assert len(logits[0]) == 40 * N_VOCAB * 4
    assert logits[0] == logits[1]


def test_the_daemon_answers_over_http_as_here(other: Machine, model: Path, expected: list[str], tmp_path: Path) -> None:
    with serving(other, model, tmp_path / "log") as daemon:
        assert texts(daemon) == expected
        assert daemon.stop() == 0, daemon.log


def test_k1_cli_answers_as_here(here: Machine, other: Machine, model: Path) -> None:
    words = ["--local", model, "--n_predict", "24", "--temperature", "0", "hello"]
    alone, foreign = (Run(*each.run("k1-cli"), *words) for each in (here, other))
    assert foreign.code == 0, foreign.err
    assert len(alone.out) > 20
    assert foreign.out == alone.out


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize("foreign_rank", [0, 1])
def test_two_machines_are_one_pipeline(
    here: Machine, other: Machine, model: Path, expected: list[str], tmp_path: Path, foreign_rank: int
) -> None:
    key = tmp_path / "key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    with network(2) as net, ExitStack() as stack:
        nodes = ",".join(net.address(rank) for rank in (0, 1))

        def start(rank: int) -> Daemon:
            machine, log = other if rank == foreign_rank else here, tmp_path / f"{rank}.log"
            words = [*machine.run("k1-inferd"), "--model", model, "--nodes", nodes, "--rpc_rank", str(rank)]
            command = net.command(rank, *words, "--cluster_key_file", key, "--timeout_scale", str(5 * SCALE), *OPTIONS)
            process = stack.enter_context(started(command, log))
            return Daemon(process, log, lambda port: net.dial(rank, port, 60 * SCALE))

        head, _ = start(0), start(1)
        wait_until("both agree", lambda: head.health()["status"] == "ok")
        (first, end), (begin, last) = (rank["layers"] for rank in head.health()["ranks"])
        assert (first, begin, last) == (0, end + 1, 2)
        assert texts(head) == expected
