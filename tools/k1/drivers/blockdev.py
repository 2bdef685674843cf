"""Block devices of this host: what they are and who uses them, by sysfs and the mount table."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# linux/fs.h
_BLKRRPART, _BLKFLSBUF, _BLKZEROOUT = 0x125F, 0x1261, 0x127F
_SECTOR = 512


@dataclass(frozen=True)
class Disk:
    """A whole disk. `size` in bytes, 0 for a reader without a card.

    uses: why it must not be written, such as `sdb1 is mounted on /media/card`; is_system: this system runs from it.
    """

    name: str
    model: str
    size: int
    is_removable: bool
    is_loop: bool
    is_read_only: bool
    is_system: bool
    uses: tuple[str, ...]

    @property
    def node(self) -> Path:
        """Its device node."""
        return Path("/dev") / self.name


class Host:
    """The block devices as the kernel shows them below `sys` and `proc`."""

    def __init__(self, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._block, self._numbers = sys / "class" / "block", sys / "dev" / "block"
        self._proc = proc

    def disks(self) -> list[Disk]:
        """Every whole disk that could hold a card's image; those of the kernel's own making left out."""
        names = sorted(path.name for path in self._block.iterdir() if not (path / "partition").exists())
        return [self.disk(name) for name in names if not re.match(r"dm-|md|zram|ram|nbd|sr|loop", name)]

    def name(self, path: Path) -> str:
        """The kernel's name of the block device that `path` leads to, through symbolic links too."""
        number = path.stat().st_rdev
        entry = self._numbers / f"{os.major(number)}:{os.minor(number)}"
        return entry.resolve().name if entry.exists() else path.resolve().name

    def whole(self, name: str) -> str | None:
        """The disk that the partition `name` is part of; None for a whole disk."""
        folder = (self._block / name).resolve()
        return folder.parent.name if (folder / "partition").exists() else None

    def disk(self, name: str) -> Disk:
        """What is known about a whole disk."""
        folder = self._block / name
        members = {name, *(path.parent.name for path in folder.resolve().glob("*/partition"))}
        uses, is_system = self._uses(members)
        model = _text(folder / "device" / "model") or _text(folder / "device" / "name")  # SCSI and USB, or MMC
        # A card in a built-in reader does not count as removable for the kernel; its type tells it from an eMMC.
        card = _text(folder / "device" / "type") == "SD"
        return Disk(
            name=name,
            model=model,
            size=int(_text(folder / "size") or 0) * _SECTOR,
            is_removable=card or _text(folder / "removable") == "1",
            is_loop=name.startswith("loop"),
            is_read_only=_text(folder / "ro") == "1",
            is_system=is_system,
            uses=tuple(uses),
        )

    def _uses(self, members: set[str]) -> tuple[list[str], bool]:
        mounts, swaps = list(self._mounts()), self._swaps()
        uses, is_system = [], False
        for member in sorted(self._with_holders(members)):
            number = _text(self._block / member / "dev")
            for point, device, source in mounts:
                if device == number or source == member:
                    uses.append(f"{member} is mounted on {point}")
                    is_system = is_system or point == "/"
            if member in swaps:
                uses.append(f"{member} is swap space")
            if member not in members:
                uses.append(f"{member} is built on it")
        return uses, is_system

    def _with_holders(self, members: set[str]) -> set[str]:
        """`members`, and what stands on them: RAID, LVM, encryption."""
        above = {path.name for member in members for path in (self._block / member / "holders").glob("*")}
        return members if above <= members else self._with_holders(members | above)

    def _mounts(self) -> Iterator[tuple[str, str, str]]:
        """Mount point, device number and name of the source; btrfs mounts have a number of their own."""
        for line in (self._proc / "self" / "mountinfo").read_text().splitlines():
            fields = line.split()
            source = fields[fields.index("-") + 2]
            yield fields[4].replace("\\040", " "), fields[2], Path(os.path.realpath(source)).name

    def _swaps(self) -> set[str]:
        lines = (self._proc / "swaps").read_text().splitlines()[1:]
        return {Path(os.path.realpath(line.split()[0])).name for line in lines}


def is_block(path: Path) -> bool:
    """Whether `path`, or what it links to, is a block device."""
    return stat.S_ISBLK(path.stat().st_mode)


def zero(descriptor: int, start: int, length: int) -> None:
    """Make a range of a block device read as zeros; cheap where the device can do that by itself."""
    fcntl.ioctl(descriptor, _BLKZEROOUT, struct.pack("=QQ", start, length))


def forget(descriptor: int) -> None:
    """Drop what the host remembers of a block device, so that the next read comes from it."""
    fcntl.ioctl(descriptor, _BLKFLSBUF, 0)


def reread_partitions(descriptor: int) -> None:
    """Have the kernel look at the partition table again; OSError where a device has no partitions."""
    fcntl.ioctl(descriptor, _BLKRRPART, 0)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
