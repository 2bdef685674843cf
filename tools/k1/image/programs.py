"""Our own programs for the root: the userland, cross-built and static."""

from __future__ import annotations

from k1 import files, output, sources, userland
from k1.image.context import Context, recipe
from k1.steps import Step

NAMES = ("k1-inferd", "k1-cli", "k1-bench")


def step(ctx: Context) -> Step:
    """Build images/bin/k1-*."""
    programs = tuple(ctx.images / "bin" / name for name in NAMES)

    def build(_task: output.Task) -> None:
        folder = userland.build("riscv64", jobs=ctx.jobs, packages=ctx.sysroot)
        userland.strip("riscv64", folder, programs)

    inputs = {
        "userland": files.tree_digest([userland.SOURCE], userland.SOURCE),
        "sysroot": sources.digest(ctx.sysroot),
        "tools": ctx.tools,
        "recipe": recipe(__file__, userland.__file__),
    }
    return Step("programs", inputs, programs, build)
