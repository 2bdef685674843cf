"""The external tree is rendered whole, the same each time, with the facts of the board it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from k1 import board as boards
from k1.buildroot import external
from k1.errors import K1Error
from k1.image.keys import Logins
from k1.kconfig import table
from k1.paths import REPO

K1 = boards.load("k1")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    external.render(K1, tmp_path / "tree")
    return tmp_path / "tree"


def test_the_tree_has_what_buildroot_asks_of_one(tree: Path) -> None:
    assert (tree / "external.desc").read_text().startswith("name: K1\n")
    assert (tree / "Config.in").is_file()
    assert (tree / "external.mk").is_file()
    assert (tree / "userland" / "meson.build").is_file()


@pytest.mark.parametrize("name", ["k1_defconfig", "k1_virt_defconfig"])
def test_every_symbol_of_the_defconfigs_is_one_of_2023_08(tree: Path, name: str) -> None:
    assert table.check([tree / "configs" / name], table.path("2023.08")) == []


@pytest.mark.parametrize("name", ["k1", "k1_virt"])
def test_every_file_that_a_defconfig_names_is_there(tree: Path, name: str) -> None:
    text = (tree / "configs" / f"{name}_defconfig").read_text()
    named = [word.split('"')[0] for word in text.split("$(BR2_EXTERNAL_K1_PATH)/")[1:]]
    assert len(named) == 7
    missing = [path for path in named if not (tree / path).exists()]
    assert missing in ([], ["patches/k1"])  # vendor patches come from the vendor's trees


def test_both_machines_build_the_kernel_and_libc_of_the_real_board(tree: Path) -> None:
    for name in ("k1_defconfig", "k1_virt_defconfig"):
        text = (tree / "configs" / name).read_text()
        assert 'BR2_LINUX_KERNEL_CUSTOM_VERSION_VALUE="6.1.56"\n' in text
        assert "BR2_TOOLCHAIN_BUILDROOT_MUSL=y\n" in text
        assert "BR2_GCC_VERSION_13_X=y\n" in text


def test_every_custom_version_is_pinned(tree: Path) -> None:
    pins = (tree / "sources.hash").read_text()
    for name in ("k1_defconfig", "k1_virt_defconfig"):
        text = (tree / "configs" / name).read_text()
        versions = [line.split('"')[1] for line in text.splitlines() if "CUSTOM_VERSION_VALUE" in line]
        assert len(versions) == 3
        assert all(f"-{version}.tar." in pins for version in versions)


def test_the_licence_hash_is_that_of_the_licence(tree: Path) -> None:
    from k1 import files

    text = (tree / "package" / "k1-userland" / "k1-userland.hash").read_text()
    assert f"sha256  {files.sha256(tree / 'LICENSE')}  LICENSE\n" in text


def test_the_package_has_the_version_of_the_userland(tree: Path) -> None:
    version = next(line for line in (REPO / "userland" / "meson.build").read_text().splitlines() if "version: " in line)
    package = (tree / "package" / "k1-userland" / "k1-userland.mk").read_text()
    assert f"K1_USERLAND_VERSION = {version.split(chr(39))[1]}\n" in package


def test_the_environment_differs_in_the_cards_interface_only(tree: Path) -> None:
    virt, real = ((tree / "board" / name / "k1.env").read_text() for name in ("virt", "k1"))
    assert "load virtio 0:${part}" in virt
    assert real == virt.replace("virtio", "mmc")


def test_rendering_again_touches_nothing(tree: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in tree.rglob("*") if path.is_file()}
    external.render(K1, tree)
    assert {path: path.lstat().st_mtime_ns for path in tree.rglob("*") if path.is_file()} == before


def test_strangers_and_changes_are_put_right(tree: Path) -> None:
    (tree / "old" / "er").mkdir(parents=True)
    (tree / "old" / "er" / "file").write_text("x")
    (tree / "external.mk").write_text("x")
    external.render(K1, tree)
    assert not (tree / "old").exists()
    assert (tree / "external.mk").read_text() == (external.SOURCE / "external.mk").read_text()


def test_an_owners_board_changes_the_real_machine_only(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text(
        'extends = "k1"\nname = "mine"\ntitle = "ours"\n[image.buildroot]\nuboot_defconfig = "k1_rev3"\n'
        'linux_defconfig = "k1"\n[card]\ndata_mib = 128\n'
    )
    external.render(boards.load_file(path), tmp_path / "tree")
    real, virt = ((tmp_path / "tree" / "configs" / f"{name}_defconfig").read_text() for name in ("k1", "k1_virt"))
    assert 'BR2_TARGET_UBOOT_BOARD_DEFCONFIG="k1_rev3"\n' in real
    assert 'BR2_LINUX_KERNEL_DEFCONFIG="k1"\n' in real
    assert 'BR2_TARGET_UBOOT_BOARD_DEFCONFIG="qemu-riscv64_smode"\n' in virt
    assert "DATA_MIB=128\n" in (tmp_path / "tree" / "board" / "k1" / "card.conf").read_text()


def test_keys_and_vendor_patches_come_in_when_given(tmp_path: Path) -> None:
    patch = tmp_path / "patches" / "uboot" / "0001-x.patch"
    patch.parent.mkdir(parents=True)
    patch.write_text("x")
    logins = Logins("ssh-ed25519 AAAA me\n")
    external.render(K1, tmp_path / "tree", logins=logins, vendor_patches=tmp_path / "patches")
    keys = tmp_path / "tree" / "board" / "k1" / "overlay" / "root" / ".ssh" / "authorized_keys"
    assert keys.read_text() == "ssh-ed25519 AAAA me\n"
    assert (tmp_path / "tree" / "patches" / "k1" / "uboot" / "0001-x.patch").read_text() == "x"


def test_a_board_for_buildroot_needs_its_table(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    text = (REPO / "board" / "k1" / "board.toml").read_text()
    path.write_text(text.replace("[image.buildroot]", "[l2x]").replace('name = "k1"', 'name = "mine"'))
    with pytest.raises(K1Error, match="has not all that builder buildroot needs"):
        boards.load_file(path)
