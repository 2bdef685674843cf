"""k1 deploy on nodes with a real sshd, our init scripts and real daemons; boards are only missing below that."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.babbler import write_babbler
from support.deploying import deploy_held, flip, k1, variant
from support.inferd import SCALE, wait_until
from support.sshnodes import Farm, farm

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with farm(tmp_path_factory.mktemp("farm")) as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_babbler(tmp_path_factory.mktemp("model") / "babbler.gguf", layers=4)


@pytest.fixture(scope="module")
def programs(userland_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that tests may change."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("k1-inferd", "k1-cli"):
        subprocess.run(["strip", "-o", folder / name, userland_build / name], check=True)
    return folder


@pytest.fixture
def served(four: Farm, model: Path, programs: Path) -> tuple[Farm, Path]:
    """Four nodes that serve what fleet.toml says."""
    fleet = four.fleet(model, programs)
    k1("deploy", "-f", fleet)
    return four, fleet


@pytest.fixture
def another(four: Farm, model: Path, programs: Path, tmp_path: Path) -> Path:
    """A fleet.toml with a daemon that differs in one byte. Its name is the test's, for host keys are kept under it."""
    return four.fleet(model, variant(programs, tmp_path / "other", flip), f"{tmp_path.name}.toml")


def releases(four: Farm) -> set[str]:
    return {node.current for node in four.nodes}


def assert_serving(four: Farm, fleet: Path, release: str) -> None:
    """All nodes run that release and make one cluster."""
    for node in four.nodes:
        assert node.current == release
        assert [Path(exe).parts[-3] for exe in node.daemons()] == [release]
    assert k1("deploy", "-f", fleet, "--only", "health", "--json").json["health"]["status"] == "ok"


# --- what it does


def test_four_nodes_serve_after_one_command_and_a_second_one_changes_nothing(served: tuple[Farm, Path]) -> None:
    four, fleet = served
    (release,) = releases(four)
    assert_serving(four, fleet, release)
    before = [node.daemons() for node in four.nodes]
    begun = time.monotonic()
    again = k1("deploy", "-f", fleet, "--json").json
    assert time.monotonic() - begun < 10 * SCALE
    assert again["changed"] is False
    assert (again["uplink"], again["literal"]) == (0, {})
    assert [node.daemons() for node in four.nodes] == before


def test_secrets_are_the_daemons_alone(served: tuple[Farm, Path]) -> None:
    four, fleet = served
    for node in four.nodes:
        key = node.base / "releases" / node.current / "etc" / "cluster_key"
        assert (key.stat().st_mode & 0o777, key.stat().st_uid) == (0o600, 901)
        assert key.read_text() == (fleet.parent / "cluster_key").read_text()
    assert (fleet.parent / "cluster_key").stat().st_mode & 0o777 == 0o600


def test_a_dry_run_tells_and_changes_nothing(served: tuple[Farm, Path], another: Path) -> None:
    four, _ = served
    before = releases(four)
    told = k1("deploy", "-f", another, "--dry-run", "--json").json
    assert told["changed"] is False
    would = {step for step, row in told["nodes"]["k1-2"].items() if row["state"] == "would"}
    assert would == {"release", "switch", "services"}
    assert releases(four) == before


def test_a_changed_byte_of_the_daemon_sends_little(served: tuple[Farm, Path], another: Path) -> None:
    four, _ = served
    (before,) = releases(four)
    outcome = k1("deploy", "-f", another, "--json").json
    assert set(outcome["literal"]) == {"k1-0", "k1-1", "k1-2", "k1-3"}
    assert all(0 < count <= 65536 for count in outcome["literal"].values()), outcome["literal"]
    assert outcome["uplink"] == 0
    assert_serving(four, another, outcome["release"])

    k1("rollback", "-f", another)
    assert_serving(four, another, before)


@pytest.mark.slow
def test_a_model_leaves_the_operators_machine_once(four: Farm, programs: Path, tmp_path: Path) -> None:
    large = write_babbler(tmp_path / "large.gguf", seed=2, layers=48)
    size = large.stat().st_size
    fleet = four.fleet(large, programs, "large.toml")
    k1("deploy", "-f", fleet, "--only", "release")
    begun = four.sent()
    outcome = k1("deploy", "-f", fleet, "--json").json
    assert 0 < outcome["uplink"] <= 1.3 * size
    assert four.sent() - begun <= 1.3 * size
    for node in four.nodes:
        (there,) = (path for path in node.models if path.name.startswith("large-"))
        assert there.read_bytes() == large.read_bytes()


# --- what goes wrong


def test_a_node_that_is_off_is_named_and_the_others_go_on_as_they_were(
    served: tuple[Farm, Path], another: Path
) -> None:
    four, _ = served
    before = releases(four)
    four.nodes[2].off()
    try:
        run = k1("deploy", "-f", another, code=4)
    finally:
        four.nodes[2].on()
    assert "k1-2: preflight: root@10.77.0.3 port 22 is not reached" in run.err
    assert "is it on, plugged in" in run.err
    assert releases(four) == before


@pytest.mark.slow
@pytest.mark.parametrize("step", ["network", "release", "model", "switch", "services", "health"])
def test_power_lost_at_any_step_leaves_the_old_release_everywhere(
    served: tuple[Farm, Path], programs: Path, tmp_path: Path, step: str
) -> None:
    four, fleet = served
    (before,) = releases(four)
    for node in four.nodes:
        node.start_at_boot()
    new_model = write_babbler(tmp_path / "new.gguf", seed=len(step), layers=4)
    other = four.fleet(new_model, variant(programs, tmp_path / "other", flip), f"{step}.toml")
    try:
        run = deploy_held(other, "k1-2", step, four.nodes[2].off)
    finally:
        four.nodes[2].on()
    assert run.code == 4, run.err + run.out
    # The namespace of a node that is off still answers pings, which is all that the step network does here.
    noticed = "release" if step == "network" else step
    assert re.search(f"error: k1-2: {noticed}: .*is not reached", run.err), run.err
    wait_until("the node has started its daemon", lambda: bool(four.nodes[2].daemons()))
    assert_serving(four, fleet, before)


def test_programs_that_do_not_run_on_a_node_are_found_before_anything_changes(
    served: tuple[Farm, Path], programs: Path, model: Path, tmp_path: Path
) -> None:
    four, fleet = served
    (before,) = releases(four)
    broken = variant(programs, tmp_path / "broken", lambda data: data[:24] + b"\0" * 8 + data[32:])  # starts at 0
    run = k1("deploy", "-f", four.fleet(model, broken, "broken.toml"), code=4)
    assert "k1-3: release: k1-inferd does not run there: Segmentation fault" in run.err
    assert "made for another processor?" in run.err
    assert "what ran before runs on" in run.err
    assert_serving(four, fleet, before)


def test_a_release_that_does_not_start_is_taken_back_everywhere(
    served: tuple[Farm, Path], programs: Path, model: Path, tmp_path: Path
) -> None:
    four, fleet = served
    (before,) = releases(four)
    broken = variant(programs, tmp_path / "broken", lambda data: data.replace(b"rpc_master", b"rpc_mister"))
    run = k1("deploy", "-f", four.fleet(model, broken, "broken.toml"), code=4)
    assert "health: the daemon does not run" in run.err
    assert "the release before is back and serves" in run.err
    assert_serving(four, fleet, before)


@pytest.mark.slow
def test_a_daemon_that_does_not_give_way_is_noticed(served: tuple[Farm, Path], another: Path) -> None:
    four, fleet = served
    (before,) = releases(four)
    script = four.nodes[2].folder / "etc" / "init.d" / "S50inferd"
    kept = script.read_text()
    script.write_text("#!/bin/sh\nexit 0\n")
    try:
        run = k1("deploy", "-f", another, code=4)
    finally:
        script.write_text(kept)
    assert f"k1-2: health: still runs /opt/k1/releases/{before}/bin/k1-inferd" in run.err
    assert_serving(four, fleet, before)


def test_a_full_disk_is_named_before_anything_is_sent(
    served: tuple[Farm, Path], programs: Path, tmp_path: Path
) -> None:
    four, fleet = served
    (before,) = releases(four)
    new = write_babbler(tmp_path / "new.gguf", seed=9, layers=4)
    four.nodes[1].fill(leave_kib=4096)
    try:
        run = k1("deploy", "-f", four.fleet(new, programs, "full.toml"), code=4)
    finally:
        four.nodes[1].unfill()
    assert "k1-1: preflight: has 4 MiB free below /opt/k1" in run.err
    assert_serving(four, fleet, before)


@pytest.mark.parametrize("rank", [0, 2], ids=["by the upload", "by the relay"])
def test_a_disk_that_fills_up_under_the_model_is_named_and_gone_on_from(
    served: tuple[Farm, Path], programs: Path, tmp_path: Path, rank: int
) -> None:
    four, fleet = served
    (before,) = releases(four)
    new = write_babbler(tmp_path / "new.gguf", seed=20 + rank, layers=16)
    other = four.fleet(new, programs, f"filling{rank}.toml")
    node = four.nodes[rank]
    try:
        run = deploy_held(other, f"k1-{rank}", "model", lambda: node.fill(leave_kib=300))
    finally:
        node.unfill()
    assert run.code == 4, run.err + run.out
    assert re.search(rf"k1-{rank}: model: .*No space left on device", run.err), run.err
    assert "free some space on the node's disk" in run.err
    assert "what ran before runs on" in run.err
    assert_serving(four, fleet, before)
    k1("deploy", "-f", other)


@pytest.mark.slow
def test_a_killed_ssh_in_the_middle_of_the_model_is_gone_on_from(four: Farm, programs: Path, tmp_path: Path) -> None:
    large = write_babbler(tmp_path / "long.gguf", seed=3, layers=96)
    fleet = four.fleet(large, programs, "long.toml")
    k1("deploy", "-f", fleet, "--only", "release")
    words = [sys.executable, "-m", "k1", "deploy", "-f", fleet, "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        wait_until("a part is there", lambda: arrived(four, "long") > 1 << 20, 60)
        for pid in ssh_servers(four, 0):
            os.kill(pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=200 * SCALE)
    assert process.returncode == 0
    assert json.loads(out)["uplink"] <= 1.3 * large.stat().st_size
    assert all(any(p.name.startswith("long-") for p in node.models) for node in four.nodes)


def arrived(four: Farm, model: str) -> int:
    """Bytes of a model that node 0 has of a transfer under way."""
    with suppress(FileNotFoundError):  # it has just got its final name
        return max((part.stat().st_size for part in four.nodes[0].base.glob(f"models/{model}-*.part")), default=0)
    return 0


def ssh_servers(four: Farm, rank: int) -> list[int]:
    """The sshd processes of sessions on a node."""
    found = []
    for pid in four.nodes[rank].pids():
        try:
            title = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if title.startswith("sshd: root"):
            found.append(int(pid))
    return found


def test_ctrl_c_in_the_middle_of_the_model_ends_it_and_the_next_goes_on(
    served: tuple[Farm, Path], programs: Path, tmp_path: Path
) -> None:
    four, fleet = served
    (before,) = releases(four)
    large = write_babbler(tmp_path / "stopped.gguf", seed=4, layers=64)
    other = four.fleet(large, programs, "stopped.toml")
    four.slow_down("30mbit")
    try:
        words = [sys.executable, "-m", "k1", "deploy", "-f", other]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            wait_until("a part is there", lambda: arrived(four, "stopped") > 1 << 20)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60 * SCALE)
    finally:
        four.slow_down(None)
    assert process.returncode == 130, err
    assert "failed" not in err
    # It has not just waited for the end of the transfer.
    assert not any(path.name.startswith("stopped-") for path in four.nodes[0].models)
    assert_serving(four, fleet, before)
    assert k1("deploy", "-f", other, "--json").json["uplink"] < large.stat().st_size - (1 << 20)


@pytest.mark.parametrize("step", ["switch", "services", "health"])
def test_ctrl_c_after_the_switch_began_brings_the_old_release_back(
    served: tuple[Farm, Path], another: Path, step: str
) -> None:
    four, fleet = served
    (before,) = releases(four)
    run = deploy_held(another, "k1-1", step, None)
    assert run.code == 130, run.err + run.out
    assert_serving(four, fleet, before)


def test_a_switch_that_did_not_reach_a_node_is_not_taken_back_there(
    served: tuple[Farm, Path], another: Path, programs: Path, model: Path
) -> None:
    four, _ = served
    (first,) = releases(four)
    (second,) = {k1("deploy", "-f", another, "--json").json["release"]}
    third = four.fleet(model, programs, "third.toml", n_ctx=128)

    def lose_the_switch() -> None:
        helper = next(
            path
            for path in four.nodes[1].base.glob("releases/*/bin/k1-release")
            if path.parts[-3] not in (first, second)
        )
        helper.write_text(helper.read_text().replace("case ${1-} in", '[ "$1" != switch ] || exit 9\ncase ${1-} in'))

    run = deploy_held(third, "k1-1", "switch", lose_the_switch)
    assert run.code == 4, run.err + run.out
    assert "k1-1: switch: " in run.err
    assert_serving(four, another, second)
    k1("rollback", "-f", another)
    assert_serving(four, another, first)


def test_a_corrupted_byte_of_a_model_is_found_and_mended(served: tuple[Farm, Path], model: Path) -> None:
    four, fleet = served
    (damaged,) = (path for path in four.nodes[3].models if path.name.startswith("babbler-"))
    with damaged.open("r+b") as stream:
        stream.seek(damaged.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(damaged, (time.time() + 2, time.time() + 2))
    outcome = k1("deploy", "-f", fleet, "--json").json
    assert outcome["nodes"]["k1-3"]["model"]["state"] == "done"
    assert outcome["nodes"]["k1-2"]["model"]["state"] == "ok"
    assert damaged.read_bytes() == model.read_bytes()


@pytest.mark.slow
def test_silent_rot_is_found_by_verify(served: tuple[Farm, Path], model: Path) -> None:
    four, fleet = served
    (damaged,) = (path for path in four.nodes[1].models if path.name.startswith("babbler-"))
    times = damaged.stat()
    with damaged.open("r+b") as stream:
        stream.seek(5000)
        stream.write(b"rot")
    os.utime(damaged, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert k1("deploy", "-f", fleet, "--json").json["nodes"]["k1-1"]["model"]["state"] == "ok"
    k1("deploy", "-f", fleet, "--verify")
    assert damaged.read_bytes() == model.read_bytes()


def test_another_host_key_is_refused_and_explained(served: tuple[Farm, Path]) -> None:
    four, fleet = served
    node = four.nodes[1]
    node.off()
    node.new_host_key()
    node.start_at_boot()
    node.on()
    run = k1("deploy", "-f", fleet, code=2)
    assert "k1-1: preflight: root@10.77.0.2 port 22 shows another host key than at first contact" in run.err
    remedy = f"ssh-keygen -R k1-1 -f {fleet.with_suffix('.known_hosts')}"
    assert remedy in run.err
    subprocess.run(remedy.split(), check=True, capture_output=True)
    k1("deploy", "-f", fleet)


@pytest.mark.slow
def test_two_nodes_with_one_mac_are_named_and_told_apart(served: tuple[Farm, Path]) -> None:
    four, fleet = served
    ip = ["ip", "-n", four.net.names[3], "link"]
    subprocess.run([*ip, "set", "eth0", "address", "00:11:22:33:44:52"], check=True)
    run = k1("deploy", "-f", fleet)
    assert "MAC 00:11:22:33:44:52 is that of k1-2 and k1-3" in run.err
    assert run.code == 0
    assert "00:11:22:33:44:53" in subprocess.run([*ip, "show", "eth0"], capture_output=True, text=True).stdout


def test_a_switch_without_jumbo_frames_gets_smaller_ones(
    served: tuple[Farm, Path], programs: Path, model: Path
) -> None:
    four, _ = served
    fleet = four.fleet(model, programs, "jumbo.toml", mtu=9000)
    run = k1("deploy", "-f", fleet)
    assert "the network carries no frames of 9000 bytes, so MTU is 1500" in run.err
    assert four.mtus() == [1500] * 4
    assert k1("deploy", "-f", fleet, "--json").json["changed"] is False

    four.replace_switch(mtu=9000)
    try:
        k1("deploy", "-f", fleet, "--only", "network")
        assert four.mtus() == [9000] * 4
        assert "MTU" not in k1("deploy", "-f", fleet).err
    finally:
        four.replace_switch(mtu=1500)


def test_wrong_architecture_is_refused(four: Farm, model: Path, programs: Path, tmp_path: Path) -> None:
    arm = variant(programs, tmp_path / "arm", lambda data: data[:18] + b"\xb7\0" + data[20:])
    fleet = four.fleet(model, arm, "arm.toml")
    unnamed = fleet.with_name("unnamed.toml")
    unnamed.write_text("".join(line for line in fleet.open() if not line.startswith("programs")))
    for file in (fleet, unnamed):
        run = k1("deploy", "-f", file, code=2)
        assert "k1-0: preflight: is x86_64, and the programs are for aarch64, riscv64" in run.err
        assert "k1-3: preflight: is x86_64" in run.err
        assert "name a folder with programs for it: cluster.programs in fleet.toml" in run.err


def test_a_changed_key_reaches_all_nodes_at_once(served: tuple[Farm, Path]) -> None:
    four, fleet = served
    (before,) = releases(four)
    key = (fleet.parent / "cluster_key").read_text()
    k1("key", "rotate", "-f", fleet)
    assert (fleet.parent / "cluster_key").read_text() != key
    (after,) = releases(four)
    assert after != before
    assert_serving(four, fleet, after)


@pytest.mark.slow
def test_an_account_with_sudo_will_do_and_one_without_is_told_so(served: tuple[Farm, Path], another: Path) -> None:
    four, _ = served
    another.write_text(another.read_text().replace("[ssh]", '[ssh]\nuser = "operator"'))
    run = k1("deploy", "-f", another, code=2)
    assert "k1-0: preflight: operator may not use sudo" in run.err
    assert "let operator use sudo without a password on that node, or log in as root" in run.err

    for node in four.nodes:
        node.let_operator_in()
    release = k1("deploy", "-f", another, "--json").json["release"]
    assert_serving(four, another, release)
    assert k1("deploy", "-f", another, "--json").json["changed"] is False


# --- looking at it


def test_status_shows_layers_and_flags_what_drifts(served: tuple[Farm, Path]) -> None:
    four, fleet = served
    status = k1("status", "-f", fleet, "--json").json
    assert status["serves"]
    assert [row["layers"] for row in status["nodes"]] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert all(row["ports"] == ["API", "RPC"] and not row["drift"] for row in status["nodes"])

    conf = four.nodes[1].base / "current" / "etc" / "inferd.conf"
    conf.write_text(conf.read_text() + "# by hand\n")
    drifting = k1("status", "-f", fleet, "--json", code=3).json
    assert drifting["nodes"][1]["drift"] == ["files of the release were changed on the node"]
    assert k1("deploy", "-f", fleet, "--json").json["nodes"]["k1-1"]["release"]["state"] == "done"
    assert k1("status", "-f", fleet, "--json").json["nodes"][1]["drift"] == []


@pytest.mark.slow
def test_status_tells_of_a_node_that_is_off(served: tuple[Farm, Path]) -> None:
    four, fleet = served
    four.nodes[3].start_at_boot()
    four.nodes[3].off()
    try:
        status = k1("status", "-f", fleet, "--json", code=4).json
    finally:
        four.nodes[3].on()
    assert not status["serves"]
    assert "is not reached" in status["nodes"][3]["drift"][0]


def test_commands_and_logs_come_with_their_nodes(served: tuple[Farm, Path]) -> None:
    _, fleet = served
    run = k1("run", "-f", fleet, "--limit", "k1-1", "--limit", "k1-3", "--", "id", "-u")
    assert sorted(run.out.splitlines()) == ["k1-1: 0", "k1-3: 0"]
    assert "failed on k1-0 (status 7)" in k1("run", "-f", fleet, "exit 7", code=4).err
    logs = k1("logs", "-f", fleet, "k1-2", "-n", "3").out.splitlines()
    assert len(logs) == 3
    assert all(line.startswith("k1-2: ") for line in logs)
