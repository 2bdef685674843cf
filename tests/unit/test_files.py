"""Files are written whole, hashed the same way everywhere, and locked."""

import os
from pathlib import Path

import pytest

from k1 import files
from k1.errors import K1Error


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "image"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt), files.replacing(target) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_write_replaces_and_makes_folders(tmp_path: Path) -> None:
    target = tmp_path / "a folder" / "file"
    files.write(target, "one")
    files.write(target, b"two", mode=0o600)
    assert target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o600


def test_tree_digest_sees_names_modes_contents_and_links_only(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / name
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "file").write_text("text")
        (folder / "link").symlink_to("sub/file")
    os.utime(tmp_path / "b" / "sub" / "file", (1, 1))

    def digest(name: str) -> str:
        return files.tree_digest([tmp_path / name], tmp_path / name)

    same = digest("a")
    assert same == digest("b")
    (tmp_path / "b" / "sub" / "file").chmod(0o755)
    executable = digest("b")
    (tmp_path / "b" / "link").unlink()
    unlinked = digest("b")
    (tmp_path / "b" / "sub" / "file").write_text("other")
    assert len({same, executable, unlinked, digest("b")}) == 4


def test_second_holder_of_a_lock_is_told_what_is_in_use(tmp_path: Path) -> None:
    lock = tmp_path / "deep" / "lock"
    with (
        files.locked(lock, "the build of virt"),
        pytest.raises(K1Error, match="the build of virt is in use"),
        files.locked(lock, "the build of virt"),
    ):
        pass
    with files.locked(lock, "the build of virt"):
        pass
