"""`k1 key`: the secrets of a cluster."""

from __future__ import annotations

import secrets
from pathlib import Path

import typer

from k1 import files, output
from k1 import fleet as fleets
from k1.cli import deploy
from k1.cli.fleet import FILE
from k1.deploy import plan, release
from k1.deploy.session import Session

app = typer.Typer(help="The secrets of a cluster.", no_args_is_help=True)


@app.command()
def rotate(
    file: Path = FILE,
    tokens: bool = typer.Option(False, "--tokens", help="The API token too; clients need the new one."),
    as_json: bool = deploy.JSON,
) -> None:
    """Make a new cluster key and deploy it; when the cluster does not come up with it, the old one stays."""
    fleet = fleets.read(file)
    names = [fleet.cluster.key_file, *([fleet.cluster.api_token_file] if tokens else [])]
    paths = [fleet.beside(name) for name in names]
    with deploy.locked(fleet), Session(fleet) as session:
        old = [release.secret(path, 32) for path in paths]
        try:
            for path in paths:
                files.write(path, secrets.token_hex(32) + "\n", mode=0o600)
            wanted = release.prepare(fleet)
            with deploy.watching([node.name for node in session.nodes], quiet=as_json) as view:
                outcome = deploy.run(plan.Deploy(session, wanted, plan.Options(), view.tell))
        except BaseException:
            for path, text in zip(paths, old, strict=True):
                files.write(path, text, mode=0o600)
            raise
    deploy.tell(outcome, dry_run=False, as_json=as_json)
    if tokens and not as_json:
        output.note(f"the new API token is in {paths[-1]}")
