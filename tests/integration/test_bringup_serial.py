"""`k1 bringup` on the serial lines of emulated boards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

from emulators.serialboard import SerialBoard
from emulators.usb import Bus

K1 = (sys.executable, "-m", "k1", "bringup")
BOOT = (
    b"\r\nOpenSBI v1.2 (Sep 12 2023 14:22:03)\r\n",
    b"U-Boot 2023.01 (Jan 01 2026)\r\n",
    b"[    0.000000] Linux version 6.1.56\r\n",
    b"[    2.350000] Run /sbin/preinit as init process\r\n",
    b"\r\nk1-0 login: ",
    b"[    6.000000] k1: k1-inferd is ready\r\n",
)


def bring_up(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*K1, *map(str, words)], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )


def test_two_boards_come_up_and_the_report_picture_and_logs_show_it(tmp_path: Path) -> None:
    with SerialBoard(tmp_path / "ttyUSB0") as first, SerialBoard(tmp_path / "ttyUSB1") as second:
        for board in (first, second):
            board.power_on()
            board.play((0.3 if i else 2.0, text) for i, text in enumerate(BOOT))
        words = (first.path, second.path, "--json", "--svg", tmp_path / "boot.svg", "--log-dir", tmp_path / "logs")
        result = bring_up(*words)
    assert result.returncode == 0, result.stderr
    reports = json.loads(result.stdout)
    assert [report["state"] for report in reports] == ["ready", "ready"]
    times = [stage["seconds"] for stage in reports[0]["stages"]]
    assert [stage["stage"] for stage in reports[0]["stages"]][-1] == "k1-inferd"
    assert times == sorted(times)
    assert 1.0 < times[-1] < 30
    ElementTree.parse(tmp_path / "boot.svg")  # noqa: S314
    logs = sorted((tmp_path / "logs").glob("*.log"))
    assert [log.read_bytes() for log in logs] == [b"".join(BOOT)] * 2


def test_a_failure_is_exit_code_4_with_stage_cause_and_remedy(tmp_path: Path) -> None:
    with SerialBoard(tmp_path / "ttyUSB0") as good, SerialBoard(tmp_path / "ttyUSB1") as bad:
        good.power_on(b"".join(BOOT))
        bad.power_on(b"BootROM\r\nDDR init failed\r\n")
        result = bring_up(good.path, bad.path)
    assert result.returncode == 4
    assert f"1 of 2 boards did not come up\n{bad.path}: stopped before OpenSBI: ddr-init-failed:" in result.stderr
    assert "  | DDR init failed\n  try: cut the power at once; use the original 5 V/3 A supply" in result.stderr
    assert "ready" in result.stdout


def test_a_board_that_stops_is_told_with_the_stage_it_did_not_reach(tmp_path: Path) -> None:
    with SerialBoard(tmp_path / "ttyUSB0") as board:
        board.power_on(b"".join(BOOT[:1]))
        result = bring_up(board.path, "--json", K1_TIMEOUT_SCALE="0.05")
    assert result.returncode == 4
    (report,) = json.loads(result.stdout)
    assert (report["stage"], report["waited_for"]) == ("OpenSBI", "U-Boot")
    assert report["failure"]["signature"] == "no-uboot"
    assert "stopped before U-Boot: no-uboot" in result.stderr


def test_warnings_are_exit_code_3(tmp_path: Path) -> None:
    with SerialBoard(tmp_path / "ttyUSB0") as board:
        board.power_on(b"".join((*BOOT[:3], b"[    3.21] gmac: link down\r\n", *BOOT[3:])))
        result = bring_up(board.path)
    assert result.returncode == 3
    assert "gmac-link-down" in result.stderr
    for cause in (
        "power more than 10 ms after the MAC's clock",
        "does not know pause frames",
        "all boards have one MAC",
    ):
        assert cause in result.stderr


def test_a_line_that_comes_and_goes_with_the_boards_power_is_followed(tmp_path: Path) -> None:
    with SerialBoard(tmp_path / "ttyUSB0") as board:
        process = subprocess.Popen(
            [*K1, board.path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr
        while "switch the power on now" not in process.stderr.readline():
            assert process.poll() is None
        board.power_on(BOOT[0])
        time.sleep(1.0)
        board.power_off()
        board.power_on(b"".join(BOOT))
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    (report,) = json.loads(output)
    assert (report["state"], report["restarts"]) == ("ready", 1)


def test_all_means_every_adapter(tmp_path: Path) -> None:
    with SerialBoard(tmp_path / "a") as first, SerialBoard(tmp_path / "b") as second, Bus() as bus:
        for place, name, board in (("1-1", "ttyUSB0", first), ("1-2", "ttyUSB1", second)):
            board.power_on(b"".join(BOOT))
            bus.adapter(place, name, board.path)
        result = bring_up("--all", "--json", **bus.env)
    assert result.returncode == 0, result.stderr
    assert [report["board"] for report in json.loads(result.stdout)] == ["/dev/ttyUSB0", "/dev/ttyUSB1"]


def test_options_that_exclude_each_other_are_a_users_error() -> None:
    assert "-n and --power-cycle need --lab" in bring_up("-n", "2").stderr
    result = bring_up("--lab", "x", "--all")
    assert result.returncode == 2
    assert "--lab excludes serial lines and --all" in result.stderr
    result = bring_up("--lab", "x", "--until", "kernel")
    assert result.returncode == 2
    assert "no stage named kernel\n  try: one of OpenSBI, U-Boot, Linux" in result.stderr
