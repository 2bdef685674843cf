"""`k1 doctor --host`: what the script prints of a machine gives the verdicts that the machine itself would."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k1 import board as boards
from k1.cli import doctor as doctor_cli
from k1.doctor import catalogue, check, remote
from k1.doctor.check import Case
from k1.doctor.remote import Collected
from k1.doctor.system import TOOL_FOLDER
from k1.errors import CheckFailed, K1Error

TREES = Path(__file__).parents[1] / "data" / "doctor"
EXPECTED = tomllib.loads((TREES / "expected.toml").read_text())
K1 = boards.load("k1")


def collect(root: Path) -> Collected:
    """What the script prints of a captured machine, whose tools it cannot ask: their output is added."""
    words = ["sh", "-c", remote.collector(K1)]
    text = subprocess.run(
        words, capture_output=True, text=True, check=True, env=os.environ | {"ROOT": str(root)}
    ).stdout
    found = Collected(text)
    found.texts.update({f"/{TOOL_FOLDER}/{p.name}": p.read_text().strip() for p in (root / TOOL_FOLDER).iterdir()})
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_a_collected_machine_gives_the_verdicts_of_the_captured_one(name: str) -> None:
    found: dict[str, list[str]] = {"fail": [], "warn": [], "ok": []}
    for finding in catalogue.examine({"it": Case(collect(TREES / name), check.load_limits(), K1)}):
        found.setdefault(finding.verdict, []).append(finding.id)
    found.pop("skip")
    assert found == EXPECTED[name]


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    script = tmp_path / "collect.sh"
    script.write_text(remote.collector(K1))
    assert subprocess.run(["shellcheck", "-s", "sh", script], capture_output=True, text=True).stdout == ""


def test_texts_come_back_as_they_were() -> None:
    found = Collected("/a/b\n line one\n \n  two\n\n/c\n x\nmotd of the host\n")
    assert found.texts == {"/a/b": "line one\n\n two", "/c": "x"}
    assert found.glob("/a/*") == ["/a/b"]
    assert found.glob("/*") == ["/a", "/c"]


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ssh that runs the command here, for hosts named up."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nhost=$2\nshift 2\n'
        'case $host in up*) exec "$@" ;; esac\necho "ssh: $host: No route to host" >&2\nexit 255\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def test_hosts_are_examined_and_compared(ssh: Path) -> None:
    result = CliRunner().invoke(doctor_cli.app, ["--host", "up1", "--host", "up2", "--json"])
    rows = json.loads(result.stdout)
    assert {row["where"] for row in rows} == {"up1", "up2", "fleet"}
    kernel = next(row for row in rows if row["id"] == "fleet-kernel")
    assert (kernel["verdict"], kernel["evidence"]) == ("ok", f"the same on all: {os.uname().release}")


def test_a_host_that_does_not_answer_is_a_finding_and_the_others_go_on(ssh: Path) -> None:
    result = CliRunner().invoke(doctor_cli.app, ["--host", "down", "--host", "up", "--json"])
    rows = json.loads(result.stdout)
    assert result.exit_code == 4
    assert (rows[0]["where"], rows[0]["id"], rows[0]["verdict"]) == ("down", "ssh", "fail")
    assert rows[0]["evidence"] == "nothing came back: ssh: down: No route to host"
    assert any(row["where"] == "up" for row in rows)


def test_the_nodes_of_a_fleet_are_examined_by_name(ssh: Path, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[[node]]\nrank = 0\nname = 'head'\n[[node]]\nrank = 1\n")
    result = CliRunner().invoke(doctor_cli.app, ["--fleet", str(fleet), "--json"])
    assert result.exit_code == 4
    assert [(row["where"], row["id"]) for row in json.loads(result.stdout)] == [("head", "ssh"), ("k1-1", "ssh")]
    assert "192.168.1.101" in result.stdout


def test_a_machine_that_says_nothing_is_told() -> None:
    with pytest.raises(CheckFailed, match="nothing came back: ssh ended with status 0"):
        remote.collect(["true"], K1)


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x"])
def test_a_host_that_would_be_an_option_is_refused(host: str) -> None:
    with pytest.raises(K1Error, match="not a host"):
        remote.ssh(host)
