"""A USB bus for unchanged programs: the real libusb, libudev, dfu-util and pyudev see the boards plugged into it.

libumockdev-preload redirects /sys and /dev of a program to a folder, and asks a Unix socket what an ioctl does. This
is the other end of that socket. Its protocol is private to umockdev: messages of three longs, as 0.17.16 has them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from emulators.dfu import Board, Gone, Hang, Stall

PRELOAD = "libumockdev-preload.so.0"
_COMMANDS, _DONE, _RUN, _READ, _WRITE = (1, 7, 8), 3, 4, 5, 6
# _IOC_NR of the ioctls of linux/usbdevice_fs.h
_SET_INTERFACE, _GET_DRIVER, _SUBMIT, _DISCARD, _REAP, _REAP_NO_DELAY = 4, 8, 10, 11, 12, 13
_CLAIM, _RELEASE, _RESET, _CAPABILITIES, _DISCONNECT_CLAIM = 15, 16, 20, 26, 27
_URB = struct.Struct("=BBxxiI4xQii")  # type, endpoint, status, flags, buffer, buffer_length, actual_length
_USB_MAJOR = 189


@dataclass
class _Port:
    """A board in its socket of the bus."""

    board: Board
    path: str
    number: int
    holder: object = None


class Bus:
    """Bus 1 and what is plugged into it; a context manager. `env` is what makes a program see it."""

    def __enter__(self) -> Bus:
        # Short, because the address of a Unix socket holds 107 bytes.
        self._root = Path(tempfile.mkdtemp(prefix="usb"))
        self._root.chmod(0o755)
        self.env = {"LD_PRELOAD": PRELOAD, "UMOCKDEV_DIR": str(self._root)}
        self._ports: dict[str, _Port] = {}
        self._listeners: dict[str, socket.socket] = {}
        self._number, self._sequence = 1, 0
        self._lock = threading.Lock()
        (self._root / "sys" / "bus" / "usb" / "devices").mkdir(parents=True)
        (self._root / "dev" / ".node").mkdir(parents=True)
        hub = struct.pack("<BBHBBBBHHHBBBB", 18, 1, 0x0200, 9, 0, 0, 64, 0x1D6B, 2, 0x0601, 0, 0, 0, 1)
        hub += struct.pack("<BBHBBBBB9B", 9, 2, 18, 1, 1, 0, 0xE0, 0, 9, 4, 0, 0, 0, 9, 0, 0, 0)
        self._sysfs("usb1", 1, hub, {"idVendor": "1d6b", "idProduct": "0002", "product": "root hub"})
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners.values():
            listener.close()
        shutil.rmtree(self._root)

    # --- plugs

    def plug(self, board: Board, path: str) -> Board:
        """Put a board into the socket `path`, such as 1-1; programs that listen to udev hear of it."""
        with self._lock:
            self._number += 1
            number = self._number
        board.is_on_bus = True
        node = self._root / "dev" / _node(number)
        node.parent.mkdir(parents=True, exist_ok=True)
        node.touch()
        node.chmod(0o666)
        (self._root / "dev" / ".node" / _node(number).replace("/", "_")).symlink_to(f"{_USB_MAJOR}:{number - 1}")
        port = _Port(board, path, number)
        self._ports[path] = port
        self._listen(_node(number), lambda client: self._serve(port, client))
        ids = {"idVendor": f"{board.vendor:04x}", "idProduct": f"{board.product:04x}"}
        texts = {"serial": board.serial, "product": "K1-DevKit-B02", "manufacturer": "Prima Semiconductor"}
        self._sysfs(path, number, board.descriptors(), ids | texts)
        self._uevent(path, number, "add")
        return board

    def adapter(self, path: str, name: str, tty: Path) -> None:
        """Put a serial adapter into the socket `path`: its device /dev/<name> is the existing pty `tty`."""
        self._sysfs(path, 200, b"", {"idVendor": "0403", "idProduct": "6001", "product": "serial adapter"})
        folder = self._root / "sys" / "devices" / "usb1" / path / f"{path}:1.0" / "tty" / name
        folder.mkdir(parents=True)
        kind = self._root / "sys" / "class" / "tty"
        kind.mkdir(parents=True, exist_ok=True)
        (folder / "subsystem").symlink_to(os.path.relpath(kind, folder))
        (folder / "dev").write_text("188:0\n")
        (folder / "uevent").write_text(f"MAJOR=188\nMINOR=0\nDEVNAME={name}\n")
        (kind / name).symlink_to(os.path.relpath(folder, kind))
        (self._root / "dev" / name).symlink_to(tty)
        self._listen(name, lambda client: _pass_on(_Memory(client)))

    def unplug(self, path: str) -> None:
        """Take out what is in the socket `path`; its next request fails."""
        with self._lock:
            port = self._ports.pop(path, None)
        if port is None:
            return
        port.board.is_on_bus = False
        self._listeners.pop(_node(port.number)).close()
        device = self._root / "sys" / "devices" / "usb1" / path
        (self._root / "sys" / "bus" / "usb" / "devices" / path).unlink()
        shutil.rmtree(device)
        (self._root / "dev" / _node(port.number)).unlink()
        self._uevent(path, port.number, "remove")

    def forbid(self, path: str) -> None:
        """Take away the rights to the device in the socket `path`, as without a udev rule."""
        (self._root / "dev" / _node(self._ports[path].number)).chmod(0)

    # --- sysfs and udev

    def _sysfs(self, path: str, number: int, descriptors: bytes, texts: dict[str, str]) -> None:
        devices = self._root / "sys" / "devices"
        folder = devices / "usb1" if path == "usb1" else devices / "usb1" / path
        folder.mkdir(parents=True)
        (folder / "subsystem").symlink_to(os.path.relpath(self._root / "sys" / "bus" / "usb", folder))
        values = {"busnum": "1", "devnum": str(number), "bConfigurationValue": "1", "speed": "480", **texts}
        values["dev"] = f"{_USB_MAJOR}:{number - 1}"
        for name, value in values.items():
            (folder / name).write_text(f"{value}\n")
        (folder / "descriptors").write_bytes(descriptors)
        (folder / "uevent").write_text("".join(f"{line}\n" for line in _properties(number)))
        link = self._root / "sys" / "bus" / "usb" / "devices" / path
        link.symlink_to(os.path.relpath(folder, link.parent))

    def _uevent(self, path: str, number: int, action: str) -> None:
        """Tell every program that listens, as udevd would."""
        self._sequence += 1
        lines = [f"ACTION={action}", f"DEVPATH=/devices/usb1/{path}", "SUBSYSTEM=usb", f"SEQNUM={self._sequence}"]
        body = b"".join(f"{line}\0".encode() for line in (*lines, *_properties(number)))
        # The kernel's socket filter compares hashes of these two.
        hashes = struct.pack(">II", _murmur(b"usb"), _murmur(b"usb_device"))
        head = b"libudev\0" + struct.pack(">I", 0xFEEDCAFE) + struct.pack("=III", 40, 40, len(body)) + hashes + bytes(8)
        for address in self._root.glob("event[0-9]*"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
                sender.connect(str(address))
                sender.send(head + body)

    # --- ioctls

    def _listen(self, node: str, serve: Callable[[socket.socket], None]) -> None:
        """Have `serve` answer the ioctls of each program that opens /dev/<node>."""
        address = self._root / "ioctl" / "dev" / node
        address.parent.mkdir(parents=True, exist_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(address))
        address.chmod(0o777)
        listener.listen()
        self._listeners[node] = listener

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def _serve(self, port: _Port, client: socket.socket) -> None:
        """One open file: answer its ioctls until it is closed."""
        finished: list[int] = []
        with client, contextlib.suppress(ConnectionError, EOFError):
            memory = _Memory(client)
            for request, pointer in memory.requests():
                try:
                    result, number = self._ioctl(port, client, memory, request & 0xFF, pointer, finished), 0
                except OSError as error:
                    result, number = -1, error.errno or errno.EIO
                if not port.board.is_on_bus:
                    self.unplug(port.path)
                memory.done(result, number)
        if port.holder is client:
            port.holder = None

    def _ioctl(
        self, port: _Port, client: socket.socket, memory: _Memory, number: int, pointer: int, finished: list[int]
    ) -> int:
        if number in (_REAP, _REAP_NO_DELAY) and finished:
            memory.write(pointer, struct.pack("=Q", finished.pop(0)))
        elif not port.board.is_on_bus:
            raise OSError(errno.ENODEV, "")
        elif number in (_REAP, _REAP_NO_DELAY):
            raise OSError(errno.EAGAIN, "")
        elif number == _SUBMIT:
            self._submit(port.board, memory, pointer, finished)
        elif number in (_CLAIM, _DISCONNECT_CLAIM):
            if port.holder not in (None, client):
                raise OSError(errno.EBUSY, "")
            port.holder = client
        elif number == _RELEASE:
            port.holder = None
        elif number == _GET_DRIVER:
            raise OSError(errno.ENODATA, "")
        elif number == _CAPABILITIES:
            memory.write(pointer, struct.pack("=I", 0))
        elif number == _RESET:
            self._reset(port)
        elif number == _DISCARD:
            finished.append(pointer)
        elif number != _SET_INTERFACE:
            raise OSError(errno.ENOTTY, "")
        return 0

    def _submit(self, board: Board, memory: _Memory, pointer: int, finished: list[int]) -> None:
        """A control transfer: its setup packet, then data in either direction."""
        *_, address, _size, _actual = _URB.unpack(memory.read(pointer, _URB.size))
        kind, request, value, _index, length = struct.unpack("<BBHHH", memory.read(address, 8))
        status, actual = 0, 0
        try:
            data = memory.read(address + 8, length) if length and not kind & 0x80 else b""
            answer = board.control(kind, request, value, length, data)
            if answer:
                memory.write(address + 8, answer)
            actual = len(answer if kind & 0x80 else data)
        except Stall:
            status = -errno.EPIPE
        except Hang:
            return
        except Gone as gone:
            raise OSError(errno.ENODEV, "") from gone
        memory.write(pointer + 4, struct.pack("=i", status))
        memory.write(pointer + 28, struct.pack("=i", actual))
        finished.append(pointer)

    def _reset(self, port: _Port) -> None:
        before = port.board.descriptors()
        try:
            port.board.reset()
        except Stall as stall:
            raise OSError(errno.EIO, "") from stall
        except Gone as gone:
            raise OSError(errno.ENODEV, "") from gone
        if port.board.descriptors() != before:  # another device now, at the same place
            self.unplug(port.path)
            threading.Timer(0.2, self.plug, (port.board, port.path)).start()
            raise OSError(errno.ENODEV, "")


def _pass_on(memory: _Memory) -> None:
    """A real device behind the node: its driver answers every ioctl."""
    with contextlib.suppress(ConnectionError, EOFError):
        for _request in memory.requests():
            memory.done(*memory.run())


class _Memory:
    """The memory of the program at the other end of an ioctl socket."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client

    def requests(self) -> Iterator[tuple[int, int]]:
        """Each ioctl: request and argument; and each read and write, which only a real device is asked for."""
        while True:
            command, request, pointer = struct.unpack("=QQQ", self._receive(24))
            assert command in _COMMANDS, f"umockdev sent {command}: another version of its protocol?"
            yield request, pointer

    def read(self, address: int, size: int) -> bytes:
        self._client.sendall(struct.pack("=QQQ", _READ, address, size))
        return self._receive(size)

    def write(self, address: int, data: bytes) -> None:
        self._client.sendall(struct.pack("=QQQ", _WRITE, address, len(data)) + data)

    def run(self) -> tuple[int, int]:
        """Have the program do the ioctl itself: result and errno."""
        self._client.sendall(struct.pack("=QQQ", _RUN, 0, 0))
        _, result, number = struct.unpack("=QqQ", self._receive(24))
        return result, number

    def done(self, result: int, number: int) -> None:
        """End the ioctl with its result and errno."""
        self._client.sendall(struct.pack("=qQQ", _DONE, result & 0xFFFF_FFFF_FFFF_FFFF, number))

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._client.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data


def _node(number: int) -> str:
    return f"bus/usb/001/{number:03d}"


def _properties(number: int) -> list[str]:
    return [f"MAJOR={_USB_MAJOR}", f"MINOR={number - 1}", f"DEVNAME={_node(number)}", "DEVTYPE=usb_device"]


def _murmur(text: bytes) -> int:
    """MurmurHash2 with the length as its seed, which is how udev hashes names."""
    mask, m = 0xFFFF_FFFF, 0x5BD1E995
    h, whole = len(text), len(text) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(text[at : at + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := text[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15
