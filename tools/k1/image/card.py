"""The card: a GPT image with U-Boot's environment, two slots and an empty data partition."""

from __future__ import annotations

import os
from pathlib import Path

from k1 import files, output, render
from k1.image.context import Context, recipe
from k1.run import run
from k1.steps import Step

# Must be U-Boot's CONFIG_ENV_SIZE and file names, see board/*/uboot/uboot.fragment.
_ENV_SIZE = 0x4000
_ENV_FILES = ("uboot.env", "uboot-redund.env")


def step(ctx: Context) -> Step:
    """Build images/sdcard.img."""
    card = ctx.images / "sdcard.img"
    template = ctx.board.find("genimage.cfg.j2")

    def build(task: output.Task) -> None:
        log = ctx.log("card")
        work = ctx.work / "card"
        files.remove_tree(work)
        for folder in ("root", "input"):
            (work / folder).mkdir(parents=True)
        task.detail("environment")
        make_env(ctx, work / "input" / "env.vfat", log)
        make_data(ctx, work / "input" / "data.ext4", log)
        (work / "input" / "rootfs.squashfs").symlink_to(ctx.images / "rootfs.squashfs")
        files.write(work / "genimage.cfg", render.render_text(template, ctx.board))
        task.detail("genimage")
        run(
            ["genimage", "--config", "genimage.cfg", "--rootpath", "root", "--inputpath", "input", "--tmppath", "tmp"]
            + ["--outputpath", "."],
            cwd=work,
            env=ctx.make_env,
            log=log,
        )
        with files.replacing(card) as temporary:  # the work folder may lie on another file system
            run(["cp", "--sparse=always", work / "sdcard.img", temporary])
        files.remove_tree(work)

    inputs = {
        "layout": files.sha256(template),
        "card": ctx.board.card.model_dump_json(),
        "epoch": str(ctx.epoch),
        "tools": ctx.tools,
        "recipe": recipe(__file__, render.__file__),
    }
    return Step("card", inputs, (card,), build, needs=("uboot", "rootfs"))


def make_env(ctx: Context, image: Path, log: Path) -> None:
    """A FAT with two copies of U-Boot's default environment, the same bytes each time."""
    for name in _ENV_FILES:
        file = image.parent / name
        run(["mkenvimage", "-r", "-s", hex(_ENV_SIZE), "-o", file, ctx.images / "uboot.env.txt"], log=log)
        os.utime(file, (ctx.epoch, ctx.epoch))
    _blank(image, ctx.board.card.env_mib)
    run(["mkfs.vfat", "--invariant", "-F", "16", "-s", "1", "-n", "K1ENV", "-i", "4b31454e", image], log=log)
    run(["mcopy", "-m", "-i", image, *(image.parent / name for name in _ENV_FILES), "::"], env=ctx.make_env, log=log)


def make_data(ctx: Context, image: Path, log: Path) -> None:
    """An empty ext4, the same bytes each time."""
    uuid = str(ctx.board.card.data_fs_uuid)
    extended = f"hash_seed={uuid},lazy_itable_init=1,assume_storage_prezeroed=1,root_owner=0:0"
    _blank(image, ctx.board.card.data_mib)
    run(
        ["mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-i", "16384", "-m", "1", "-L", "k1-data"]
        + ["-U", uuid, "-E", extended, image],
        env=ctx.make_env | {"E2FSPROGS_FAKE_TIME": str(ctx.epoch)},
        log=log,
    )


def _blank(image: Path, mib: int) -> None:
    with image.open("wb") as stream:
        stream.truncate(mib << 20)
