"""What a node's SSH says of itself when a command fails there."""

from __future__ import annotations

from pathlib import Path

import pytest

from k1.deploy.session import Node
from k1.drivers.ssh import Target
from k1.errors import K1Error
from k1.fleet import parse
from k1.run import Result

UNRESOLVED = "sudo: unable to resolve host board: Temporary failure in name resolution\n"


class Failing(Target):
    """A node where every command fails, with these words."""

    words = ""

    def run(
        self, command: str, *, check: bool = True, timeout: float = 60.0, stdin: str | Path | None = None
    ) -> Result:
        return Result((command,), 1, "", self.words, 0.0)


def node(tmp_path: Path, words: str) -> Node:
    (member,) = parse({"node": [{"rank": 0}]}, tmp_path / "fleet.toml").members
    target = Failing(22, None, tmp_path / "known_hosts", "k1-0", user="owner")
    object.__setattr__(target, "words", words)
    return Node(member, target, tmp_path / "log")


def test_a_board_that_does_not_know_its_own_name_is_not_taken_for_one_that_refuses_sudo(tmp_path: Path) -> None:
    assert node(tmp_path, UNRESOLVED).ask("[ -f /opt/k1/models/one.gguf ]").returncode == 1


def test_a_refusal_of_sudo_is_told_with_its_remedy(tmp_path: Path) -> None:
    refusal = f"{UNRESOLVED}sudo: a password is required\n"
    with pytest.raises(K1Error, match=r"owner may not use sudo: sudo: a password is required\n  try: let owner use"):
        node(tmp_path, refusal).ask("true")
