"""`k1 image`: build a board's image."""

from __future__ import annotations

import json as json_
import os
from pathlib import Path
from typing import Any

import typer

from k1 import board as boards
from k1 import files, lab, output, paths
from k1.errors import K1Error
from k1.image import debian, manifest

app = typer.Typer(help="Build the image of a board.", invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def build(
    context: typer.Context,
    board: str = typer.Option("virt", "--board", "-b", help="Board to build for (see: k1 board list)."),
    builder: str | None = typer.Option(None, help="debian or buildroot; by default the board's own."),
    jobs: int = typer.Option(len(os.sched_getaffinity(0)), "--jobs", "-j", min=1, help="Parallel compilations."),
    step: str | None = typer.Option(None, help=f"Go only up to this step: {debian.FETCH}, {', '.join(debian.STEPS)}."),
    force: bool = typer.Option(False, help="Build the step named by --step although nothing changed."),
    dry_run: bool = typer.Option(False, "--dry-run", "-n", help="Show what would be built, and why; build nothing."),
    locked: bool = typer.Option(False, help="Accept only the source versions of the board's sources.lock."),
    update_lock: bool = typer.Option(False, help="Write the fetched versions to the board's sources.lock."),
    refresh: bool = typer.Option(False, help="Ask the mirror for newer versions."),
    authorized_keys: Path | None = typer.Option(
        None,
        envvar="K1_AUTHORIZED_KEYS",
        help="Public keys that may log in as root; by default one made for this build.",
    ),
    root_password_hash: str = typer.Option(
        "", envvar="K1_ROOT_PASSWORD_HASH", help="crypt(3) hash that lets root log in on the serial console."
    ),
    json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Build firmware, kernel, root and card image."""
    if context.invoked_subcommand:
        return
    if force and not step:
        raise K1Error("--force needs --step", hint=f"name one of {', '.join(debian.STEPS)}")
    if step and step not in (debian.FETCH, *debian.STEPS):
        raise K1Error(f"no step named {step}", hint=f"one of {', '.join((debian.FETCH, *debian.STEPS))}")
    if locked and (update_lock or refresh):
        raise K1Error("--locked excludes --update-lock and --refresh", hint="drop one of them")
    profile = boards.load(board)
    require_builder(builder or profile.image.builder, board)
    options = debian.Options(jobs, authorized_keys, root_password_hash, locked, update_lock, refresh)
    image = debian.Image(profile, options)
    if dry_run:
        _show_plan(image, step, as_json=json)
        return
    with files.locked(image.build / "lock", f"the build of {board}"):
        states = image.run(step, force=force)
        if json:
            output.print_json([{"step": s.step.name, "built": bool(s.reason), "seconds": s.seconds} for s in states])
        elif step is None:
            _show_images(image)


def require_builder(builder: str, board: str) -> None:
    """Refuse a builder that does not exist, or whose parts are missing."""
    if builder == "debian":
        return
    if builder != "buildroot":
        raise K1Error(f"no builder named {builder}", hint="debian or buildroot")
    raise K1Error(
        f"board {board} is built by Buildroot from the vendor's trees, which this version cannot do yet",
        hint="k1 image --board virt builds the same userland for virtual boards",
    )


def _show_plan(image: debian.Image, step: str | None, *, as_json: bool) -> None:
    found = image.known_sources
    rows: list[dict[str, Any]] = [{"step": debian.FETCH, "reason": "" if found is not None else "not fetched yet"}]
    if step == debian.FETCH:
        pass
    elif found is None:
        rows += [{"step": name, "reason": "not known before the sources are"} for name in debian.STEPS]
    else:
        plan = image.plan(image.context(found))
        rows += [{"step": s.step.name, "reason": s.reason, "seconds": s.seconds} for s in plan.states(step)]
    if as_json:
        output.print_json(rows)
        return
    table = output.table("step", "state", "last time")
    for row in rows:
        seconds = row.get("seconds")
        table.add_row(row["step"], row["reason"] or "up to date", output.duration(seconds) if seconds else "")
    output.out.print(table)


def _show_images(image: debian.Image) -> None:
    folder = image.build / "images"
    table = output.table("image", "size")
    for name in ("fw_dynamic.bin", "u-boot.bin", "Image", "rootfs.squashfs", "sdcard.img"):
        table.add_row(name, output.size((folder / name).stat().st_size))
    root = json_.loads((folder / "root.json").read_text())
    table.add_row("root, unpacked", f"{output.size(root['bytes'])} of {output.size(root['budget'])}")
    output.out.print(table)
    output.note(f"images and {manifest.NAME} are in {folder}")
    output.note("next: k1 lab up -n 4")


def build_all(board: str) -> None:
    """Build the whole image of a board with default options."""
    image = debian.Image(boards.load(board), debian.Options(jobs=len(os.sched_getaffinity(0))))
    with files.locked(image.build / "lock", f"the build of {board}"):
        image.run(None, force=False)


@app.command()
def clean(
    board: str = typer.Option("virt", "--board", "-b", help="Board whose build goes."),
    all_: bool = typer.Option(False, "--all", help="The SSH key and the labs of this build too."),
) -> None:
    """Remove a board's build; the cache of downloads and objects stays."""
    boards.load(board)
    if all_ and (labs := lab.running()):
        raise K1Error(f"lab {labs[0]} runs on this build", hint=f"k1 lab down --name {labs[0]}")
    with files.locked(paths.build_dir(board) / "lock", f"the build of {board}"):
        removed = debian.clean(board, everything=all_)
    for path in removed:
        output.note(f"removed {path}")
    if not removed:
        output.note("nothing to remove")
