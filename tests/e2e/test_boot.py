"""The image boots through the whole chain, and a virtual board behaves like a K1 where users can tell."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from k1 import board as boards
from k1 import paths
from k1.drivers.patience import scaled
from k1.image import debian
from k1.lab import Lab
from support.card import slots

# Where board/virt/dts/k1.dtsi.j2 puts the registers of the DDR PHY, one in each 32-bit word.
PHY_WINDOW = 0x8E000000

Install = Callable[[int, str, str], None]
Command = Callable[..., None]


def ask(lab: Lab, rank: int, command: str) -> str:
    """What `command` prints on a board."""
    return lab.ssh(rank).run(command).output.strip()


def reboot(lab: Lab, rank: int) -> None:
    """Reboot a board and wait until it is back."""
    boot_id = "cat /proc/sys/kernel/random/boot_id"
    before = ask(lab, rank, boot_id)
    lab.ssh(rank).run("reboot", check=False)
    deadline = time.monotonic() + scaled(180)
    while lab.ssh(rank).run(boot_id, check=False).output.strip() in ("", before):
        assert time.monotonic() < deadline, "the board did not come back"
        time.sleep(0.5)


def host_key(lab: Lab, rank: int) -> str:
    port = str(lab.ssh(rank).port)
    words = ["ssh-keyscan", "-T", "60", "-t", "ed25519", "-p", port, "127.0.0.1"]
    key = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return key[-1]


def ping(lab: Lab, size: int = 56) -> bool:
    """Whether board 0 reaches board 1 on the cluster's network."""
    return lab.ssh(0).run(f"ping -c 2 -W 2 -s {size} 192.168.1.101", check=False).returncode == 0


def ip_counter(lab: Lab, rank: int, name: str) -> int:
    names, values = (line.split() for line in ask(lab, rank, "grep ^Ip: /proc/net/snmp").splitlines())
    return int(values[names.index(name)])


# --- the chain


def test_firmware_boot_loader_kernel_and_login_appear_on_the_serial_port(lab: Lab) -> None:
    with lab.console(0) as console:
        for banner in (r"OpenSBI v1\.\d", r"U-Boot 2023\.01", r"k1: booting slot A", r"Linux version 6\.1\."):
            console.expect(banner, 30)
        console.expect(r"k1-0 login: ", 30)


def test_enter_on_the_serial_port_brings_a_new_prompt(lab: Lab) -> None:
    with lab.console(1) as console:
        console.expect(r"k1-1 login: ", 30)
        console.send("\r")
        console.expect(r"k1-1 login: ", 30)


# --- the firmware's patches


def odt_words(lab: Lab) -> list[int]:
    """What stands in the DDR PHY's ODT registers, read from outside."""
    ddr, found = boards.load("virt").ddr, []
    for register in (ddr.odt_enable.value, ddr.odt_strength.value):
        with lab.qmp(0) as control:
            address = PHY_WINDOW + 4 * register.offset
            answer = control.execute("human-monitor-command", **{"command-line": f"xp /1xw {address:#x}"})
        found.append(int(answer.split()[1], 16))
    return found


def test_opensbi_programs_the_terminations_of_the_ddr_phy(lab: Lab) -> None:
    ddr = boards.load("virt").ddr
    assert odt_words(lab) == [ddr.odt_enable.value.word, ddr.odt_strength.value.word] == [0x3, 0x1]


def test_without_the_patch_the_terminations_stay_off(
    own_build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, k1: Command
) -> None:
    (tmp_path / "no-patches").mkdir()
    monkeypatch.setattr(paths, "PATCHES", tmp_path / "no-patches")
    firmware = debian.Image(boards.load("virt"), debian.Options(len(os.sched_getaffinity(0))))
    manifest = (own_build / "manifest.json").read_text()
    firmware.run("opensbi", force=False)
    (own_build / "manifest.json").write_text(manifest)  # the lab asks for one; that of the image this firmware joins

    own = Lab("odt")
    try:
        k1("lab", "up", "-n", "1", "--name", own.name)
        assert odt_words(own) == [0, 0]
    finally:
        own.down()


def test_uboot_waits_for_the_phys_power(lab: Lab) -> None:
    with lab.console(0) as console:
        waited = console.expect(r"k1: waited (\d+) us for PHY power", 30)
    assert int(waited[1]) >= boards.load("virt").uboot.gmac_delay_us.value


# --- the hardware


def test_boards_are_riscv64_with_k1s_extensions_and_no_vector(lab: Lab) -> None:
    assert ask(lab, 0, "uname -m") == "riscv64"
    isa = ask(lab, 0, "tr -d '\\000' < /proc/device-tree/cpus/cpu@0/riscv,isa")
    letters, *extensions = isa.split("_")
    assert letters == "rv64imafdc"
    assert {"zicsr", "zifencei", "zba", "zbb", "zbs", "zbc", "zkr", "zkn"} <= set(extensions)
    assert not any(name.startswith(("zv", "v")) for name in extensions)


def test_bit_manipulation_instructions_run(lab: Lab, install: Install) -> None:
    install(0, "bitmanip", "rv64gc_zba_zbb_zbc_zbs")
    assert ask(lab, 0, "/run/bitmanip").splitlines() == [
        "sh3add 140",
        "cpop 16",
        "clz 63",
        "rev8 807060504030201",
        "max 2",
        "clmul 5555",
        "bset 10000000000",
    ]


def test_two_cores_have_two_threads_each(lab: Lab) -> None:
    assert ask(lab, 0, "cat /sys/devices/system/cpu/cpu*/topology/thread_siblings_list").split() == [
        "0-1",
        "0-1",
        "2-3",
        "2-3",
    ]


def test_the_clock_is_right(lab: Lab) -> None:
    assert abs(int(ask(lab, 0, "date +%s")) - time.time()) < 300


# --- the system


def test_iperf3_is_there(lab: Lab) -> None:
    assert ask(lab, 0, "iperf3 -v").startswith("iperf 3.")


def test_the_slot_is_read_only_under_a_writable_overlay(lab: Lab) -> None:
    mounts = {line.split()[1]: line.split() for line in ask(lab, 0, "cat /proc/mounts").splitlines()}
    assert mounts["/rom"][2] == "squashfs"
    assert "ro" in mounts["/rom"][3].split(",")
    assert mounts["/"][2] == "overlay"
    assert lab.ssh(0).run("touch /rom/etc/x", check=False).returncode != 0


def test_the_data_partition_fills_the_card(lab: Lab) -> None:
    kilobytes = int(ask(lab, 0, "df -k /data").splitlines()[-1].split()[1])
    assert kilobytes > 6_000_000


def test_login_by_password_is_refused(lab: Lab) -> None:
    words = lab.ssh(0).command("true")
    methods = ["-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=password,keyboard-interactive"]
    result = subprocess.run([*words[:3], *methods, *words[3:]], capture_output=True, text=True)
    assert result.returncode == 255
    assert "Permission denied (publickey)" in result.stderr


def test_an_exit_code_comes_back_through_k1_lab_ssh(lab: Lab, k1: Command) -> None:
    with pytest.raises(pytest.fail.Exception, match="ended with 7"):
        k1("lab", "ssh", "--name", lab.name, "0", "exit 7")


# --- the network


def test_boards_have_their_identity(lab: Lab) -> None:
    for board in lab.status():
        assert ask(lab, board.rank, "hostname") == board.hostname
        addresses = ask(lab, board.rank, "ip addr")
        assert board.mac in addresses
        assert f"inet {board.address}/24" in addresses


def test_jumbo_frames_pass_between_boards_unfragmented(lab: Lab) -> None:
    before = ip_counter(lab, 0, "FragCreates")
    assert ping(lab, 8900)
    assert ip_counter(lab, 0, "FragCreates") == before


def test_discovery_datagrams_pass_between_boards(lab: Lab, install: Install) -> None:
    for rank in (0, 1):
        install(rank, "multicast", "rv64gc")
    words = lab.ssh(1).command("/run/multicast receive 60")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "listening\n"
        ask(lab, 0, "/run/multicast send hello")
        assert receiver.stdout.readline() == "hello\n"


def test_a_cut_board_is_not_reached_until_it_is_plugged_in_again(lab: Lab) -> None:
    assert ping(lab)
    lab.cut(1)
    assert not ping(lab)
    assert lab.ssh(1).answers()
    lab.cut(1, restore=True)
    deadline = time.monotonic() + scaled(30)
    while not ping(lab):
        assert time.monotonic() < deadline, "the network does not heal"


# --- what lasts


def test_data_and_host_key_survive_a_reboot(lab: Lab) -> None:
    key = host_key(lab, 0)
    ask(lab, 0, "echo kept > /data/kept; echo kept > /etc/kept")
    reboot(lab, 0)
    assert ask(lab, 0, "cat /data/kept /etc/kept").split() == ["kept", "kept"]
    assert host_key(lab, 0) == key


def test_synced_data_survives_a_power_cut(lab: Lab, k1: Command) -> None:
    ask(lab, 1, "echo kept > /data/kept; sync")
    lab.kill(1)
    k1("lab", "up", "--name", lab.name)
    assert ask(lab, 1, "cat /data/kept") == "kept"


def test_a_broken_slot_a_boots_slot_b(own_build: Path, k1: Command) -> None:
    with (own_build / "sdcard.img").open("r+b") as card:
        card.seek(slots(own_build / "sdcard.img")[0][0])
        card.write(os.urandom(65536))
    own = Lab("slots")
    try:
        k1("lab", "up", "-n", "1", "--name", own.name)
        with own.console(0) as console:
            console.expect("k1: slot A: no kernel, trying the next", 10)
            console.expect("k1: booting slot B", 10)
        assert ask(own, 0, "k1-slot") == "B"
    finally:
        own.down()
