"""A board's serial line through pyserial: a device, the place of a USB adapter, or a URL (socket://, rfc2217://).

A thread moves the bytes into a pipe, so that every kind of line can be waited for with select(), and opens the line
again when it comes back: an adapter on the board itself vanishes with the board's power.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import threading
from collections.abc import Callable
from typing import Any

import pyudev
import serial

from k1.closing import Closing
from k1.drivers.patience import scaled
from k1.errors import K1Error
from k1.facts import SerialLine

_USB_PLACE = re.compile(r"\d+-\d+(\.\d+)*")
_CHUNK = 65536
_POLL = 0.2


def adapters() -> dict[str, str]:
    """The USB serial adapters: device → place on the USB. Both name a line."""
    found = {}
    for entry in pyudev.Context().list_devices(subsystem="tty"):
        parent = entry.find_parent("usb", "usb_device")
        if parent is not None and entry.device_node:
            found[str(entry.device_node)] = str(parent.sys_name)
    return dict(sorted(found.items()))


def only_adapter() -> str:
    """The device of the one USB serial adapter; K1Error when there is none or a choice."""
    found = adapters()
    if len(found) == 1:
        return next(iter(found))
    listed = "".join(f"\n  | {device}  at USB {place}" for device, place in found.items())
    hint = "name one by its device or place" if found else "connect the adapter, or give a device or URL"
    raise K1Error(f"{len(found) or 'no'} USB serial adapters{listed}", hint=hint)


class Absent(K1Error):
    """The line is not there now; it may come."""


class SerialPort(Closing):
    """An open serial line that comes back; one holder at a time."""

    def __init__(
        self,
        name: str,
        line: SerialLine,
        *,
        wait: bool = False,
        on_change: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Open the line `name`; `on_change` is told, on another thread, when it goes away and comes back.

        K1Error when it is not there, not allowed, or held by another program; `wait`: one that is not there may come.
        """
        self.name = name
        self.is_on = True
        self._line, self._on_change = line, on_change
        try:
            self._port = self._open()
        except Absent:
            if not wait:
                raise
            self._port = serial.Serial()  # not open: the thread takes it for one that went away
        self._output, self._input = os.pipe()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the line to the next holder."""
        self._closing.set()
        os.close(self._output)  # wakes a thread that waits for room in the pipe
        self._thread.join(scaled(5.0))
        self._port.close()

    def fileno(self) -> int:
        """For select(): readable when there is output."""
        return self._output

    def read(self, timeout: float) -> bytes:
        """What has come since the last call, waiting for some up to `timeout` seconds."""
        if not select.select([self._output], [], [], timeout)[0]:
            return b""
        data = os.read(self._output, _CHUNK)
        self.is_on = bool(data)
        return data

    def send(self, text: str | bytes) -> None:
        """Type `text`; while the line is away, it is lost."""
        with contextlib.suppress(OSError):  # serial.SerialException is one
            self._port.write(text.encode() if isinstance(text, str) else text)

    # --- the thread

    def _pump(self) -> None:
        """Move bytes until close(); a pipe that is full holds up the line, as it should."""
        try:
            while not self._closing.is_set():
                try:
                    data = self._receive()
                except OSError:
                    self._come_back()
                    continue
                view = memoryview(data)
                while view:
                    view = view[os.write(self._input, view) :]
        except BrokenPipeError:
            pass  # closed while it waited for room
        finally:
            os.close(self._input)

    def _receive(self) -> bytes:
        data: bytes = self._port.read(1)
        with contextlib.suppress(OSError):  # it went away just after this byte
            data += self._port.read(min(self._port.in_waiting, _CHUNK - 1)) if data else b""
        return data

    def _come_back(self) -> None:
        with contextlib.suppress(OSError):
            self._port.close()
        self._on_change(f"{self.name} went away; waiting for it")
        while not self._closing.wait(_POLL):
            with contextlib.suppress(K1Error):
                self._port = self._open()
                self._on_change(f"{self.name} is back")
                return

    # --- opening

    def _open(self) -> serial.Serial:
        device = self._device()
        settings: dict[str, Any] = {
            "baudrate": self._line.baud,
            "bytesize": self._line.data_bits,
            "parity": self._line.parity,
            "stopbits": self._line.stop_bits,
            "timeout": _POLL,
        }
        try:
            port = serial.serial_for_url(device, do_not_open=True, exclusive=True, **settings)
            # Opening would throw away what the board has said already, such as the banner after its power came back.
            for name in ("_reset_input_buffer", "reset_input_buffer"):
                setattr(port, name, lambda: None)
            port.open()
            return port
        except (OSError, ValueError) as error:
            raise self._cannot_open(device, error) from error

    def _device(self) -> str:
        """The device just now: an adapter that was unplugged may get another name."""
        if not _USB_PLACE.fullmatch(self.name):
            return self.name
        for device, place in adapters().items():
            if place == self.name:
                return device
        raise Absent(f"no serial adapter at USB {self.name}", hint="k1 console --list shows them")

    def _cannot_open(self, device: str, error: OSError | ValueError) -> K1Error:
        number = getattr(error, "errno", None)
        if "exclusively lock" in str(error) or number == errno.EBUSY:
            return K1Error(f"{device}: another program holds this serial line", hint="end it: fuser -v " + device)
        if number == errno.EACCES:
            return K1Error(f"{device}: no rights to it", hint="sudo adduser $USER dialout, then log in again")
        if number == errno.ENOENT:
            return Absent(f"{device}: no such serial line", hint="k1 console --list shows them")
        return K1Error(
            f"{device}: cannot be opened: {error}", hint="a device, a place on the USB, or socket://HOST:PORT"
        )
