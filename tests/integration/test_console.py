"""`k1 console` on the pty of an emulated board, and on sockets."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import serial
from serial.rfc2217 import PortManager

from emulators.serialboard import SerialBoard
from emulators.usb import Bus
from k1.drivers.ports import free_port

K1 = (sys.executable, "-m", "k1", "console")
ALL_BYTES = bytes(range(256))
SOAK_SECONDS = float(os.environ.get("K1_SOAK_SECONDS", "3"))


@pytest.fixture
def board(tmp_path: Path) -> Iterator[SerialBoard]:
    with SerialBoard(tmp_path / "ttyUSB0") as found:
        yield found


class Session:
    """A running `k1 console`, typed at and read by the test."""

    def __init__(self, *words: str | Path, **environment: str) -> None:
        pipe, words = subprocess.PIPE, (*K1, *map(str, words))
        environment = os.environ | environment
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=environment)
        self.output = self.notes = b""

    def until(self, wanted: bytes, seconds: float = 30.0) -> None:
        """Wait until the output or the notes hold `wanted`."""
        deadline = time.monotonic() + seconds
        assert self.process.stdout
        assert self.process.stderr
        pipes = [self.process.stdout, self.process.stderr]
        while wanted not in self.output and wanted not in self.notes:
            assert time.monotonic() < deadline, (wanted, self.output[-2000:], self.notes)
            for pipe in select.select(pipes, [], [], 0.1)[0]:
                data = os.read(pipe.fileno(), 65536)
                if pipe is self.process.stdout:
                    self.output += data
                else:
                    self.notes += data
                if not data:
                    pipes.remove(pipe)

    def type(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)

    def leave(self) -> int:
        self.type(b"\x1d")
        output, notes = self.process.communicate(timeout=30)
        self.output += output
        self.notes += notes
        return self.process.returncode


def test_what_the_board_says_and_hears(board: SerialBoard) -> None:
    board.power_on()
    session = Session(board.path)
    session.until(b"at 115200 8N1; Ctrl-] leaves")
    board.say(b"login: ")
    session.until(b"login: ")
    session.type(b"root\x03\r")
    assert board.heard(b"\r") == b"root\x03\r"
    assert session.leave() == 0


def test_a_banner_from_before_it_was_opened_is_not_lost(board: SerialBoard) -> None:
    board.power_on(b"\r\nOpenSBI v1.2\r\n")
    session = Session(board.path)
    session.until(b"OpenSBI v1.2\r\n")
    assert session.leave() == 0


def test_any_bytes_pass_in_both_directions(board: SerialBoard, tmp_path: Path) -> None:
    board.power_on()
    session = Session(board.path, "--log", tmp_path / "raw.log")
    session.until(b"Ctrl-]")
    board.say(ALL_BYTES * 4 + b"end")
    session.until(b"end")
    typed = ALL_BYTES.replace(b"\x1d", b"")
    session.type(typed)
    assert board.heard(typed) == typed
    assert session.leave() == 0
    assert session.output == ALL_BYTES * 4 + b"end"
    assert (tmp_path / "raw.log").read_bytes() == ALL_BYTES * 4 + b"end"


def test_lines_with_times_for_the_eye_and_in_a_file_beside_the_raw_log(board: SerialBoard, tmp_path: Path) -> None:
    board.power_on()
    session = Session(board.path, "--times", "--log", tmp_path / "raw.log")
    session.until(b"Ctrl-]")
    board.say(b"U-Boot 2023.01\r\n\r\nno end of line")
    session.until(b"no end of line")
    assert session.leave() == 0
    pattern = rb"(\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\]) "
    for stamped in (session.output, (tmp_path / "raw.log.stamped").read_bytes()):
        lines = stamped.split(b"\n")
        assert [line.split(b"] ", 1)[1] for line in lines] == [b"U-Boot 2023.01\r", b"\r", b"no end of line"]
        assert all(re.match(pattern, line) for line in lines)
    assert (tmp_path / "raw.log").read_bytes() == b"U-Boot 2023.01\r\n\r\nno end of line"


def test_a_power_cut_and_the_boards_return(board: SerialBoard, tmp_path: Path) -> None:
    board.power_on()
    session = Session(board.path, "--log", tmp_path / "raw.log")
    session.until(b"Ctrl-]")
    for turn in range(3):
        board.say(b"before %d " % turn)
        session.until(b"before %d " % turn)
        board.power_off()
        session.until(b"went away; waiting for it")
        session.type(b"x")  # nobody hears it, and nothing breaks
        session.notes = b""
        board.power_on(b"banner %d " % turn)
        session.until(b"is back")
        session.until(b"banner %d " % turn)
    assert session.leave() == 0
    assert (tmp_path / "raw.log").read_bytes() == b"".join(b"before %d banner %d " % (i, i) for i in range(3))


def test_a_second_opener_is_told_who_to_look_for(board: SerialBoard) -> None:
    board.power_on()
    session = Session(board.path)
    session.until(b"Ctrl-]")
    second = subprocess.run([*K1, board.path], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert second.returncode == 2
    assert (
        f"{board.path}: another program holds this serial line\n  try: end it: fuser -v {board.path}" in second.stderr
    )
    board.say(b"mine")
    session.until(b"mine")
    assert session.leave() == 0


@pytest.mark.parametrize(
    ("port", "message"),
    [
        ("/dev/ttyUSB99", "/dev/ttyUSB99: no such serial line\n  try: k1 console --list"),
        ("7-1.2.3", "no serial adapter at USB 7-1.2.3"),
        ("gopher://x", "gopher://x: cannot be opened"),
        ("socket://127.0.0.1:1", "socket://127.0.0.1:1: cannot be opened"),
        ("/dev/null", "/dev/null: cannot be opened"),
    ],
)
def test_a_line_that_cannot_be_opened_is_one_error(port: str, message: str) -> None:
    result = subprocess.run([*K1, port], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_socket_that_breaks_is_dialled_again() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as server:
        session = Session(f"socket://127.0.0.1:{port}")
        first, _ = server.accept()
        first.sendall(b"first")
        session.until(b"first")
        first.close()
        second, _ = server.accept()
        with second:
            second.sendall(b"second" * 1000)
            session.until(b"second" * 1000)
            session.type(b"typed")
            assert second.recv(5) == b"typed"
            assert session.leave() == 0


def serve_rfc2217(server: socket.socket, device: serial.SerialBase, speeds: list[int]) -> None:
    """A terminal server: what comes over the network goes to `device` and back, speeds are noted."""
    connection, _ = server.accept()
    connection.settimeout(0.05)
    manager = PortManager(device, SimpleNamespace(write=connection.sendall))
    with connection:
        while True:
            with contextlib.suppress(TimeoutError):
                data = connection.recv(1024)
                if not data:
                    return
                device.write(b"".join(manager.filter(data)))
            speeds.append(device.baudrate)
            connection.sendall(b"".join(manager.escape(device.read(device.in_waiting))))


def test_a_terminal_server_gets_the_speed_and_passes_all_bytes() -> None:
    port, speeds = free_port(), list[int]()
    device = serial.serial_for_url("loop://", timeout=0)  # says what it hears
    with socket.create_server(("127.0.0.1", port)) as server:
        thread = threading.Thread(target=serve_rfc2217, args=(server, device, speeds), daemon=True)
        thread.start()
        session = Session(f"rfc2217://127.0.0.1:{port}", "--baud", "57600")
        session.until(b"at 57600 8N1")
        typed = ALL_BYTES.replace(b"\x1d", b"") + b"end"
        session.type(typed)
        session.until(typed)
        assert session.leave() == 0
        thread.join(10)
    assert speeds[-1] == 57600


def test_an_adapter_is_named_by_its_place_on_the_usb(board: SerialBoard) -> None:
    board.power_on(b"hello")
    with Bus() as bus:
        bus.adapter("1-3", "ttyUSB7", board.path)
        listed = subprocess.run([*K1, "--list", "--json"], env=os.environ | bus.env, capture_output=True, text=True)
        assert json.loads(listed.stdout) == [{"device": "/dev/ttyUSB7", "usb": "1-3"}]
        for words in (("1-3",), ()):  # the only one needs no name
            session = Session(*words, **bus.env)
            session.until(b"Ctrl-]")
            board.say(b"hello")
            session.until(b"hello")
            assert session.leave() == 0


def test_of_two_adapters_one_must_be_named(board: SerialBoard) -> None:
    board.power_on()
    with Bus() as bus:
        bus.adapter("1-2", "ttyUSB0", board.path)
        bus.adapter("1-3", "ttyUSB1", board.path)
        result = subprocess.run(K1, env=os.environ | bus.env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert result.returncode == 2
    assert "2 USB serial adapters\n  | /dev/ttyUSB0  at USB 1-2\n  | /dev/ttyUSB1  at USB 1-3" in result.stderr


def test_the_end_of_a_pipe_leaves_the_console_when_the_board_is_quiet(board: SerialBoard) -> None:
    board.power_on(b"hello")
    result = subprocess.run([*K1, board.path], input=b"", capture_output=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, b"hello")


@pytest.mark.timeout(SOAK_SECONDS * 2 + 120)
def test_no_byte_is_lost_at_the_full_speed_of_a_pty(board: SerialBoard) -> None:
    """`make test-soak` does this for ten minutes."""
    board.power_on()
    pieces = [random.randbytes(size) for size in (1, 7, 4095, 4096, 4097, 65536)]
    wanted, sent, found, received = hashlib.sha256(), 0, hashlib.sha256(), 0
    process = subprocess.Popen([*K1, board.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin
    assert process.stdout

    def send() -> Iterator[tuple[float, bytes]]:
        nonlocal sent
        deadline = time.monotonic() + SOAK_SECONDS
        while time.monotonic() < deadline:
            piece = random.choice(pieces)
            wanted.update(piece)
            sent += len(piece)
            yield 0.0, piece
        yield 0.0, b"the end"

    board.play(send())
    last = b""
    while not last.endswith(b"the end"):
        data = os.read(process.stdout.fileno(), 1 << 16)
        assert data, "the console ended"
        found.update(data)
        received += len(data)
        last = (last + data)[-7:]
    process.communicate(b"\x1d", timeout=30)
    wanted.update(b"the end")
    print(f"{sent} bytes in {SOAK_SECONDS:.0f} s")
    assert received == sent + 7
    assert found.hexdigest() == wanted.hexdigest()
