"""U-Boot: picks the slot and starts its kernel."""

from __future__ import annotations

from k1 import files, output
from k1.image import kconfig, tree
from k1.image.context import Context
from k1.run import run
from k1.steps import Step

DEFCONFIG = "qemu-riscv64_smode_defconfig"


def step(ctx: Context) -> Step:
    """Build images/u-boot.bin, and images/uboot.env.txt: the environment that is compiled into it."""
    binary = ctx.images / "u-boot.bin"
    environment = ctx.images / "uboot.env.txt"
    fragment = ctx.board.find("uboot/uboot.fragment")
    env_source = ctx.board.find("uboot/k1.env")

    def build(task: output.Task) -> None:
        log = ctx.log("uboot")
        source = tree.unpack(ctx, "uboot", log, task)
        out = source / "out"  # there U-Boot sees its sources as "..": no path of this machine gets into the binary
        files.remove_tree(out)  # its makefiles do not notice another compiler or other settings
        make = ctx.kbuild(source, out)
        files.copy(env_source, out / "k1.env")
        # The fragment before the first olddefconfig: what a default selects stays on when only that is turned off.
        defconfig = (source / "configs" / DEFCONFIG).read_text()
        files.write(out / ".config", defconfig + fragment.read_text())
        run([*make, "olddefconfig"], env=ctx.make_env, log=log)
        kconfig.check([fragment], out / ".config")
        run([*make, "u-boot.bin", "u-boot-initial-env"], env=ctx.make_env, log=log, on_line=task.detail)
        files.copy(out / "u-boot.bin", binary)
        files.copy(out / "u-boot-initial-env", environment)

    inputs = tree.inputs(ctx, "uboot", __file__) | {
        "defconfig": DEFCONFIG,
        "uboot.fragment": files.sha256(fragment),
        "k1.env": files.sha256(env_source),
    }
    return Step("uboot", inputs, (binary, environment), build)
