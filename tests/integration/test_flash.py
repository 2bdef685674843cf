"""`k1 flash` with the real dfu-util, libusb and udev library, and boards on an emulated bus."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulators.dfu import CAN_DOWNLOAD, CAN_UPLOAD, TOLERANT, Board, Faults, State
from emulators.usb import Bus
from k1 import board as boards
from k1 import files, flash
from k1.drivers import dfu
from k1.drivers.usb import Device, Dfu
from k1.errors import K1Error
from k1.run import run

K1 = (sys.executable, "-m", "k1", "flash")
SIZE = 100_000
READABLE = CAN_DOWNLOAD | CAN_UPLOAD | TOLERANT


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus() as found:
        yield found


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "firmware.bin"
    path.write_bytes(os.urandom(SIZE))
    return path


def k1(bus: Bus, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*K1, *map(str, words)], env=os.environ | bus.env | environment, capture_output=True, text=True, timeout=120
    )


# --- dfu-util's exit statuses, and what they mean

DOWNLOAD = ("-d", "1234:5678,1234:5678", "-p", "1-1", "-a", "0", "-D", "firmware.bin")
WRITTEN, NOT_WRITTEN = True, False


@pytest.mark.parametrize(
    ("board", "words", "status", "written"),
    [
        pytest.param(Board(attributes=READABLE), DOWNLOAD, 0, WRITTEN, id="fine"),
        pytest.param(Board(attributes=READABLE), (*DOWNLOAD, "-R"), 251, WRITTEN, id="gone-at-reset"),
        pytest.param(Board(), (*DOWNLOAD, "-R"), 74, WRITTEN, id="gone-at-the-reset-it-waited-for"),
        pytest.param(Board(), DOWNLOAD, 74, WRITTEN, id="gone-without-R"),
        pytest.param(Board(faults=Faults(vanishes=True)), (*DOWNLOAD, "-R"), 74, WRITTEN, id="gone-when-complete"),
        pytest.param(Board(faults=Faults(reset_fails=True)), (*DOWNLOAD, "-R"), 74, WRITTEN, id="reset-fails"),
        pytest.param(Board(), (*DOWNLOAD, "--frobnicate"), 64, NOT_WRITTEN, id="usage"),
        pytest.param(Board(), (*DOWNLOAD[:-1], "other.dfu"), 64, NOT_WRITTEN, id="suffix-of-another-device"),
        pytest.param(Board(), (*DOWNLOAD[:-1], "nowhere.bin"), 66, NOT_WRITTEN, id="no-file"),
        pytest.param(Board(), (*DOWNLOAD[:-2], "-U", "firmware.bin"), 73, NOT_WRITTEN, id="upload-over-a-file"),
        pytest.param(Board(), ("-d", "1:2,1:2", *DOWNLOAD[2:]), 74, NOT_WRITTEN, id="no-device"),
        pytest.param(Board(), (*DOWNLOAD[:4], "-a", "7", *DOWNLOAD[-2:]), 74, NOT_WRITTEN, id="no-such-alt"),
        pytest.param(Board(), (*DOWNLOAD[:2], *DOWNLOAD[4:]), 74, NOT_WRITTEN, id="ambiguous"),
        pytest.param(Board(faults=Faults(stall_at=SIZE // 2)), DOWNLOAD, 74, NOT_WRITTEN, id="stall"),
        pytest.param(Board(faults=Faults(error_at=SIZE // 2)), DOWNLOAD, 74, NOT_WRITTEN, id="dfuERROR"),
        pytest.param(Board(faults=Faults(unplug_at=SIZE // 2)), DOWNLOAD, 74, NOT_WRITTEN, id="unplug"),
        pytest.param(Board(faults=Faults(hang_at=SIZE // 2)), DOWNLOAD, 74, NOT_WRITTEN, id="hang"),
        pytest.param(Board(faults=Faults(status_fails=True)), DOWNLOAD, 74, NOT_WRITTEN, id="no-status-after-it"),
        pytest.param(Board(), (*DOWNLOAD[:-1], "empty.bin"), 74, NOT_WRITTEN, id="empty-file"),
    ],
)
def test_the_verdict_follows_what_dfu_util_prints_and_not_its_status(
    bus: Bus, image: Path, board: Board, words: tuple[str, ...], status: int, written: bool
) -> None:
    bus.plug(board, "1-1")
    bus.plug(Board(serial="other"), "1-2")
    (image.parent / "empty.bin").touch()
    (image.parent / "other.dfu").write_bytes(dfu.join(image.read_bytes(), "1234:9999"))
    result = run(["dfu-util", *words], cwd=image.parent, env=bus.env, check=False, timeout=60)
    assert result.returncode == status
    assert dfu.judge(result).written == written
    assert (board.memory == image.read_bytes()) == written
    assert written or dfu.judge(result).cause


def test_dfu_util_alone_writes_a_device_with_other_ids_than_asked_for_and_our_words_do_not(
    bus: Bus, image: Path
) -> None:
    """The one id of `-d` is that of run-time mode; our command names both."""
    other = bus.plug(Board(product=0x9999), "1-1")
    words = ["dfu-util", "-d", "1234:5678", "-p", "1-1", "-a", "0", "-D", "firmware.bin"]
    assert dfu.judge(run(words, cwd=image.parent, env=bus.env, check=False)).written
    other.replug()
    other.memory = b""
    bus.plug(other, "1-2")
    words = dfu.command(device(bus, "1-2", 3), 0)
    assert not dfu.judge(run([*words, "-D", "firmware.bin"], cwd=image.parent, env=bus.env, check=False)).written
    assert other.memory == b""


# --- writing


def test_a_board_is_written_and_reset(bus: Bus, image: Path) -> None:
    board = bus.plug(Board(), "1-1")
    result = k1(bus, "--file", image, "--any-file", "--json")
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)
    assert (row["path"], row["serial"], row["bytes"], row["reset"]) == ("1-1", "K1-0001", SIZE, True)
    assert board.memory == image.read_bytes()
    assert board.resets == 1


def test_a_board_that_can_be_read_back_is_compared(bus: Bus, image: Path) -> None:
    board = bus.plug(Board(attributes=READABLE), "1-1")
    result = k1(bus, "--file", image, "--any-file")
    assert result.returncode == 0, result.stderr
    assert "written, read back" in result.stdout
    assert board.resets == 1


def test_a_bit_that_flips_on_the_way_is_found(bus: Bus, image: Path) -> None:
    bus.plug(Board(attributes=READABLE, faults=Faults(flips=True)), "1-1")
    result = k1(bus, "--file", image, "--any-file")
    assert result.returncode == 4
    assert f"1-1: reads back other bytes than were written, first at {SIZE - 1:#x}" in result.stderr


def test_four_boards_are_written_side_by_side(bus: Bus, image: Path) -> None:
    four = [bus.plug(Board(serial=f"K1-{i}"), f"1-{i + 1}") for i in range(4)]
    result = k1(bus, "--file", image, "--any-file", "--all", "--count", "4", "--json")
    assert result.returncode == 0, result.stderr
    assert [row["serial"] for row in json.loads(result.stdout)] == ["K1-0", "K1-1", "K1-2", "K1-3"]
    assert all(board.memory == image.read_bytes() for board in four)


def test_one_board_that_fails_does_not_stop_the_others(bus: Bus, image: Path) -> None:
    good = bus.plug(Board(serial="good"), "1-1")
    bus.plug(Board(serial="bad", faults=Faults(error_at=5000)), "1-2")
    result = k1(bus, "--file", image, "--any-file", "--all")
    assert result.returncode == 4
    assert "1 of 2 boards failed\n  1-2: not written after" in result.stderr
    assert "it reports: Device is unable to write memory" in result.stderr
    assert good.memory == image.read_bytes()


def test_a_board_that_does_not_reset_is_written_but_a_warning(bus: Bus, image: Path) -> None:
    board = bus.plug(Board(faults=Faults(reset_fails=True)), "1-1")
    result = k1(bus, "--file", image, "--any-file")
    assert result.returncode == 3
    assert "1-1: written, but it did not reset: switch it off and on" in result.stderr
    assert board.memory == image.read_bytes()


def test_a_board_in_run_time_mode_is_sent_to_download_mode_first(bus: Bus, image: Path) -> None:
    board = bus.plug(Board(state=State.APP_IDLE), "1-1")
    result = k1(bus, "--file", image, "--any-file")
    assert result.returncode == 0, result.stderr
    assert board.memory == image.read_bytes()


@pytest.mark.parametrize("tenth", range(10))
def test_a_board_unplugged_at_any_tenth_is_told_and_written_at_the_second_try(
    bus: Bus, image: Path, monkeypatch: pytest.MonkeyPatch, tenth: int
) -> None:
    for name, value in bus.env.items():
        monkeypatch.setenv(name, value)
    board = bus.plug(Board(faults=Faults(unplug_at=SIZE * tenth // 10)), "1-1")
    k1_board, firmware = boards.load("k1"), flash.firmware(boards.load("k1"), image, any_file=True)
    (first,) = flash.write(k1_board, [device(bus, "1-1", 2)], firmware, lambda sent: None)
    assert first.error.startswith(f"not written after {first.bytes} bytes: it left the bus\n  try: check its cable")
    assert abs(first.bytes - SIZE * tenth // 10) <= 5000
    assert board.memory == b""

    board.replug()
    bus.plug(board, "1-1")
    (second,) = flash.write(k1_board, [device(bus, "1-1", 3)], firmware, lambda sent: None)
    assert second.error == ""
    assert board.memory == image.read_bytes()


def device(bus: Bus, path: str, number: int) -> Device:
    """A board as the USB driver finds it, for a program that the bus is not preloaded into."""
    node = Path(bus.env["UMOCKDEV_DIR"]) / "dev" / "bus" / "usb" / "001" / f"{number:03d}"
    return Device(path, number, "1234:5678", "K1-0001", "", node, Dfu(False, False, False))


def test_ctrl_c_lets_the_board_that_is_being_written_finish(bus: Bus, image: Path) -> None:
    board = bus.plug(SlowBoard(), "1-1")
    process = subprocess.Popen(
        [*K1, "--file", image, "--any-file"], env=os.environ | bus.env, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: len(board.received) > SIZE // 10, "the download begins")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert board.memory == image.read_bytes()


def test_a_board_that_another_program_writes_is_left_alone(bus: Bus, image: Path) -> None:
    board = bus.plug(SlowBoard(), "1-1")
    words = [*K1, "--file", str(image), "--any-file"]
    first = subprocess.Popen(words, env=os.environ | bus.env, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(board.received) > SIZE // 10, "the download begins")
    second = k1(bus, "--file", image, "--any-file")
    assert second.returncode == 4
    assert "not written after 0 bytes: another program uses it" in second.stderr
    assert first.wait(60) == 0
    assert board.memory == image.read_bytes()


class SlowBoard(Board):
    """Takes some seconds for what the tests write."""

    def _download(self, data: bytes) -> bytes:
        time.sleep(0.02)
        return super()._download(data)


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


# --- which board


def test_two_boards_and_no_choice_is_an_error_and_nothing_is_written(bus: Bus, image: Path) -> None:
    both = [bus.plug(Board(serial="a"), "1-1"), bus.plug(Board(serial="b"), "1-3")]
    result = k1(bus, "--file", image, "--any-file")
    assert result.returncode == 2
    assert "2 boards are in download mode\n  | 1-1 1234:5678 K1-DevKit-B02 serial a\n  | 1-3" in result.stderr
    assert "try: --path 1-1, --serial, or --all" in result.stderr
    assert [board.downloads for board in both] == [0, 0]


@pytest.mark.parametrize("words", [("--path", "1-3"), ("--serial", "b,c")])
def test_only_the_named_board_is_written(bus: Bus, image: Path, words: tuple[str, str]) -> None:
    other, meant = bus.plug(Board(serial="a"), "1-1"), bus.plug(Board(serial="b,c"), "1-3")
    assert k1(bus, "--file", image, "--any-file", *words).returncode == 0
    assert (other.downloads, meant.memory) == (0, image.read_bytes())


def test_a_serial_that_two_boards_have_names_neither(bus: Bus, image: Path) -> None:
    both = [bus.plug(Board(serial="same"), "1-1"), bus.plug(Board(serial="same"), "1-2")]
    result = k1(bus, "--file", image, "--any-file", "--serial", "same")
    assert result.returncode == 2
    assert "2 boards have the serial same: 1-1, 1-2" in result.stderr
    assert [board.downloads for board in both] == [0, 0]


def test_a_board_that_took_the_place_of_the_one_that_was_found_is_not_written(
    bus: Bus, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bus.env.items():
        monkeypatch.setenv(name, value)
    other = bus.plug(Board(serial="other"), "1-1")
    found = device(bus, "1-1", 2)
    bus.unplug("1-1")
    bus.plug(other, "1-1")
    found.node.touch()  # the old node may stay for a moment
    firmware = flash.firmware(boards.load("k1"), image, any_file=True)
    (outcome,) = flash.write(boards.load("k1"), [found], firmware, lambda sent: None)
    assert "it left the bus before anything was written" in outcome.error
    assert other.downloads == 0


def test_near_misses_are_shown(bus: Bus, image: Path) -> None:
    bus.plug(Board(product=0x5679, serial="near"), "1-2")
    bus.plug(Board(vendor=0x0483, product=0xDF11, serial="stm"), "1-4")
    result = k1(bus, "--file", image, "--any-file")
    assert result.returncode == 2
    assert "no board in download mode (1234:5678); there is\n  | 1-2 1234:5679" in result.stderr
    assert "| 1-4 0483:df11" in result.stderr
    assert "hold the BOOT key, switch the power on" in result.stderr


def test_wait_takes_a_board_that_comes_later(bus: Bus, image: Path) -> None:
    board = Board()
    timer = threading.Timer(2.0, bus.plug, (board, "1-1"))
    timer.start()
    result = k1(bus, "--file", image, "--any-file", "--wait", "--timeout", "60")
    timer.join()
    assert result.returncode == 0, result.stderr
    assert board.memory == image.read_bytes()


def test_wait_for_four_ends_with_its_time(bus: Bus, image: Path) -> None:
    board = bus.plug(Board(), "1-1")
    result = k1(bus, "--file", image, "--any-file", "--all", "--count", "4", "--wait", "--timeout", "0.5")
    assert result.returncode == 2
    assert "only 1 of 4 boards in download mode" in result.stderr
    assert board.downloads == 0


def test_list_shows_the_boards_for_people_and_programs(bus: Bus) -> None:
    bus.plug(Board(serial="a"), "1-1")
    bus.plug(Board(product=1), "1-2")
    assert "1-1   1234:5678  a" in k1(bus, "list").stdout
    (row,) = json.loads(k1(bus, "list", "--json").stdout)
    assert row["path"] == "1-1"
    assert row["dfu"] == {"can_upload": False, "is_run_time": False, "tolerant": False}


def test_without_rights_the_udev_rule_is_named(bus: Bus, image: Path) -> None:
    bus.plug(Board(), "1-1")
    bus.forbid("1-1")
    found = device(bus, "1-1", 2)
    lines = (
        "import os; from pathlib import Path; from k1 import board, flash; from k1.drivers.usb import Device",
        "b, f = board.load('k1'), flash.Firmware(Path('x'), b'x', '')",
        f"d = Device('1-1', 2, '1234:5678', '', '', Path({str(found.node)!r}), None)",
        "os.getuid() or os.setuid(65534)  # only now: all modules are read",
        "print(flash.write(b, [d], f, lambda sent: None)[0].error)",
    )
    result = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert f"1-1: no rights to {found.node}\n  try: k1 flash install-udev" in result.stdout, result.stderr


# --- which file


def test_a_file_that_the_build_did_not_make_is_refused(bus: Bus, image: Path, tmp_path: Path) -> None:
    board = bus.plug(Board(), "1-1")
    result = k1(bus, "--file", image, K1_BUILD=str(tmp_path))
    assert result.returncode == 2
    assert f"{image}: is no image of this build" in result.stderr
    assert "give --any-file if you know where the file comes from" in result.stderr
    assert board.downloads == 0


def test_the_default_is_the_built_opensbi(bus: Bus, image: Path, tmp_path: Path) -> None:
    images = tmp_path / "k1" / "images"
    images.mkdir(parents=True)
    image.rename(images / "opensbi-k1-fixed.bin")
    digest = flash.firmware(boards.load("k1"), images / "opensbi-k1-fixed.bin", any_file=True).sha256
    (images / "manifest.json").write_text(json.dumps({"images": {"opensbi-k1-fixed.bin": {"sha256": digest}}}))
    board = bus.plug(Board(), "1-1")
    result = k1(bus, K1_BUILD=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert len(board.memory) == SIZE


def test_a_suffix_is_not_written_to_the_board(bus: Bus, image: Path) -> None:
    plain = image.read_bytes()
    image.write_bytes(dfu.join(plain, "1234:5678"))
    board = bus.plug(Board(), "1-1")
    assert k1(bus, "--file", image, "--any-file").returncode == 0
    assert board.memory == plain


def test_dry_run_writes_nothing_and_shows_the_command(bus: Bus, image: Path) -> None:
    board = bus.plug(Board(), "1-1")
    result = k1(bus, "--file", image, "--any-file", "--dry-run")
    assert result.returncode == 0
    assert result.stdout.startswith("dfu-util -d 1234:5678,1234:5678 -p 1-1 -a 0 -n 2 -D")
    (row,) = json.loads(k1(bus, "--file", image, "--any-file", "--dry-run", "--json").stdout)
    assert row["bytes"] == SIZE
    assert board.downloads == 0


# --- the udev rule


def test_the_udev_rule_names_the_board_and_is_well_formed(tmp_path: Path, bus: Bus) -> None:
    target = tmp_path / "rules.d" / "70-k1.rules"
    result = k1(bus, "install-udev", "--target", target)
    assert result.returncode == 0, result.stderr
    rules = [line for line in target.read_text().splitlines() if line and not line.startswith("#")]
    assert len(rules) == 1
    for part in rules[0].split(", "):
        assert re.fullmatch(r'[A-Z]+(\{\w+\})?(==|!=|=|\+=)"[\w-]+"', part), part
    assert 'ATTR{idVendor}=="1234", ATTR{idProduct}=="5678"' in rules[0]
    assert k1(bus, "install-udev", "--dry-run").stdout == target.read_text()


def test_a_rule_that_only_root_can_write_tells_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(files, "write", refuse)
    with pytest.raises(K1Error, match=r"70-k1\.rules: no rights to write it\n  try: sudo k1 flash install-udev"):
        flash.install_rules("", tmp_path / "70-k1.rules")
