"""The buildroot builder checks first, then calls make once; a build that failed goes on where it stopped."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k1 import board as boards
from k1 import output
from k1.buildroot import fetch
from k1.buildroot.build import Image, Options
from k1.cli.main import app
from k1.errors import CheckFailed, K1Error
from k1.patches import template
from support import buildroot, vendor

GMAC = "drivers/net/ethernet/k1/gmac.c"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("K1_BUILD", str(tmp_path / "build"))
    monkeypatch.setenv("K1_CACHE", str(tmp_path / "cache"))
    for name in ("BR2_DL_DIR", "BR2_CCACHE_DIR", "K1_FAIL", "K1_BUILDROOT", "K1_BUILDROOT_GIT", "K1_BSP"):
        monkeypatch.delenv(name, raising=False)
    return buildroot.make(tmp_path)


@pytest.fixture
def bsp(tmp_path: Path) -> Path:
    for component in template.COMPONENTS:
        vendor.make(tmp_path / "bsp", component)
    buildroot.add_kconfig(tmp_path / "bsp")
    return tmp_path / "bsp"


def image(tree: Path | None, bsp: Path | None = None, board: str = "k1", skip: tuple[str, ...] = ()) -> Image:
    return Image(boards.load(board), Options(2, tree, bsp, skip))


def calls(built: Image) -> list[str]:
    """The targets that make was called with, beside the build itself."""
    path = built.out / "calls"
    return path.read_text().split() if path.is_file() else []


# --- what must be there


def test_without_vendor_trees_all_that_is_missing_is_listed() -> None:
    with pytest.raises(K1Error) as caught:
        image(None).check()
    assert "\n  opensbi: the vendor's OpenSBI 1.2 with platform/k1/" in caught.value.message
    assert "\n  uboot: the vendor's U-Boot with configs/k1_defconfig" in caught.value.message
    assert "\n  linux: the vendor's Linux 6.1.56 with arch/riscv" in caught.value.message
    assert "Prima Semiconductor" in caught.value.hint


def test_a_tree_of_another_version_is_refused(tree: Path, bsp: Path) -> None:
    vendor.change(tree, "Makefile", "2023.08", "2024.02")
    with pytest.raises(K1Error, match=r"is Buildroot 2024.02; needed: 2023.08"):
        image(tree, bsp).check()


def test_a_vendor_tree_without_its_platform_is_named(tree: Path, bsp: Path) -> None:
    (bsp / "uboot" / "configs" / "k1_defconfig").unlink()
    with pytest.raises(K1Error, match=r"uboot: no configs/k1_defconfig in .*/bsp/uboot"):
        image(tree, bsp).check()


def test_a_board_without_hardware_needs_no_vendor_tree(tree: Path) -> None:
    assert image(tree, board="virt").check() == {}


def test_a_board_that_says_nothing_of_buildroot_is_refused(tree: Path) -> None:
    virt = boards.load("virt")
    board = virt.model_copy(update={"image": virt.image.model_copy(update={"buildroot": None})})
    with pytest.raises(K1Error, match=r"board virt has no image\.buildroot"):
        Image(board, Options(2, tree)).check()


# --- Buildroot itself


@pytest.fixture
def repository(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the small tree as its tag 2023.08, which is also the pinned commit."""
    git = ["git", "-C", str(tree), "-c", "user.name=t", "-c", "user.email=t@t.invalid"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "2023.08"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setenv("K1_BUILDROOT_GIT", tree.as_uri())
    monkeypatch.setitem(fetch.COMMITS, "2023.08", commit)
    return tree


def test_buildroot_is_fetched_once_when_no_tree_is_given(repository: Path, tmp_path: Path) -> None:
    image(None, board="virt").check()
    repository.rename(tmp_path / "gone")
    image(None, board="virt").check()
    assert (tmp_path / "cache" / "buildroot-2023.08" / "Config.in").is_file()


def test_another_commit_under_the_tag_is_refused(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fetch.COMMITS, "2023.08", "0" * 40)
    with pytest.raises(CheckFailed, match=r"Buildroot 2023\.08 is commit [0-9a-f]{40}, not the pinned 0000"):
        image(None, board="virt").check()
    assert not list((tmp_path / "cache").iterdir())


def test_a_repository_out_of_reach_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K1_BUILDROOT_GIT", "file:///nowhere")
    with pytest.raises(K1Error, match="cannot be cloned from file:///nowhere: ") as caught:
        image(None, board="virt").check()
    assert "--buildroot" in caught.value.hint


def test_a_release_that_is_not_pinned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(K1Error, match=r"no commit of Buildroot 1999\.01 is pinned"):
        fetch.fetch("1999.01", tmp_path, output.Task(None, "x"))


# --- what is checked before the build


def test_a_symbol_that_this_tree_does_not_know_stops_before_make(tree: Path, bsp: Path) -> None:
    vendor.change(tree, "Config.in", "config BR2_PACKAGE_IPERF3\n", "config BR2_PACKAGE_IPERF4\n")
    built = image(tree, bsp)
    with pytest.raises(CheckFailed, match="BR2_PACKAGE_IPERF3: no such symbol; did you mean BR2_PACKAGE_IPERF4"):
        built.run()
    assert not built.out.exists()


def test_a_fragment_line_that_the_vendors_kernel_does_not_know_stops_before_make(tree: Path, bsp: Path) -> None:
    vendor.change(bsp / "linux", "Kconfig", "config SQUASHFS\n", "config SQUASH\n")
    with pytest.raises(CheckFailed, match=r"linux.fragment:\d+: CONFIG_SQUASHFS: no such symbol"):
        image(tree, bsp).check()


def test_a_patch_that_does_not_fit_stops_before_make(tree: Path, bsp: Path) -> None:
    vendor.change(bsp / "linux", GMAC, "\tphy_write(", "\t// phy_write(")
    with pytest.raises(K1Error, match="commented out"):
        image(tree, bsp).check()
    assert image(tree, bsp, skip=("0001-net",)).check()["linux"][0].state == "skipped"


def test_skipping_an_unknown_patch_is_refused(tree: Path, bsp: Path) -> None:
    with pytest.raises(K1Error, match="--skip 0009: no patch of that name"):
        image(tree, bsp, skip=("0009",)).check()


# --- the build


def test_a_build_leaves_images_and_a_manifest(tree: Path, bsp: Path) -> None:
    built = image(tree, bsp)
    built.run()
    images = built.build / "images"
    manifest = json.loads((images / "manifest.json").read_text())
    assert sorted(manifest["images"]) == ["Image", "fw_dynamic.bin", "rootfs.squashfs", "sdcard.img", "u-boot.bin"]
    assert manifest["packages"]["linux"] == "6.1.56"
    assert sorted(manifest["bsp"]) == ["linux", "opensbi", "uboot"]
    assert (images / "sdcard.img").read_text() == "sdcard.img\n"


def test_the_vendors_trees_are_built_patched_and_stay_as_they_are(tree: Path, bsp: Path) -> None:
    before = (bsp / "linux" / GMAC).read_bytes()
    built = image(tree, bsp)
    built.run()
    overrides = dict(line.split(" = ") for line in (built.out / "local.mk").read_text().splitlines())
    assert sorted(overrides) == ["LINUX_OVERRIDE_SRCDIR", "OPENSBI_OVERRIDE_SRCDIR", "UBOOT_OVERRIDE_SRCDIR"]
    assert "PAUSE" not in (Path(overrides["LINUX_OVERRIDE_SRCDIR"]) / GMAC).read_text()
    assert (bsp / "linux" / GMAC).read_bytes() == before


def test_downloads_and_compiler_cache_are_shared(tree: Path, tmp_path: Path) -> None:
    environment = image(tree, board="virt").make_env
    assert environment["BR2_DL_DIR"] == str(tmp_path / "cache" / "buildroot-dl")
    assert environment["BR2_CCACHE_DIR"] == str(tmp_path / "cache" / "buildroot-ccache")


def test_the_failing_packages_log_is_shown(tree: Path, bsp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K1_FAIL", "no such thing")
    built = image(tree, bsp)
    with pytest.raises(CheckFailed) as caught:
        built.run()
    assert caught.value.message.startswith("Buildroot failed at linux (Building)")
    assert "  | gmac.c:7: error: no such thing" in caught.value.message
    assert "tool" not in caught.value.message
    log = built.build / "log" / "packages" / "linux.log"
    assert str(log) in caught.value.hint
    assert "CC      gmac.o" in log.read_text()
    assert not (built.build / "images" / "manifest.json").exists()


def test_a_second_build_configures_nothing_and_keeps_menuconfigs_changes(tree: Path, bsp: Path) -> None:
    built = image(tree, bsp)
    built.run()
    (built.out / ".config").write_text("CHANGED=y\n")
    image(tree, bsp).run()
    assert calls(built) == ["k1_defconfig"]
    assert (built.out / ".config").read_text() == "CHANGED=y\n"


def test_a_changed_vendor_tree_is_built_anew(tree: Path, bsp: Path) -> None:
    built = image(tree, bsp)
    built.run()
    vendor.change(bsp / "linux", GMAC, "GMAC_ENABLE", "GMAC_ENABLE2")
    image(tree, bsp).run()
    assert calls(built) == ["k1_defconfig", "linux-dirclean"]


def test_a_root_over_its_budget_fails(tree: Path, bsp: Path) -> None:
    vendor.change(tree, "Makefile", "@echo root >$(O)/target/file", "@truncate -s 87000000 $(O)/target/file")
    with pytest.raises(CheckFailed, match="over its budget of 86 MB"):
        image(tree, bsp).run()


def test_an_image_that_make_did_not_make_is_named(tree: Path, bsp: Path) -> None:
    vendor.change(tree, "Makefile", "rootfs.squashfs sdcard.img;", "rootfs.squashfs;")
    with pytest.raises(CheckFailed, match=r"Buildroot made no sdcard.img"):
        image(tree, bsp).run()


# --- the command


def k1(*words: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["image", *map(str, words)])
    if isinstance(result.exception, K1Error):
        assert result.exception.exit_code == code
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.stdout


def test_dry_run_shows_the_patches_and_builds_nothing(tree: Path, bsp: Path, tmp_path: Path) -> None:
    text = k1("--board", "k1", "--buildroot", tree, "--bsp", bsp, "--dry-run")
    assert "fits         0001-board-k1-wait-for-PHY-power.patch" in text
    assert "unconfirmed  0002-platform-k1-set-DDR-arbitration.patch" in text
    assert not (tmp_path / "build").exists()


def test_menuconfig_is_buildroots_own(tree: Path, bsp: Path) -> None:
    k1("menuconfig", "--buildroot", tree, "--bsp", bsp)
    assert (image(tree, bsp).out / ".config").read_text().endswith("CHANGED=y\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--board", "k1", "--step", "linux"], "are the debian builder's"),
        (["--bsp", "/nowhere"], "are the buildroot builder's"),
        (["--board", "k1"], "cannot be built, for want of"),
    ],
)
def test_bad_options_are_named(tree: Path, words: list[str], message: str) -> None:
    assert message in k1(*words, code=2)
