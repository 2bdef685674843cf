"""The device tree of QEMU's virt machine with a board's own nodes in it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from k1 import files
from k1.drivers import qemu
from k1.run import run


def build(machine: Sequence[str], overlay: str, target: Path) -> None:
    """Write to `target` the tree QEMU makes for the options `machine`, with the source text `overlay` appended."""
    with tempfile.TemporaryDirectory(prefix="k1-dtb-") as name:
        folder = Path(name)
        run([qemu.PROGRAM, "-machine", "dumpdtb=virt.dtb", *machine, "-display", "none"], cwd=folder)
        tree = run(["dtc", "-q", "-I", "dtb", "-O", "dts", "virt.dtb"], cwd=folder).output
        (folder / "board.dts").write_text(tree + overlay)
        # Labels stay resolvable: the overlay refers to QEMU's nodes by path.
        run(["dtc", "-q", "-I", "dts", "-O", "dtb", "-o", "board.dtb", "board.dts"], cwd=folder)
        files.write(target, (folder / "board.dtb").read_bytes())
