"""`k1 doctor script`: a bash script that is clean and gives the verdicts of `k1 doctor`, without Python."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k1 import board as boards
from k1.cli import doctor as doctor_cli
from k1.doctor import catalogue, check, script

TREES = Path(__file__).parents[1] / "data" / "doctor"
EXPECTED = tomllib.loads((TREES / "expected.toml").read_text())
EXIT = {"fail": 4, "warn": 3, "ok": 0}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "diagnose.sh"
    path.write_text(script.render(check.load_limits(), boards.load("k1")))
    return path


def run(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # An empty PATH but for the tools of every Linux: what the machine of the tests has must not decide.
    return subprocess.run(["bash", path, *words], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})


def verdicts(output: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"fail": [], "warn": [], "ok": [], "skip": []}
    for verdict, name in re.findall(r"^\[(\w+)\] ([\w-]+):", output, re.MULTILINE):
        found[verdict.lower()].append(name)
    return found


def test_shellcheck_finds_nothing(exported: Path) -> None:
    result = subprocess.run(["shellcheck", exported], capture_output=True, text=True)
    assert result.stdout == ""


def test_it_uses_no_python(exported: Path) -> None:
    calls = re.sub(r"^\s*(#|report ).*$", "", exported.read_text(), flags=re.MULTILINE)
    assert not re.search(r"python3?\s+-|\bk1 doctor", calls)


@pytest.mark.parametrize("name", EXPECTED)
def test_its_verdicts_are_those_of_the_doctor(exported: Path, name: str) -> None:
    result = run(exported, "--root", str(TREES / name), "--all")
    assert result.stderr == ""
    found = verdicts(result.stdout)
    skipped = found.pop("skip")
    assert found == EXPECTED[name]
    assert len(skipped) + sum(map(len, found.values())) == len(catalogue.CHECKS)
    assert result.returncode == EXIT[next(v for v in ("fail", "warn", "ok") if found[v])]


def test_it_shows_cause_fix_and_source_of_what_is_wrong(exported: Path) -> None:
    text = run(exported, "--root", str(TREES / "server-balancing-on")).stdout
    assert "[WARN] numa-balancing: automatic NUMA balancing: kernel.numa_balancing = 1 with 2 NUMA nodes" in text
    assert "       fix:   sudo sysctl -w kernel.numa_balancing=0" in text
    assert "       from:  guide 004, part 1" in text
    assert "[SKIP]" not in text


def test_it_runs_on_this_machine(exported: Path) -> None:
    result = run(exported)
    assert result.returncode in (0, 3, 4)
    assert result.stderr == ""


def test_thresholds_are_baked_in_and_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "s.sh"
    words = ["script", "--min-cma", "600", "--max-vram", "30000", "--output", str(path)]
    assert CliRunner().invoke(doctor_cli.app, words).exit_code == 0
    assert path.stat().st_mode & 0o111
    assert 'MIN_CMA="600"' in path.read_text() and 'MAX_VRAM="30000"' in path.read_text()
    healthy = str(TREES / "rk3588-healthy")
    assert verdicts(run(path, "--root", healthy).stdout)["fail"] == ["rk-cma"]
    assert verdicts(run(path, "--root", healthy, "--min-cma", "100").stdout)["fail"] == []
    assert verdicts(run(path, "--root", str(TREES / "server-balancing-off")).stdout)["warn"] == ["gpu-memory"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--root"], "--root needs a folder"),
        (["--root", "/nowhere"], "--root needs a folder"),
        (["--min-cma", "x"], "--min-cma needs a number of MB"),
        (["--frob"], "usage:"),
    ],
)
def test_wrong_usage_is_named(exported: Path, words: list[str], message: str) -> None:
    result = run(exported, *words)
    assert result.returncode == 2
    assert message in result.stderr


def test_a_tool_that_hangs_is_left(exported: Path, tmp_path: Path) -> None:
    text = exported.read_text().replace("timeout 5", "timeout 0.2")
    assert text != exported.read_text()
    (tmp_path / "s.sh").write_text(text.replace("COMMAND=(dmesg)", "COMMAND=(sleep 60)"))
    result = subprocess.run(["bash", tmp_path / "s.sh"], capture_output=True, text=True, timeout=30)
    assert result.returncode in (0, 3, 4)


def test_without_output_it_is_printed() -> None:
    result = CliRunner().invoke(doctor_cli.app, ["script"])
    assert result.stdout.startswith("#!/usr/bin/env bash\n")
