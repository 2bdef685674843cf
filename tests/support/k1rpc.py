"""k1rpc in Python, by docs/protocol.md alone: it checks the C library, makes golden frames, and plays a node.

`python tests/support/k1rpc.py FOLDER` writes the golden frames, each with a JSON file that tells its fields.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
import sys
import time
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

FORWARD, BACKWARD, SYNC, OPEN, TRUNCATE, CANCEL, PING, PLAN, BYE = range(9)
HELLO, WELCOME, CONFIRM = 16, 17, 18
LAST, ERROR, REPLY = 1, 2, 4

_HEADER = struct.Struct("<4sHHIIQIIQIIQIIIIH38x16s")
_HELLO = struct.Struct("<32s32sQIIIIII32s64x")
SIGNED = 112  # bytes of a header that a tag covers


class Refused(Exception):
    """The other side refused; `tagged` tells whether its words carry a tag of the cluster's key."""

    def __init__(self, text: str, tagged: bool) -> None:
        super().__init__(text)
        self.tagged = tagged


@dataclass(frozen=True)
class Header:
    version: int = 1
    msg_type: int = 0
    layer_id: int = 0
    flags: int = 0
    seq_num: int = 0
    payload_size: int = 0
    crc32: int = 0
    session: int = 0
    rank: int = 0
    plan_epoch: int = 0
    request_id: int = 0
    slot: int = 0
    slot_gen: int = 0
    first_pos: int = 0
    n_tokens: int = 0
    dtype: int = 0
    mac: bytes = bytes(16)

    def encode(self) -> bytes:
        return _HEADER.pack(b"K1RP", *asdict(self).values())

    @classmethod
    def decode(cls, data: bytes) -> Header:
        magic, *values = _HEADER.unpack(data)
        if magic != b"K1RP":
            raise ValueError(f"not k1rpc: {magic!r}")
        return cls(*values)


@dataclass(frozen=True)
class Hello:
    nonce: bytes = bytes(32)
    model_sha256: bytes = b"\x09" * 32
    instance: int = 1
    to_rank: int = 0
    n_ranks: int = 2
    n_layer: int = 4
    n_embd: int = 16
    n_vocab: int = 32
    max_payload: int = 4096
    software: bytes = b"k1rpc.py"

    def encode(self) -> bytes:
        return _HELLO.pack(*asdict(self).values())

    @classmethod
    def decode(cls, data: bytes) -> Hello:
        return cls(*_HELLO.unpack(data))


# ---- keys and tags ----


def _rotl(x: int, n: int) -> int:
    return (x << n | x >> (32 - n)) & 0xFFFFFFFF


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, 2.3."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
    start += struct.unpack("<3I", nonce)
    x = start.copy()
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for a, b, c, d in (columns + diagonals) * 10:
        for rotated, added, other, by in ((d, a, b, 16), (b, c, d, 12), (d, a, b, 8), (b, c, d, 7)):
            x[added] = (x[added] + x[other]) & 0xFFFFFFFF
            x[rotated] = _rotl(x[rotated] ^ x[added], by)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(x, start, strict=True)))


def poly1305(key: bytes, message: bytes) -> bytes:
    """RFC 8439, 2.5."""
    r = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    total = 0
    for at in range(0, len(message), 16):
        total = (total + int.from_bytes(message[at : at + 16] + b"\x01", "little")) * r % (2**130 - 5)
    return ((total + int.from_bytes(key[16:], "little")) % 2**128).to_bytes(16, "little")


def _hash(key: bytes, data: bytes, size: int = 32) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=size).digest()


def hello_tag(cluster: bytes, head: bytes, payload: bytes, nonce: bytes = b"") -> bytes:
    """The tag of a hello, or of the refusal of one that had this nonce."""
    return _hash(_hash(cluster, b"k1rpc 1 hello"), nonce + head[:SIGNED] + payload, 16)


def link_keys(cluster: bytes, nonces: tuple[bytes, bytes], ranks: tuple[int, int]) -> tuple[bytes, bytes]:
    """Keys to the listener and to the dialler; the dialler's nonce and rank come first."""
    prk = _hash(cluster, b"k1rpc 1 link" + nonces[0] + nonces[1] + struct.pack("<II", *ranks))
    return _hash(prk, b"to listener"), _hash(prk, b"to dialler")


def frame_tag(key: bytes, seq_num: int, head: bytes, payload: bytes) -> bytes:
    once = chacha20_block(key, 0, struct.pack("<IQ", 0, seq_num))[:32]
    return poly1305(once, head[:SIGNED] + payload)


def _with_sizes(header: Header, payload: bytes) -> Header:
    return replace(header, payload_size=len(payload), crc32=zlib.crc32(payload) if payload else 0)


def seal(key: bytes, header: Header, payload: bytes) -> bytes:
    """A message with the tag of a connection's key; crc32 and payload_size are filled in when both are 0."""
    if header.crc32 == 0 and header.payload_size == 0:
        header = _with_sizes(header, payload)
    tag = frame_tag(key, header.seq_num, header.encode(), payload)
    return replace(header, mac=tag).encode() + payload


def seal_hello(cluster: bytes, header: Header, payload: bytes, nonce: bytes = b"") -> bytes:
    header = _with_sizes(header, payload)
    return replace(header, mac=hello_tag(cluster, header.encode(), payload, nonce)).encode() + payload


# ---- a node ----


def read_exactly(sock: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        piece = sock.recv(n - len(data))
        if not piece:
            raise EOFError(f"{len(data)} of {n} bytes came")
        data += piece
    return data


def read_message(sock: socket.socket) -> tuple[Header, bytes]:
    header = Header.decode(read_exactly(sock, _HEADER.size))
    return header, read_exactly(sock, header.payload_size)


@dataclass
class Sender:
    """A connection that this node has dialled."""

    sock: socket.socket
    key: bytes
    rank: int
    session: int
    welcome: Hello
    seq_num: int = 1

    def send(self, msg_type: int, payload: bytes = b"", **fields: int) -> None:
        given = {"rank": self.rank, "session": self.session, "seq_num": self.seq_num, **fields}
        self.sock.sendall(seal(self.key, Header(msg_type=msg_type, **given), payload))
        self.seq_num += 1

    def ping(self) -> None:
        self.send(PING, struct.pack("<Q", time.monotonic_ns() // 1000))


@dataclass
class Receiver:
    """A connection that another node has dialled."""

    sock: socket.socket
    key: bytes
    hello: Hello
    rank: int
    seq_num: int = 1

    def receive(self) -> tuple[Header, bytes]:
        """The next message but pings; raises EOFError at the end and ValueError when a check fails."""
        while True:
            header, payload = read_message(self.sock)
            expected = frame_tag(self.key, self.seq_num, header.encode(), payload)
            crc = zlib.crc32(payload) if payload else 0
            if not hmac.compare_digest(expected, header.mac) or (header.seq_num, header.crc32) != (self.seq_num, crc):
                raise ValueError(f"a message that fails its checks: {header}")
            self.seq_num += 1
            if header.msg_type != PING:
                return header, payload


@dataclass
class Node:
    """One rank: change `hello` to lie about anything."""

    rank: int
    cluster: bytes
    hello: Hello
    session: int = 0

    def greeting(self, to_rank: int, **header: int) -> bytes:
        payload = replace(self.hello, to_rank=to_rank).encode()
        fields = {"rank": self.rank, "session": self.session, "msg_type": HELLO, **header}
        return seal_hello(self.cluster, Header(**fields), payload)

    def dial(self, address: tuple[str, int], to_rank: int, **header: int) -> Sender:
        """Connect and shake hands. Raises `Refused`."""
        sock = socket.create_connection(address, timeout=10)
        sock.sendall(self.greeting(to_rank, **header))
        answer, payload = read_message(sock)
        if answer.flags & ERROR:
            sock.close()
            tag = hello_tag(self.cluster, answer.encode(), payload, self.hello.nonce)
            raise Refused(payload.decode(), tagged=hmac.compare_digest(tag, answer.mac))
        welcome = Hello.decode(payload)
        keys = link_keys(self.cluster, (self.hello.nonce, welcome.nonce), (self.rank, to_rank))
        if not hmac.compare_digest(frame_tag(keys[1], 0, answer.encode(), payload), answer.mac):
            raise ValueError("the welcome's tag is wrong")
        sender = Sender(sock, keys[0], self.rank, self.session or answer.session, welcome)
        sender.send(CONFIRM)
        return sender

    def accept(self, listening: socket.socket) -> Receiver:
        """Take the next dialler. Raises `Refused` when it says bye instead of confirm."""
        sock, _ = listening.accept()
        sock.settimeout(10)
        header, payload = read_message(sock)
        hello = Hello.decode(payload)
        if header.msg_type != HELLO or header.mac != hello_tag(self.cluster, header.encode(), payload):
            raise ValueError(f"no hello of this cluster: {header}")
        keys = link_keys(self.cluster, (hello.nonce, self.hello.nonce), (header.rank, self.rank))
        welcome = Header(msg_type=WELCOME, rank=self.rank, session=self.session)
        sock.sendall(seal(keys[1], welcome, replace(self.hello, to_rank=header.rank).encode()))
        receiver = Receiver(sock, keys[0], hello, header.rank)
        answer, text = receiver.receive()
        if answer.msg_type != CONFIRM:
            raise Refused(text.decode(), tagged=True)
        return receiver


# ---- golden frames ----

GOLDEN_KEY = bytes(range(32))
GOLDEN_NONCES = (b"\x11" * 32, b"\x22" * 32)
GOLDEN_SESSION = 0x1122334455667788


def _golden_payloads() -> dict[str, tuple[Header, bytes]]:
    """The messages of rank 0 to rank 1 after confirm."""
    place = Header(
        session=GOLDEN_SESSION, plan_epoch=3, request_id=0x0102030405060708, slot=2, slot_gen=5, first_pos=9, n_tokens=3
    )
    trace = struct.pack("<iI56x", -1, 2) + struct.pack("<II8x", 1000, 2000) + bytes(15 * 16)
    ids = struct.pack("<3i", 1, 22, 333)
    activations = struct.pack("<12f", *(i / 4 - 1 for i in range(12)))
    sampling = struct.pack("<fifffIQ32x", 0.75, 40, 0.875, 0.0625, 1.125, 64, 0xFEDCBA9876543210)
    plan = struct.pack("<4I48x", 2, 2048, 64, 4) + struct.pack("<4I", 0, 3, 3, 4) + bytes(14 * 8)
    return {
        "forward": (
            replace(place, msg_type=FORWARD, layer_id=7, flags=LAST),
            ids.ljust(64, b"\0") + trace + activations,
        ),
        "backward-error": (replace(place, msg_type=BACKWARD, flags=ERROR), "rank 1: niños".encode()),
        "open": (replace(place, msg_type=OPEN), sampling),
        "cancel": (replace(place, msg_type=CANCEL), b""),
        "ping": (Header(msg_type=PING, session=GOLDEN_SESSION), struct.pack("<Q", 123456789)),
        "plan": (Header(msg_type=PLAN, session=GOLDEN_SESSION, plan_epoch=3), plan),
        "bye": (Header(msg_type=BYE, session=GOLDEN_SESSION), b"stopping"),
    }


def golden() -> dict[str, bytes]:
    """All golden frames: rank 0 of a cluster of two dials rank 1."""
    hello = Hello(GOLDEN_NONCES[0], instance=0xA1A2A3A4A5A6A7A8, to_rank=1, software=b"golden")
    welcome = Hello(GOLDEN_NONCES[1], instance=0xB1B2B3B4B5B6B7B8, to_rank=0, software=b"golden")
    to_listener, to_dialler = link_keys(GOLDEN_KEY, GOLDEN_NONCES, (0, 1))
    first = Header(msg_type=HELLO, session=GOLDEN_SESSION)
    no = Header(msg_type=WELCOME, flags=ERROR, rank=1)
    frames = {
        "hello": seal_hello(GOLDEN_KEY, first, hello.encode()),
        "welcome": seal(to_dialler, Header(msg_type=WELCOME, rank=1), welcome.encode()),
        "welcome-refusal": seal_hello(GOLDEN_KEY, no, b"no", GOLDEN_NONCES[0]),
        "confirm": seal(to_listener, Header(msg_type=CONFIRM, session=GOLDEN_SESSION, seq_num=1), b""),
    }
    for seq_num, (name, (header, payload)) in enumerate(_golden_payloads().items(), start=2):
        frames[name] = seal(to_listener, replace(header, seq_num=seq_num), payload)
    return frames


def describe(frame: bytes) -> dict[str, int | str]:
    """A frame's fields, as its JSON file has them."""
    fields = asdict(Header.decode(frame[: _HEADER.size]))
    return {**fields, "mac": fields["mac"].hex(), "payload": frame[_HEADER.size :].hex()}


def main() -> None:
    folder = Path(sys.argv[1])
    for name, frame in golden().items():
        (folder / f"{name}.bin").write_bytes(frame)
        (folder / f"{name}.json").write_text(json.dumps(describe(frame), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
