"""What `k1 sdcard write` must never overwrite, on machines made of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from k1 import board as boards
from k1 import sdcard
from k1.cli import sdcard as cli
from k1.drivers import blockdev
from k1.drivers.blockdev import Host
from k1.errors import K1Error

GB = 10**9


class Machine:
    """A /sys, /proc and /dev with disks of our choice."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mounts: list[str] = []
        for folder in ("sys/class/block", "sys/dev/block", "proc/self", "dev"):
            (root / folder).mkdir(parents=True)
        (root / "proc" / "swaps").write_text("Filename Type Size Used Priority\n")
        self._write_mounts()
        self.host = Host(root / "sys", root / "proc")
        self._minor = 0

    def disk(self, name: str, size: int = 32 * GB, *, removable: bool = True, kind: str = "", ro: bool = False) -> Path:
        folder = self.root / "sys" / "devices" / name
        (folder / "device").mkdir(parents=True)
        (folder / "device" / "model").write_text("Flash Reader\n")
        if kind:
            (folder / "device" / "type").write_text(f"{kind}\n")
        for key, value in (("removable", int(removable)), ("ro", int(ro)), ("size", size // 512)):
            (folder / key).write_text(f"{value}\n")
        return self._enter(name, folder)

    def partition(self, disk: str, name: str) -> Path:
        folder = self.root / "sys" / "devices" / disk / name
        folder.mkdir()
        (folder / "partition").write_text("1\n")
        return self._enter(name, folder)

    def _enter(self, name: str, folder: Path) -> Path:
        self._minor += 1
        (folder / "dev").write_text(f"8:{self._minor}\n")
        (folder / "holders").mkdir()
        (self.root / "sys" / "class" / "block" / name).symlink_to(folder)
        node = self.root / "dev" / name
        node.touch()
        return node

    def mount(self, name: str, point: str, number: str = "") -> None:
        number = number or (self.root / "sys" / "class" / "block" / name / "dev").read_text().strip()
        self.mounts.append(f"42 27 {number} / {point} rw,relatime shared:1 - ext4 /dev/{name} rw\n")
        self._write_mounts()

    def _write_mounts(self) -> None:
        (self.root / "proc" / "self" / "mountinfo").write_text("".join(self.mounts))

    def target(self, node: Path, size: int = GB, **options: bool) -> sdcard.Target:
        return sdcard.target(node, size, host=self.host, **options)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(blockdev, "is_block", lambda path: path.parent.name == "dev")
    return Machine(tmp_path)


def test_a_removable_card_is_taken(machine: Machine) -> None:
    assert machine.target(machine.disk("sdb")).disk


def test_a_card_in_a_built_in_reader_is_taken(machine: Machine) -> None:
    assert machine.target(machine.disk("mmcblk1", removable=False, kind="SD")).disk


@pytest.mark.parametrize("kind", ["MMC", ""])
def test_emmc_and_fixed_disks_need_device_ok(machine: Machine, kind: str) -> None:
    node = machine.disk("mmcblk0", removable=False, kind=kind)
    with pytest.raises(K1Error, match=r"is not removable: Flash Reader, 32\.0 GB\n  try: .* add --device-ok"):
        machine.target(node)
    assert machine.target(node, device_ok=True).disk


def test_the_systems_disk_is_never_taken(machine: Machine) -> None:
    node = machine.disk("sda")
    machine.partition("sda", "sda2")
    machine.mount("sda2", "/")
    with pytest.raises(K1Error, match="this system runs from it"):
        machine.target(node, device_ok=True)


def test_the_systems_disk_below_encryption_and_lvm_is_never_taken(machine: Machine) -> None:
    node = machine.disk("sda")
    machine.partition("sda", "sda3")
    for name in ("dm-0", "dm-1"):
        machine.disk(name, removable=False)
    for low, high in (("sda3", "dm-0"), ("dm-0", "dm-1")):
        (machine.root / "sys" / "class" / "block" / low / "holders" / high).touch()
    machine.mount("dm-1", "/")
    with pytest.raises(K1Error, match="this system runs from it"):
        machine.target(node, device_ok=True)


def test_a_btrfs_system_is_known_by_its_source(machine: Machine) -> None:
    node = machine.disk("sda")
    machine.mount("sda", "/", number="0:31")
    with pytest.raises(K1Error, match="this system runs from it"):
        machine.target(node, device_ok=True)


def test_a_mounted_card_is_refused_with_the_place(machine: Machine) -> None:
    node = machine.disk("sdb")
    machine.partition("sdb", "sdb1")
    machine.mount("sdb1", "/media/my\\040card")
    with pytest.raises(K1Error, match=r"is in use: sdb1 is mounted on /media/my card\n  try: umount it first"):
        machine.target(node, device_ok=True)


def test_swap_and_raid_members_are_refused(machine: Machine) -> None:
    node = machine.disk("sdb")
    (machine.root / "proc" / "swaps").write_text("Filename Type\n/dev/sdb partition 1 0 -2\n")
    with pytest.raises(K1Error, match="sdb is swap space"):
        machine.target(node)
    node = machine.disk("sdc")
    machine.disk("md0")
    (machine.root / "sys" / "class" / "block" / "sdc" / "holders" / "md0").touch()
    with pytest.raises(K1Error, match="md0 is built on it"):
        machine.target(node)


def test_a_partition_is_refused_and_its_disk_named(machine: Machine) -> None:
    machine.disk("sdb")
    with pytest.raises(K1Error, match=r"sdb1: is a partition\n  try: give the whole disk, /dev/sdb"):
        machine.target(machine.partition("sdb", "sdb1"))


def test_a_symbolic_link_does_not_dodge_the_checks(machine: Machine, tmp_path: Path) -> None:
    node = machine.disk("sda", removable=False)
    machine.mount("sda", "/")
    (tmp_path / "card").symlink_to(node)
    (tmp_path / "link").symlink_to(tmp_path / "card")
    with pytest.raises(K1Error, match=r"link \(.*/dev/sda\): this system runs from it"):
        machine.target(tmp_path / "link", device_ok=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, r"there is no card in it"),
        ({"size": GB // 2}, r"too small: 500\.0 MB, the image has 1\.0 GB"),
        ({"ro": True}, r"is write-protected\n  try: move the lock"),
    ],
)
def test_a_card_that_cannot_take_the_image_is_refused(machine: Machine, options: dict[str, int], message: str) -> None:
    node = machine.disk("sdb", **options)  # type: ignore[arg-type]
    with pytest.raises(K1Error, match=message):
        machine.target(node)


def test_the_list_leaves_out_what_is_no_card(machine: Machine) -> None:
    for name in ("sdb", "dm-0", "zram0", "sr0", "loop3"):
        machine.disk(name)
    machine.partition("sdb", "sdb1")
    assert [disk.name for disk in machine.host.disks()] == ["sdb"]


# --- plain files


def test_a_mistyped_device_does_not_become_a_file() -> None:
    with pytest.raises(K1Error, match="/dev/sdzz: no such block device"):
        sdcard.target(Path("/dev/sdzz"), GB)


@pytest.mark.parametrize("name", ["/dev/null", "."])
def test_what_is_neither_disk_nor_file_is_refused(name: str) -> None:
    with pytest.raises(K1Error, match=r"no such block device|neither a disk nor a plain file"):
        sdcard.target(Path(name), GB)


def test_a_file_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("years of work")
    with pytest.raises(K1Error, match=r"thesis\.doc: holds something else"):
        sdcard.target(tmp_path / "thesis.doc", GB)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(K1Error, match="there is no folder"):
        sdcard.target(tmp_path / "none" / "card.img", GB)


def test_the_image_is_not_written_over_itself(tmp_path: Path) -> None:
    image = tmp_path / "sdcard.img"
    image.write_bytes(b"image")
    target = sdcard.target(image, 5)
    with pytest.raises(K1Error, match="is the image itself"):
        sdcard.write(image, "", target, lambda *_: None)
    assert image.read_bytes() == b"image"


def test_no_built_image_says_how_to_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K1_BUILD", str(tmp_path))
    with pytest.raises(K1Error, match=r"sdcard\.img: no such file\n  try: make image BOARD=k1"):
        sdcard.image(boards.load("k1"), None)


# --- asking first


def test_a_card_is_not_overwritten_when_there_is_nobody_to_ask(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "card.img"
    image.write_bytes(b"image")
    node = machine.disk("sdb")
    monkeypatch.setattr(blockdev, "Host", lambda: machine.host)
    result = CliRunner().invoke(cli.app, ["write", str(node), "--file", str(image), "--any-file"])
    assert isinstance(result.exception, K1Error)
    assert "(Flash Reader, 32.0 GB) would be overwritten, and there is nobody to ask\n  try: add --yes" in str(
        result.exception
    )
    assert node.read_bytes() == b""


def test_list_shows_what_may_be_written(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockdev, "Host", lambda: machine.host)
    machine.disk("sda", removable=False)
    machine.mount("sda", "/")
    machine.disk("sdb")
    machine.disk("sdc", size=0)
    machine.disk("sdd", removable=False)
    lines = CliRunner().invoke(cli.app, ["list"]).output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["/dev/sda", "/dev/sdb", "/dev/sdc", "/dev/sdd"]
    assert [line.split()[-1] for line in lines[1:]] == ["system", "yes", "yes", "fixed"]
    assert "no card" in lines[3]
