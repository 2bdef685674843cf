"""A defconfig is checked line by line before a build drops what it does not understand."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k1.cli.main import app
from k1.errors import K1Error
from k1.kconfig import check, table, tree
from support import buildroot as small

KCONFIG = """\
config MODULES
	bool "Modules"
	modules

config NET
	bool "Network"
	default y

config GMAC
	tristate "K1 GMAC"
	depends on NET && SOC

config SOC
	bool "K1"

config PHY
	bool "PHY"

config BOARD
	bool "Board"
	select PHY

config HIDDEN
	bool
	default y if BOARD

config CPUS
	int "CPUs"
	range 1 8
	default 4

config BASE
	hex "Base"
	default 0x1000

config NAME
	string "Name"

choice
	prompt "libc"

config MUSL
	bool "musl"

config GLIBC
	bool "glibc"

endchoice
"""
CONFIG_IN = """\
source "$BR2_BASE_DIR/.br2-external.in.paths"

config BR2_HOST_GCC_AT_LEAST_9
	bool
	default y if "$HOST_GCC_VERSION" = "9"

config BR2_PACKAGE_IPERF3
	bool "iperf3"

config BR2_PACKAGE_QEMU
	bool "qemu"
	depends on BR2_HOST_GCC_AT_LEAST_9

config BR2_HOSTNAME
	string "hostname"

config BR2_LEGACY
	bool

source "$BR2_BASE_DIR/.br2-external.in.menus"
source "Config.in.legacy"
"""
LEGACY = """\
config BR2_PACKAGE_PYTHON
	bool "python2.7 removed"
	select BR2_LEGACY
"""


@pytest.fixture
def linux(tmp_path: Path) -> Path:
    folder = tmp_path / "linux"
    folder.mkdir()
    (folder / "Kconfig").write_text(KCONFIG)
    return folder


@pytest.fixture
def buildroot(tmp_path: Path) -> Path:
    folder = tmp_path / "buildroot"
    (folder / "support" / "scripts").mkdir(parents=True)
    (folder / "support" / "scripts" / "br2-external").write_text(small.BR2_EXTERNAL)
    (folder / "Config.in").write_text(CONFIG_IN)
    (folder / "Config.in.legacy").write_text(LEGACY)
    (folder / "Makefile").write_text("export BR2_VERSION := 2023.08\nHOSTCC_MAX_VERSION := 9\n")
    return folder


def file(folder: Path, *lines: str, name: str = "defconfig") -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def findings(path: Path, source: Path, **options: bool) -> list[tuple[int, str, str]]:
    return [(f.line, f.fault, f.text) for f in check.check([path], source, **options)]  # type: ignore[arg-type]


# --- lines


CASES = [
    ("CONFIG_GMAK=y", "unknown", "no such symbol; did you mean CONFIG_GMAC"),
    ("GMAC=y", "unknown", "no such symbol"),
    ("CONFIG_NET=m", "type", "is a bool, got m; allowed: y or n"),
    ("CONFIG_NAME=k1", "type", 'is a string, got k1; allowed: a text in "quotes"'),
    ("CONFIG_CPUS=four", "type", "is a int, got four; allowed: a whole number"),
    ("CONFIG_BASE=xyz", "type", "is a hex, got xyz; allowed: a number such as 0x1f"),
    ("CONFIG_GMAC=y", "dropped", "asked y, got n: needs SOC, which is n"),
    ("CONFIG_CPUS=9", "dropped", "asked 9, got 4: out of range, 1 to 8"),
    ("CONFIG_HIDDEN=y", "dropped", "asked y, got n: has no prompt, so no file can set it"),
    ("CONFIG_NET y", "malformed", 'no setting; allowed: SYMBOL=value or "# SYMBOL is not set"'),
]


@pytest.mark.parametrize(("line", "fault", "text"), CASES)
def test_a_line_that_kconfig_will_not_follow_is_explained(linux: Path, line: str, fault: str, text: str) -> None:
    ((number, got, message),) = findings(file(linux, "# a comment", "", line), linux)
    assert (number, got) == (3, fault)
    assert message.startswith(text)


GOOD = ["CONFIG_NET=y", "CONFIG_SOC=y", "CONFIG_GMAC=y", "CONFIG_CPUS=8", 'CONFIG_NAME="k1"', "CONFIG_BASE=0X20"]


@pytest.mark.parametrize(
    "line",
    ["CONFIG_NET=n", "# CONFIG_NET is not set", "CONFIG_GLIBC=y", "CONFIG_BASE=0x1000", r'CONFIG_NAME="a\"b\\c"'],
)
def test_a_line_that_stays_is_no_finding(linux: Path, line: str) -> None:
    assert findings(file(linux, line), linux) == []


def test_a_whole_good_defconfig_has_no_finding(linux: Path) -> None:
    assert findings(file(linux, *GOOD), linux) == []


def test_what_is_selected_cannot_be_turned_off(linux: Path) -> None:
    path = file(linux, "CONFIG_BOARD=y", "# CONFIG_PHY is not set")
    assert findings(path, linux) == [(2, "dropped", "asked n, got y: selected by BOARD")]


def test_of_a_choice_the_last_line_wins_and_the_other_is_told(linux: Path) -> None:
    path = file(linux, "CONFIG_MUSL=y", "CONFIG_GLIBC=y")
    assert findings(path, linux) == [
        (1, "dropped", "asked y, got n: only one of its choice can be y, and that is GLIBC")
    ]


def test_a_line_twice_is_told_apart_from_a_contradiction(linux: Path) -> None:
    path = file(linux, "CONFIG_SOC=y", "CONFIG_SOC=y", "CONFIG_NET=n", "CONFIG_NET=y")
    assert findings(path, linux) == [
        (2, "repeated", "stands on line 1 too"),
        (4, "duplicate", "stands on line 3 too, with n; this line wins"),
    ]


def test_all_unmet_needs_are_named(linux: Path) -> None:
    path = file(linux, "CONFIG_NET=n", "CONFIG_GMAC=y")
    assert findings(path, linux)[0][2] == "asked y, got n: needs NET, which is n and SOC, which is n"


def test_a_fragment_is_judged_on_top_of_its_base(linux: Path) -> None:
    base, fragment = file(linux, "CONFIG_SOC=y", "CONFIG_GONE=y", name="base"), file(linux, "CONFIG_GMAC=y")
    assert check.check([fragment], linux, base=base) == []


def test_a_later_file_overrules_without_a_finding(linux: Path) -> None:
    first, second = file(linux, "CONFIG_NET=y", name="a"), file(linux, "CONFIG_NET=n", name="b")
    assert check.check([first, second], linux) == []


def test_a_file_that_is_no_text_is_named(linux: Path) -> None:
    path = linux / "defconfig"
    path.write_bytes(b"CONFIG_NET=\xff\n")
    with pytest.raises(K1Error, match="defconfig: not UTF-8 text"):
        check.check([path], linux)


def test_allnoconfig_starts_from_nothing(linux: Path) -> None:
    path = file(linux, "CONFIG_SOC=y", "CONFIG_GMAC=y")
    assert findings(path, linux) == []
    assert findings(path, linux, allnoconfig=True) == [
        (2, "dropped", "asked y, got n: needs NET, which is n"),
    ]


def test_the_environment_is_as_before(linux: Path) -> None:
    before, limit = dict(os.environ), sys.getrecursionlimit()
    findings(file(linux, *GOOD), linux)
    assert (dict(os.environ), sys.getrecursionlimit()) == (before, limit)


# --- trees


def test_a_buildroot_symbol_that_was_removed_is_legacy(buildroot: Path) -> None:
    path = file(buildroot, "BR2_PACKAGE_PYTHON=y")
    assert findings(path, buildroot) == [(1, "legacy", "was removed: python2.7 removed")]


def test_a_newer_host_compiler_counts_as_the_newest_that_buildroot_knows(buildroot: Path) -> None:
    assert findings(file(buildroot, "BR2_PACKAGE_QEMU=y"), buildroot) == []


def test_symbols_of_an_external_tree_are_known_with_it_only(buildroot: Path, tmp_path: Path) -> None:
    external = tmp_path / "external"
    external.mkdir()
    file(external, "name: X", name="external.desc")
    file(external, 'source "$BR2_EXTERNAL_X_PATH/more"', name="Config.in")
    file(external, "config BR2_PACKAGE_X", '\tbool "x"', name="more")
    path = file(buildroot, "BR2_PACKAGE_X=y")
    assert [f.fault for f in check.check([path], buildroot)] == ["unknown"]
    assert check.check([path], buildroot, externals=[external]) == []


def test_a_bad_external_tree_is_refused_as_buildroot_does(buildroot: Path, tmp_path: Path) -> None:
    with pytest.raises(K1Error, match=r"refuses the external tree: .*does not have an 'external.desc'"):
        tree.read(buildroot, externals=[tmp_path])


def test_a_folder_without_kconfig_is_refused(tmp_path: Path) -> None:
    with pytest.raises(K1Error, match="has no Kconfig tree"):
        tree.kind(tmp_path)


def test_a_broken_kconfig_file_is_named_with_its_line(linux: Path) -> None:
    (linux / "Kconfig").write_text("config A\n\tbol\n")
    with pytest.raises(K1Error, match="Kconfig:2: error"):
        tree.read(linux)


# --- the offline form


def test_the_table_of_a_tree_knows_names_types_and_legacy(buildroot: Path, tmp_path: Path) -> None:
    text = table.make(tree.read(buildroot), tree.buildroot_version(buildroot))
    path = file(tmp_path, *text.splitlines(), name="table")
    assert table.load(path) == {
        "BR2_PACKAGE_IPERF3": "bool",
        "BR2_PACKAGE_QEMU": "bool",
        "BR2_PACKAGE_PYTHON": "legacy",
        "BR2_HOSTNAME": "string",
    }


OFFLINE = [
    ("BR2_PACKAGE_IPERF33=y", "unknown", "did you mean BR2_PACKAGE_IPERF3"),
    ("BR2_PACKAGE_IPERF3=m", "type", "is a bool, got m"),
    ("BR2_TARGET_GENERIC_HOSTNAME=k1", "type", "is a string"),
    ("BR2_PACKAGE_PYTHON=y", "legacy", "was removed"),
    ("BR2_RISCV_ISA_RVI=y", "unknown", "none that a file can set"),
    ("nonsense", "malformed", "no setting"),
]


@pytest.mark.parametrize(("line", "fault", "text"), OFFLINE)
def test_the_committed_table_checks_a_line_without_a_tree(tmp_path: Path, line: str, fault: str, text: str) -> None:
    (finding,) = table.check([file(tmp_path, line)], table.path("2023.08"))
    assert finding.fault == fault
    assert text in finding.text


def test_an_unknown_version_has_no_table() -> None:
    with pytest.raises(K1Error, match="no table of Buildroot 1999"):
        table.path("1999")


# --- the command


def k1(*words: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["kconfig", *map(str, words)])
    if isinstance(result.exception, K1Error):
        assert result.exception.exit_code == code
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.stdout


def test_exit_code_is_4_for_a_dropped_line_3_for_a_repeated_one_and_0_for_none(linux: Path) -> None:
    assert f"{linux}/defconfig:1: CONFIG_GMAC: asked y" in k1(
        "check", file(linux, "CONFIG_GMAC=y"), "-s", linux, code=4
    )
    assert k1("check", file(linux, "CONFIG_SOC=y", "CONFIG_SOC=y"), "-s", linux, code=3)
    assert k1("check", file(linux, "CONFIG_SOC=y"), "-s", linux) == ""


def test_findings_come_as_json(linux: Path) -> None:
    (row,) = json.loads(k1("check", file(linux, "CONFIG_GMAC=y"), "-s", linux, "--json", code=4))
    assert (row["line"], row["symbol"], row["fault"]) == (1, "CONFIG_GMAC", "dropped")


def test_table_prints_what_is_committed(buildroot: Path) -> None:
    assert k1("table", "-s", buildroot).splitlines()[1:3] == ["[bool]", "BR2_PACKAGE_IPERF3"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "/nowhere"], "/nowhere is no file"),
        (["check", "Makefile", "--base", "Makefile"], "need --source"),
        (["table", "-s", "/usr"], "/usr has no Kconfig tree"),
    ],
)
def test_bad_options_are_named(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert message in k1(*words, code=2)
