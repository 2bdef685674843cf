"""`k1 image`: build a board's image."""

from __future__ import annotations

import json as json_
import os
import shlex
from pathlib import Path
from typing import Any

import typer

from k1 import board as boards
from k1 import files, lab, output, paths
from k1.buildroot import build as br
from k1.errors import K1Error
from k1.image import debian, manifest

app = typer.Typer(help="Build the image of a board.", invoke_without_command=True, rich_markup_mode=None)

_BUILDROOT = typer.Option(None, envvar="K1_BUILDROOT", help="Top folder of a Buildroot tree.")
_BSP = typer.Option(None, envvar="K1_BSP", help="Folder with the vendor's trees opensbi/, uboot/ and linux/.")
_SKIP = typer.Option([], "--skip", help="Leave out a vendor patch, by its name; may be given several times.")


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
    buildroot: Path | None = _BUILDROOT,
    bsp: Path | None = _BSP,
    skip: list[str] = _SKIP,
    json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Build firmware, kernel, root and card image."""
    if context.invoked_subcommand:
        return
    profile = boards.load(board)
    if _builder(builder or profile.builder) == "buildroot":
        if step or force or locked or update_lock or refresh:
            text = "--step, --force, --locked, --update-lock and --refresh are the debian builder's"
            raise K1Error(text, hint="Buildroot keeps its own state: k1 image menuconfig, k1 image clean")
        chosen = (buildroot, bsp, tuple(skip), authorized_keys, root_password_hash)
        _build_by_buildroot(br.Image(profile, br.Options(jobs, *chosen)), dry_run=dry_run, as_json=json)
        return
    if buildroot or bsp or skip:
        raise K1Error("--buildroot, --bsp and --skip are the buildroot builder's", hint="add --builder buildroot")
    if force and not step:
        raise K1Error("--force needs --step", hint=f"name one of {', '.join(debian.STEPS)}")
    if step and step not in (debian.FETCH, *debian.STEPS):
        raise K1Error(f"no step named {step}", hint=f"one of {', '.join((debian.FETCH, *debian.STEPS))}")
    if locked and (update_lock or refresh):
        raise K1Error("--locked excludes --update-lock and --refresh", hint="drop one of them")
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


def _builder(name: str) -> str:
    if name not in ("debian", "buildroot"):
        raise K1Error(f"no builder named {name}", hint="debian or buildroot")
    return name


def _build_by_buildroot(image: br.Image, *, dry_run: bool, as_json: bool) -> None:
    if dry_run:
        found = [patch for patches in image.check().values() for patch in patches]
        if as_json:
            output.print_json([{"patch": patch.name, "state": patch.state} for patch in found])
            return
        for patch in found:
            output.out.print(f"{patch.state:12} {patch.name}", markup=False, soft_wrap=True)
        output.note("all checks passed; would run: " + shlex.join(map(str, image.command())))
        return
    with files.locked(image.build / "lock", f"the build of {image.board.name}"):
        image.run()
    if as_json:
        output.print_json(json_.loads((image.build / "images" / manifest.NAME).read_text())["images"])


@app.command()
def menuconfig(
    board: str = typer.Option("k1", "--board", "-b", help="Board to configure."),
    buildroot: Path | None = _BUILDROOT,
    bsp: Path | None = _BSP,
    skip: list[str] = _SKIP,
) -> None:
    """Open Buildroot's menu on this board's build; the next `k1 image` builds what was chosen there."""
    image = br.Image(boards.load(board), br.Options(1, buildroot, bsp, tuple(skip)))
    with files.locked(image.build / "lock", f"the build of {board}"):
        image.menuconfig()


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
