"""The kernel: Debian's 6.1 source, nothing but what our fragments ask for."""

from __future__ import annotations

import re
from pathlib import Path

from k1 import files, output
from k1.errors import CheckFailed
from k1.image import kconfig, tree
from k1.image.context import Context
from k1.run import run
from k1.steps import Step


def step(ctx: Context) -> Step:
    """Build images/Image and images/linux.config."""
    image = ctx.images / "Image"
    config = ctx.images / "linux.config"
    fragment = ctx.board.find("kernel/linux.fragment")
    leave_out = ctx.board.find("kernel/leave-out")

    def build(task: output.Task) -> None:
        log = ctx.log("linux")
        source = tree.unpack(ctx, "linux", log, task, leave_out=leave_out)
        out = source / "out"  # there the kernel sees its sources as "..": no path of this machine gets into the Image
        out.mkdir(exist_ok=True)
        make = ctx.kbuild(source, out, "ARCH=riscv")
        run([*make, "allnoconfig"], env=ctx.make_env | {"KCONFIG_ALLCONFIG": str(fragment)}, log=log)
        kconfig.check([fragment], out / ".config")
        run([*make, "Image"], env=ctx.make_env, log=log, on_line=task.detail)
        check_vdso(out / "arch" / "riscv" / "kernel" / "vdso")
        files.copy(out / "arch" / "riscv" / "boot" / "Image", image)
        files.copy(out / ".config", config)

    inputs = tree.inputs(ctx, "linux", __file__) | {
        "linux.fragment": files.sha256(fragment),
        "leave-out": files.sha256(leave_out),
    }
    return Step("linux", inputs, (image, config), build)


def check_vdso(folder: Path) -> None:
    """Refuse a vDSO whose code reads symbols of the kernel, which it does not have: programs would read near address 0.

    Linux 6.1 makes one when CONFIG_JUMP_LABEL is off: its cpu_relax() asks a static key (asm/vdso/processor.h).
    A table that nobody reads, as jump labels leave there, is no harm.
    """
    undefined = run(["riscv64-linux-gnu-nm", "--undefined-only", "--format=posix", folder / "vdso.so.dbg"]).output
    code = run(["riscv64-linux-gnu-objdump", "-r", "-j", ".text", folder / "vgettimeofday.o"]).output
    missing = set(undefined.split()[::2]) & set(re.findall(r"^\w+\s+R_RISCV_\w+\s+(\w+)", code, re.MULTILINE))
    if missing:
        hint = "set CONFIG_JUMP_LABEL=y in the kernel's fragment"
        raise CheckFailed(f"{folder}: programs would crash, the vDSO lacks {', '.join(sorted(missing))}", hint=hint)
