"""`k1 doctor capture`: a captured machine gives the same verdicts and tells nothing of its people."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k1 import board as boards
from k1.cli import doctor as doctor_cli
from k1.doctor import capture, catalogue, check
from k1.doctor.check import Case, Finding
from k1.doctor.system import TOOL_FOLDER, Captured, Live, System
from k1.errors import K1Error

TREES = Path(__file__).parents[1] / "data" / "doctor"
K1 = boards.load("k1")


class Box(capture.Recorder):
    """A tree of the tests as a live machine: its tools say what was captured of them."""

    def _tool(self, name: str, argv: tuple[str, ...]) -> tuple[int, str]:
        self._ran[argv] = Captured(self.root)._tool(name, argv)
        return super()._tool(name, argv)


def verdicts(system: System) -> dict[str, tuple[str, str]]:
    findings: list[Finding] = catalogue.examine({"it": Case(system, check.load_limits(), K1)})
    return {found.id: (found.verdict, found.evidence) for found in findings if found.verdict != "skip"}


@pytest.mark.parametrize("name", sorted(path.name for path in TREES.iterdir() if path.is_dir()))
def test_a_captured_machine_gives_the_verdicts_of_the_live_one(tmp_path: Path, name: str) -> None:
    capture.capture(Box(TREES / name), K1, tmp_path / "it")
    assert verdicts(Captured(tmp_path / "it")) == verdicts(Captured(TREES / name))


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A node whose logs tell names, addresses and serial numbers."""
    root = tmp_path / "named"
    subprocess.run(["cp", "-r", str(TREES / "k1-healthy"), str(root)], check=True)
    (root / "etc/hostname").write_text("annas-laptop\n")
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nanna:x:1000:1000:Anna:/home/anna:/bin/bash\n")
    (root / "sys/class/net/wlan0").mkdir()
    (root / "sys/class/net/wlan0/address").write_text("a4:83:e7:12:34:56\n")
    log = root / TOOL_FOLDER / "dmesg.out"
    log.write_text(
        "mmc0: annas-laptop card of anna in /home/anna, Serial Number: XY-77, from 203.0.113.9 for anna@example.org\n"
        "eth0: neighbour a4:83:e7:12:34:56 at fe80::a683:e7ff:fe12:3456, and 00:11:22:33:44:51 at 192.168.1.101\n"
        "mmc0: mounted b54eec3f-b683-4cab-8c64-cb7d09995258\n"
        "sudo: anna ran secret-command\n"
    )
    return root


def test_names_addresses_and_numbers_are_taken_out(named: Path, tmp_path: Path) -> None:
    capture.capture(Box(named), K1, tmp_path / "it")
    texts = "".join(path.read_text() for path in (tmp_path / "it").rglob("*") if path.is_file())
    for secret in ("anna", "XY-77", "203.0.113.9", "12:34:56", "fe80", "b54eec3f", "secret-command", "example.org"):
        assert secret not in texts, secret
    log = (tmp_path / "it" / TOOL_FOLDER / "dmesg.out").read_text()
    assert log.splitlines()[0] == (
        "mmc0: host card of user in /home/user, Serial Number: removed, from ipv4 for user@removed"
    )
    assert "a4:83:e7:00:00:00 at ipv6, and 00:11:22:33:44:51 at 192.168.1.101" in log


def test_only_what_the_checks_read_is_captured(named: Path, tmp_path: Path) -> None:
    (named / "etc/shadow").write_text("root:secret")
    capture.capture(Box(named), K1, tmp_path / "it")
    assert not (tmp_path / "it/etc/shadow").exists()
    assert not (tmp_path / "it/etc/passwd").exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(K1Error, match="is not empty"):
        capture.capture(capture.Recorder(TREES / "k1-healthy"), K1, tmp_path)


def test_this_machine_is_captured_by_the_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(doctor_cli.app, ["capture", str(tmp_path / "it")])
    assert result.exit_code == 0
    assert verdicts(Captured(tmp_path / "it")).keys() == verdicts(Live()).keys()
