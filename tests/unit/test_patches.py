"""Vendor patches fit the tree they are rendered against, or say where and why not; nothing is guessed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from k1 import board as boards
from k1.board import Board
from k1.cli.main import app
from k1.errors import K1Error
from k1.patches import csource, series, template
from k1.patches.series import Patch
from k1.patches.template import Component
from support import vendor

K1 = boards.load("k1")
DDR, UBOOT, GMAC = "platform/k1/k1_ddr_init.c", "board/k1/k1/k1.c", "drivers/net/ethernet/k1/gmac.c"
WHERE: dict[Component, str] = {"opensbi": DDR, "uboot": UBOOT, "linux": GMAC}
OWN = """\
extends = "k1"
name = "mine"
title = "a board whose owner has the manual"
[ddr]
arbitration_offset = { value = 0x25, source = "manual", confirmed = true }
arbitration_word = { value = 0x3c1e, source = "manual", confirmed = true }
[gmac]
gmac_ctrl_offset = { value = 0x0004, source = "manual", confirmed = true }
cache_en_bit = { value = 7, source = "manual", confirmed = true }
"""

Make = Callable[[Component], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a component's tree as the document describes it."""
    return lambda component: vendor.make(tmp_path / "vendor", component)


@pytest.fixture
def own(tmp_path: Path) -> Board:
    """A board whose owner has given what is not published."""
    (tmp_path / "board.toml").write_text(OWN)
    return boards.load_file(tmp_path / "board.toml")


def states(component: Component, tree: Path, board: Board = K1) -> list[str]:
    return [patch.state for patch in series.check(component, board, tree)]


def patch_tree(component: Component, tree: Path, board: Board, target: Path) -> None:
    """Apply the rendered patches as a user does."""
    for path in series.write(series.check(component, board, tree), target):
        for dry in (["--dry-run"], []):
            command = ["patch", *dry, "-p1", "-F0", "--binary", "--batch", "-i", path]
            subprocess.run(command, cwd=tree, check=True, capture_output=True)


def only(component: Component, tree: Path, board: Board = K1) -> Patch:
    """The first patch of the series."""
    return series.check(component, board, tree)[0]


# --- the tree as documented


def test_odt_is_programmed_with_the_documented_words(make: Make, tmp_path: Path) -> None:
    tree = make("opensbi")
    patch_tree("opensbi", tree, K1, tmp_path / "patches")
    assert "\tddr_phy_write(0x12, 0x0003); // ODT RZQ/7\n\tddr_phy_write(0x13, 0x0001);\n" in (tree / DDR).read_text()


def test_uboot_waits_before_gmac_init_and_declares_udelay(make: Make, tmp_path: Path) -> None:
    tree = make("uboot")
    patch_tree("uboot", tree, K1, tmp_path / "patches")
    text = (tree / UBOOT).read_text()
    assert "\tclk_enable_all();\n\tudelay(20000);\n\tgmac_init();\n" in text
    assert "#include <common.h>\n#include <linux/delay.h>\n#include <init.h>\n" in text
    assert "int gmac_init(void);\n" in text


def test_pause_is_dropped_and_all_speeds_stay(make: Make, tmp_path: Path) -> None:
    tree = make("linux")
    patch_tree("linux", tree, K1, tmp_path / "patches")
    text = (tree / GMAC).read_text()
    assert "\tphy_write(phydev, MII_ADVERTISE, ADVERTISE_ALL);\n" in text
    assert "PAUSE" not in text


@pytest.mark.parametrize(("component", "keys"), [("opensbi", "ddr.arbitration_offset"), ("linux", "cache_en_bit")])
def test_a_patch_whose_facts_are_not_published_is_skipped_and_listed(
    make: Make, component: Component, keys: str, tmp_path: Path
) -> None:
    first, second = series.check(component, K1, make(component))
    assert (first.state, second.state) == ("fits", "unconfirmed")
    assert keys in second.detail
    assert [path.name for path in series.write([first, second], tmp_path / "patches")] == [first.name]


def test_an_owners_facts_render_arbitration_behind_the_odt(make: Make, own: Board, tmp_path: Path) -> None:
    tree = make("opensbi")
    patch_tree("opensbi", tree, own, tmp_path / "patches")
    text = (tree / DDR).read_text()
    assert "\tddr_phy_write(0x13, 0x0001);\n\tddr_phy_write(0x25, 0x3c1e);\n\tddr_phy_write(0x20" in text


def test_an_owners_facts_render_cache_en(make: Make, own: Board, tmp_path: Path) -> None:
    tree = make("linux")
    patch_tree("linux", tree, own, tmp_path / "patches")
    text = (tree / GMAC).read_text()
    assert "\twritel(ctrl | GMAC_ENABLE | GMAC_CTRL_CACHE_EN, priv->base + GMAC_CTRL);\n" in text
    assert "#include <linux/phy.h>\n#define GMAC_CTRL_CACHE_EN\t(1U << 7)\n" in text


def test_an_offset_that_is_not_the_drivers_own_is_a_fault(make: Make, own: Board) -> None:
    tree = make("linux")
    vendor.change(tree, GMAC, "GMAC_CTRL 0x0004", "GMAC_CTRL 0x0008")
    patch = series.check("linux", own, tree)[1]
    assert patch.state == "fault"
    assert "no definition of GMAC_CTRL as 0x0004, the gmac.gmac_ctrl_offset of board.toml" in patch.detail
    assert f"{GMAC}:5: #define GMAC_CTRL 0x0008" in patch.detail


def test_a_board_that_wants_pause_frames_gets_no_patch_against_them(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    head, fact = OWN.partition("[ddr]")[0], 'value = true\nsource = "us"\nconfirmed = true\n'
    path.write_text(f"{head}[gmac.advertise_pause]\n{fact}")
    patch = only("linux", make("linux"), boards.load_file(path))
    assert (patch.state, patch.detail) == ("skipped", "board.toml says gmac.advertise_pause = yes")


# --- the patches themselves


@pytest.mark.parametrize("component", template.COMPONENTS)
def test_patches_go_in_by_git_am(make: Make, own: Board, component: Component, tmp_path: Path) -> None:
    tree = make(component)
    paths = series.write(series.check(component, own, tree), tmp_path / "patches")
    identity = ["-c", "user.name=t", "-c", "user.email=t@t.invalid"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "x"], [*identity, "am", *map(str, paths)]):
        subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True)
    log = subprocess.run(["git", "log", "--format=%an: %s"], cwd=tree, capture_output=True, text=True).stdout
    assert log.splitlines()[-2].startswith("K1 cluster stack: ")
    assert log.count("\n") == 1 + len(paths)
    assert set(states(component, tree, own)) == {"present"}


def test_series_lists_the_patches_in_order(make: Make, own: Board, tmp_path: Path) -> None:
    paths = series.write(series.check("opensbi", own, make("opensbi")), tmp_path / "patches")
    listed = (tmp_path / "patches" / "series").read_text().splitlines()
    assert listed == [path.name for path in paths]
    assert [name[:4] for name in listed] == ["0001", "0002"]


def test_rendering_twice_touches_nothing(make: Make, tmp_path: Path) -> None:
    tree = make("opensbi")
    (path,) = series.write(series.check("opensbi", K1, tree), tmp_path / "patches")
    before = path.stat().st_mtime_ns
    series.write(series.check("opensbi", K1, tree), tmp_path / "patches")
    assert path.stat().st_mtime_ns == before


def test_a_patch_that_no_longer_belongs_is_removed(make: Make, own: Board, tmp_path: Path) -> None:
    tree = make("opensbi")
    series.write(series.check("opensbi", own, tree), tmp_path / "patches")
    series.write(series.check("opensbi", K1, tree), tmp_path / "patches")
    assert [path.name[:4] for path in sorted((tmp_path / "patches").glob("*.patch"))] == ["0001"]


def test_the_licence_is_that_of_the_patched_file(make: Make) -> None:
    tree = make("linux")
    assert f"\nLicense: GPL-2.0-only, as {GMAC}\n" in only("linux", tree).text
    vendor.change(tree, GMAC, "// SPDX-License-Identifier: GPL-2.0-only\n", "")
    assert f"\nLicense: GPL-2.0, as {GMAC}\n" in only("linux", tree).text


def test_a_patch_says_whether_silicon_has_confirmed_it(make: Make, own: Board) -> None:
    assert "\nConfirmed on silicon: no\n" in only("opensbi", make("opensbi")).text


# --- trees that differ


@pytest.mark.parametrize("component", template.COMPONENTS)
def test_a_patched_tree_is_left_alone(make: Make, component: Component, tmp_path: Path) -> None:
    tree = make(component)
    patch_tree(component, tree, K1, tmp_path / "patches")
    assert states(component, tree)[0] == "present"
    assert series.write(series.check(component, K1, tree), tmp_path / "patches") == []
    assert (tmp_path / "patches" / "series").read_text() == ""


def test_the_documents_own_fix_counts_as_present(make: Make) -> None:
    tree = make("opensbi")
    fixed = (
        "0x12, 0x0003); // ODT on for both CA and DQ bus\n\tddr_phy_write(0x13, 0x0001); // Set ODT strength to RZQ/7"
    )
    vendor.change(tree, DDR, "0x12, 0x0000); // ODT off", fixed)
    assert states("opensbi", tree) == ["present", "unconfirmed"]


def test_a_half_patched_tree_gets_the_other_half(make: Make, tmp_path: Path) -> None:
    tree = make("opensbi")
    vendor.change(tree, DDR, "0x12, 0x0000", "0x12, 0x0003")
    patch_tree("opensbi", tree, K1, tmp_path / "patches")
    assert (tree / DDR).read_text().count("ddr_phy_write(0x13, 0x0001);") == 1


def test_another_delay_becomes_ours(make: Make, tmp_path: Path) -> None:
    tree = make("uboot")
    vendor.change(tree, UBOOT, "\tgmac_init();", "\tudelay(5000);\n\tgmac_init();")
    patch_tree("uboot", tree, K1, tmp_path / "patches")
    text = (tree / UBOOT).read_text()
    assert "\tudelay(20000);\n\tgmac_init();" in text
    assert text.count("udelay") == 1


@pytest.mark.parametrize("component", template.COMPONENTS)
def test_crlf_line_endings_stay(make: Make, component: Component, tmp_path: Path) -> None:
    tree = make(component)
    vendor.change(tree, WHERE[component], "\n", "\r\n")
    patch_tree(component, tree, K1, tmp_path / "patches")
    data = (tree / WHERE[component]).read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n")
    assert states(component, tree)[0] == "present"


def test_crlf_patches_go_in_by_git_am_keep_cr(make: Make, tmp_path: Path) -> None:
    tree = make("uboot")
    vendor.change(tree, UBOOT, "\n", "\r\n")
    paths = series.write(series.check("uboot", K1, tree), tmp_path / "patches")
    git = ["git", "-c", "core.autocrlf=false", "-c", "user.name=t", "-c", "user.email=t@t.invalid"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["am", "--keep-cr", *map(str, paths)]):
        subprocess.run([*git, *words], cwd=tree, check=True, capture_output=True)
    assert b"\tudelay(20000);\r\n" in (tree / UBOOT).read_bytes()


@pytest.mark.parametrize("component", template.COMPONENTS)
def test_spaces_instead_of_tabs_stay(make: Make, component: Component, tmp_path: Path) -> None:
    tree = make(component)
    vendor.change(tree, WHERE[component], "\t", "    ")
    patch_tree(component, tree, K1, tmp_path / "patches")
    assert "\t" not in (tree / WHERE[component]).read_text()


@pytest.mark.parametrize(
    "call", ["\tret = gmac_init();", "\tif (gmac_init())\n\t\treturn -1;", "\treturn gmac_init();", "\tgmac_init( );"]
)
def test_a_call_that_moved_is_found(make: Make, call: str, tmp_path: Path) -> None:
    tree = make("uboot")
    vendor.change(tree, UBOOT, "\tgmac_init();\n", "")
    with (tree / UBOOT).open("a") as stream:
        stream.write(f"\nint board_late_init(void)\n{{\n\tint ret = 0;\n{call}\n\treturn ret;\n}}\n")
    patch_tree("uboot", tree, K1, tmp_path / "patches")
    assert f"\tudelay(20000);\n{call}\n" in (tree / UBOOT).read_text()
    assert states("uboot", tree) == ["present"]


def test_a_comment_before_the_call_is_not_said_twice(make: Make, tmp_path: Path) -> None:
    tree = make("uboot")
    vendor.change(tree, UBOOT, "\tgmac_init();", "\t/* network */ gmac_init();")
    patch_tree("uboot", tree, K1, tmp_path / "patches")
    assert "\tudelay(20000);\n\t/* network */ gmac_init();\n" in (tree / UBOOT).read_text()


def test_a_file_without_a_last_newline_is_patched(make: Make, tmp_path: Path) -> None:
    tree = make("linux")
    (tree / GMAC).write_text((tree / GMAC).read_text().rstrip())
    patch_tree("linux", tree, K1, tmp_path / "patches")
    assert states("linux", tree)[0] == "present"


def test_bytes_that_are_no_utf8_stay(make: Make, tmp_path: Path) -> None:
    tree = make("uboot")
    path = tree / UBOOT
    path.write_bytes(path.read_bytes().replace(b"\tclk_enable_all();\n", b"\tclk_enable_all(); /* J\xfcrgen */\n"))
    patch_tree("uboot", tree, K1, tmp_path / "patches")
    assert b"/* J\xfcrgen */\n\tudelay(20000);\n" in path.read_bytes()


FAULTS: list[tuple[Component, str, str, list[str]]] = [
    (
        "opensbi",
        "\tddr_phy_write(0x12, 0x0000); // ODT off\n",
        "",
        ["no write of PHY register 0x12", f"{DDR}:11: ddr_"],
    ),
    (
        "opensbi",
        "(0x12, 0x0000)",
        "(DDR_ODT, 0x0000)",
        ["no write of PHY register 0x12", f"{DDR}:12: ddr_phy_write(DDR"],
    ),
    ("opensbi", "\tddr_phy_write(0x12", "\t//ddr_phy_write(0x12", [f"{DDR}:12: write", "commented out", "code again"]),
    ("opensbi", "(0x20, 0x0100);", "(0x12, 0x0100);", ["is there 2 times, on lines 12 and 13", "keep one"]),
    ("opensbi", "\tddr_phy_write(0x12", "\tif (rev)\n\t\tddr_phy_write(0x12", [f"{DDR}:13", "branch without braces"]),
    ("opensbi", "0x0000); // ODT off", "0x0000); done();", [f"{DDR}:12", "shares its line with other code"]),
    ("uboot", "\tgmac_init();\n", "", ["no call of gmac_init()", f"{UBOOT}:6: int gmac_init(void);"]),
    ("uboot", "\tgmac_init();", "\tgmac_init();\n\tgmac_init();", ["is there 2 times, on lines 11 and 12"]),
    ("uboot", "\tgmac_init();", "\t/* gmac_init(); */", [f"{UBOOT}:11: call of gmac_init()", "commented out"]),
    ("uboot", "\tgmac_init();", "#if 0\n\tgmac_init();\n#endif", [f"{UBOOT}:12: call", "commented out or disabled"]),
    ("uboot", "\tgmac_init();", "\tif (up)\n\t\tgmac_init();", [f"{UBOOT}:12", "branch without braces", "in braces"]),
    ("linux", "\tphy_write(", "\t// phy_write(", [f"{GMAC}:16: phy_write() of", "commented out", "code again"]),
    ("linux", "ADVERTISE_ALL | ", "0x01e1 | ", ["no phy_write() of ADVERTISE_ALL", f"{GMAC}:16: phy_write(phydev"]),
]


@pytest.mark.parametrize(("component", "old", "new", "words"), FAULTS)
def test_a_place_that_is_not_as_sought_is_named(
    make: Make, component: Component, old: str, new: str, words: list[str]
) -> None:
    tree = make(component)
    vendor.change(tree, WHERE[component], old, new)
    patch = only(component, tree)
    assert patch.state == "fault"
    for word in words:
        assert word in patch.detail
    assert "--skip" in patch.detail


def test_code_that_is_enabled_counts(make: Make) -> None:
    tree = make("uboot")
    vendor.change(tree, UBOOT, "\tgmac_init();", "#if 0\n\told();\n#else\n\tgmac_init();\n#endif")
    assert states("uboot", tree) == ["fits"]


def test_a_missing_file_is_named_with_where_it_may_be(make: Make) -> None:
    tree = make("uboot")
    (tree / "board" / "vendor").mkdir()
    (tree / UBOOT).rename(tree / "board" / "vendor" / "k1.c")
    patch = only("uboot", tree)
    assert patch.state == "fault"
    assert f"{UBOOT}: not in {tree}; the tree has board/vendor/k1.c" in patch.detail


def test_a_source_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(K1Error, match="nowhere is no folder"):
        series.check("uboot", K1, tmp_path / "nowhere")


def test_one_fault_stops_rendering_before_anything_is_written(make: Make, own: Board) -> None:
    tree = make("linux")
    vendor.change(tree, GMAC, "\twritel(ctrl", "\t// writel(ctrl")
    patches = series.check("linux", own, tree)
    assert [patch.state for patch in patches] == ["fits", "fault"]
    with pytest.raises(K1Error, match=r"0002-net-k1-gmac-set-CACHE_EN.patch: .*commented out"):
        series.refuse_faults(patches)


# --- what counts as code


DIRECTIVES = ["#if 0\n", "#if X\n", "#else\n", "#endif\n"]
SNIPPETS = ["a = 1;", "// b", "/* c\n d */", '"e // f"', "'g'", "\n", "\r\n", *DIRECTIVES]


@given(st.lists(st.sampled_from(SNIPPETS)).map("".join))
def test_code_keeps_every_offset_and_line(text: str) -> None:
    code = csource.code(text)
    assert len(code) == len(text)
    assert [i for i, c in enumerate(code) if c in "\r\n"] == [i for i, c in enumerate(text) if c in "\r\n"]
    assert all(c in (" ", text[i]) for i, c in enumerate(code))
    assert csource.code(code) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a; // b", "a;     "),
        ("a; /* b */ c;", "a;         c;"),
        ('f("x; // y");', "f(         );"),
        ("#if 0\na\n#else\nb\n#endif\n", "#if 0\n \n#else\nb\n#endif\n"),
        ("#if 0\n#if X\n#else\na\n#endif\n#endif\nb\n", "#if 0\n     \n     \n \n      \n#endif\nb\n"),
        ("/* open", "       "),
    ],
)
def test_comments_literals_and_disabled_parts_are_no_code(text: str, code: str) -> None:
    assert csource.code(text) == code


# --- the command


def k1(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["patch", *words])
    if isinstance(result.exception, K1Error):
        assert result.exception.exit_code == code
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.stdout


def test_check_ends_with_3_for_unconfirmed_and_4_for_faults(make: Make) -> None:
    assert "fits" in k1("check", "-c", "uboot", "-s", str(make("uboot")))
    tree = make("opensbi")
    assert "ddr.arbitration_offset" in k1("check", "-c", "opensbi", "-s", str(tree), code=3)
    (tree / DDR).write_text("")
    assert "fault" in k1("check", "-c", "opensbi", "-s", str(tree), code=4)


def test_render_writes_into_the_build_folder(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K1_BUILD", str(tmp_path / "build"))
    rows = json.loads(k1("render", "-c", "linux", "-s", str(make("linux")), "--json"))
    assert [(row["state"], row["confirmed"]) for row in rows] == [("fits", False), ("unconfirmed", False)]
    folder = tmp_path / "build" / "k1" / "patches" / "linux"
    assert sorted(path.name for path in folder.iterdir()) == [rows[0]["name"], "series"]


def test_render_writes_nothing_when_a_patch_does_not_fit(make: Make, tmp_path: Path) -> None:
    tree = make("uboot")
    vendor.change(tree, UBOOT, "\tgmac_init();", "\t// gmac_init();")
    message = k1("render", "-c", "uboot", "-s", str(tree), "-o", str(tmp_path / "out"), code=2)
    assert f"{UBOOT}:11: call of gmac_init() is commented out" in message
    assert not (tmp_path / "out").exists()


def test_a_skipped_patch_is_not_looked_at(make: Make) -> None:
    tree = make("opensbi")
    (tree / DDR).unlink()
    assert "by --skip" in k1("check", "-c", "opensbi", "-s", str(tree), "--skip", "0001", code=3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-c", "grub", "-s", "."], "no component named grub"),
        (["-c", "uboot", "-s", ".", "--skip", "0009"], "--skip 0009: no patch of that name"),
    ],
)
def test_bad_options_are_named(words: list[str], message: str) -> None:
    assert message in k1("check", *words, code=2)


def test_list_tells_what_each_patch_rests_on() -> None:
    rows = json.loads(k1("list", "--json"))
    assert [row["component"] for row in rows] == ["opensbi", "opensbi", "uboot", "linux", "linux"]
    assert rows[1]["facts"]["ddr.arbitration_word"] == "not published"
    assert rows[2]["facts"]["uboot.gmac_delay_us"] == "unconfirmed"
