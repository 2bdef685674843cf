"""The kernel's twin of the pause patch compiles without a warning: `make test-kernel-twin`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from k1 import board as boards
from k1 import files, output
from k1.image import debian, kconfig, tree
from k1.run import run

STMMAC = "drivers/net/ethernet/stmicro/stmmac"
SETTINGS = "".join(
    f"CONFIG_{name}=y\n"
    for name in ("ETHERNET", "NET_VENDOR_STMICRO", "STMMAC_ETH", "STMMAC_PLATFORM", "DWMAC_GENERIC", "PHYLIB")
)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The driver's folder, compiled from the image's own patched kernel source with warnings as errors."""
    board = boards.load("virt")
    image = debian.Image(board, debian.Options(len(os.sched_getaffinity(0))))
    out = tmp_path_factory.mktemp("twin")
    with files.locked(image.build / "lock", "the build of virt"):
        context = image.context(image.fetch())
        log, task = out / "log", output.Task(None, "twin")
        source = tree.unpack(context, "linux", log, task, leave_out=board.find("kernel/leave-out"))
        fragment = out / "fragment"
        fragment.write_text(board.find("kernel/linux.fragment").read_text() + SETTINGS)
        make = context.kbuild(source, out, "ARCH=riscv")
        environment = context.make_env | {"KCONFIG_ALLCONFIG": str(fragment)}
        run([*make, "allnoconfig"], env=environment, log=log)
        kconfig.check([fragment], out / ".config")
        run([*make, "KCFLAGS=-Werror", f"{STMMAC}/"], env=context.make_env, log=log)
        assert "warning:" not in log.read_text()
        yield out / STMMAC


def test_the_patched_driver_compiles_without_a_warning(objects: Path) -> None:
    assert (objects / "stmmac_main.o").is_file()


def test_the_property_is_in_what_was_compiled(objects: Path) -> None:
    assert b"k1,no-pause\0" in (objects / "stmmac_platform.o").read_bytes()
