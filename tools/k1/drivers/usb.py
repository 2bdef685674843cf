"""USB devices of this host as udev and sysfs know them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyudev

# Classes and descriptor types of the USB and DFU 1.1 specifications.
_INTERFACE, _DFU_FUNCTIONAL = 0x04, 0x21
_APPLICATION_SPECIFIC, _FIRMWARE_UPGRADE = 0xFE, 0x01
_RUN_TIME = 1
_CAN_UPLOAD, _TOLERANT = 0x02, 0x04


@dataclass(frozen=True)
class Dfu:
    """The download interface of a device.

    is_run_time: the device runs its firmware, and has to be asked to leave it.
    can_upload: it can be read back; tolerant: it takes further requests when it has been written.
    """

    is_run_time: bool
    can_upload: bool
    tolerant: bool


@dataclass(frozen=True)
class Device:
    """One device.

    path: its place on the bus (`1-1.4`), the same when it is plugged in again; number: another one then.
    usb_id: vendor:product; serial: empty for a device without one; dfu: None for one without download interface.
    """

    path: str
    number: int
    usb_id: str
    serial: str
    product: str
    node: Path
    dfu: Dfu | None

    def __str__(self) -> str:
        words = [self.path, self.usb_id, self.product, f"serial {self.serial}" if self.serial else ""]
        return " ".join(filter(None, words))


def devices() -> list[Device]:
    """Every USB device, by place on the bus."""
    found = pyudev.Context().list_devices(subsystem="usb", DEVTYPE="usb_device")
    return sorted(filter(None, map(_device, found)), key=lambda device: device.path)


def wait(enough: Callable[[list[Device]], bool], seconds: float) -> list[Device]:
    """The devices once `enough` says so of them, or as they are after `seconds`."""
    deadline = time.monotonic() + seconds
    for found in _changes(deadline):
        if enough(found):
            break
    return found


def _changes(deadline: float) -> Iterator[list[Device]]:
    # Listening begins before the first look, so that nothing is plugged in unseen between the two.
    monitor = pyudev.Monitor.from_netlink(pyudev.Context())
    monitor.filter_by("usb", "usb_device")
    monitor.start()
    yield devices()
    while (left := deadline - time.monotonic()) > 0:
        monitor.poll(min(left, 1.0))
        yield devices()  # without an event too: in a container there may be no udevd to send one


def parse_dfu(descriptors: bytes) -> Dfu | None:
    """The download interface that a device's descriptors (sysfs `descriptors`) tell of."""
    found, at = None, 0
    while at + 2 <= len(descriptors) and descriptors[at] >= 2:
        size, kind = descriptors[at : at + 2]
        body = descriptors[at : at + size]
        if kind == _INTERFACE and len(body) >= 8 and body[5:7] == bytes([_APPLICATION_SPECIFIC, _FIRMWARE_UPGRADE]):
            found = Dfu(body[7] == _RUN_TIME, can_upload=False, tolerant=False)
        elif kind == _DFU_FUNCTIONAL and len(body) >= 3 and found:
            return Dfu(found.is_run_time, bool(body[2] & _CAN_UPLOAD), bool(body[2] & _TOLERANT))
        at += size
    return found


def _device(entry: pyudev.Device) -> Device | None:
    """What sysfs says; None for a device that was unplugged while we looked."""

    def text(name: str) -> str:
        return str(entry.attributes.get(name, b"").decode(errors="replace").strip())

    if not (text("idVendor") and text("devnum")) or not entry.device_node:
        return None
    try:
        descriptors = Path(entry.sys_path, "descriptors").read_bytes()  # binary: udev would stop at the first zero
    except OSError:
        return None
    return Device(
        path=entry.sys_name,
        number=int(text("devnum")),
        usb_id=f"{text('idVendor')}:{text('idProduct')}",
        serial=text("serial"),
        product=text("product"),
        node=Path(entry.device_node),
        dfu=parse_dfu(descriptors),
    )
