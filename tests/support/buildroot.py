"""A Buildroot in small, for the driver's tests: it knows the symbols of our defconfigs and builds nothing real."""

from __future__ import annotations

from pathlib import Path

from k1 import board as boards
from k1.buildroot import external
from k1.image.kconfig import settings
from k1.paths import BOARDS

# As the real script: the external tree's path for Kconfig, and its menu.
BR2_EXTERNAL = """\
#!/bin/bash
if [ -n "$3" ] && [ ! -e "$3/external.desc" ]; then
	echo "BR2_EXTERNAL_ERROR = '$3': does not have an 'external.desc'"
	exit 1
fi
name=$(sed -n 's/^name: //p' "$3/external.desc" 2>/dev/null)
: >"$2/.br2-external.in.menus"
[ -z "$3" ] || echo "source \\"$3/Config.in\\"" >"$2/.br2-external.in.menus"
printf 'config BR2_EXTERNAL_%s_PATH\\n\\tstring\\n\\tdefault "%s"\\n' "${name:-NONE}" "$3" >"$2/.br2-external.in.paths"
"""
MAKEFILE = """\
export BR2_VERSION := 2023.08
HOSTCC_MAX_VERSION := 9
all:
	@printf '\\033[7m>>> host-tool 1.0 Building\\033[27m\\n'
	@echo tool
	@printf '\\033[7m>>> linux 6.1.56 Extracting\\033[27m\\n'
	@printf '\\033[7m>>> linux 6.1.56 Building\\033[27m\\n'
	@echo "  CC      gmac.o"
	@test -z "$(K1_FAIL)" || { echo "gmac.c:7: error: $(K1_FAIL)"; exit 1; }
	@printf '\\033[7m>>>   Finalizing target directory\\033[27m\\n'
	@mkdir -p $(O)/images $(O)/target $(O)/build/linux-6.1.56
	@for i in fw_dynamic.bin u-boot.bin Image rootfs.squashfs sdcard.img; do echo $$i >$(O)/images/$$i; done
	@echo root >$(O)/target/file
%_defconfig:
	@mkdir -p $(O)
	@cp $(BR2_EXTERNAL)/configs/$@ $(O)/.config
	@echo $@ >>$(O)/calls
%-dirclean:
	@rm -rf $(O)/build/$*-*
	@echo $@ >>$(O)/calls
show-info:
	@echo '{"linux": {"version": "6.1.56"}, "host-tool": {"version": "1.0"}}'
menuconfig:
	@echo CHANGED=y >>$(O)/.config
"""
_KCONFIG_HEAD = """\
source "$BR2_BASE_DIR/.br2-external.in.paths"
source "$BR2_BASE_DIR/.br2-external.in.menus"
config BR2_USE_MMU
	def_bool y
config BR2_TOOLCHAIN_HAS_THREADS
	def_bool y
"""


def make(folder: Path) -> Path:
    """Write the tree to `folder`/buildroot."""
    tree = folder / "buildroot"
    (tree / "support" / "scripts").mkdir(parents=True)
    (tree / "support" / "scripts" / "br2-external").write_text(BR2_EXTERNAL)
    (tree / "Makefile").write_text(MAKEFILE)
    external.render(boards.load("k1"), folder / "for-symbols")
    symbols: dict[str, str] = {}
    for name in ("k1_defconfig", "k1_virt_defconfig"):
        symbols |= settings((folder / "for-symbols" / "configs" / name).read_text())
    symbols.pop("BR2_PACKAGE_K1_USERLAND")
    (tree / "Config.in").write_text(_KCONFIG_HEAD + kconfig(symbols))
    return tree


def kconfig(symbols: dict[str, str]) -> str:
    """A Kconfig file that knows these symbols, with the types that the values have."""
    return "".join(f'config {name}\n\t{_type(value)} "{name}"\n' for name, value in symbols.items())


def _type(value: str) -> str:
    if value[0] == '"':
        return "string"
    return "bool" if value in "yn" else "hex" if value.startswith("0x") else "int"


def add_kconfig(bsp: Path) -> None:
    """Give stand-in vendor trees the Kconfig files and defconfigs that a build looks at."""
    for component, fragment in (("linux", "kernel/linux.fragment"), ("uboot", "uboot/uboot.fragment")):
        found = settings((BOARDS / "k1" / fragment).read_text())
        symbols = {name.removeprefix("CONFIG_"): value for name, value in found.items()}
        (bsp / component / "Kconfig").write_text(kconfig(symbols))
    for path in ("linux/arch/riscv/configs/defconfig", "uboot/configs/k1_defconfig"):
        (bsp / path).parent.mkdir(parents=True)
        (bsp / path).write_text("")
