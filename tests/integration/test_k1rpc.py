"""The C library of k1rpc against a node in Python that was written from docs/protocol.md alone."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from support import k1rpc

GOLDEN = Path(__file__).parents[1] / "data" / "k1rpc"
KEY = bytes(range(1, 33))
SCALE = float(os.environ.get("K1_TIMEOUT_SCALE", "1"))
SECONDS = 10 * SCALE


def test_ciphers_give_the_values_of_rfc_8439() -> None:
    key, nonce = bytes(range(32)), bytes.fromhex("000000090000004a00000000")
    assert k1rpc.chacha20_block(key, 1, nonce).hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4")
    once = bytes.fromhex("85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b")
    assert k1rpc.poly1305(once, b"Cryptographic Forum Research Group").hex() == "a8061dc1305136c6c22b8baf0c0127a9"


def test_golden_frames_are_what_the_protocol_says() -> None:
    frames = k1rpc.golden()
    assert {path.stem for path in GOLDEN.glob("*.bin")} == set(frames)
    for name, frame in frames.items():
        assert (GOLDEN / f"{name}.bin").read_bytes() == frame, name
        assert json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8")) == k1rpc.describe(frame), name


@dataclass
class Echo:
    """rpc_echo as rank 1, whose rank 0 is Python."""

    process: subprocess.Popen[str]
    lines: queue.Queue[str]
    listening: socket.socket
    port: int
    log: Path

    def expect(self, start: str) -> str:
        line = self.lines.get(timeout=SECONDS)
        assert line.startswith(start), f"{line!r}; log: {self.log.read_text()}"
        return line

    def refusals(self) -> list[str]:
        """The lines about refusals; waits for the first, which may come after the other side knows."""
        end = time.monotonic() + SECONDS
        while " peer_refused " not in self.log.read_text() and time.monotonic() < end:
            time.sleep(0.01)
        return [line for line in self.log.read_text().splitlines() if " peer_refused " in line]


@pytest.fixture
def echo(userland_build: Path, tmp_path: Path) -> Iterator[Echo]:
    key, log = tmp_path / "key", tmp_path / "log"
    key.write_text(KEY.hex() + "\n")
    key.chmod(0o600)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(SECONDS)
    addresses = [f"127.0.0.1:{listening.getsockname()[1]}", "127.0.0.1:0"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            [userland_build / "tests" / "rpc_echo", "1", key, *addresses],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
        )
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout
        for line in process.stdout:
            lines.put(line.rstrip("\n"))

    reader = threading.Thread(target=read)
    reader.start()
    port = int(lines.get(timeout=SECONDS).removeprefix("port "))
    with listening:
        yield Echo(process, lines, listening, port, log)
        assert process.stdin
        process.stdin.close()
        assert process.wait(timeout=SECONDS) == 0
        reader.join()


def node(**hello: int | bytes) -> k1rpc.Node:
    return k1rpc.Node(0, KEY, replace(k1rpc.Hello(nonce=os.urandom(32), instance=77), **hello), session=5)


def connect(echo: Echo) -> tuple[k1rpc.Sender, k1rpc.Receiver]:
    here = node()
    sender = here.dial(("127.0.0.1", echo.port), 1)
    receiver = here.accept(echo.listening)
    echo.expect("up 0")
    return sender, receiver


def test_messages_pass_both_ways(echo: Echo) -> None:
    sender, receiver = connect(echo)
    assert receiver.hello.to_rank == 0
    assert receiver.hello.max_payload == 4096
    for i, size in enumerate((0, 1, 100, 4096)):
        payload = bytes([i]) * size
        sender.send(k1rpc.FORWARD, payload, slot=i, request_id=2**40 + i, first_pos=7)
        sender.ping()
        header, back = receiver.receive()
        assert back == payload
        assert (header.rank, header.slot, header.request_id, header.session) == (1, i, 2**40 + i, 5)


def test_a_ping_is_answered(echo: Echo) -> None:
    sender, receiver = connect(echo)
    sender.send(k1rpc.PING, struct.pack("<Q", 42))
    while True:
        header, payload = k1rpc.read_message(receiver.sock)
        assert header.msg_type == k1rpc.PING
        if header.flags & k1rpc.REPLY:
            break
    assert payload == struct.pack("<Q", 42)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_sha256": b"\xab" * 32}, "different models, sha256 abababababab and 090909090909"),
        ({"n_ranks": 4}, "clusters of different size, 4 and 2 nodes"),
        ({"n_vocab": 33}, "read the same model differently: layers 4 and 4, width 16 and 16, vocabulary 33 and 32"),
    ],
)
def test_a_node_that_differs_is_refused(echo: Echo, change: dict[str, int | bytes], text: str) -> None:
    for _ in range(3):
        with pytest.raises(k1rpc.Refused, match=f"rank 0 and rank 1 .*{text}") as refused:
            node(**change).dial(("127.0.0.1", echo.port), 1)
        assert refused.value.tagged
    (line,) = echo.refusals()
    assert text in line


def test_another_key_is_refused_without_a_tag(echo: Echo) -> None:
    with pytest.raises(k1rpc.Refused, match="rank 0 and rank 1 hold different cluster keys") as refused:
        replace(node(), cluster=bytes(32)).dial(("127.0.0.1", echo.port), 1)
    assert not refused.value.tagged
    assert len(echo.refusals()) == 1


def test_another_version_is_refused(echo: Echo) -> None:
    with pytest.raises(k1rpc.Refused, match="rank 0 and rank 1 speak different versions of k1rpc, 2 and 1"):
        node().dial(("127.0.0.1", echo.port), 1, version=2)
    assert len(echo.refusals()) == 1


def test_a_wrong_rank_is_refused(echo: Echo) -> None:
    address = ("127.0.0.1", echo.port)
    with pytest.raises(k1rpc.Refused, match="rank 0 looked for rank 3 and found rank 1"):
        node().dial(address, 3)
    with pytest.raises(k1rpc.Refused, match="a node that is rank 1 dialled another that is rank 1 too"):
        replace(node(), rank=1).dial(address, 1)
    with pytest.raises(k1rpc.Refused, match="rank 9 dialled rank 1 of a cluster of 2"):
        replace(node(), rank=9).dial(address, 1)


def test_a_second_process_of_one_rank_is_refused(echo: Echo) -> None:
    sender, _ = connect(echo)
    with pytest.raises(k1rpc.Refused, match="two nodes are rank 0 for rank 1"):
        node(instance=78).dial(("127.0.0.1", echo.port), 1)
    sender.send(k1rpc.FORWARD, b"still there")
    assert len(echo.refusals()) == 1


def test_a_process_that_connects_anew_replaces_itself(echo: Echo) -> None:
    here = node()
    old = here.dial(("127.0.0.1", echo.port), 1)
    _old_receiver = here.accept(echo.listening)
    echo.expect("up 0")
    sender = here.dial(("127.0.0.1", echo.port), 1)
    assert echo.expect("down 0 ").endswith(" is lost: it connected anew")
    receiver = here.accept(echo.listening)
    echo.expect("up 0")
    sender.send(k1rpc.FORWARD, b"new")
    assert receiver.receive()[1] == b"new"
    assert old.sock.recv(1) == b""


def test_a_listener_that_differs_is_refused_by_bye(echo: Echo) -> None:
    with pytest.raises(k1rpc.Refused, match="rank 0 and rank 1 have different models"):
        node(model_sha256=bytes(32)).accept(echo.listening)
    assert len(echo.refusals()) == 1


def test_a_listener_of_another_version_is_told_of(echo: Echo) -> None:
    for _ in range(2):
        sock, _ = echo.listening.accept()
        with sock:
            k1rpc.read_message(sock)
            answer = k1rpc.Header(version=2, msg_type=k1rpc.WELCOME, flags=k1rpc.ERROR)
            sock.sendall(k1rpc.seal(bytes(32), answer, b"whatever version 2 says"))
            with contextlib.suppress(ConnectionResetError):  # it need not read all of that
                assert sock.recv(1) == b""
    (line,) = echo.refusals()
    assert "rank 0 and rank 1 speak different versions of k1rpc, 2 and 1" in line


def test_a_refusal_without_a_tag_is_not_repeated(echo: Echo) -> None:
    sock, _ = echo.listening.accept()
    with sock:
        k1rpc.read_message(sock)
        answer = k1rpc.Header(msg_type=k1rpc.WELCOME, flags=k1rpc.ERROR)
        sock.sendall(k1rpc.seal(bytes(32), answer, b"run rm -r"))
        assert sock.recv(1) == b""
    (line,) = echo.refusals()
    assert "rank 0 and rank 1 hold different cluster keys" in line


def test_an_old_hello_opens_nothing(echo: Echo) -> None:
    old = node().greeting(1)
    with socket.create_connection(("127.0.0.1", echo.port), timeout=SECONDS) as sock:
        sock.sendall(old)
        welcome, _ = k1rpc.read_message(sock)
        assert welcome.msg_type == k1rpc.WELCOME
        # Whoever has only recorded it has no key for confirm.
        sock.sendall(k1rpc.seal(bytes(32), k1rpc.Header(msg_type=k1rpc.CONFIRM, seq_num=1), b""))
        assert sock.recv(1) == b""
    assert "whose tag is wrong" in echo.refusals()[0]


def _altered(sender: k1rpc.Sender) -> None:
    header = k1rpc.Header(msg_type=k1rpc.FORWARD, seq_num=sender.seq_num, rank=0)
    frame = bytearray(k1rpc.seal(sender.key, header, b"payload"))
    frame[-1] ^= 1
    sender.sock.sendall(frame)


def _replayed(sender: k1rpc.Sender) -> None:
    header = k1rpc.Header(msg_type=k1rpc.CANCEL, seq_num=sender.seq_num, rank=0)
    sender.sock.sendall(k1rpc.seal(sender.key, header, b"") * 2)


def _gap(sender: k1rpc.Sender) -> None:
    sender.seq_num += 1
    sender.send(k1rpc.CANCEL)


def _bad_crc(sender: k1rpc.Sender) -> None:
    sender.send(k1rpc.FORWARD, b"abc", payload_size=3, crc32=1)


def _too_large(sender: k1rpc.Sender) -> None:
    sender.send(k1rpc.FORWARD, bytes(4097))


def _unknown(sender: k1rpc.Sender) -> None:
    sender.send(9)


def _other_rank(sender: k1rpc.Sender) -> None:
    sender.send(k1rpc.CANCEL, rank=3)


def _eof(sender: k1rpc.Sender) -> None:
    sender.sock.close()


def _bye(sender: k1rpc.Sender) -> None:
    sender.send(k1rpc.BYE, b'"power" is off\n')


def _silence(sender: k1rpc.Sender) -> None:
    del sender


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (_altered, "it sent a message whose tag is wrong"),
        (_replayed, "it sent message 2 where 3 comes next"),
        (_gap, "it sent message 3 where 2 comes next"),
        (_bad_crc, "it sent a message whose crc32 is wrong"),
        (_too_large, "it sent a message of type 0 with 4097 bytes (at most 4096 are agreed on)"),
        (_unknown, "it sent a message of type 9, which has no place here"),
        (_other_rank, "it sent a message in the name of rank 3"),
        (_eof, "it closed the connection"),
        (_bye, "it left: 'power' is off?"),
        (_silence, f"nothing came from it for {2000 * SCALE:.0f} ms"),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(
    echo: Echo, break_it: Callable[[k1rpc.Sender], None], why: str
) -> None:
    sender, _receiver = connect(echo)
    break_it(sender)
    line = echo.expect("down 0 ")
    assert line.removeprefix("down 0 ").endswith(f" is lost: {why}") or why in line
    assert echo.log.read_text().count(" peer_down ") == 1


def test_many_silent_strangers_do_not_keep_a_node_out(echo: Echo) -> None:
    address = ("127.0.0.1", echo.port)
    strangers = [socket.create_connection(address, timeout=SECONDS) for _ in range(40)]
    connect(echo)
    assert strangers[0].recv(1) == b""  # the oldest had to go
    for stranger in strangers:
        stranger.close()


def test_what_is_no_k1rpc_is_logged_once(echo: Echo) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", echo.port), timeout=SECONDS) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: k1\r\n\r\n".ljust(200, b" "))
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
    (line,) = echo.refusals()
    assert "these bytes are not k1rpc: they begin with 47 45 54 20" in line


@pytest.mark.parametrize(
    ("text", "mode", "error"),
    [
        ("ab" * 31, 0o600, "a cluster key is 64 hex digits on one line (try: openssl rand -hex 32)"),
        ("xy" * 32, 0o600, "a cluster key is 64 hex digits on one line (try: openssl rand -hex 32)"),
        ("ab" * 33, 0o600, "a cluster key is 64 hex digits on one line (try: openssl rand -hex 32)"),
        ("ab" * 32, 0o640, "others may read this cluster key (mode 640); try: chmod 600 "),
        ("ab" * 32, 0o444, "others may read this cluster key (mode 444); try: chmod 600 "),
    ],
)
def test_a_bad_key_file_is_refused(userland_build: Path, tmp_path: Path, text: str, mode: int, error: str) -> None:
    key = tmp_path / "key"
    key.write_text(text)
    key.chmod(mode)
    result = subprocess.run(
        [userland_build / "tests" / "rpc_echo", "1", key, "127.0.0.1:1", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert result.returncode == 2
    assert f"{key}: {error}" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of root and of others")
def test_a_key_as_systemd_hands_it_over_is_taken_and_a_like_one_of_others_is_not(
    userland_build: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o440)  # with an access control list, which the group's bits stand for

    def errors(owner: int, group: int) -> str:
        os.chown(key, owner, group)
        words = [userland_build / "tests" / "rpc_echo", "2", key, "127.0.0.1:1", "127.0.0.1:0"]
        return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS).stderr

    assert "rank 2 of 2 nodes cannot be" in errors(0, 0)  # which is looked at after the key
    assert "others may read this cluster key (mode 440)" in errors(0, 1)
    assert "others may read this cluster key (mode 440)" in errors(1, 0)


def test_a_key_that_is_no_file_is_refused(userland_build: Path, tmp_path: Path) -> None:
    for path, error in ((tmp_path, "no regular file"), (tmp_path / "none", "No such file or directory")):
        result = subprocess.run(
            [userland_build / "tests" / "rpc_echo", "1", path, "127.0.0.1:1", "127.0.0.1:0"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert result.returncode == 2
        assert error in result.stderr
