"""Each node of a fleet is somebody of its own on the network, or the file is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from k1 import fleet
from k1.cli.main import app
from k1.errors import K1Error


def write(folder: Path, *nodes: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text("".join(f"[[node]]\n{node}\n" for node in nodes))
    return path


def test_a_rank_is_all_that_a_node_needs(tmp_path: Path) -> None:
    nodes = fleet.load(write(tmp_path, "rank = 1", "rank = 0"))
    assert [(n.hostname, n.mac, str(n.address)) for n in nodes] == [
        ("k1-0", "00:11:22:33:44:50", "192.168.1.100/24"),
        ("k1-1", "00:11:22:33:44:51", "192.168.1.101/24"),
    ]


def test_what_is_given_counts(tmp_path: Path) -> None:
    path = write(tmp_path, 'rank = 9\nname = "edge-9"\nmac = "02:00:00:00:00:09"\naddress = "10.0.0.9/16"')
    (node,) = fleet.load(path)
    assert (node.rank, node.hostname, node.mac, str(node.address)) == (9, "edge-9", "02:00:00:00:00:09", "10.0.0.9/16")


FAULTS = [
    (["rank = 0", "rank = 0"], "node.rank: two nodes both have 0"),
    (["rank = 0", 'rank = 1\nname = "k1-0"'], "node.name: rank 0 and rank 1 both have k1-0"),
    (["rank = 0", 'rank = 1\nmac = "00:11:22:33:44:50"'], "node.mac: rank 0 and rank 1 both have 00:11:22:33:44:50"),
    (["rank = 0", 'rank = 1\naddress = "192.168.1.100/24"'], "node.address: rank 0 and rank 1 both have 192.168.1.100"),
    (
        ['rank = 0\nmac = "00:11:22:33:44:55"'],
        "node.mac: rank 0 has 00:11:22:33:44:55, with which every board leaves the factory",
    ),
    (["rank = 5"], "the MAC every board leaves the factory with"),
    (['rank = 0\nmac = "01:00:5e:00:00:01"'], "node[0].mac: a multicast address"),
    (['rank = 0\nmac = "00-11-22-33-44-50"'], "node[0].mac: wrong form"),
    (['rank = 0\naddress = "192.168.1.0/24"'], "node[0].address: not a host's address"),
    (['rank = 0\nname = "K1_0"'], "node[0].name: wrong form"),
    (["rank = -1"], "node[0].rank: wrong value"),
    (["rank = 0\nmak = 1"], "node[0].mak: unknown key"),
    (["rank = 0", 'rank = 1\naddress = "10.0.0.1/24"'], "rank 0 is in 192.168.1.0/24, rank 1 in 10.0.0.0/24"),
]


@pytest.mark.parametrize(("nodes", "message"), FAULTS)
def test_a_fault_names_file_key_and_nodes(tmp_path: Path, nodes: list[str], message: str) -> None:
    path = write(tmp_path, *nodes)
    with pytest.raises(K1Error) as caught:
        fleet.load(path)
    assert message in caught.value.message
    if "rank = 5" not in nodes:  # that one is a fault of board.toml's numbering
        assert caught.value.message.startswith(str(path))


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(K1Error, match="node: is missing"):
        fleet.load(write(tmp_path))
    with pytest.raises(K1Error, match="no such file"):
        fleet.load(tmp_path / "none.toml")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(st.sets(st.integers(0, 60).filter(lambda rank: rank != 5), min_size=1, max_size=6))
def test_any_ranks_give_nodes_that_share_nothing(tmp_path: Path, ranks: set[int]) -> None:
    nodes = fleet.load(write(tmp_path, *(f"rank = {rank}" for rank in ranks)))
    for key in ("rank", "hostname", "mac", "address"):
        assert len({getattr(node, key) for node in nodes}) == len(ranks)


# --- what a board gets


def k1(*words: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["fleet", *map(str, words)])
    if isinstance(result.exception, K1Error):
        assert result.exception.exit_code == code
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.stdout


def test_interfaces_have_the_nodes_own_mac(tmp_path: Path) -> None:
    path = write(tmp_path, "rank = 0", "rank = 2")
    assert k1("interfaces", "k1-2", "-f", path, "--interface", "end0") == (
        "# k1-2\nauto end0\niface end0 inet static\n"
        "\taddress 192.168.1.102/24\n\thwaddress ether 00:11:22:33:44:52\n\tmtu 9000\n"
    )


def test_node_conf_is_what_our_network_script_reads(tmp_path: Path) -> None:
    text = k1("node-conf", "k1-0", "-f", write(tmp_path, "rank = 0"))
    assert text == "RANK=0\nNAME=k1-0\nADDRESS=192.168.1.100/24\nMAC=00:11:22:33:44:50\n"
    script = (Path(__file__).parents[2] / "board" / "k1" / "overlay" / "etc" / "init.d" / "S20network").read_text()
    assert all(f"${{{key}" in script or f"${key}" in script for key in ("RANK", "NAME", "ADDRESS", "MAC"))


def test_show_lists_the_nodes_as_json_too(tmp_path: Path) -> None:
    path = write(tmp_path, "rank = 0")
    assert "00:11:22:33:44:50" in k1("show", "-f", path)
    assert json.loads(k1("show", "-f", path, "--json"))[0]["name"] == "k1-0"


def test_an_unknown_node_is_refused_with_the_nearest(tmp_path: Path) -> None:
    assert "did you mean k1-0?" in k1("interfaces", "k1-00", "-f", write(tmp_path, "rank = 0"), code=2)
