"""What goes wrong in a deploy, on virtual boards: the old service stays or comes back, and the message names the board.

The same on nodes without boards, and more of it, is in tests/integration/test_deploy.py.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from boards import Boards, deploy

from support.babbler import write_babbler
from support.deploying import deploy_held, k1

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def larger(boards: Boards) -> Path:
    """A model that takes some seconds."""
    return write_babbler(boards.fleet.parent / "larger.gguf", seed=7, layers=64)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("preflight", marks=SLOW),
        pytest.param("network", marks=SLOW),
        pytest.param("release", marks=SLOW),
        "model",
        "switch",
        pytest.param("services", marks=SLOW),
        "health",
    ],
)
def test_power_cut_at_a_step(boards: Boards, step: str) -> None:
    (before,) = set(boards.current)
    model = write_babbler(boards.fleet.parent / f"{step}.gguf", seed=len(step), layers=4)
    run = deploy_held(boards.another(step, model), "k1-2", step, lambda: boards.lab.kill(2))
    boards.power_on()
    assert run.code == 4, run.err + run.out
    assert f"k1-2: {step}: " in run.err
    assert re.search("is not reached|no answer to", run.err)
    assert "  try: " in run.err
    boards.assert_serving(before)


def test_ssh_killed_in_the_middle_of_the_model(boards: Boards, larger: Path) -> None:
    other = boards.another("killed", larger)
    deploy(other, "--only", "release")
    part = f"/opt/k1/models/{larger.stem}-*.part"
    # As soon as some of it is there, every SSH session of that board dies; its SSH server goes on.
    watch = f"""
        until [ $(cat {part} 2>/dev/null | wc -c) -gt 500000 ]; do sleep 0.1; done
        kill -9 $(pidof dropbear | tr ' ' '\\n' | grep -vx $(cat /run/dropbear.pid)) && touch /run/killed
    """
    boards.lab.ssh(0).run("cat >/run/watch; setsid sh /run/watch >/dev/null 2>&1 </dev/null &", stdin=watch)
    outcome = deploy(other)
    assert outcome["changed"]
    assert outcome["uplink"] <= 1.3 * larger.stat().st_size
    assert boards.sh(0, "ls /run/killed") == "/run/killed"
    k1("rollback", "-f", other)


def test_a_corrupted_byte_of_the_model_is_found_by_its_hash_and_repaired(boards: Boards) -> None:
    model = f"$(ls /opt/k1/models/{boards.fleet.with_name('babbler.gguf').stem}-*.gguf)"
    good = boards.sh(3, f"sha256sum {model}")
    boards.sh(3, f"printf X | dd of={model} bs=1 seek=100000 conv=notrunc 2>/dev/null; sync")
    assert boards.sh(3, f"sha256sum {model}") != good
    rows = deploy(boards.fleet, "--verify")["nodes"]
    assert "from k1-" in rows["k1-3"]["model"]["detail"]
    assert "hash checked" in rows["k1-1"]["model"]["detail"]
    assert boards.sh(3, f"sha256sum {model}") == good


def test_another_host_key_is_refused_and_explained(boards: Boards) -> None:
    boards.sh(1, "rm /data/ssh/*; /etc/init.d/S30dropbear stop; sleep 1; /etc/init.d/S30dropbear start")
    run = k1("deploy", "-f", boards.fleet, code=2)
    assert "k1-1: preflight: " in run.err
    assert "shows another host key than at first contact" in run.err
    forget = f"ssh-keygen -R k1-1 -f {boards.fleet.with_suffix('.known_hosts')}"
    assert forget in run.err
    subprocess.run(forget.split(), check=True, capture_output=True)
    subprocess.run(["ssh-keygen", "-R", "k1-1", "-f", boards.lab.folder / "known_hosts"], check=True)
    assert deploy(boards.fleet)["changed"] is False


def test_two_boards_with_one_mac_are_named_and_told_apart(boards: Boards) -> None:
    boards.sh(3, "sed -i 's/^MAC=.*/MAC=00:11:22:33:44:52/' /data/etc/k1/node.conf; /etc/init.d/S20network reload")
    told = deploy(boards.fleet, "--dry-run")["nodes"]["k1-3"]["network"]
    assert told["detail"] == "MAC 00:11:22:33:44:52 is that of k1-2 and k1-3"
    deploy(boards.fleet)
    assert "00:11:22:33:44:53" in boards.sh(3, "ip link")


FREE = "$(df -Pk /data | tail -n 1 | tr -s ' ' | cut -d' ' -f4)"


def test_a_disk_that_is_full_is_named_before_anything_is_sent(boards: Boards) -> None:
    before = boards.current
    boards.sh(1, f"fallocate -l $(({FREE} - 4096))k /data/filler")
    try:
        new = write_babbler(boards.fleet.parent / "new.gguf", seed=5, layers=4)
        failed = k1("deploy", "-f", boards.another("full", new), code=4)
    finally:
        boards.sh(1, "rm /data/filler")
    assert re.search(r"k1-1: preflight: has [34] MiB free below /opt/k1, and 36 MiB are needed", failed.err)
    assert boards.current == before
    assert deploy(boards.fleet)["changed"] is False


def test_a_disk_that_fills_up_under_the_model_is_named(boards: Boards) -> None:
    (before,) = set(boards.current)
    new = write_babbler(boards.fleet.parent / "filling.gguf", seed=6, layers=16)
    other = boards.another("filling", new)
    try:
        failed = deploy_held(
            other, "k1-1", "model", lambda: boards.lab.ssh(1).run(f"fallocate -l $(({FREE} - 300))k /data/filler")
        )
    finally:
        boards.sh(1, "rm /data/filler")
    assert failed.code == 4, failed.err + failed.out
    assert "k1-1: model: " in failed.err
    assert "No space left on device" in failed.err
    boards.assert_serving(before)
