"""Labs of real QEMUs that run a firmware of sixty bytes, in a folder with spaces and with a very long path."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from k1.drivers import qemu
from k1.drivers.console import Listener
from k1.errors import K1Error
from k1.lab import Lab

DATA = Path(__file__).parents[1] / "data" / "lab"
K1 = (sys.executable, "-m", "k1")


@pytest.fixture(scope="session")
def firmware(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The echo firmware as a flat binary."""
    folder = tmp_path_factory.mktemp("firmware")
    gcc = ["riscv64-linux-gnu-gcc", "-nostdlib", "-static", "-Wl,-Ttext=0x80000000", "-Wl,--build-id=none"]
    subprocess.run([*gcc, "-o", folder / "echo.elf", DATA / "echo.S"], check=True)
    subprocess.run(
        ["riscv64-linux-gnu-objcopy", "-O", "binary", folder / "echo.elf", folder / "fw_dynamic.bin"], check=True
    )
    return folder / "fw_dynamic.bin"


@pytest.fixture
def build(firmware: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A build folder whose image is the echo firmware; whatever a test leaves running is ended."""
    root = tmp_path / "a folder, with spaces" / ("long" * 30)
    images = root / "virt" / "images"
    images.mkdir(parents=True)
    shutil.copy(firmware, images)
    (images / "u-boot.bin").write_bytes(b"\0" * 16)
    (images / "sdcard.img").write_bytes(b"card" * 1024)
    (images / "manifest.json").write_text(json.dumps({"images": {"sdcard.img": {"sha256": "1" * 64}}}))
    key = root / "virt" / "ssh" / "id_ed25519"
    key.parent.mkdir()
    key.write_text("")
    monkeypatch.setenv("K1_BUILD", str(root))
    yield root / "virt"
    for process in qemus(root):
        process.kill()


def qemus(root: Path) -> list[psutil.Process]:
    """The QEMUs that use something below `root`."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words: Sequence[str] = process.info["cmdline"] or []
        if words and words[0].endswith(qemu.PROGRAM) and any(str(root) in word for word in words):
            found.append(process)
    return found


def k1(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*K1, *words], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def wait_until(true: object, what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"{what} within {seconds} s"
        time.sleep(0.05)


def test_a_lab_from_up_to_down(build: Path) -> None:
    boards = Lab().up(2, wait=False)
    assert [(board.state, board.mac, board.address) for board in boards] == [
        ("running", "00:11:22:33:44:50", "192.168.1.100"),
        ("running", "00:11:22:33:44:51", "192.168.1.101"),
    ]
    assert len(qemus(build)) == 2
    for rank in (0, 1):
        with Lab().console(rank) as console:
            console.expect("OpenSBI v0.0", 10)
            console.expect("ready", 10)
            console.send(f"board {rank}\r")
            console.expect(f"board {rank}\r", 10)
    assert Lab().down() is True
    assert qemus(build) == []
    assert not (build / "lab" / "default").exists()


def hear(listener: Listener, end: bytes) -> bytes:
    """All bytes up to and including `end`; they come in pieces."""
    heard = b""
    deadline = time.monotonic() + 30
    while end not in heard:
        assert time.monotonic() < deadline, heard
        heard += listener.read(1.0)
    return heard


def test_listening_hears_all_from_the_first_byte_until_the_board_goes_off(build: Path) -> None:
    Lab().up(1, wait=False)
    with Lab().listen(0) as listener:
        assert hear(listener, b"ready\r\n") == b"OpenSBI v0.0 (echo)\r\nready\r\n"
        with Lab().console(0) as console:
            console.send("typed\r")
            console.expect("typed", 10)
        assert hear(listener, b"\r") == b"typed\r"
        Lab().kill(0)
        assert listener.read(10) == b""
        assert not listener.is_on


def test_a_killed_board_starts_again_with_its_disk_and_its_port(build: Path) -> None:
    before = Lab().up(2, wait=False)
    disk = build / "lab" / "default" / "node1" / qemu.DISK
    made = disk.stat().st_ino
    Lab().kill(1)
    assert [board.state for board in Lab().status()] == ["running", "off"]
    after = Lab().up(wait=False)
    assert [board.state for board in after] == ["running", "running"]
    assert after[0].pid == before[0].pid
    assert after[1].ssh_port == before[1].ssh_port
    assert disk.stat().st_ino == made


def test_a_cut_board_shows_until_it_is_plugged_in_again(build: Path) -> None:
    Lab().up(2, wait=False)
    Lab().cut(1)
    assert [board.link for board in Lab().status()] == ["up", "cut"]
    Lab().cut(1, restore=True)
    assert [board.link for board in Lab().status()] == ["up", "up"]


def test_two_labs_share_neither_ports_nor_the_network(build: Path) -> None:
    Lab("one").up(1, wait=False)
    Lab("two").up(1, wait=False)
    states = [json.loads((build / "lab" / name / "lab.json").read_text()) for name in ("one", "two")]
    assert states[0]["nodes"][0]["ssh_port"] != states[1]["nodes"][0]["ssh_port"]
    assert (states[0]["group"], states[0]["port"]) != (states[1]["group"], states[1]["port"])
    Lab("one").down()
    assert [board.state for board in Lab("two").status()] == ["running"]


def test_boards_of_a_lab_whose_folder_was_removed_are_ended_by_the_next_up(build: Path) -> None:
    Lab().up(2, wait=False)
    orphans = qemus(build)
    shutil.rmtree(build / "lab")
    Lab().up(1, wait=False)
    assert len(qemus(build)) == 1
    assert not any(map(qemu.is_alive, orphans))


def test_boards_that_died_with_the_host_are_started_again(build: Path) -> None:
    Lab().up(2, wait=False)
    for process in qemus(build):
        process.kill()
    wait_until(lambda: not qemus(build), "boards end")
    assert [board.state for board in Lab().up(wait=False)] == ["running", "running"]


def test_memory_of_a_running_lab_does_not_change(build: Path) -> None:
    Lab().up(1, memory=512, wait=False)
    with pytest.raises(
        K1Error, match=r"lab default runs with 512 MiB a board\n  try: k1 lab down --name default --keep"
    ):
        Lab().up(memory=1024, wait=False)
    Lab().down(keep=True)
    Lab().up(memory=1024, wait=False)
    assert "1024M" in qemus(build)[0].cmdline()


def test_the_serial_log_of_the_boot_before_is_kept(build: Path) -> None:
    Lab().up(1, wait=False)
    with Lab().console(0) as console:
        console.send("mark\r")
        console.expect("mark", 10)
    Lab().kill(0)
    Lab().up(wait=False)
    assert "mark" in (build / "lab" / "default" / "node0" / "serial.log.old").read_text()


def test_the_device_tree_shows_two_cores_of_two_threads(build: Path) -> None:
    Lab().up(1, memory=512, wait=False)
    tree = subprocess.run(
        ["dtc", "-q", "-I", "dtb", "-O", "dts", build / "lab" / "default" / "board.dtb"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    cpu_map = tree[tree.index("cpu-map") :]
    assert [cpu_map.count(node) for node in ("core0 {", "core1 {", "thread0 {", "thread1 {")] == [1, 1, 2, 2]
    assert "zba_zbb" in tree
    assert "rng-seed" not in tree


# --- the command line


def test_a_boot_that_takes_too_long_is_told_and_left_to_be_looked_at(build: Path) -> None:
    result = k1("lab", "up", "-n", "1", "--timeout", "3")
    assert result.returncode == 4
    assert "board 0 of lab default is not on SSH, last stage OpenSBI" in result.stderr
    assert "| ready" in result.stderr
    assert "k1 lab down --name default ends them" in result.stderr
    assert len(qemus(build)) == 1


def test_ctrl_c_in_the_middle_of_up_leaves_nothing(build: Path) -> None:
    process = subprocess.Popen([*K1, "lab", "up", "-n", "2"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(qemus(build)) >= 1, "a board starts")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert qemus(build) == []
    assert not (build / "lab" / "default").exists()


def test_ctrl_c_while_a_board_is_added_leaves_the_others(build: Path) -> None:
    Lab().up(1, wait=False)
    process = subprocess.Popen([*K1, "lab", "up", "-n", "2"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(qemus(build)) == 2, "a board is added")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert [board.state for board in Lab().status()] == ["running", "off"]


def test_what_a_killed_up_left_is_cleaned_by_down(build: Path) -> None:
    process = subprocess.Popen([*K1, "lab", "up", "-n", "2"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until(lambda: len(qemus(build)) >= 1, "a board starts")
    process.kill()
    process.wait()
    assert k1("lab", "down").returncode == 0
    assert qemus(build) == []


def test_status_as_json(build: Path) -> None:
    Lab().up(1, wait=False)
    (board,) = json.loads(k1("lab", "status", "--json").stdout)
    assert board["hostname"] == "k1-0"
    assert board["state"] == "running"
    assert Path(board["console"]).is_socket()


def test_a_pipe_talks_to_the_console(build: Path) -> None:
    Lab().up(1, wait=False)
    result = subprocess.run(
        [*K1, "lab", "console", "0"], input="hello\r", capture_output=True, text=True, timeout=60, check=True
    )
    assert "ready" in result.stdout
    assert "hello" in result.stdout


def test_a_person_leaves_the_console_with_ctrl_bracket_and_ctrl_c_goes_to_the_board(build: Path) -> None:
    Lab().up(1, wait=False)
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen([*K1, "lab", "console", "0"], stdin=terminal, stdout=terminal, stderr=terminal)
    read_until(keyboard, b"ready")
    os.write(keyboard, b"a\x03b")
    read_until(keyboard, b"a\x03b")
    assert process.poll() is None
    os.write(keyboard, b"\x1d")
    assert process.wait(30) == 0
    os.close(keyboard)
    os.close(terminal)


def read_until(descriptor: int, text: bytes) -> None:
    data = b""
    deadline = time.monotonic() + 30
    while text not in data:
        assert time.monotonic() < deadline, data
        if select.select([descriptor], [], [], 0.2)[0]:
            data += os.read(descriptor, 1024)


def test_a_board_that_is_not_there_is_a_users_error(build: Path) -> None:
    Lab().up(1, wait=False)
    result = k1("lab", "ssh", "7", "true")
    assert result.returncode == 2
    assert "lab default has no board 7" in result.stderr
