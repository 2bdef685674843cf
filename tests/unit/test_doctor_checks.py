"""`k1 doctor`: verdicts on captured machines, what cannot run is skipped, safe fixes can be undone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k1 import board as boards
from k1.cli import doctor as doctor_cli
from k1.doctor import catalogue, check, fixing, hybrid, system
from k1.doctor.check import Case, Finding, Verdict
from k1.doctor.system import Captured, Live, Skip
from k1.errors import K1Error

TREES = Path(__file__).parents[1] / "data" / "doctor"
EXPECTED = tomllib.loads((TREES / "expected.toml").read_text())


def case(root: Path, **limits: int) -> Case:
    return Case(Captured(root), check.load_limits(None, **limits), boards.load("k1"))


def examine(root: Path, **limits: int) -> dict[str, Finding]:
    return {found.id: found for found in catalogue.examine({"it": case(root, **limits)})}


def cli(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(doctor_cli.app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A machine of which nothing is known."""
    (tmp_path / "proc").mkdir()
    return tmp_path


def put(tree: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = tree / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# --- verdicts


def test_every_tree_has_its_expectation() -> None:
    assert sorted(EXPECTED) == sorted(path.name for path in TREES.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", EXPECTED)
def test_verdicts_on_captured_machines(name: str) -> None:
    found: dict[str, list[str]] = {"fail": [], "warn": [], "ok": []}
    for finding in examine(TREES / name).values():
        found.setdefault(finding.verdict, []).append(finding.id)
    found.pop("skip")
    assert found == EXPECTED[name]


def test_every_check_is_seen_to_complain() -> None:
    bad = {id for expected in EXPECTED.values() for verdict in ("warn", "fail") for id in expected[verdict]}
    assert bad == {question.id for question in catalogue.CHECKS}


def test_every_check_names_cause_fix_and_source() -> None:
    for question in catalogue.CHECKS:
        assert question.cause and question.fixes and question.reference and question.applies_to, question.id
    assert len({question.id for question in catalogue.CHECKS}) == len(catalogue.CHECKS)


def test_the_guides_fix_for_numa_balancing_is_shown() -> None:
    code, text = cli("--root", str(TREES / "server-balancing-on"))
    assert code == 3
    for line in (
        "sudo sysctl -w kernel.numa_balancing=0",
        'echo "kernel.numa_balancing=0" | sudo tee /etc/sysctl.d/99-llm-numa.conf',
        "numactl --interleave=all",
    ):
        assert line in text


@pytest.mark.parametrize(("name", "code"), [("k1-healthy", 0), ("server-balancing-on", 3), ("k1-sick", 4)])
def test_the_exit_code_tells_the_worst_verdict(name: str, code: int) -> None:
    assert cli("--root", str(TREES / name))[0] == code


def test_json_has_every_field_of_every_check() -> None:
    code, text = cli("--root", str(TREES / "rk3588-low-cma"), "--json")
    rows = {row["id"]: row for row in json.loads(text)}
    assert code == 4
    assert len(rows) == len(catalogue.CHECKS)
    assert rows["rk-cma"]["verdict"] == "fail"
    assert "cma=512M" in rows["rk-cma"]["fixes"][1]["commands"][0]
    assert rows["k1-link"]["verdict"] == "skip"
    assert "not a node of the cluster" in rows["k1-link"]["evidence"]


def test_several_nodes_are_compared() -> None:
    names = ("k1-healthy", "k1-healthy-1", "k1-sick")
    findings = catalogue.examine({name: case(TREES / name) for name in names})
    found = {finding.id: finding for finding in findings if finding.where == "fleet"}
    assert {key: found[key].verdict for key in found} == {
        "fleet-mac": Verdict.OK,
        "fleet-mtu": Verdict.FAIL,
        "fleet-model": Verdict.FAIL,
        "fleet-kernel": Verdict.WARN,
        "fleet-inferd": Verdict.OK,
    }
    assert "1500 on k1-sick" in found["fleet-mtu"].evidence


def test_one_mac_on_two_nodes_is_found() -> None:
    twice = {name: case(TREES / "k1-sick") for name in ("a", "b")}
    found = {finding.id: finding for finding in catalogue.examine(twice)}
    assert found["fleet-mac"].verdict is Verdict.FAIL
    assert found["fleet-mac"].evidence == "00:11:22:33:44:55 on a, b"


def test_a_masked_mac_is_not_called_a_duplicate(tree: Path) -> None:
    put(tree, sys__class__net__eth0__address="00:11:22:33:44:50")
    masked = case(tree)
    (tree / "sys/class/net/eth0/address").write_text("00:11:22:00:00:00")
    found = {finding.id: finding for finding in catalogue.examine({"a": masked, "b": masked})}
    assert found["fleet-mac"].verdict is Verdict.SKIP


# --- thresholds


def test_thresholds_are_options_and_files(tmp_path: Path) -> None:
    healthy = TREES / "rk3588-healthy"
    assert examine(healthy, min_cma_mb=600)["rk-cma"].verdict is Verdict.FAIL
    file = tmp_path / "limits.toml"
    file.write_text("min_cma_mb = 500\n[tested]\nrkllm = '1.3.0'\n")
    limits = check.load_limits(file)
    assert (limits.min_cma_mb, limits.max_vram_mb, limits.tested.rkllm) == (500, 22500, "1.3.0")
    assert limits.tested.rknpu == "0.9.8"
    assert check.load_limits(file, min_cma_mb=10).min_cma_mb == 10


def test_defaults_are_the_guides() -> None:
    limits = check.load_limits()
    assert (limits.min_cma_mb, limits.max_vram_mb) == (256, 22500)
    tested = limits.tested
    assert (tested.ktransformers, tested.hailort, tested.rkllm, tested.rknpu) == ("0.2.4", "5.1.0", "1.2.1", "0.9.8")


def test_a_fault_in_a_threshold_file_names_file_key_and_value(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("min_cam_mb = 5\n")
    with pytest.raises(K1Error, match=r"limits.toml: min_cam_mb: unknown key, got 5; .*did you mean min_cma_mb"):
        check.load_limits(file)


# --- what cannot run


def test_a_check_that_cannot_run_says_why(tree: Path) -> None:
    put(tree, proc__cpuinfo="vendor_id : GenuineIntel")
    found = examine(tree)
    assert {finding.verdict for finding in found.values()} == {Verdict.SKIP}
    assert found["numa-balancing"].evidence == "/proc/sys/kernel/numa_balancing is not there or not readable"
    assert found["gpu-memory"].evidence == "nvidia-smi was not there when the machine was captured"


@pytest.mark.parametrize("junk", ["", "\0\0", "x" * 5000, "1 2 3\n4", "[", "-1", "é"])
def test_junk_in_any_file_gives_verdicts_and_no_traceback(tmp_path: Path, junk: str) -> None:
    for source in TREES.glob("*/**/*"):
        if source.is_file():
            target = tmp_path / source.relative_to(TREES).relative_to(source.relative_to(TREES).parts[0])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(junk)
    (tmp_path / "sys/class/net/eth0/address").write_text("00:11:22:33:44:50")
    (tmp_path / "proc/device-tree/compatible").write_text("rockchip,rk3588")
    (tmp_path / "proc/cpuinfo").write_text("vendor_id")
    (tmp_path / "sys/bus/pci/devices/0001:01:00.0/vendor").write_text("0x1e60")
    assert len(examine(tmp_path)) == len(catalogue.CHECKS)


def test_a_tool_that_hangs_is_left_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(system.TOOLS, "date", ("sleep", "60"))
    monkeypatch.setattr(system, "TOOL_SECONDS", 0.2)
    started = time.monotonic()
    with pytest.raises(Skip, match="sleep did not end within"):
        Live().tool("date")
    assert time.monotonic() - started < 30


def test_a_tool_that_is_missing_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(system.TOOLS, "date", ("no-such-program",))
    with pytest.raises(Skip, match="no-such-program is not installed"):
        Live().tool("date")


def test_a_tool_that_cannot_be_started_is_a_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other-cpu"
    other.write_bytes(b"\x7fELF not for this machine")
    other.chmod(0o755)
    monkeypatch.setitem(system.TOOLS, "date", (str(other),))
    with pytest.raises(Skip, match="cannot be started: Exec format error"):
        Live().tool("date")


def test_the_doctors_own_time_is_short() -> None:
    for name in EXPECTED:
        started = time.process_time()
        examine(TREES / name)
        assert time.process_time() - started < 2.0


def test_device_tree_strings_end_in_nul(tree: Path) -> None:
    put(tree, **{"proc__device-tree__compatible": "xunlong,orangepi-5\0rockchip,rk3588\0"})
    assert examine(tree)["rk-cma"].evidence.startswith("/proc/meminfo is not there")


@pytest.mark.parametrize(
    ("make", "message"), [(False, "is not a folder with a captured machine"), (True, "has none of proc/, sys/")]
)
def test_a_root_that_is_no_capture_is_refused(tmp_path: Path, make: bool, message: str) -> None:
    root = tmp_path / "it"
    if make:
        root.mkdir()
    with pytest.raises(K1Error, match=message):
        Captured(root)


# --- single checks


@pytest.mark.parametrize(("text", "nodes"), [("0", 1), ("0-1", 2), ("0,2-3", 3), ("", 0), ("junk", 0)])
def test_numa_nodes_are_those_with_memory(tree: Path, text: str, nodes: int) -> None:
    put(tree, sys__devices__system__node__has_memory=text)
    assert Captured(tree).numa_nodes == nodes


def test_the_card_with_most_free_memory_counts(tree: Path) -> None:
    rows = ["index, name, memory.used [MiB], memory.free [MiB]", "0, A, 23000 MiB, 1000 MiB", "1, B, 0 MiB, 24000 MiB"]
    put(tree, proc__driver__nvidia__version="x", **{"k1-doctor__nvidia-smi.out": "\n".join(rows)})
    found = hybrid.GpuMemory().run(case(tree), "it")
    assert (found.verdict, found.evidence) == (Verdict.OK, "GPU 1 (B): 24000 MiB free, wanted 22500")


def test_settings_of_data_hide_those_of_the_image(tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", str(TREES / "k1-healthy"), str(tmp_path / "k1")], check=True)
    put(tmp_path / "k1", **{"data__etc__k1__inferd.conf": "n_threads = 2\nn_threads = 3\n"})
    assert examine(tmp_path / "k1")["k1-threads"].evidence == "n_threads = 3, 2 cores"


# --- applying


@pytest.fixture
def server(tmp_path: Path) -> Live:
    root = tmp_path / "server"
    subprocess.run(["cp", "-r", str(TREES / "server-balancing-on"), str(root)], check=True)
    return Live(root)


def findings_of(server: Live) -> list[Finding]:
    facts = Case(server, check.load_limits(), boards.load("k1"))
    return [hybrid.NumaBalancing().run(facts, "here")]


def test_a_safe_fix_is_applied_and_can_be_undone(server: Live) -> None:
    (fix,) = fixing.safe(findings_of(server))
    fixing.apply(server, fix)
    assert server.text("/proc/sys/kernel/numa_balancing") == "0"
    assert server.text("/etc/sysctl.d/99-llm-numa.conf") == "kernel.numa_balancing=0"
    assert findings_of(server)[0].verdict is Verdict.OK
    undo = server.path(fixing.UNDO).read_text().replace(">/", f">{server.root}/").replace("-f /", f"-f {server.root}/")
    subprocess.run(["sh", "-c", undo], check=True)
    assert server.text("/proc/sys/kernel/numa_balancing") == "1"
    assert server.find("/etc/sysctl.d/99-llm-numa.conf") is None


def test_undo_of_two_runs_ends_with_what_was_there_first(server: Live) -> None:
    (fix,) = fixing.safe(findings_of(server))
    fixing.apply(server, fix)
    put(server.root, proc__sys__kernel__numa_balancing="2")
    fixing.apply(server, fix)
    lines = [line for line in server.text(fixing.UNDO).splitlines() if "numa_balancing" in line and "printf" in line]
    assert lines[0].startswith("printf '%s\\n' 2 >")
    assert lines[-1] == "printf '%s\\n' 1 >/proc/sys/kernel/numa_balancing"


def test_undo_brings_back_a_file_that_was_there(server: Live) -> None:
    old = "# ours\nkernel.numa_balancing=1"
    put(server.root, **{"etc__sysctl.d__99-llm-numa.conf": old})
    (fix,) = fixing.safe(findings_of(server))
    assert f"printf '%s\\n' '{old}' >/etc/sysctl.d/99-llm-numa.conf" in fixing.undo_commands(server, fix)


def test_undo_names_the_mode_in_brackets(tree: Path) -> None:
    put(tree, sys__kernel__mm__transparent_hugepage__enabled="always madvise [never]")
    (fix,) = hybrid.HugePages.fixes
    assert fixing.undo_commands(Live(tree), fix)[0].startswith("printf '%s\\n' never >")


def test_fix_asks_and_does_nothing_on_no(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_cli, "Live", lambda: server)
    result = CliRunner().invoke(doctor_cli.app, ["--fix"], input="n\n" * 9)
    assert "undo:  printf '%s\\n' 1 >/proc/sys/kernel/numa_balancing" in result.stdout
    assert server.text("/proc/sys/kernel/numa_balancing") == "1"
    assert server.find(fixing.UNDO) is None


def test_fix_applies_on_yes(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_cli, "Live", lambda: server)
    CliRunner().invoke(doctor_cli.app, ["--fix", "--yes"])
    assert server.text("/proc/sys/kernel/numa_balancing") == "0"


def test_fix_excludes_root() -> None:
    with pytest.raises(K1Error, match="--fix works on this machine only"):
        CliRunner().invoke(doctor_cli.app, ["--fix", "--root", "/x"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--root", "/nowhere"], "/nowhere is not a folder with a captured machine"),
        (["--board", "k2"], "no board 'k2'"),
        (["--min-cma", "0"], "--min-cma"),
        (["--thresholds", "/nowhere"], "--thresholds"),
        (["--host", "-x"], "not a host: '-x'"),
        (["--lab", "none"], "there is no lab none"),
        (["ask", "k1-bot"], "did you mean k1-boot?"),
        (["tensors", "/nowhere.gguf"], "/nowhere.gguf: No such file"),
        (["tensors", "/tmp"], "/tmp: Is a directory"),
        (["script", "-o", "/dev/null/x"], "/dev/null"),
        (["crash", "--n_ctx", "0"], "--n_ctx"),
        (["hailo", "unload", "--port", "0"], "--port"),
    ],
)
def test_bad_input_is_one_error_and_exit_code_2(tmp_path: Path, words: list[str], message: str) -> None:
    environment = os.environ | {"K1_BUILD": str(tmp_path)}
    command = [sys.executable, "-m", "k1", "doctor", *words]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
