"""Who may log in: one's own keys or the build's; never a private key or a plain password."""

from pathlib import Path

import pytest

from k1.errors import K1Error
from k1.image import keys

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6MDEy me@desk"


def authorized(build: Path, given: Path | None) -> str:
    return keys.logins(build, given, "").authorized_keys


def test_a_build_folder_makes_its_key_once(tmp_path: Path) -> None:
    first = authorized(tmp_path, None)
    assert first.startswith("ssh-ed25519 ")
    assert authorized(tmp_path, None) == first
    assert keys.own_key(tmp_path).stat().st_mode & 0o077 == 0


def test_the_users_keys_replace_the_builds(tmp_path: Path) -> None:
    given = tmp_path / "id.pub"
    given.write_text(f"# mine\n{PUBLIC}\n\n")
    assert authorized(tmp_path, given) == f"{PUBLIC}\n"
    assert not (tmp_path / "ssh").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n", "line 1: not an SSH public key"),
        (f"{PUBLIC}\nrubbish\n", "line 2: not an SSH public key"),
        ("\n# none\n", "holds no key"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    given = tmp_path / "id"
    given.write_text(content)
    with pytest.raises(K1Error, match=message):
        authorized(tmp_path, given)


def test_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(K1Error, match="nowhere: cannot be read"):
        authorized(tmp_path, tmp_path / "nowhere")


def test_password_only_as_a_hash(tmp_path: Path) -> None:
    assert keys.logins(tmp_path, None, "$6$salt$Ab./9").password_hash == "$6$salt$Ab./9"
    with pytest.raises(K1Error, match="openssl passwd -6"):
        keys.logins(tmp_path, None, "k1cluster")
