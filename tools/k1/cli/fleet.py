"""`k1 fleet`: the nodes of fleet.toml, and the files that make a board one of them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import typer

from k1 import board as boards
from k1 import files, lab, labfleet
from k1 import fleet as fleets
from k1.deploy import plan, release
from k1.deploy.session import Session
from k1.errors import Exit, K1Error
from k1.output import note, out, print_json, table, warn

app = typer.Typer(help="The nodes of a fleet, and their network settings.", no_args_is_help=True)

FILE = typer.Option(Path("fleet.toml"), "--file", "-f", help="The fleet's file.")
_NAME = typer.Argument(..., help="Name of a node.")
_SETTINGS = ("serial", "usb_path", "cpu_weight", "n_threads", "userland_only")
_DEFAULTS = {key: fleets.Node(rank=0).model_dump()[key] for key in _SETTINGS}


@app.command()
def init(
    file: Path = FILE,
    lab_name: str | None = typer.Option(None, "--lab", help="The boards of this running lab."),
    addresses: str | None = typer.Option(None, "--addresses", help="Addresses of boards by rank, with commas."),
    model: str = typer.Option("smollm2", "--model", help="A GGUF file, or a name of `k1 model list`."),
    n_ctx: int = typer.Option(512, "--n-ctx", min=8, help="Tokens of prompt and answer together."),
    user: str | None = typer.Option(None, "--user", help="Account on the boards; one that is not root needs sudo."),
    key: Path | None = typer.Option(None, "--key", help="Private SSH key; left out, your own keys are tried."),
    userland_only: bool = typer.Option(False, "--userland-only", help="Boards with another system than our image."),
    force: bool = typer.Option(False, "--force", help="Replace a file that is there."),
) -> None:
    """Write a fleet.toml, for a lab or for boards at addresses."""
    if (lab_name is None) == (addresses is None):
        raise K1Error("which boards?", hint="give --lab NAME or --addresses 192.168.1.100,192.168.1.101,…")
    if file.exists() and not force:
        raise K1Error(f"{file} is there already", hint="edit it, or give --force to write it anew")
    model = str(Path(model).absolute()) if Path(model).is_file() else model
    if lab_name is not None:
        text = labfleet.text(lab.Lab(lab_name).status(), model, n_ctx, key)
    else:
        ssh = {"user": user} if user else {}
        if key:
            ssh["key"] = str(key.absolute())
        nodes = _nodes_at([word.strip() for word in (addresses or "").split(",")], userland_only=userland_only)
        text = fleets.render("k1", {"model": model, "n_ctx": n_ctx}, ssh, nodes)
    fleets.parse(tomllib.loads(text), file)
    files.write(file, text)
    note(f"{file} is written; next: k1 fleet check, k1 deploy")


def _nodes_at(addresses: list[str], *, userland_only: bool) -> list[dict[str, Any]]:
    prefix = boards.load("k1").network.address_base.value.network.prefixlen
    nodes = []
    for rank, address in enumerate(addresses):
        node: dict[str, Any] = {"rank": rank, "address": address if "/" in address else f"{address}/{prefix}"}
        nodes.append(node | ({"userland_only": True} if userland_only else {}))
    return nodes


@app.command()
def show(file: Path = FILE, as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the nodes: who each is, how it is reached, and where it hangs on this machine."""
    found = fleets.read(file).members
    if as_json:
        print_json([_row(member) for member in found])
        return
    shown = [_row(member) for member in found]
    given = [key for key in _SETTINGS if any(row[key] != _DEFAULTS[key] for row in shown)]
    rows = table("rank", "name", "mac", "address", "ssh", *given)
    for row in shown:
        where = f"{row['user']}@{row['host']}:{row['port']}"
        settings = ("-" if row[key] is None else str(row[key]) for key in given)
        rows.add_row(str(row["rank"]), row["name"], row["mac"], row["address"], where, *settings)
    out.print(rows)


def _row(member: fleets.Member) -> dict[str, Any]:
    node, login, settings = member.identity, member.login, member.settings
    return {
        "rank": node.rank,
        "name": node.hostname,
        "mac": node.mac,
        "address": str(node.address),
        "host": login.host,
        "port": login.port,
        "user": login.user,
        "key": str(login.key) if login.key else None,
        **{key: getattr(settings, key) for key in _SETTINGS},
    }


@app.command()
def check(file: Path = FILE, as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Look at every node as a deploy would: reachable, architecture, space, clock; 3 when something is to be known."""
    found = fleets.read(file)
    with Session(found) as session:
        wanted = release.prepare(found)
        outcome = plan.Deploy(session, wanted, plan.Options(only="preflight"), lambda event: None).run()
    details = {name: steps["preflight"]["detail"] for name, steps in outcome.nodes.items()}
    if as_json:
        print_json({"nodes": details, "warnings": outcome.warnings})
    for name, detail in details.items():
        if not as_json:
            out.print(f"{name}: {detail}", markup=False, soft_wrap=True)
    for text in outcome.warnings:
        warn(text)
    if outcome.warnings:
        raise typer.Exit(Exit.WARNINGS)


@app.command()
def interfaces(
    name: str = _NAME,
    file: Path = FILE,
    interface: str = typer.Option("eth0", help="The cluster's interface on that node."),
    board: str = typer.Option("k1", "--board", "-b", help="Board whose MTU to use."),
) -> None:
    """Print a node's part of /etc/network/interfaces, for boards with another system than ours."""
    mtu = boards.load(board).network.mtu.value
    print(fleets.interfaces(fleets.find(fleets.load(file), name), interface, mtu), end="")


@app.command(name="node-conf")
def node_conf(name: str = _NAME, file: Path = FILE) -> None:
    """Print a node's /data/etc/k1/node.conf, for boards with our image."""
    print(fleets.node_conf(fleets.find(fleets.load(file), name)), end="")
