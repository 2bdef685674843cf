"""dfu-util: one board is written, or read back; and DFU suffixes.

dfu-util's exit status says little: a board that leaves the bus at the final reset, as it should, makes it 251 or 74,
and 74 stands for every failure too. What it prints decides.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from k1.drivers.patience import scaled
from k1.drivers.usb import Device
from k1.errors import CheckFailed, K1Error
from k1.run import Result, run

PROGRAM = "dfu-util"
_PROGRESS = re.compile(r"(?:Download|Upload)\t\[.*\]\s+\d+%\s+(\d+) bytes")
_STATE = re.compile(r"DFU state\((\d+)\) = (\S+), status\((\d+)\) = (.*)")
_NOISE = re.compile(r"DFU suffix|^$|can't detach")
_AGAIN = "start the board with the BOOT key held, then call again"
# What dfu-util says → what it means, what to try.
_CAUSES = (
    ("LIBUSB_ERROR_NO_DEVICE", "it left the bus", f"check its cable and supply; {_AGAIN}"),
    ("LIBUSB_ERROR_TIMEOUT", "it does not answer any more", f"cut its power; {_AGAIN}"),
    ("LIBUSB_ERROR_PIPE", "it refused the request", f"is the file meant for it? else {_AGAIN}"),
    ("LIBUSB_ERROR_ACCESS", "no rights to it", "k1 flash install-udev"),
    ("LIBUSB_ERROR_BUSY", "another program uses it", "end that program, then call again"),
    ("No DFU capable USB device", "it left the bus before anything was written", _AGAIN),
    ("Lost device after RESET", "it did not come back from the reset", _AGAIN),
    ("still in Run-Time Mode", "it did not go to download mode", _AGAIN),
)


@dataclass(frozen=True)
class Verdict:
    """How a download ended: `written` to the last byte, `reset` as asked, else `cause` and what to `try_`."""

    written: bool
    reset: bool
    sent: int
    cause: str = ""
    try_: str = ""


def judge(result: Result) -> Verdict:
    """What a run of `dfu-util -D` did, by its output."""
    lines = result.output.splitlines()
    sent = max((int(found[1]) for line in lines if (found := _PROGRESS.match(line))), default=0)
    after = lines[lines.index("Download done.") :] if "Download done." in lines else []
    states = [found for line in after if (found := _STATE.match(line))]
    if states and states[-1][3] == "0" and "Done!" in after:
        # An error of the reset itself is told; a board that only left the bus by it is what we want.
        trouble = re.search(r"error resetting after download[ :(]*(\w+)", result.stderr)
        return Verdict(True, not trouble or trouble[1] == "LIBUSB_ERROR_NO_DEVICE", sent)
    return _failure(result, lines, sent)


def _failure(result: Result, lines: list[str], sent: int) -> Verdict:
    told = [found for line in lines if (found := _STATE.match(line)) and found[3] != "0"]
    if told:
        return Verdict(False, False, sent, f"it reports: {told[-1][4]}", f"is the file meant for it? else {_AGAIN}")
    for words, cause, hint in _CAUSES:
        if words in result.stderr:
            return Verdict(False, False, sent, cause, hint)
    last = [line for line in result.stderr.splitlines() if not _NOISE.search(line)][-1:]
    return Verdict(False, False, sent, f"dfu-util ended with {result.returncode}: {' '.join(last)}", _AGAIN)


def command(device: Device, alt: int) -> list[str]:
    """The words that name exactly this board, as it is plugged in now."""
    # Two ids: the first is that of run-time mode, and alone lets any device in download mode pass.
    words = [PROGRAM, "-d", f"{device.usb_id},{device.usb_id}", "-p", device.path, "-a", str(alt)]
    if device.dfu and device.dfu.is_run_time:
        return [*words, "-E", "1"]
    # The number is another one as soon as somebody plugs another board into the same place.
    return [*words, "-n", str(device.number)]


def download(device: Device, alt: int, file: Path, *, reset: bool, report: Callable[[int], None]) -> Verdict:
    """Write `file`; `report` is told the bytes sent so far."""
    return judge(_run([*command(device, alt), "-D", str(file), *(["-R"] if reset else [])], device, report))


def upload(device: Device, alt: int, target: Path, size: int, *, report: Callable[[int], None]) -> None:
    """Read at least `size` bytes back into the new file `target` and reset the board. CheckFailed if that fails."""
    result = _run([*command(device, alt), "-Z", str(size), "-U", str(target), "-R"], device, report)
    if "Upload done." not in result.output.splitlines():
        verdict = _failure(result, result.output.splitlines(), 0)
        raise CheckFailed(f"{device.path}: cannot be read back: {verdict.cause}", hint=verdict.try_)


def _run(words: list[str], device: Device, report: Callable[[int], None]) -> Result:
    def on_line(line: str) -> None:
        if found := _PROGRESS.match(line):
            report(int(found[1]))

    if not os.access(device.node, os.R_OK | os.W_OK):
        hint = "k1 flash install-udev, then plug the board in again"
        raise K1Error(f"{device.path}: no rights to {device.node}", hint=hint)
    return run(words, on_line=on_line, check=False, timeout=scaled(600.0))


# --- suffixes: DFU 1.1, appendix B

_SUFFIX = struct.Struct("<HHHH3sBI")


def split(data: bytes, name: str) -> tuple[bytes, str | None]:
    """A file's content without its suffix, and the vendor:product in it; None for a file without suffix.

    name: of the file, for the error of a suffix whose checksum is wrong.
    """
    if len(data) < _SUFFIX.size or data[-8:-5] != b"UFD":
        return data, None
    _release, product, vendor, _version, _mark, length, crc = _SUFFIX.unpack(data[-_SUFFIX.size :])
    if crc != _crc(data[:-4]) or not _SUFFIX.size <= length <= len(data):
        raise K1Error(f"{name}: damaged: the checksum in its DFU suffix is wrong", hint="build or copy the file again")
    return data[:-length], f"{vendor:04x}:{product:04x}"


def join(data: bytes, usb_id: str) -> bytes:
    """`data` with a suffix that names the board it is for."""
    vendor, product = (int(half, 16) for half in usb_id.split(":"))
    head = data + _SUFFIX.pack(0xFFFF, product, vendor, 0x0100, b"UFD", _SUFFIX.size, 0)[:-4]
    return head + struct.pack("<I", _crc(head))


def _crc(data: bytes) -> int:
    return zlib.crc32(data) ^ 0xFFFF_FFFF
