"""`k1 doctor crash`: the five steps, each with what it needs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k1 import board as boards
from k1.cli import doctor as doctor_cli
from k1.doctor import crash
from k1.doctor.check import Finding, Verdict
from k1.doctor.crash import Crash
from k1.doctor.system import Captured
from k1.errors import K1Error
from support.tiny import TinyModel

MAPS = """\
00010000-0014a000 r-xp 00000000 b3:02 77  /usr/bin/k1-inferd
0014b000-00180000 rw-p 00000000 00:00 0  [heap]
3fa8000000-3fa8021000 rw-p 00000000 00:00 0
3fa8e00000-3fa8e02000 r-xp 00000000 00:00 0  [vdso]
3fffdfe000-3fffe1f000 rw-p 00000000 00:00 0  [stack]
"""
MEMCPY = ("#0  memcpy () at memcpy.S:40", "#1  0x12a4f0 in ring_write (ring=0x3fa8e00f80) at ring.c:88")


@pytest.fixture
def system(tmp_path: Path) -> Captured:
    root = tmp_path / "box"
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/self/limits").write_text("Max core file size        0          unlimited            bytes\n")
    (root / "proc/sys/kernel/core_pattern").write_text("core\n")
    return Captured(root)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    TinyModel(path, "qwen2", "Q4_0")
    return path


def examine(system: Captured, **known: object) -> dict[str, Finding]:
    asked = Crash(system, boards.load("k1"), **{"cli": "no-such-cli", **known})  # type: ignore[arg-type]
    return {finding.id: finding for finding in crash.examine(asked)}


def test_the_five_steps_come_in_the_documents_order(system: Captured) -> None:
    found = examine(system)
    assert list(found) == ["crash-core", "crash-maps", "crash-model", "crash-memory", "crash-local"]
    assert [f.verdict for f in found.values()] == ["warn", "skip", "skip", "skip", "skip"]
    assert found["crash-core"].evidence == "ulimit -c is 0; cores are named core"
    assert found["crash-core"].fixes[0].commands[0] == "ulimit -c unlimited"


def test_a_core_pattern_that_is_a_program_needs_no_limit(system: Captured) -> None:
    system.path("/proc/sys/kernel/core_pattern").write_text("|/usr/lib/systemd/systemd-coredump %P")
    found = examine(system)["crash-core"]
    assert (found.verdict, found.evidence) == ("ok", "ulimit -c is 0; cores go to a program: coredumpctl list")


@pytest.mark.parametrize(
    ("target", "verdict", "said"),
    [
        (0x3FA8E00F80, Verdict.FAIL, "in [vdso]: a ring buffer that is not aligned to cache lines"),
        (0x0014B010, Verdict.OK, "in [heap]: a buffer; check the length"),
        (0x3FA8000010, Verdict.OK, "in anonymous"),
        (0x00010010, Verdict.FAIL, "in /usr/bin/k1-inferd"),
        (0x8, Verdict.FAIL, "in no known mapping"),
    ],
)
def test_where_a_copy_was_to_write(
    system: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: int, verdict: Verdict, said: str
) -> None:
    maps = tmp_path / "maps"
    maps.write_text(MAPS)
    monkeypatch.setattr(crash, "read_core", lambda program, core: crash.Trace(MEMCPY, "", target))
    found = examine(system, program=maps, core=maps, maps=maps)["crash-maps"]
    assert (found.verdict, said in found.evidence) == (verdict, True), found.evidence
    if "vdso" in said:
        assert found.fixes[0].commands[0].startswith("posix_memalign(&buf, 64, size)")


def test_a_frame_that_copies_nothing_is_no_case_for_the_map(
    system: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = tmp_path / "maps"
    maps.write_text(MAPS)
    monkeypatch.setattr(crash, "read_core", lambda program, core: crash.Trace(("#0  0x1 in decode ()",), "", 8))
    assert (
        "copies nothing: #0  0x1 in decode ()"
        in examine(system, program=maps, core=maps, maps=maps)["crash-maps"].evidence
    )


def test_the_models_hash_is_compared(system: Captured, model: Path, tmp_path: Path) -> None:
    right = hashlib.sha256(model.read_bytes()).hexdigest()
    assert examine(system, model=model)["crash-model"].evidence.startswith(f"{right}; compare it")
    assert examine(system, model=model, sha256=right.upper())["crash-model"].verdict is Verdict.OK
    assert examine(system, model=model, sha256="0" * 64)["crash-model"].verdict is Verdict.FAIL
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(model.read_bytes()[:-1] + b"!")
    (tmp_path / "copy.gguf.sha256").write_text(f"{right}  copy.gguf\n")
    found = examine(system, model=copy)["crash-model"]
    assert found.verdict is Verdict.FAIL and found.evidence.endswith(f"expected {right}")


def test_memory_by_layers_heads_and_context(system: Captured, model: Path) -> None:
    # 2 layers, keys and values of 2 heads of 32 elements, 2 bytes each: 512 bytes a position.
    found = examine(system, model=model, n_ctx=8192)["crash-memory"]
    assert found.verdict is Verdict.OK
    assert "KV cache 4 MiB at n_ctx 8192, of 1740 MiB" in found.evidence
    largest = int(found.evidence.rsplit("n_ctx up to ", 1)[1].split()[0])
    assert largest > 1739 * (1 << 20) // 512 - 2048
    assert examine(system, model=model, n_ctx=largest)["crash-memory"].verdict is Verdict.OK
    too_much = examine(system, model=model, n_ctx=largest + 1)["crash-memory"]
    assert too_much.verdict is Verdict.FAIL
    assert too_much.fixes[0].commands[0].startswith("--n_ctx 512")


def test_a_model_that_is_no_gguf_is_told_in_its_step(system: Captured, tmp_path: Path) -> None:
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"GGUF" + bytes(100))
    found = examine(system, model=junk)
    assert found["crash-memory"].verdict is Verdict.FAIL
    assert "not a readable GGUF" in found["crash-memory"].evidence


@pytest.mark.parametrize(("status", "verdict"), [(0, Verdict.OK), (139, Verdict.FAIL)])
def test_one_node_alone_tells_network_from_engine(
    system: Captured, model: Path, tmp_path: Path, status: int, verdict: Verdict
) -> None:
    cli = tmp_path / "cli"
    cli.write_text(f'#!/bin/sh\n[ "$1 $2" = "--local {model}" ] || exit 99\necho dead >&2\nexit {status}\n')
    cli.chmod(0o755)
    found = examine(system, model=model, cli=str(cli))["crash-local"]
    assert found.verdict is verdict
    if status:
        assert found.evidence == "ended with status 139 dead"
    else:
        assert "the fault is in the network part" in found.evidence


def test_a_missing_cli_is_a_skip(system: Captured, model: Path) -> None:
    found = examine(system, model=model)["crash-local"]
    assert (found.verdict, found.evidence) == ("skip", "no-such-cli is not installed; name it with --cli")


def test_a_missing_core_is_told_and_the_other_steps_go_on(system: Captured, model: Path, tmp_path: Path) -> None:
    found = examine(system, program=tmp_path / "p", core=tmp_path / "c", model=model)
    assert found["crash-core"].evidence.endswith("/p is not there")
    assert found["crash-model"].verdict is Verdict.OK


def test_a_core_needs_its_program(tmp_path: Path) -> None:
    with pytest.raises(K1Error, match="--core needs --program"):
        CliRunner().invoke(doctor_cli.app, ["crash", "--core", str(tmp_path)], catch_exceptions=False)


def test_the_command_speaks_json(model: Path) -> None:
    result = CliRunner().invoke(doctor_cli.app, ["crash", "--model", str(model), "--cli", "no-such-cli", "--json"])
    assert [row["id"] for row in json.loads(result.stdout)][2] == "crash-model"
