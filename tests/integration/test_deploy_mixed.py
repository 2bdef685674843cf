"""k1 deploy to nodes of two architectures: each gets programs of its own, and they are one cluster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k1.deploy.release import machine
from support.babbler import write_babbler
from support.deploying import k1
from support.sshnodes import Farm, farm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Node 0 is this machine's, node 1 an Arm board."""
    with farm(tmp_path_factory.mktemp("farm"), 2) as made:
        made.nodes[1].off()
        made.nodes[1].become_arm()
        made.nodes[1].on()
        yield made


@pytest.fixture(scope="module")
def fleet(pair: Farm, userland_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet.toml that names programs for this machine alone."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("k1-inferd", "k1-cli"):
        subprocess.run(["strip", "-o", folder / name, userland_build / name], check=True)
    return pair.fleet(write_babbler(folder / "babbler.gguf", layers=4), folder, timeout_scale=10.0)


@pytest.fixture(scope="module")
def deployed(fleet: Path) -> Any:
    return k1("deploy", "-f", fleet, "--json").json


def test_each_node_gets_the_programs_of_its_architecture_and_they_serve_as_one(pair: Farm, deployed: Any) -> None:
    daemons = [node.base / "current" / "bin" / "k1-inferd" for node in pair.nodes]
    assert [machine(daemon.resolve()) for daemon in daemons] == [os.uname().machine, "aarch64"]
    assert deployed["nodes"]["k1-1"]["preflight"]["detail"].startswith("aarch64, ")
    assert {node.current for node in pair.nodes} == {deployed["release"]}
    assert deployed["health"]["status"] == "ok"
    assert all(node.daemons() for node in pair.nodes)


def test_a_second_deploy_changes_nothing_of_all_or_of_one(deployed: Any, fleet: Path) -> None:
    for limit in ([], ["--limit", "k1-0"], ["--limit", "k1-1"]):
        again = k1("deploy", "-f", fleet, *limit, "--json").json
        assert (again["release"], again["changed"]) == (deployed["release"], False)


def test_nodes_of_two_architectures_do_not_drift_for_their_kernels(deployed: Any, fleet: Path) -> None:
    rows = k1("status", "-f", fleet, "--json").json["nodes"]
    assert [row["arch"] for row in rows] == [os.uname().machine, "aarch64"]
    assert rows[0]["kernel"] != rows[1]["kernel"]
    assert [row["drift"] for row in rows] == [[], []]


def test_a_node_that_is_off_and_left_out_has_no_say(pair: Farm, deployed: Any, fleet: Path) -> None:
    pair.nodes[1].start_at_boot()
    pair.nodes[1].off()
    try:
        alone = k1("deploy", "-f", fleet, "--limit", "k1-0", "--only", "release", "--dry-run", "--json").json
    finally:
        pair.nodes[1].on()
    assert alone["release"] != deployed["release"]
    (warning,) = alone["warnings"]
    assert warning.startswith("k1-1: root@10.77.0.2 port 22 is not reached")
    assert warning.endswith("the release is made without it")
