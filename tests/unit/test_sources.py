"""Wanted packages, the lock and the cache, as far as neither apt nor a mirror is needed."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from k1 import sources
from k1.errors import K1Error
from k1.files import locked
from k1.output import Task
from k1.sources import Source, SourceFile, Wanted, fetch, load, save, verify

CONTENT = b"the source\n"
WANTED = Wanted(name="firmware", kind="source", package="opensbi", suites=("trixie",))


def quiet() -> Task:
    return Task(None, "fetch")


def recorded(name: str = "firmware", version: str = "1.6-1") -> Source:
    file = SourceFile(filename="o.tar.gz", size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
    return Source(name=name, kind="source", package="opensbi", version=version, suite="trixie", files=(file,))


def fill(cache: Path, content: bytes = CONTENT) -> Path:
    path = recorded().files[0].path(cache)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("the mirror was asked for")

    monkeypatch.setattr(sources, "find_mirror", refuse)


def test_a_lock_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    save(tmp_path / "lock.json", [recorded("b"), recorded("a")])
    assert load(tmp_path / "lock.json") == [recorded("a"), recorded("b")]


def test_the_order_of_sources_does_not_change_the_lock(tmp_path: Path) -> None:
    save(tmp_path / "one.json", [recorded("b"), recorded("a")])
    save(tmp_path / "two.json", [recorded("a"), recorded("b")])
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_no_lock_is_not_an_error_by_itself(tmp_path: Path) -> None:
    assert load(tmp_path / "lock.json") is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "Invalid JSON"),
        ('{"sources": [{"name": "a"}]}', "sources.0.kind"),
        ('{"sources": [], "extra": 1}', "extra"),
    ],
)
def test_a_broken_lock_is_named_with_the_place(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "lock.json"
    path.write_text(text)
    with pytest.raises(K1Error) as caught:
        load(path)
    assert str(path) in caught.value.message
    assert named in caught.value.message
    assert "--update-lock" in caught.value.hint


@pytest.mark.parametrize("filename", ["../../etc/passwd", "a/b", "..", ""])
def test_a_lock_cannot_name_a_file_outside_the_cache(filename: str) -> None:
    with pytest.raises(ValidationError):
        SourceFile(filename=filename, size=1, sha256="0" * 64)


@pytest.mark.usefixtures("no_mirror")
def test_locked_needs_no_mirror_when_the_cache_has_everything(tmp_path: Path) -> None:
    fill(tmp_path)
    assert fetch([WANTED], cache=tmp_path, lock=[recorded()], locked=True, task=quiet()) == [recorded()]


@pytest.mark.usefixtures("no_mirror")
def test_locked_without_a_lock_names_what_it_would_have_to_record(tmp_path: Path) -> None:
    with pytest.raises(K1Error, match="there is no lock; it would have to record firmware") as caught:
        fetch([WANTED], cache=tmp_path, lock=None, locked=True, task=quiet())
    assert "--update-lock" in caught.value.hint


@pytest.mark.usefixtures("no_mirror")
def test_locked_names_every_package_that_the_lock_lacks(tmp_path: Path) -> None:
    more = [WANTED.model_copy(update={"name": name}) for name in ("kernel", "shell")]
    with pytest.raises(K1Error, match="the lock has no entry for kernel, shell"):
        fetch([WANTED, *more], cache=tmp_path, lock=[recorded()], locked=True, task=quiet())


@pytest.mark.usefixtures("no_mirror")
def test_locked_does_not_take_the_entry_of_another_package_for_the_wanted_one(tmp_path: Path) -> None:
    other = WANTED.model_copy(update={"package": "u-boot"})
    with pytest.raises(K1Error, match="the lock has no entry for firmware"):
        fetch([other], cache=tmp_path, lock=[recorded()], locked=True, task=quiet())


@pytest.mark.usefixtures("no_mirror")
def test_verify_is_content_with_intact_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    verify(recorded(), tmp_path, quiet())
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("no_mirror")
def test_an_unknown_suite_is_named_with_the_known_ones(tmp_path: Path) -> None:
    wrong = WANTED.model_copy(update={"suites": ("trixy",)})
    with pytest.raises(K1Error, match="firmware: suite 'trixy' is not one of bookworm-security"):
        fetch([wrong], cache=tmp_path, task=quiet())


@pytest.mark.usefixtures("no_mirror")
def test_a_second_command_waits_for_its_turn_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path)
    got: list[Source] = []
    with locked(tmp_path / "apt" / "lock", "the cache"):
        thread = threading.Thread(
            target=lambda: got.extend(
                fetch([WANTED], cache=tmp_path, lock=[recorded()], locked=True, task=quiet()),
            )
        )
        thread.start()
        time.sleep(1.5)
        assert not got
    thread.join()
    assert got == [recorded()]
    assert "waiting for another k1 command" in capsys.readouterr().err
