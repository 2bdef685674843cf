"""Labs without boards: what is refused and how it is said, and the drivers against sockets made here."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from k1.drivers import boot, console, patience, qemu
from k1.drivers.console import Console
from k1.drivers.qmp import Qmp
from k1.drivers.ssh import Target
from k1.errors import CheckFailed, K1Error
from k1.lab import Lab

MACHINE = qemu.Machine(cpu="rv64", cores=2, threads=2, memory=2048)
NETWORK = qemu.Network(mac="00:11:22:33:44:50", mtu=9000, group="239.192.0.1", port=20000, ssh_port=2200, api_port=8080)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build folder for the virtual board, without an image."""
    monkeypatch.setenv("K1_BUILD", str(tmp_path))
    return tmp_path / "virt"


@pytest.fixture
def image(build: Path) -> Path:
    """An image that nothing can boot, and its folder."""
    folder = build / "images"
    folder.mkdir(parents=True)
    for name in ("fw_dynamic.bin", "u-boot.bin", "sdcard.img"):
        (folder / name).write_bytes(b"\0" * 512)
    write_manifest(folder, "1" * 64)
    return folder


def write_manifest(folder: Path, digest: str) -> None:
    (folder / "manifest.json").write_text(json.dumps({"images": {"sdcard.img": {"sha256": digest}}}))


@pytest.fixture
def no_qemu(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Nothing starts: command lines that would have been run are collected, disks are empty files."""
    started: list[list[str]] = []
    monkeypatch.setattr("k1.drivers.devicetree.build", lambda machine, overlay, target: None)
    monkeypatch.setattr("k1.drivers.qemu.create_disk", lambda path, base, size: path.write_text(""))
    monkeypatch.setattr("k1.drivers.qemu.start", lambda argv, folder, title: started.append(argv))
    return started


def up(name: str = "default", **options: int) -> None:
    Lab(name).up(**options, wait=False)  # type: ignore[arg-type]


# --- the command line


def test_a_board_is_k1s_cores_and_threads_on_a_network_for_jumbo_frames() -> None:
    words = " ".join(qemu.command("lab:0", MACHINE, Path("fw"), Path("uboot"), Path("dtb"), NETWORK))
    assert "-smp 4,sockets=1,cores=2,threads=2" in words
    assert "mac=00:11:22:33:44:50,host_mtu=9000" in words
    assert "hostfwd=tcp:127.0.0.1:2200-:22" in words


def test_socket_names_do_not_depend_on_the_folder() -> None:
    words = qemu.command("lab:0", MACHINE, Path("/fw"), Path("/uboot"), Path("/dtb"), NETWORK)
    paths = [word for word in words if "path=" in word or "file=" in word]
    assert paths
    assert not any("/" in word for word in paths)


# --- what up refuses


def test_without_an_image_make_image_is_named(build: Path) -> None:
    with pytest.raises(K1Error, match=r"fw_dynamic\.bin is missing\n  try: make image"):
        up()


def test_a_manifest_without_the_card_is_named(image: Path) -> None:
    (image / "manifest.json").write_text("{}")
    with pytest.raises(K1Error, match=r"manifest\.json: does not name sdcard\.img.*\n  try: make image"):
        up()


def test_without_qemu_its_package_is_named_and_nothing_is_left(
    image: Path, build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *words, **options: None)
    with pytest.raises(K1Error, match=r"qemu-system-riscv64 is not installed\n  try: apt install qemu-system-misc"):
        up()
    assert not (build / "lab" / "default").exists()


@pytest.mark.parametrize("name", ["", "a b", "../up", "-x", "x" * 33])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(K1Error, match="is no name for a lab"):
        Lab(name)


def test_a_taken_port_is_named(image: Path, no_qemu: list[list[str]]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(K1Error, match=rf"port {port} for the SSH of board 0 is taken.*\n  try: .*--ssh-port"):
            up(ssh_port=port)


def test_a_port_out_of_range_is_named(image: Path, no_qemu: list[list[str]]) -> None:
    with pytest.raises(K1Error, match=r"port 22 for the SSH of board 0 is not possible\n  try: --ssh-port from 1024"):
        up(ssh_port=22)


def test_memory_out_of_range_is_refused(image: Path) -> None:
    with pytest.raises(K1Error, match=r"16 MiB is no memory for a board\n  try: 256 to 65536"):
        up(memory=16)


def test_more_boards_than_there_are_addresses_is_refused(image: Path) -> None:
    with pytest.raises(K1Error, match="rank 299 has no MAC and address"):
        up(count=300)


def test_a_rank_with_the_factory_mac_is_refused(image: Path, build: Path) -> None:
    with pytest.raises(K1Error, match="the MAC every board leaves the factory with"):
        up(count=6)
    assert not (build / "lab" / "default").exists()


def test_a_lab_does_not_shrink(image: Path, no_qemu: list[list[str]]) -> None:
    up(count=3)
    with pytest.raises(K1Error, match=r"lab default has 3 boards, more than 2\n  try: k1 lab down"):
        up(count=2)


def test_a_lab_grows(image: Path, no_qemu: list[list[str]]) -> None:
    up(count=1)
    up(count=2)
    assert [status.hostname for status in Lab().status()] == ["k1-0", "k1-1"]


def test_without_a_count_a_lab_stays_as_large_as_it_is(image: Path, no_qemu: list[list[str]]) -> None:
    up("small", count=1)
    up("small")
    up("new")
    assert len(Lab("small").status()) == 1
    assert len(Lab("new").status()) == 4


def test_disks_of_an_older_image_are_not_started(image: Path, no_qemu: list[list[str]]) -> None:
    up(count=1)
    write_manifest(image, "2" * 64)
    with pytest.raises(K1Error, match=r"disks of an older image.*\n  try: k1 lab down"):
        up()


def test_another_command_on_the_same_lab_has_to_wait(image: Path, build: Path, no_qemu: list[list[str]]) -> None:
    inside: list[str] = []

    def second(argv: list[str], folder: Path, title: str) -> None:
        try:
            Lab().down()
        except K1Error as error:
            inside.append(str(error))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("k1.drivers.qemu.start", second)
        up(count=1)
    assert inside == ["lab default is in use by another k1 command\n  try: wait for it to end, then call again"]


def test_a_failed_start_shows_qemus_words_and_leaves_nothing(
    image: Path, build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k1.drivers.devicetree.build", lambda machine, overlay, target: None)
    monkeypatch.setattr("k1.drivers.qemu.create_disk", lambda path, base, size: path.write_text(""))
    fake = tmp_path / "bin" / qemu.PROGRAM
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'cannot set up guest memory' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    with pytest.raises(CheckFailed, match="board 0 of lab default: QEMU did not start: cannot set up guest memory"):
        up(count=2)
    assert not (build / "lab" / "default").exists()


# --- labs that are not there, or damaged


def test_a_lab_that_is_not_there_is_named_with_those_that_are(image: Path, no_qemu: list[list[str]]) -> None:
    up("mine", count=1)
    with pytest.raises(K1Error, match=r"there is no lab yours\n  try: k1 lab up --name yours; there are: mine"):
        Lab("yours").status()


def test_down_without_a_lab_is_no_error(build: Path) -> None:
    assert Lab().down() is False


def test_a_damaged_state_is_named_and_down_still_works(image: Path, build: Path, no_qemu: list[list[str]]) -> None:
    up(count=1)
    (build / "lab" / "default" / "lab.json").write_text('{"image": 3}')
    with pytest.raises(K1Error, match=r"lab\.json: damaged .*\n  try: k1 lab down --name default, then up"):
        Lab().status()
    assert Lab().down() is True
    assert not (build / "lab" / "default").exists()


def test_a_board_that_is_not_there_and_one_that_is_off_are_told_apart(image: Path, no_qemu: list[list[str]]) -> None:
    up(count=2)
    with pytest.raises(K1Error, match=r"lab default has no board 2\n  try: it has boards 0 to 1"):
        Lab().kill(2)
    with pytest.raises(K1Error, match=r"board 1 of lab default is off\n  try: k1 lab up"):
        Lab().cut(1)


# --- time-outs


def test_timeouts_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K1_TIMEOUT_SCALE", "2.5")
    assert patience.scaled(4) == 10


@pytest.mark.parametrize("value", ["fast", "0", "-1", "nan", "inf"])
def test_a_scale_that_is_no_number_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K1_TIMEOUT_SCALE", value)
    with pytest.raises(K1Error, match=f"K1_TIMEOUT_SCALE={value} is not a positive number"):
        patience.scaled(1)


# --- ssh


def test_ssh_takes_paths_with_spaces_and_percent_signs(tmp_path: Path) -> None:
    key = tmp_path / "a b%h" / "key"
    key.parent.mkdir()
    key.write_text("")
    words = Target(2200, key, tmp_path / "known hosts", "k1-0").command("true")
    assert f'IdentityFile="{tmp_path}/a b%%h/key"' in words
    assert f'UserKnownHostsFile="{tmp_path}/known hosts"' in words


def test_a_missing_ssh_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(K1Error, match=r"SSH key .*/none is missing or not readable\n  try: make image"):
        Target(2200, tmp_path / "none", tmp_path / "known_hosts", "k1-0").command()


def test_a_key_of_the_users_own_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / ".ssh" / "id_ed25519"
    own.parent.mkdir()
    own.write_text("")
    assert f'IdentityFile="{own}"' in Target(2200, tmp_path / "none", tmp_path / "known_hosts", "k1-0").command()


def test_a_port_that_only_accepts_is_not_taken_for_a_board(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = Target(silent.getsockname()[1], tmp_path / "key", tmp_path / "known_hosts", "k1-0")
        assert not target.answers()


# --- the serial console


class SerialPort:
    """The board's side of a console: a log and a socket, as QEMU has them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.log = (folder / qemu.SERIAL_LOG).open("wb", buffering=0)
        self.server = socket.socket(socket.AF_UNIX)
        where = os.open(folder, os.O_PATH)
        self.server.bind(f"/proc/self/fd/{where}/{qemu.SERIAL}")
        os.close(where)
        self.server.listen()
        self.client: socket.socket | None = None

    def accept(self) -> socket.socket:
        self.client = self.client or self.server.accept()[0]
        return self.client

    def write(self, data: bytes) -> None:
        self.log.write(data)

    def power_off(self) -> None:
        self.accept().close()

    def close(self) -> None:
        self.server.close()
        self.log.close()
        if self.client:
            self.client.close()


@pytest.fixture
def port(tmp_path: Path) -> Iterator[SerialPort]:
    """A serial port in a folder with spaces and with a path longer than a Unix socket allows."""
    found = SerialPort(tmp_path / "a folder" / ("x" * 120) / "node0")
    yield found
    found.close()


def test_what_came_before_the_reader_is_not_lost(port: SerialPort) -> None:
    port.write(b"OpenSBI v1.6\r\n")
    with Console(port.folder, "board 0") as found:
        port.write("Grüße\r\nk1-0 login: ".encode())
        assert found.expect(r"v(\d\.\d)", 5).group(1) == "1.6"
        assert found.expect(r"(\w+)\s+k1-0 login:", 5).group(1) == "Grüße"


def test_the_console_sends(port: SerialPort) -> None:
    with Console(port.folder, "board 0") as found:
        found.send("root\r")
        assert port.accept().recv(100) == b"root\r"


def test_text_that_does_not_come_is_named_with_the_last_lines(port: SerialPort) -> None:
    port.write(b"Kernel panic\r\n")
    with (
        Console(port.folder, "board 0") as found,
        pytest.raises(CheckFailed, match=r"board 0: no /login:/ within 0 s\n  \| Kernel panic"),
    ):
        found.expect("login:", 0.2)


def test_a_board_that_goes_off_ends_the_waiting(port: SerialPort) -> None:
    with Console(port.folder, "board 0") as found:
        port.write(b"Power down\r\n")
        port.power_off()
        with pytest.raises(CheckFailed, match=r"board 0 went off before /login:/ appeared\n  \| Power down"):
            found.expect("login:", 30)
        with pytest.raises(CheckFailed, match="board 0 is off"):
            found.send("root\r")


def test_a_second_reader_of_the_console_is_told(port: SerialPort) -> None:
    with Console(port.folder, "board 0"), pytest.raises(K1Error, match="the console of board 0 is in use"):
        Console(port.folder, "board 0")


def test_the_console_of_a_dead_board_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=r"board 0 is off: its serial port does not answer"):
        Console(tmp_path, "board 0")


def test_a_pipe_is_passed_on_and_left_when_the_board_is_quiet(
    port: SerialPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K1_TIMEOUT_SCALE", "0.1")
    port.write(b"before\r\n")
    source, keys = os.pipe()
    seen, target = os.pipe()
    os.write(keys, b"uname\r")
    os.close(keys)
    with Console(port.folder, "board 0") as found:
        console.attach(found, source, target)
    assert port.accept().recv(100) == b"uname\r"
    assert os.read(seen, 100) == b"before\r\n"
    for descriptor in (source, seen, target):
        os.close(descriptor)


def test_ctrl_bracket_leaves_and_is_not_sent(port: SerialPort) -> None:
    source, keys = os.pipe()
    os.write(keys, b"ls\r" + console.ESCAPE + b"more")
    with Console(port.folder, "board 0") as found, Path(os.devnull).open("wb") as target:
        console.attach(found, source, target.fileno())
    assert port.accept().recv(100) == b"ls\r"
    os.close(source)
    os.close(keys)


# --- watching a boot

LOG = """
OpenSBI v1.6
U-Boot 2023.01 (Jan 01 2026 - 00:00:00 +0000)
[    0.000000] Linux version 6.1.100-k1
[    1.594520] Run /sbin/preinit as init process
k1-0 login: """


@pytest.fixture
def start(tmp_path: Path) -> Callable[[str, bool], boot.Boot]:
    """Makes a board that has written some text, and that answers on SSH or does not."""

    def make(text: str, answers: bool) -> boot.Boot:
        (tmp_path / "serial.log").write_text(text)
        target = cast(Target, SimpleNamespace(answers=lambda: answers))
        return boot.Boot("board 0", tmp_path / "serial.log", psutil.Process(), target)

    return make


@pytest.mark.parametrize(
    ("lines", "stage"), [(0, "power on"), (2, "OpenSBI"), (3, "U-Boot"), (4, "Linux"), (5, "init"), (6, "login")]
)
def test_the_stage_of_a_boot_is_read_from_the_log(
    lines: int, stage: str, start: Callable[[str, bool], boot.Boot]
) -> None:
    one = start("\n".join(LOG.split("\n")[:lines]), False)
    one.update()
    assert one.stage == stage


def test_a_board_that_answers_is_ready(start: Callable[[str, bool], boot.Boot]) -> None:
    one = start(LOG, True)
    boot.wait([one], 30, lambda boots: None)
    assert one.stage == "ssh"
    assert one.seconds is not None


def test_a_board_that_hangs_is_named_with_stage_and_last_words(start: Callable[[str, bool], boot.Boot]) -> None:
    one = start("U-Boot 2023.01\nk1: no bootable slot\n", False)
    expected = r"(?s)within 0 s\nboard 0 is not on SSH, last stage U-Boot.*\| k1: no bootable slot"
    with pytest.raises(boot.NotReady, match=expected):
        boot.wait([one], 0.2, lambda boots: None)


def test_a_board_that_dies_is_named_at_once(start: Callable[[str, bool], boot.Boot]) -> None:
    one = start("OpenSBI v1.6\n", False)
    one.process = cast(psutil.Process, SimpleNamespace(is_running=lambda: False))
    with pytest.raises(boot.NotReady, match=r"board 0 went off while booting, last stage OpenSBI\n  \| OpenSBI v1.6"):
        boot.wait([one], 30, lambda boots: None)


# --- QMP


def serve_qmp(folder: Path, *answers: str) -> threading.Thread:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "qmp.sock"))
    server.listen()

    def serve() -> None:
        with server, server.accept()[0] as client:
            for answer in ('{"QMP": {}}', '{"return": {}}', *answers):
                client.sendall(answer.encode() + b"\n")
                client.recv(4096)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_events_between_command_and_answer_are_skipped(tmp_path: Path) -> None:
    thread = serve_qmp(tmp_path, '{"event": "RESET"}\n{"return": {"status": "running"}}')
    with Qmp(tmp_path / "qmp.sock", "board 0") as control:
        assert control.execute("query-status") == {"status": "running"}
    thread.join()


def test_a_refused_command_carries_qemus_reason(tmp_path: Path) -> None:
    thread = serve_qmp(tmp_path, '{"error": {"class": "DeviceNotFound", "desc": "Device \'x\' not found"}}')
    with (
        Qmp(tmp_path / "qmp.sock", "board 0") as control,
        pytest.raises(CheckFailed, match="board 0: QEMU refused set_link: Device 'x' not found"),
    ):
        control.execute("set_link", name="x", up=True)
    thread.join()


def test_a_control_socket_that_is_held_by_another_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K1_TIMEOUT_SCALE", "0.05")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "qmp.sock"))
        server.listen()
        started = time.monotonic()
        with pytest.raises(CheckFailed, match="QEMU does not answer on its control socket"):
            Qmp(tmp_path / "qmp.sock", "board 0")
        assert time.monotonic() - started < 5


def test_without_qemu_the_control_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="board 0: QEMU's control socket does not answer"):
        Qmp(tmp_path / "qmp.sock", "board 0")
