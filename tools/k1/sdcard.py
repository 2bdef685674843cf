"""A card image onto a card: refused where it would do harm, resumed where it stopped, compared when it is done."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from k1 import files, output
from k1.board import Board
from k1.drivers import blockdev
from k1.errors import CheckFailed, K1Error
from k1.image import manifest

IMAGE = "sdcard.img"
_CHUNK = 4 << 20
# Where an old card may have its backup partition table, which would come back when the new one is damaged.
_END = 1 << 20
# Data reaches the card step by step, so that the progress shown is the card's and not the host's memory's.
_FLUSH_EVERY = 64 << 20

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Target:
    """What is written to: a disk, or a plain file (`disk` None). `path` is free of symbolic links."""

    path: Path
    disk: blockdev.Disk | None

    def __str__(self) -> str:
        if not self.disk:
            return str(self.path)
        return f"{self.path} ({self.disk.model or 'no name'}, {output.size(self.disk.size)})"


@dataclass(frozen=True)
class Outcome:
    """What was done: bytes of data written, zeroed, and found right already; `seconds` for all of it."""

    target: str
    image: str
    sha256: str
    size: int
    written: int
    zeroed: int
    kept: int
    seconds: float
    verified: bool


def image(board: Board, file: Path | None, *, any_file: bool = False) -> tuple[Path, str]:
    """The image and its SHA-256: by default the board's built one; one its build did not make is refused."""
    path = manifest.built(board.name, IMAGE, file)
    digest = files.sha256(path)
    if not any_file:
        manifest.require(board.name, path, digest)
    return path, digest


def target(device: Path, size: int, *, device_ok: bool = False, host: blockdev.Host | None = None) -> Target:
    """The target for an image of `size` bytes, or K1Error: anything whose content may be missed is refused.

    device_ok: also a disk that is not removable, or a plain file that holds something. Nothing makes it take the
    system's disk, or one in use.
    """
    path = device.resolve()
    shown = str(device) if path == device.absolute() else f"{device} ({path})"
    if path.exists() and blockdev.is_block(path):
        host = host or blockdev.Host()
        name = host.name(path)
        if whole := host.whole(name):
            raise K1Error(f"{shown}: is a partition", hint=f"give the whole disk, /dev/{whole}")
        disk = host.disk(name)
        _check_disk(shown, disk, size, device_ok)
        return Target(path, disk)
    _check_file(shown, path, size, device_ok)
    return Target(path, None)


def _check_disk(shown: str, disk: blockdev.Disk, size: int, device_ok: bool) -> None:
    if disk.is_system:
        raise K1Error(f"{shown}: this system runs from it", hint="k1 sdcard list shows the cards")
    if disk.uses:
        raise K1Error(f"{shown}: is in use: {'; '.join(disk.uses)}", hint=f"umount it first (umount {disk.node}*)")
    if not disk.size:
        raise K1Error(f"{shown}: there is no card in it", hint="put one in")
    if disk.is_read_only:
        raise K1Error(f"{shown}: is write-protected", hint="move the lock on the card's edge")
    if disk.size < size:
        text = f"{shown}: too small: {output.size(disk.size)}, the image has {output.size(size)}"
        raise K1Error(text, hint="take a larger card")
    if not (disk.is_removable or disk.is_loop or device_ok):
        text = f"{shown}: is not removable: {disk.model or 'no name'}, {output.size(disk.size)}"
        raise K1Error(text, hint="if it is the eMMC or a USB reader you mean, add --device-ok")


def _check_file(shown: str, path: Path, size: int, device_ok: bool) -> None:
    if str(path).startswith("/dev/"):
        raise K1Error(f"{shown}: no such block device", hint="k1 sdcard list shows the cards")
    if path.exists() and not path.is_file():
        raise K1Error(f"{shown}: neither a disk nor a plain file", hint="k1 sdcard list shows the cards")
    if not path.parent.is_dir():
        raise K1Error(f"{shown}: there is no folder {path.parent}", hint="make it, or give another name")
    if path.exists() and path.stat().st_size not in (0, size) and not device_ok:
        raise K1Error(f"{shown}: holds something else", hint="give another name, or --device-ok to replace it")


def write(source: Path, sha256: str, target: Target, report: Report) -> Outcome:
    """Write the image and compare what the card then holds, byte for byte.

    What is right already at the beginning is left: a call that was killed goes on where it stopped. Holes of the
    image become zeros, which a card does by itself if it can. report: is told the step, bytes done and bytes in all.
    CheckFailed for a card that cannot be written, or reads back other bytes.
    """
    started = time.monotonic()
    if target.path.exists() and source.samefile(target.path):
        raise K1Error(f"{target.path}: is the image itself", hint="give another target")
    with source.open("rb") as data, _opened(target) as card:
        writer = _Writer(data, card, target, report)
        try:
            writer.copy()
            writer.finish()
            writer.compare()
        except OSError as error:
            text = f"{target.path}: {error.strerror} after {output.size(writer.done)}"
            hint = "put the card in again and repeat the command: what is written is kept; a worn card needs replacing"
            raise CheckFailed(text, hint="free some space" if error.errno == errno.ENOSPC else hint) from error
        return Outcome(
            target=str(target.path),
            image=str(source),
            sha256=sha256,
            size=writer.size,
            written=writer.written,
            zeroed=writer.zeroed,
            kept=writer.kept,
            seconds=round(time.monotonic() - started, 3),
            verified=True,
        )


@contextlib.contextmanager
def _opened(target: Target) -> Iterator[BinaryIO]:
    # On a disk O_EXCL asks the kernel once more whether anybody uses it.
    flags = os.O_RDWR | (os.O_EXCL if target.disk else os.O_CREAT)
    try:
        descriptor = os.open(target.path, flags, 0o644)
    except PermissionError as error:
        raise K1Error(f"{target.path}: no rights to write it", hint="call with sudo") from error
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise K1Error(f"{target.path}: is in use", hint="umount it, end other programs that use it") from error
        raise
    with os.fdopen(descriptor, "r+b", buffering=0) as card:
        try:
            fcntl.flock(card, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise K1Error(f"{target.path}: another k1 command writes it", hint="wait for it to end") from error
        yield card


class _Writer:
    """One copy of an image to a card. `done`: bytes of the image that are behind us."""

    def __init__(self, data: BinaryIO, card: BinaryIO, target: Target, report: Report) -> None:
        self._data, self._card, self._target, self._report = data, card, target, report
        self.size = os.fstat(data.fileno()).st_size
        self.done = self.written = self.zeroed = self.kept = 0

    def copy(self) -> None:
        """Write what is not right yet: from the first difference on, all data, and what of the holes is not zero."""
        if self._target.disk is None:
            self._card.truncate(self.size)
        is_same, flushed = True, 0
        for start, chunk in self._chunks():
            length = chunk if isinstance(chunk, int) else len(chunk)
            if (is_same or isinstance(chunk, int)) and self._holds(start, chunk):
                self.kept += length
            else:
                is_same = False
                self._put(start, chunk)
            self.done = start + length
            if self.written - flushed >= _FLUSH_EVERY:
                os.fdatasync(self._card.fileno())
                flushed = self.written
            self._report("writing", self.done, self.size)

    def finish(self) -> None:
        """Clear a card's end, and bring everything to the medium."""
        if self._target.disk and (tail := min(_END, self._target.disk.size - self.size)):
            blockdev.zero(self._card.fileno(), self._target.disk.size - tail, tail)
        self._report("flushing", self.done, self.size)
        os.fsync(self._card.fileno())
        os.posix_fadvise(self._card.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if self._target.disk:
            blockdev.forget(self._card.fileno())
            with contextlib.suppress(OSError):
                blockdev.reread_partitions(self._card.fileno())

    def compare(self) -> None:
        """Read everything back."""
        for start, chunk in self._chunks():
            if not self._holds(start, chunk):
                text = f"{self._target.path}: reads back other bytes than were written, at {output.size(start)}"
                raise CheckFailed(text, hint="try another reader or card: this one loses data")
            done = start + (len(chunk) if isinstance(chunk, bytes) else chunk)
            self._report("reading back", done, self.size)

    def _chunks(self) -> Iterator[tuple[int, bytes | int]]:
        """The image in order: offset and bytes, or offset and length of a hole."""
        at = 0
        while at < self.size:
            begin = _seek(self._data, at, os.SEEK_DATA, self.size)
            for start in range(at, begin, _CHUNK):
                yield start, min(_CHUNK, begin - start)
            at = _seek(self._data, begin, os.SEEK_HOLE, self.size) if begin < self.size else begin
            for start in range(begin, at, _CHUNK):
                yield start, os.pread(self._data.fileno(), min(_CHUNK, at - start), start)

    def _holds(self, start: int, chunk: bytes | int) -> bool:
        """Whether the card holds that already; a hole is zeros."""
        wanted = chunk if isinstance(chunk, bytes) else bytes(chunk)
        return _read_all(self._card, start, len(wanted)) == wanted

    def _put(self, start: int, chunk: bytes | int) -> None:
        if not isinstance(chunk, int):
            _write_all(self._card, start, chunk)
            self.written += len(chunk)
            return
        if self._target.disk:
            blockdev.zero(self._card.fileno(), start, chunk)
        else:
            _write_all(self._card, start, bytes(chunk))
        self.zeroed += chunk


def _seek(stream: BinaryIO, at: int, whence: int, end: int) -> int:
    """The next data or hole; `end` when there is none."""
    try:
        return min(os.lseek(stream.fileno(), at, whence), end)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return end


def _write_all(stream: BinaryIO, start: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(stream.fileno(), view, start)
        view, start = view[count:], start + count


def _read_all(stream: BinaryIO, start: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.pread(stream.fileno(), length, start)
        if not part:
            break
        parts.append(part)
        start, length = start + len(part), length - len(part)
    return b"".join(parts)
