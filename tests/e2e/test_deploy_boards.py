"""k1 deploy on virtual boards of the image: what only they can show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k1 import paths
from k1.drivers.patience import scaled
from k1.lab import Lab
from support.babbler import write_babbler

COUNT = 4


def run_k1(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "k1", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr + done.stdout
    return done


def deploy(fleet: Path, *words: str) -> Any:
    return json.loads(run_k1("deploy", "-f", fleet, "--json", *words).stdout)


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Path]]:
    """Four boards that serve a tiny model by one deploy."""
    lab = Lab(f"deploy-{os.getpid()}")
    folder = tmp_path_factory.mktemp("fleet")
    model = write_babbler(folder / "babbler.gguf", layers=4)
    try:
        run_k1("lab", "up", "-n", str(COUNT), "--name", lab.name)
        run_k1("fleet", "init", "-f", folder / "fleet.toml", "--lab", lab.name, "--model", model)
        deploy(folder / "fleet.toml")
        yield lab, folder / "fleet.toml"
    finally:
        run_k1("lab", "down", "--name", lab.name)


def current(lab: Lab) -> list[str]:
    return [lab.ssh(rank).run("basename $(readlink /opt/k1/current)").output.strip() for rank in range(COUNT)]


def changed(fleet: Path, name: str) -> Path:
    """The same fleet with a daemon that differs in one byte."""
    folder = fleet.parent / name
    folder.mkdir()
    for program in (paths.build_dir("virt") / "images" / "bin").iterdir():
        data = program.read_bytes()
        (folder / program.name).write_bytes(data.replace(b"no such path; there", b"no such path, there"))
        (folder / program.name).chmod(0o755)
    text = fleet.read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("programs"))
    other = fleet.with_name(f"{name}.toml")
    other.write_text(text.replace(line, f'programs = "{folder}"'))
    return other


def test_the_image_has_the_programs_already_so_next_to_nothing_is_sent(boards: tuple[Lab, Path]) -> None:
    lab, fleet = boards
    assert len(set(current(lab))) == 1
    begun = time.monotonic()
    again = deploy(fleet)
    assert again["changed"] is False
    assert again["health"]["status"] == "ok"
    assert time.monotonic() - begun < scaled(10)


def test_one_changed_byte_sends_little_and_a_power_cut_on_trial_goes_back(boards: tuple[Lab, Path]) -> None:
    lab, fleet = boards
    (before,) = set(current(lab))
    outcome = deploy(changed(fleet, "next"))
    assert all(0 < count <= 65536 for count in outcome["literal"].values()), outcome["literal"]
    assert set(current(lab)) == {outcome["release"]}

    # A switch that nobody confirms, and the power goes: what was there before is back at the next start.
    back = lab.ssh(1)
    back.run(f"/opt/k1/releases/{before}/bin/k1-release switch {before}")
    lab.kill(1)
    run_k1("lab", "up", "--name", lab.name)
    assert set(current(lab)) == {outcome["release"]}
    other = fleet.with_name("next.toml")
    lines = fleet.read_text().splitlines()  # ports change when a board starts anew
    run_k1("fleet", "init", "-f", fleet, "--lab", lab.name, "--model", fleet.parent / "babbler.gguf", "--force")
    assert len(fleet.read_text().splitlines()) == len(lines)
    programs = next(line for line in other.read_text().splitlines() if line.startswith("programs"))
    old = next(line for line in fleet.read_text().splitlines() if line.startswith("programs"))
    other.write_text(fleet.read_text().replace(old, programs))
    assert deploy(other)["health"]["status"] == "ok"
    run_k1("rollback", "-f", other)
    assert set(current(lab)) == {before}


def test_two_boards_with_one_mac_are_named_and_told_apart(boards: tuple[Lab, Path]) -> None:
    lab, fleet = boards
    board = lab.ssh(3)
    board.run("sed -i 's/^MAC=.*/MAC=00:11:22:33:44:52/' /data/etc/k1/node.conf; /etc/init.d/S20network reload")
    told = deploy(fleet, "--dry-run")["nodes"]["k1-3"]["network"]
    assert told["detail"] == "MAC 00:11:22:33:44:52 is that of k1-2 and k1-3"
    deploy(fleet)
    assert "00:11:22:33:44:53" in board.run("ip link").output


def test_a_switch_without_jumbo_frames_is_noticed(boards: tuple[Lab, Path]) -> None:
    lab, fleet = boards
    lab.ssh(2).run(
        "ip link set dev $(ip -o -4 addr | sed -n 's/^[0-9]*: \\([^ ]*\\) *inet 192.168.1.*/\\1/p') mtu 1500"
    )
    assert deploy(fleet, "--dry-run")["nodes"]["k1-2"]["network"]["detail"] == "MTU 1500 becomes 9000"
    assert deploy(fleet)["nodes"]["k1-2"]["network"]["state"] == "done"
    assert deploy(fleet)["changed"] is False


def test_a_disk_that_is_full_is_named_with_its_board(boards: tuple[Lab, Path]) -> None:
    lab, fleet = boards
    before = current(lab)
    lab.ssh(1).run("fallocate -l $(($(df -Pk /data | tail -n 1 | tr -s ' ' | cut -d' ' -f4) - 4096))k /data/filler")
    try:
        new = write_babbler(fleet.parent / "new.gguf", seed=5, layers=4)
        other = fleet.with_name("full.toml")
        other.write_text(fleet.read_text().replace("babbler.gguf", new.name))
        failed = run_k1("deploy", "-f", other, code=4)
    finally:
        lab.ssh(1).run("rm /data/filler")
    assert "MiB free below /opt/k1, and 36 MiB are needed" in failed.stderr
    assert "k1: error: k1-1: preflight: has" in failed.stderr
    assert current(lab) == before
    assert deploy(fleet)["changed"] is False
