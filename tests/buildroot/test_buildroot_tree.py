"""Our external tree in a real Buildroot 2023.08: `make test-buildroot BUILDROOT=DIR`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from k1 import board as boards
from k1.buildroot import external
from k1.buildroot.build import Image, Options
from k1.image.kconfig import settings
from k1.kconfig import check
from k1.kconfig.settings import parse
from k1.patches import series, template
from support import buildroot as small
from support import vendor

BUILDROOT = Path(os.environ.get("BUILDROOT") or "/nowhere")
DEFCONFIGS = ("k1_defconfig", "k1_virt_defconfig")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rendered external tree, with patches rendered against the stand-in vendor trees."""
    assert (BUILDROOT / "Config.in").is_file(), "set BUILDROOT to the top folder of a Buildroot 2023.08 tree"
    folder = tmp_path_factory.mktemp("ext")
    board = boards.load("k1")
    for component in template.COMPONENTS:
        source = vendor.make(folder / "vendor", component)
        series.write(series.check(component, board, source), folder / "patches" / component)
    external.render(board, folder / "tree", vendor_patches=folder / "patches")
    return folder / "tree"


def make(out: Path, *words: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Buildroot's make out of tree."""
    command = ["make", "-s", "-C", BUILDROOT, f"O={out}", *words]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert result.returncode == 0 or not check, result.stderr
    return result


@pytest.mark.parametrize("name", DEFCONFIGS)
def test_a_defconfig_loads_with_no_line_dropped(tree: Path, tmp_path: Path, name: str) -> None:
    make(tmp_path, f"BR2_EXTERNAL={tree}", name)
    got = settings((tmp_path / ".config").read_text())
    asked = settings((tree / "configs" / name).read_text())
    assert len(asked) > 50
    assert {symbol: got.get(symbol, "n") for symbol in asked} == asked


@pytest.mark.parametrize("name", DEFCONFIGS)
def test_our_check_finds_nothing_in_them(tree: Path, name: str) -> None:
    assert check.check([tree / "configs" / name], BUILDROOT, externals=[tree]) == []


def test_check_package_is_clean(tree: Path) -> None:
    files = [path for path in tree.rglob("*") if path.is_file() and not path.is_relative_to(tree / "userland")]
    command = [sys.executable, BUILDROOT / "utils" / "check-package", "-b"]
    options = ["--ignore-list", tree / ".checkpackageignore"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        [*command, *options, *files], capture_output=True, text=True, env=os.environ | {"PATH": path}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\n0 warnings generated" in result.stderr + result.stdout


def test_show_info_lists_the_userland_and_what_it_needs(tree: Path, tmp_path: Path) -> None:
    make(tmp_path, f"BR2_EXTERNAL={tree}", "k1_defconfig")
    packages = json.loads(make(tmp_path, "show-info").stdout)
    assert {"jansson", "libevent", "libsodium", "pcre2", "zlib"} <= set(packages["k1-userland"]["dependencies"])
    assert packages["linux"]["version"] == "6.1.56"
    assert packages["opensbi"]["version"] == "1.2"
    assert {"iperf3", "libdrm", "libpcap", "dropbear", "rsync", "musl", "host-gcc-final"} <= set(packages)


@pytest.mark.parametrize("package", ["linux", "opensbi", "uboot"])
def test_a_download_that_is_not_the_pinned_one_is_refused(tree: Path, tmp_path: Path, package: str) -> None:
    make(tmp_path, f"BR2_EXTERNAL={tree}", "k1_defconfig")
    info = json.loads(make(tmp_path, f"{package}-show-info").stdout)[package]
    file = tmp_path / "dl" / info["dl_dir"] / info["downloads"][0]["source"]
    file.parent.mkdir(parents=True)
    file.write_text("not that\n")
    result = make(tmp_path, f"{package}-source", check=False, BR2_DL_DIR=str(tmp_path / "dl"))
    assert result.returncode != 0
    assert f"ERROR: {file.name} has wrong sha256 hash" in result.stderr


BROKEN = {
    "unknown": ["BR2_PACKAGE_IPERF33=y"],
    "type": ["BR2_TARGET_GENERIC_HOSTNAME=k1"],
    "bool": ['BR2_PACKAGE_LIBDRM="yes"'],
    "number": ["BR2_JLEVEL=many"],
    "needs": ["BR2_PACKAGE_VALGRIND=y"],
    "choice": ["BR2_TOOLCHAIN_BUILDROOT_GLIBC=y"],
    "selected": ["# BR2_PACKAGE_BUSYBOX is not set", "BR2_INIT_BUSYBOX=y"],
    "hidden": ["BR2_PACKAGE_HAS_UDEV=y", "# BR2_RISCV_ISA_RVI is not set"],
    "twice": ["BR2_PACKAGE_RSYNC=n"],
    "needs needs": ["BR2_PACKAGE_OPENJDK=y", "BR2_PACKAGE_QT6=y", "BR2_PACKAGE_SYSTEMD_NETWORKD=y"],
}


@pytest.mark.parametrize("lines", BROKEN.values(), ids=BROKEN)
def test_check_and_make_agree_on_what_is_dropped(tree: Path, tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "broken_defconfig"
    path.write_text((tree / "configs" / "k1_defconfig").read_text() + "\n".join(lines) + "\n")
    make(tmp_path / "out", f"BR2_EXTERNAL={tree}", "defconfig", f"BR2_DEFCONFIG={path}")
    got = settings((tmp_path / "out" / ".config").read_text())
    asked = {setting.symbol: setting.value for setting in parse(path.read_text())[0]}
    dropped = {symbol for symbol, value in asked.items() if got.get(symbol, "n") != value}
    findings = check.check([path], BUILDROOT, externals=[tree])
    assert {f.symbol for f in findings if f.fault in ("unknown", "type", "dropped")} == dropped
    assert dropped or [f.fault for f in findings] == ["duplicate"]


def test_the_builders_checks_pass_on_this_tree(tmp_path: Path) -> None:
    for component in template.COMPONENTS:
        vendor.make(tmp_path / "bsp", component)
    small.add_kconfig(tmp_path / "bsp")
    image = Image(boards.load("k1"), Options(1, BUILDROOT, tmp_path / "bsp"))
    assert {patch.state for patches in image.check().values() for patch in patches} == {"fits", "unconfirmed"}
    assert Image(boards.load("virt"), Options(1, BUILDROOT)).check() == {}


def test_the_committed_table_is_that_of_this_tree() -> None:
    from k1.kconfig import table
    from k1.kconfig import tree as kconfig_tree

    assert kconfig_tree.buildroot_version(BUILDROOT) == "2023.08"
    assert table.path("2023.08").read_text() == table.make(kconfig_tree.read(BUILDROOT), "2023.08")
