"""The `k1` command: collects the subcommands and turns errors into text and exit codes."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import NoReturn

import typer

from k1 import __version__
from k1.cli import (
    board,
    bringup,
    console,
    demo,
    deploy,
    doctor,
    flash,
    fleet,
    image,
    kconfig,
    key,
    lab,
    model,
    nodes,
    patch,
    render,
    sdcard,
    userland,
)
from k1.errors import Exit, K1Error
from k1.output import err

app = typer.Typer(
    name="k1",
    help="Four K1 boards, real or virtual, as one LLM server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(board.app, name="board")
app.add_typer(fleet.app, name="fleet")
app.add_typer(doctor.app, name="doctor")
app.add_typer(flash.app, name="flash")
app.add_typer(image.app, name="image")
app.add_typer(kconfig.app, name="kconfig")
app.add_typer(key.app, name="key")
app.add_typer(lab.app, name="lab")
app.add_typer(model.app, name="model")
app.add_typer(patch.app, name="patch")
app.add_typer(sdcard.app, name="sdcard")
app.add_typer(userland.app, name="userland")
app.command(name="bringup")(bringup.bringup)
app.command(name="console")(console.console)
app.command(name="render")(render.render)
app.command(name="demo")(demo.demo)
app.command(name="deploy")(deploy.deploy)
app.command(name="rollback")(deploy.roll_back)
app.command(name="status")(nodes.show_status)
app.command(name="logs")(nodes.logs)
app.command(name="run", context_settings={"ignore_unknown_options": True})(nodes.run)


_OTHER_FOLDER = "set K1_BUILD and K1_CACHE to folders you can write"
_OS_HINTS = {
    errno.ENOSPC: "free some disk space and call again; finished work is kept",
    errno.EROFS: _OTHER_FOLDER,
    errno.EACCES: _OTHER_FOLDER,
}


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"k1 {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Global options."""


def main() -> NoReturn:
    """Run the command line and exit with a code of `k1.errors.Exit`."""
    # A terminated or hung-up k1 must end the programs it started, just as an interrupted one does.
    for sign in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(sign) is not signal.SIG_IGN:  # nohup
            signal.signal(sign, signal.default_int_handler)
    sys.exit(_run())


def _run() -> int:
    try:
        app()
    except SystemExit as end:  # typer's own way out, usage errors included
        if end.code == Exit.INTERRUPTED:
            err.print("k1: interrupted; finished work is kept")
        return int(end.code or 0)
    except K1Error as error:
        if os.environ.get("K1_DEBUG"):
            raise
        err.print("k1: error:", str(error), markup=False, soft_wrap=True)
        return error.exit_code
    except OSError as error:
        err.print("k1: error:", _os_error(error), markup=False, soft_wrap=True)
        return Exit.USER
    return Exit.OK


def _os_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    hint = _OS_HINTS.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{hint and f'{chr(10)}  try: {hint}'}"
