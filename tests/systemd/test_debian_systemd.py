"""k1 deploy on Debian with systemd, where the unit is what runs the daemon: alone, and with a board of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from k1 import labfleet, paths
from k1.drivers.patience import scaled
from k1.lab import Lab
from support import debianroot
from support.babbler import write_babbler
from support.debianvm import USER, DebianVm
from support.deploying import k1
from support.inferd import wait_until

# The first test waits for the packages' scripts, a board and the machine.
pytestmark = pytest.mark.timeout(scaled(1500))
NODE = """
[[node]]
rank = {rank}
name = "debian"
mac = "{vm.identity.mac}"
address = "{vm.identity.address}"
userland_only = true
ssh = {{ host = "127.0.0.1", port = {vm.ssh_port}, user = "{user}", key = "{vm.root.key}" }}
"""
CLUSTER = """
board = "virt"
[cluster]
model = "babbler.gguf"
programs = "{programs}"
n_ctx = {n_ctx}
timeout_scale = {patience}
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One board of ours."""
    lab = Lab(f"debian-{os.getpid()}")
    try:
        k1("lab", "up", "-n", "1", "--name", lab.name)
        yield lab
    finally:
        k1("lab", "down", "--name", lab.name)


@pytest.fixture(scope="module")
def vm(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianVm]:
    """Debian, on the network of the board."""
    network = json.loads((lab.folder / "lab.json").read_text())
    machine = DebianVm(
        debianroot.find(paths.cache_dir()), tmp_path_factory.mktemp("debian"), (network["group"], network["port"])
    )
    try:
        machine.on()
        yield machine
    finally:
        machine.off()


@dataclass
class Served:
    """A fleet of the one machine, and what serves there."""

    vm: DebianVm
    file: Path

    def fleet(self, name: str, *, n_ctx: int = 512, programs: Path | None = None) -> Path:
        """Another fleet.toml for the same machine and the same secrets."""
        programs = programs or paths.build_dir("virt") / "images" / "bin"
        settings = CLUSTER.format(programs=programs, n_ctx=n_ctx, patience=labfleet.PATIENCE)
        path = self.file.with_name(name)
        path.write_text(settings + NODE.format(rank=0, vm=self.vm, user=USER))
        # What was seen of the machine at first contact.
        if self.file.with_suffix(".known_hosts").exists() and path != self.file:
            shutil.copy(self.file.with_suffix(".known_hosts"), path.with_suffix(".known_hosts"))
        return path

    @property
    def release(self) -> str:
        return self.vm.ask("basename $(readlink /opt/k1/current)")

    @property
    def n_ctx(self) -> int:
        """What the daemon that runs was told."""
        return int(k1("deploy", "-f", self.file, "--only", "health", "--json").json["health"]["n_ctx"])

    def answers(self) -> bool:
        """Whether it completes a prompt for whoever has the token."""
        token = (self.file.parent / "api_tokens").read_text().strip()
        try:
            return len(self.vm.complete(token, "Hello", 4)["choices"][0]["text"]) == 4
        except (OSError, ValueError):
            return False


@pytest.fixture(scope="module")
def served(vm: DebianVm, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """One deploy by an ordinary account that may use sudo."""
    folder = tmp_path_factory.mktemp("fleet")
    write_babbler(folder / "babbler.gguf", layers=4)
    found = Served(vm, folder / "fleet.toml")
    found.fleet("fleet.toml")
    assert k1("deploy", "-f", found.file, "--json").json["health"]["status"] == "ok"
    return found


def test_one_deploy_and_systemd_runs_it_as_nobody_that_others_know(served: Served) -> None:
    vm = served.vm
    assert vm.ask("systemctl is-active k1-inferd; systemctl is-enabled k1-inferd").split() == ["active", "enabled"]
    assert served.answers()
    status = dict(
        line.split(":", 1) for line in vm.ask("cat /proc/$(pidof k1-inferd)/status").splitlines() if ":" in line
    )
    assert int(status["Uid"].split()[0]) >= 61184  # where systemd's dynamic users begin
    assert int(status["CapEff"], 16) == 0
    assert status["Seccomp"].strip() == "2"  # filtered
    # The secrets are root's, and of the daemon's copies others see nothing.
    assert vm.ask("cat /opt/k1/current/etc/cluster_key 2>&1", check=False).endswith("Permission denied")
    assert vm.ask("ls /run/credentials/k1-inferd.service 2>&1", check=False).endswith("Permission denied")


def test_a_second_deploy_changes_nothing_and_all_is_well(served: Served) -> None:
    assert k1("deploy", "-f", served.file, "--json").json["changed"] is False
    status = k1("status", "-f", served.file, "--json").json
    assert status["serves"]
    assert (status["nodes"][0]["ports"], status["nodes"][0]["drift"]) == (["API"], [])


def test_its_words_are_in_the_journal(served: Served) -> None:
    lines = k1("logs", "-f", served.file, "-n", "50").out.splitlines()
    assert any(line.startswith("debian: ") and " info listening host=" in line for line in lines)


def test_a_daemon_that_dies_is_started_again(served: Served) -> None:
    before = served.vm.ask("pidof k1-inferd")
    served.vm.ask("sudo kill -KILL $(pidof k1-inferd)")
    wait_until("it serves again", served.answers, 120)
    assert served.vm.ask("pidof k1-inferd") != before


def test_a_release_whose_daemon_ends_at_once_is_taken_back(served: Served, tmp_path: Path) -> None:
    before = served.release
    shutil.copytree(paths.build_dir("virt") / "images" / "bin", tmp_path / "broken")
    source = tmp_path / "ends.c"
    source.write_text(
        '#include <string.h>\nint main(int n, char **words) { return n < 2 || strcmp(words[1], "--version") != 0; }\n'
    )
    gcc = ["riscv64-linux-gnu-gcc", "-static", "-o", tmp_path / "broken" / "k1-inferd", source]
    subprocess.run(gcc, check=True)
    failed = k1("deploy", "-f", served.fleet("broken.toml", programs=tmp_path / "broken"), code=4)
    assert "debian: health: the daemon does not run" in failed.err
    assert "the release before is back and serves" in failed.err
    assert served.release == before
    assert served.answers()


def test_rollback_and_a_power_cut_on_trial_both_lead_back(served: Served) -> None:
    before = served.release
    other = served.fleet("other.toml", n_ctx=256)
    newer = k1("deploy", "-f", other, "--json").json["release"]
    assert (served.release == newer) != (newer == before)
    k1("rollback", "-f", other)
    assert served.release == before
    assert served.answers()

    # A switch that nobody confirms, and the power goes: options and secrets are those of the release before, too.
    served.vm.ask(f"sudo /opt/k1/current/bin/k1-release switch {newer}")
    served.vm.off()
    served.vm.on()
    wait_until("it serves by itself", served.answers, 120)
    assert served.release == before
    assert served.n_ctx == 512


def test_it_makes_a_cluster_with_a_board_of_ours(served: Served, lab: Lab) -> None:
    fleet = served.file.with_name("mixed.toml")
    k1("fleet", "init", "-f", fleet, "--lab", lab.name, "--model", served.file.with_name("babbler.gguf"))
    fleet.write_text(fleet.read_text() + NODE.format(rank=1, vm=served.vm, user=USER))
    outcome = k1("deploy", "-f", fleet, "--json").json
    assert [rank["layers"] for rank in outcome["health"]["ranks"]] == [[0, 1], [2, 3]]
    # The model was there already, so the board got it from Debian.
    assert outcome["uplink"] == 0
    assert not any(row["drift"] for row in k1("status", "-f", fleet, "--json").json["nodes"])
