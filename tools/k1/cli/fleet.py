"""`k1 fleet`: the nodes of fleet.toml, and the files that make a board one of them."""

from __future__ import annotations

from pathlib import Path

import typer

from k1 import board as boards
from k1 import fleet as fleets
from k1.output import out, print_json, table

app = typer.Typer(help="Show the nodes of a fleet and their network settings.", no_args_is_help=True)

_FILE = typer.Option(Path("fleet.toml"), "--file", "-f", help="The fleet's file.")
_NAME = typer.Argument(..., help="Name of a node.")


@app.command()
def show(file: Path = _FILE, as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the nodes: rank, name, MAC and address of each."""
    found = fleets.load(file)
    if as_json:
        print_json([{"rank": n.rank, "name": n.hostname, "mac": n.mac, "address": str(n.address)} for n in found])
        return
    rows = table("rank", "name", "mac", "address")
    for node in found:
        rows.add_row(str(node.rank), node.hostname, node.mac, str(node.address))
    out.print(rows)


@app.command()
def interfaces(
    name: str = _NAME,
    file: Path = _FILE,
    interface: str = typer.Option("eth0", help="The cluster's interface on that node."),
    board: str = typer.Option("k1", "--board", "-b", help="Board whose MTU to use."),
) -> None:
    """Print a node's part of /etc/network/interfaces, for boards with another system than ours."""
    mtu = boards.load(board).network.mtu.value
    print(fleets.interfaces(fleets.find(fleets.load(file), name), interface, mtu), end="")


@app.command(name="node-conf")
def node_conf(name: str = _NAME, file: Path = _FILE) -> None:
    """Print a node's /data/etc/k1/node.conf, for boards with our image."""
    print(fleets.node_conf(fleets.find(fleets.load(file), name)), end="")
