"""`k1 doctor hailo`: a Hailo accelerator's own memory."""

from __future__ import annotations

import typer

from k1 import output
from k1.doctor import hailo_ollama

app = typer.Typer(help="A Hailo accelerator's own memory.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Keeps `unload` a subcommand while it is the only one."""


@app.command()
def unload(
    model: list[str] | None = typer.Argument(None, help="Models to unload; none: all that are loaded."),
    host: str = typer.Option("127.0.0.1", help="Where hailo-ollama runs."),
    port: int = typer.Option(11434, min=1, max=65535),
    dry_run: bool = typer.Option(False, "--dry-run", "-n", help="Only say what would be unloaded."),
) -> None:
    """Free the memory on the module: send models keep_alive 0."""
    server = f"http://{host}:{port}"
    models = model or hailo_ollama.loaded(server)
    if not dry_run:
        hailo_ollama.unload(server, models)
    for name in models:
        output.note(f"{'would unload' if dry_run else 'unloaded'} {name}")
    if not models:
        output.note("no model is loaded")
