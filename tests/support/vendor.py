"""A stand-in for the vendor's source trees, which are not public: written from the facts of the source document."""

from __future__ import annotations

from pathlib import Path

DDR_INIT = """\
/* SPDX-License-Identifier: BSD-2-Clause */
#include <sbi/riscv_io.h>

static void ddr_phy_write(u32 reg, u32 value)
{
	writel(value, K1_DDR_PHY + 4 * reg);
}

int k1_ddr_init(void)
{
	ddr_phy_write(0x10, 0x0001);
	ddr_phy_write(0x12, 0x0000); // ODT off
	ddr_phy_write(0x20, 0x0100);
	return 0;
}
"""

BOARD = """\
// SPDX-License-Identifier: GPL-2.0+
#include <common.h>
#include <init.h>
#include "k1.h"

int gmac_init(void);

int board_init(void)
{
	clk_enable_all();
	gmac_init();
	return 0;
}
"""

GMAC = """\
// SPDX-License-Identifier: GPL-2.0-only
#include <linux/io.h>
#include <linux/phy.h>

#define GMAC_CTRL 0x0004

static void gmac_start(struct gmac *priv)
{
	u32 ctrl = readl(priv->base + GMAC_CTRL);

	writel(ctrl | GMAC_ENABLE, priv->base + GMAC_CTRL);
}

static void gmac_advertise(struct phy_device *phydev)
{
	phy_write(phydev, MII_ADVERTISE, ADVERTISE_ALL | ADVERTISE_PAUSE_CAP);
}
"""

FILES = {
    "opensbi": {"platform/k1/k1_ddr_init.c": DDR_INIT},
    "uboot": {"board/k1/k1/k1.c": BOARD, "include/linux/delay.h": ""},
    "linux": {"drivers/net/ethernet/k1/gmac.c": GMAC},
}


def make(folder: Path, component: str) -> Path:
    """Write a component's tree, as the document describes it, below `folder`."""
    for name, text in FILES[component].items():
        path = folder / component / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder / component


def change(tree: Path, name: str, old: str, new: str) -> None:
    """Replace `old`, which must be there, in a file of a tree."""
    path = tree / name
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new).encode())
