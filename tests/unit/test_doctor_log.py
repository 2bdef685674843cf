"""`k1 doctor log`: known lines are found, counted and explained."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from k1.cli import doctor as doctor_cli
from k1.doctor import signatures
from k1.errors import K1Error

KNOWN = signatures.load()
BY_ID = {signature.id: signature for signature in KNOWN}


def scan(text: str) -> list[signatures.Hit]:
    return signatures.scan(io.StringIO(text), KNOWN)


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len(KNOWN) >= 40
    assert len(BY_ID) == len(KNOWN)


@pytest.mark.parametrize("signature", KNOWN, ids=lambda signature: signature.id)
def test_each_finds_its_own_line_and_no_other_does(signature: signatures.Signature) -> None:
    assert [hit.signature.id for hit in scan(f"before\n{signature.test}\nafter")] == [signature.id]
    assert signature.cause and signature.fix


@pytest.mark.parametrize(
    "line",
    [
        "k1-inferd: listening host=0.0.0.0 port=8080 model=/opt/k1/models/model.gguf n_ctx=2048",
        "gmac eth0: link up, 1000 Mbit/s, full duplex",
        "eth0: link becomes ready",
        "[drm] Initialized rknpu 0.9.8 20240828 for fdab0000.npu on minor 1",
        "Firmware Version: 5.1.0 (release,app)",
        "cma: Reserved 512 MiB at 0x00000000c0000000",
        "OpenSBI v1.2 (Sep 12 2023 14:22:03)",
    ],
)
def test_healthy_lines_are_left_alone(line: str) -> None:
    assert scan(line) == []


def test_lines_are_counted_and_the_first_is_told() -> None:
    (hit,) = scan("boot\nRKNN_INIT FAILED (-1)\nok\nrknn_init failed (-1)\n")
    assert (hit.count, hit.number, hit.line) == (2, 2, "RKNN_INIT FAILED (-1)")


def test_line_numbers_hold_over_a_large_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "_CHUNK", 64)
    (hit,) = scan("fine\n" * 999 + "DDR init failed\n" + "fine\n" * 999 + "DDR init failed\n")
    assert (hit.number, hit.count) == (1000, 2)


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    for hit in scan(text):
        assert hit.number <= text.count("\n") + text.count("\r") + 1


def test_letters_that_change_length_in_lower_case_do_not_shift_the_line() -> None:
    (hit,) = scan("İİİİ\nİİ DDR init failed\nnext\n")
    assert (hit.number, hit.line) == (2, "İİ DDR init failed")


def test_exit_codes_and_json() -> None:
    run = CliRunner().invoke
    assert run(doctor_cli.app, ["log", "-"], input="all is well\n").exit_code == 0
    assert run(doctor_cli.app, ["log", "-"], input="numa_balancing is enabled\n").exit_code == 3
    result = run(doctor_cli.app, ["log", "-", "--json"], input="x\nCUDA error: out of memory\n")
    assert result.exit_code == 4
    (row,) = json.loads(result.stdout)
    assert (row["id"], row["line_number"], row["found"]) == ("cuda-out-of-memory", 2, "fail")


def test_a_binary_log_is_read_too(tmp_path: Path) -> None:
    log = tmp_path / "serial.log"
    log.write_bytes(b"\xff\xfe\0\nDDR init failed\r\n")
    result = CliRunner().invoke(doctor_cli.app, ["log", str(log)])
    assert result.exit_code == 4
    assert "ddr-init" in result.stdout


def test_a_missing_log_is_a_usage_error() -> None:
    words = [sys.executable, "-m", "k1", "doctor", "log", "/nowhere/log"]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 2
    assert "/nowhere/log" in result.stderr
    assert "Traceback" not in result.stderr


GOOD = """[[signature]]
id = "a"
area = "x"
found = "warn"
pattern = 'b+'
test = "abc"
cause = "c"
fix = ["d"]
reference = "e"
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("'b+'", "'b('", 'pattern: not a lower-case regular expression, got "b('),
        ("'b+'", "'Big'", "not a lower-case regular expression"),
        ('"warn"', '"bad"', "found: wrong value"),
        ("cause", "cuase", "did you mean cause"),
    ],
)
def test_faults_in_the_file_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "signatures.toml"
    file.write_text(GOOD.replace(old, new))
    with pytest.raises(K1Error) as caught:
        signatures.load(file)
    assert "signatures.toml" in caught.value.message
    assert message in caught.value.message
