"""A board in USB download mode as a pure state machine: control requests in, answers out.

States, requests and status codes are those of the USB Device Firmware Upgrade specification 1.1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum

DETACH, DNLOAD, UPLOAD, GETSTATUS, CLRSTATUS, GETSTATE, ABORT = range(7)
GET_DESCRIPTOR, SET_INTERFACE = 6, 11
CAN_DOWNLOAD, CAN_UPLOAD, TOLERANT, WILL_DETACH = 1, 2, 4, 8
OK, ERR_WRITE = 0, 3


class State(IntEnum):
    """bState of the specification, A.1."""

    APP_IDLE = 0
    APP_DETACH = 1
    IDLE = 2
    DNLOAD_SYNC = 3
    DNBUSY = 4
    DNLOAD_IDLE = 5
    MANIFEST_SYNC = 6
    MANIFEST = 7
    MANIFEST_WAIT_RESET = 8
    UPLOAD_IDLE = 9
    ERROR = 10


class Stall(Exception):
    """The device refuses the request."""


class Hang(Exception):
    """The device does not answer at all."""


class Gone(Exception):
    """The device is not on the bus any more."""


@dataclass
class Faults:
    """What goes wrong, and at which byte of a download; None for never."""

    stall_at: int | None = None
    hang_at: int | None = None
    error_at: int | None = None
    unplug_at: int | None = None
    status_fails: bool = False  # the status request after the last block is refused
    vanishes: bool = False  # when the download is complete, without waiting for a reset
    reset_fails: bool = False
    flips: bool = False  # the last bit written is stored wrongly


@dataclass
class Board:
    """One board; `memory` is what the last complete download left, `received` what came in by the current one."""

    serial: str = "K1-0001"
    vendor: int = 0x1234
    product: int = 0x5678
    attributes: int = CAN_DOWNLOAD
    transfer_size: int = 1024
    state: State = State.IDLE
    faults: Faults = field(default_factory=Faults)
    memory: bytes = b""
    received: bytes = b""
    status: int = OK
    resets: int = 0
    downloads: int = 0
    is_on_bus: bool = True

    # --- descriptors

    def descriptors(self) -> bytes:
        """Device and configuration descriptors, as sysfs shows them."""
        functional = struct.pack("<BBBHHH", 9, 0x21, self.attributes, 1000, self.transfer_size, 0x0110)
        protocol = 1 if self.state <= State.APP_DETACH else 2
        interface = struct.pack("<9B", 9, 4, 0, 0, 0, 0xFE, 1, protocol, 4)
        body = interface + functional
        configuration = struct.pack("<BBHBBBBB", 9, 2, 9 + len(body), 1, 1, 0, 0x80, 50)
        device = struct.pack("<BBHBBBB", 18, 1, 0x0200, 0, 0, 0, 64)
        device += struct.pack("<HHHBBBB", self.vendor, self.product, 0x0100, 1, 2, 3, 1)
        return device + configuration + body

    def _string(self, index: int) -> bytes:
        texts = {1: "Prima Semiconductor", 2: "K1-DevKit-B02", 3: self.serial, 4: "OpenSBI"}
        if index == 0:
            return struct.pack("<BBH", 4, 3, 0x0409)
        data = texts[index].encode("utf-16-le")
        return bytes([len(data) + 2, 3]) + data

    # --- requests

    def control(self, kind: int, request: int, value: int, length: int, data: bytes) -> bytes:
        """Answer a control transfer: what it returns for one to the host, nothing for one to the device."""
        if not self.is_on_bus:
            raise Gone
        if kind == 0x80 and request == GET_DESCRIPTOR and value >> 8 == 3:
            return self._string(value & 0xFF)[:length]
        handlers = {
            (0x21, DETACH): lambda: self._detach(),
            (0x21, DNLOAD): lambda: self._download(data),
            (0xA1, UPLOAD): lambda: self._upload(value, length),
            (0xA1, GETSTATUS): lambda: self._get_status(),
            (0x21, CLRSTATUS): lambda: self._clear(),
            (0xA1, GETSTATE): lambda: bytes([self.state]),
            (0x21, ABORT): lambda: self._clear(),
        }
        if (kind, request) not in handlers:
            raise Stall
        answer: bytes = handlers[kind, request]()
        return answer

    def _detach(self) -> bytes:
        if self.state != State.APP_IDLE:
            raise Stall
        self.state = State.APP_DETACH
        return b""

    def _download(self, data: bytes) -> bytes:
        if self.state not in (State.IDLE, State.DNLOAD_IDLE):
            self._fail()
        if self.state == State.IDLE:
            if not data:
                self._fail()
            self.received = b""
            self.downloads += 1
        if not data:
            self.state = State.MANIFEST_SYNC
            return b""
        self._suffer(len(self.received) + len(data))
        self.received += data
        self.state = State.DNLOAD_SYNC
        return b""

    def _suffer(self, reached: int) -> None:
        faults = self.faults
        if faults.unplug_at is not None and reached > faults.unplug_at:
            self.is_on_bus = False
            raise Gone
        if faults.stall_at is not None and reached > faults.stall_at:
            raise Stall
        if faults.hang_at is not None and reached > faults.hang_at:
            raise Hang
        if faults.error_at is not None and reached > faults.error_at:
            self.status = ERR_WRITE

    def _fail(self) -> None:
        self.state, self.status = State.ERROR, 0x0F
        raise Stall

    def _get_status(self) -> bytes:
        if self.status != OK:
            self.state = State.ERROR
        elif self.state == State.DNLOAD_SYNC:
            self.state = State.DNLOAD_IDLE
        elif self.state == State.MANIFEST_SYNC:
            self._manifest()
        return struct.pack("<B3sBB", self.status, b"\0\0\0", self.state, 0)

    def _manifest(self) -> None:
        if self.faults.status_fails:
            raise Stall
        self.memory = self.received
        if self.faults.flips:
            self.memory = self.memory[:-1] + bytes([self.memory[-1] ^ 1])
        if self.faults.vanishes:
            self.is_on_bus = False
        self.state = State.IDLE if self.attributes & TOLERANT else State.MANIFEST_WAIT_RESET

    def _upload(self, block: int, length: int) -> bytes:
        if not self.attributes & CAN_UPLOAD or self.state not in (State.IDLE, State.UPLOAD_IDLE):
            self._fail()
        part = self.memory[block * self.transfer_size :][:length]
        self.state = State.UPLOAD_IDLE if len(part) == length else State.IDLE
        return part

    def _clear(self) -> bytes:
        self.state, self.status = State.IDLE, OK
        return b""

    def reset(self) -> None:
        """A USB reset: a board that was written starts its new firmware, one in run-time mode goes to download mode."""
        if self.faults.reset_fails:
            raise Stall
        self.resets += 1
        if self.state == State.APP_DETACH:
            self.state = State.IDLE
        elif self.memory:
            self.is_on_bus = False
            raise Gone

    def replug(self) -> None:
        """Power off and on with the BOOT key held: download mode again, memory as it was."""
        self.state, self.status, self.received, self.is_on_bus = State.IDLE, OK, b"", True
        self.faults = Faults()
