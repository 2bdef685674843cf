"""Paths that make can work with, and where work goes otherwise."""

from pathlib import Path

import pytest

from k1 import paths
from k1.errors import K1Error


@pytest.mark.parametrize("name", ["a b", "a:b", "a#b", "a%b", "a$b", "a(b)", "a'b", "a&b", "naïve"])
def test_names_that_break_makefiles_are_known(name: str) -> None:
    assert paths.has_make_hostile_name(Path("/home") / name / "build")


def test_plain_names_are_fine() -> None:
    assert not paths.has_make_hostile_name(Path("/home/me/k1-stack_2.0/build+x"))


def test_without_a_home_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.delenv("K1_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(K1Error, match="no home folder") as caught:
        paths.cache_dir()
    assert "K1_CACHE" in caught.value.hint
