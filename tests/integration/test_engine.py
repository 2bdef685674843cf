"""The C engine against numpy: small random models of every architecture and type, and SmolLM2."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.mirror import Mirror
from support.reference import Array, Reference, log_likelihood
from support.tiny import ARCHITECTURES, N_VOCAB, TYPES, TinyModel

Ids = NDArray[np.int64]
Logits = NDArray[np.float32]
Run = Callable[..., Logits]

INTEGER_ACTIVATIONS = {"Q8_0", "Q4_0", "Q4_1", "Q5_0"}
TEXT = Path("/usr/share/common-licenses/GPL-3")  # from base-files, on every Debian system
WAYS = [(1, 1, 512), (1, 7, 512), (1, 64, 512), (2, 0, 512), (4, 0, 512), (4, 7, 3), (2, 64, 19)]


@pytest.fixture(scope="session")
def program(userland_build: Path) -> Path:
    """The program that prints logits."""
    return userland_build / "tests" / "logits"


def call(program: Path, model: Path, ids: Ids, **options: Any) -> subprocess.CompletedProcess[bytes]:
    argv = [program, model, *(f"{name}={value}" for name, value in options.items())]
    return subprocess.run(argv, input=" ".join(map(str, ids)).encode(), capture_output=True, check=False)


@pytest.fixture(scope="session")
def run(program: Path) -> Run:
    """Logits of every position of each window."""

    def run_windows(model: Path, ids: Ids, **options: Any) -> Logits:
        windows = []
        for window in ids:
            done = call(program, model, window, **options)
            assert done.returncode == 0, done.stderr.decode()
            windows.append(np.frombuffer(done.stdout, np.float32).reshape(len(window), -1))
        return np.stack(windows)

    return run_windows


def tiny_ids(n: int = 100) -> Ids:
    return np.random.default_rng(2).integers(0, N_VOCAB, (1, n))


def error(got: Logits, expected: Array) -> float:
    """The largest difference, relative to the logits' spread."""
    return float(np.abs(got - expected).max() / expected.std())


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_are_those_of_numpy(tmp_path: Path, run: Run, arch: str, kind: str) -> None:
    path = tmp_path / "tiny.gguf"
    TinyModel(path, arch, kind)
    ids = tiny_ids()
    mirrored = Mirror(path).logits(ids)
    assert error(run(path, ids), mirrored) < 1e-3
    assert error(run(path, ids, kernels="scalar"), mirrored) < 1e-3
    if kind not in INTEGER_ACTIVATIONS:
        # Double precision is near enough whatever the order of its sums; what is left are keys and values that round
        # to the other half.
        assert error(run(path, ids), Reference(path, half_kv=True).logits(ids)) < 3e-3


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"keys": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}},
    "llama3": {
        "keys": {
            "rope.scaling.type": "llama3",
            "rope.scaling.factor": 8.0,
            "rope.scaling.low_freq_factor": 1.0,
            "rope.scaling.high_freq_factor": 4.0,
            "rope.scaling.original_context_length": 64,
        }
    },
    "factors": {"rope_freqs": [1.0] * 6 + [3.0] * 5 + [8.0] * 5},
    "partial": {"keys": {"rope.dimension_count": 20}},
}


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_scaled_and_partial_rope_are_those_of_numpy(tmp_path: Path, run: Run, arch: str, rope: str) -> None:
    path, plain = tmp_path / "tiny.gguf", tmp_path / "plain.gguf"
    TinyModel(path, arch, "F32", **ROPES[rope])
    TinyModel(plain, arch, "F32")
    ids = tiny_ids()
    assert error(run(path, ids), Reference(path, half_kv=True).logits(ids)) < 3e-3
    assert error(run(path, ids), Reference(plain).logits(ids)) > 0.1


@pytest.mark.parametrize(("threads", "chunk", "batch"), WAYS)
def test_smollm2_gives_the_same_bits_whatever_the_way(
    run: Run, smollm2: Path, text: Ids, threads: int, chunk: int, batch: int
) -> None:
    ids = text[:1, :130]
    assert np.array_equal(run(smollm2, ids, threads=threads, chunk=chunk, batch=batch), run(smollm2, ids))


@pytest.mark.parametrize("split", [1, 11, 29])
def test_smollm2_in_two_stages_gives_the_same_bits(run: Run, smollm2: Path, text: Ids, split: int) -> None:
    ids = text[:1, :70]
    assert np.array_equal(run(smollm2, ids, split=split, chunk=16), run(smollm2, ids))


@pytest.mark.slow
def test_smollm2_gives_the_same_bits_in_numpy(run: Run, smollm2: Path, text: Ids) -> None:
    ids = text[:1, :40]
    assert error(run(smollm2, ids), Mirror(smollm2).logits(ids)) < 1e-3


@pytest.fixture(scope="session")
def text(userland_build: Path, smollm2: Path) -> Ids:
    """2048 tokens of a licence's text in windows of 512."""
    data = TEXT.read_bytes()
    argv = [userland_build / "tests" / "tokenize", smollm2]
    done = subprocess.run(argv, input=struct.pack("<I", len(data)) + data, capture_output=True, check=True)
    ids = np.array(done.stdout.split(b"\t")[0].split()[:2048], np.int64)
    assert len(ids) == 2048
    return ids.reshape(4, 512)


@pytest.fixture(scope="session")
def truth(smollm2: Path, text: Ids) -> Array:
    """Logits in double precision, nothing rounded but the weights."""
    return Reference(smollm2).logits(text)


def perplexity(logits: Logits | Array, ids: Ids) -> float:
    return float(np.exp(-log_likelihood(logits, ids).mean()))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_smollm2_agrees_with_double_precision(run: Run, smollm2: Path, text: Ids, truth: Array) -> None:
    logits = run(smollm2, text, threads=2)
    assert (logits.argmax(axis=-1) == truth.argmax(axis=-1)).mean() >= 0.99
    assert perplexity(logits, text) == pytest.approx(perplexity(truth, text), rel=0.005)


def refusal(program: Path, model: Path, **options: Any) -> str:
    done = call(program, model, tiny_ids()[0], **options)
    assert done.returncode == 2
    return done.stderr.decode()


def test_a_context_too_large_names_the_largest(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    TinyModel(path, "llama", "Q4_0")
    assert "the largest n_ctx that fits is" in refusal(program, path, ctx=2**31 - 1)


def test_an_unknown_architecture_names_the_known(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    TinyModel(path, "mamba", "F32")
    assert "known are llama, qwen2 and qwen3" in refusal(program, path)
