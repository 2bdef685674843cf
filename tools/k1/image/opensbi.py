"""OpenSBI: the machine-mode firmware, as fw_dynamic for QEMU's -bios."""

from __future__ import annotations

from k1 import files, output
from k1.image import tree
from k1.image.context import CROSS_COMPILE, Context
from k1.run import run
from k1.steps import Step


def step(ctx: Context) -> Step:
    """Build images/fw_dynamic.bin."""
    firmware = ctx.images / "fw_dynamic.bin"

    def build(task: output.Task) -> None:
        log = ctx.log("opensbi")
        source = tree.unpack(ctx, "opensbi", log, task)
        out = ctx.work / "opensbi" / "out"
        files.remove_tree(out)  # its makefiles do not notice another compiler or other settings
        settings = ("PLATFORM=generic", "FW_PIC=y", f"CROSS_COMPILE={CROSS_COMPILE}", f"CC=ccache {CROSS_COMPILE}gcc")
        run(
            ["make", f"-j{ctx.jobs}", "-C", source, f"O={out}", *settings],
            env=ctx.make_env,
            log=log,
            on_line=task.detail,
        )
        files.copy(out / "platform" / "generic" / "firmware" / "fw_dynamic.bin", firmware)

    return Step("opensbi", tree.inputs(ctx, "opensbi", __file__), (firmware,), build)
