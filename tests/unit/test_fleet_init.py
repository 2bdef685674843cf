"""A fleet.toml made by `k1 fleet init`, and what the file says of a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k1 import fleet
from k1.cli.main import app
from k1.errors import K1Error


def init(*words: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["fleet", "init", *map(str, words)])
    if isinstance(result.exception, K1Error):
        assert result.exception.exit_code == code
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.output


def test_addresses_become_nodes_by_rank(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    init("-f", path, "--addresses", "10.0.0.7,10.0.0.8", "--user", "debian", "--userland-only", "--n-ctx", "1024")
    found = fleet.read(path)
    assert [(m.rank, m.name, str(m.identity.address)) for m in found.members] == [
        (0, "k1-0", "10.0.0.7/24"),
        (1, "k1-1", "10.0.0.8/24"),
    ]
    assert all(
        (m.login.host, m.login.user, m.login.port) == (str(m.identity.address.ip), "debian", 22)
        and m.settings.userland_only
        for m in found.members
    )
    assert (found.cluster.n_ctx, found.mtu) == (1024, 9000)


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("mine")
    assert "is there already" in init("-f", path, "--addresses", "10.0.0.7", code=2)
    assert path.read_text() == "mine"
    init("-f", path, "--addresses", "10.0.0.7", "--force")
    assert len(fleet.read(path).members) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --lab NAME or --addresses"),
        (["--lab", "x", "--addresses", "10.0.0.7"], "give --lab NAME or --addresses"),
        (["--addresses", "10.0.0.7,10.0.0.7"], "rank 0 and rank 1 both have 10.0.0.7"),
        (["--addresses", "10.0.0.256"], "fleet.toml: node[0].address: not a host's address"),
        (["--lab", "no-such-lab"], "there is no lab no-such-lab"),
    ],
)
def test_what_cannot_be_a_fleet_writes_nothing(tmp_path: Path, words: list[str], message: str) -> None:
    path = tmp_path / "fleet.toml"
    assert message in init("-f", path, *words, code=2)
    assert not path.exists()


def test_the_files_ssh_table_holds_what_nodes_leave_out(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        '[ssh]\nuser = "debian"\nkey = "id"\nport = 2222\n[[node]]\nrank = 0\n'
        '[[node]]\nrank = 1\nssh = { host = "board.lan", port = 22 }\nserial = "/dev/ttyUSB1"\nn_threads = 2\n'
    )
    first, second = fleet.read(path).members
    assert first.login == fleet.Login("192.168.1.100", 2222, "debian", tmp_path / "id")
    assert second.login == fleet.Login("board.lan", 22, "debian", tmp_path / "id")
    shown = CliRunner().invoke(app, ["fleet", "show", "-f", str(path), "--json"]).stdout
    assert json.loads(shown)[1]["serial"] == "/dev/ttyUSB1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[node]]\nrank = 0\nserial = "a"\n[[node]]\nrank = 1\nserial = "a"', "node.serial: rank 0 and rank 1 both"),
        ("[cluster]\nn_ctx = 4\n[[node]]\nrank = 0", "cluster.n_ctx: wrong value, got 4"),
        ('[cluster]\nmodle = "x"\n[[node]]\nrank = 0', "did you mean model?"),
        ('[[node]]\nrank = 0\nssh = { user = "-oProxyCommand=x" }', "node[0].ssh.user: wrong form"),
        ('[[node]]\nrank = 0\nssh.host = "h"\n[[node]]\nrank = 1\nssh.host = "h"', "node.ssh: rank 0 and rank 1 both"),
    ],
)
def test_a_fault_of_the_cluster_names_its_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(K1Error) as caught:
        fleet.read(path)
    assert message in str(caught.value)


def test_names_choose_nodes(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("[[node]]\nrank = 0\n[[node]]\nrank = 1\n")
    found = fleet.read(path)
    assert [m.name for m in found.chosen(["k1-1"])] == ["k1-1"]
    assert len(found.chosen([])) == 2
    with pytest.raises(K1Error, match="no node 'k1-7'"):
        found.chosen(["k1-7"])
