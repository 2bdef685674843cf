"""Board files: facts load and round-trip; every fault is named by file, key, value and what is allowed."""

from __future__ import annotations

import copy
import json
import string
import tomllib
from collections.abc import Callable
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from k1 import board, isa
from k1.cli import board as board_cli
from k1.errors import K1Error
from k1.paths import BOARDS

K1 = tomllib.loads((BOARDS / "k1" / "board.toml").read_text())

MakeBoards = Callable[..., Path]


def toml(value: Any) -> str:
    """A value as inline TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def document(data: dict[str, Any]) -> str:
    return "".join(f"{key} = {toml(value)}\n" for key, value in data.items())


def with_value(key: str, value: Any) -> dict[str, Any]:
    """K1's data with another value at a key path."""
    data = copy.deepcopy(K1)
    table, *path = data, *key.split(".")
    for part in path[:-1]:
        table = table[part]
    table[path[-1]] = value
    return data


def with_fact(key: str, value: Any) -> dict[str, Any]:
    return with_value(f"{key}.value", value)


def refusal(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(K1Error) as caught:
        board.load_file(path)
    return caught.value.message


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("board") / "board.toml"


@pytest.fixture
def boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeBoards:
    """Makes board/<name>/board.toml files in a folder that stands for board/."""
    monkeypatch.setattr(board, "BOARDS", tmp_path)

    def make(**texts: str) -> Path:
        for name, text in texts.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "board.toml").write_text(text)
        return tmp_path

    return make


# --- the boards of this repository


def test_k1_has_the_facts_of_its_document_and_none_confirmed() -> None:
    k1 = board.load("k1")
    assert (k1.name, k1.builder) == ("k1", "buildroot")
    assert k1.cpu.isa.value == "rv64gc_zicsr_zifencei_zba_zbb_zbs_zbc_zkr_zkn"
    assert k1.cpu.worker_cpus.value == (0, 2)
    assert str(k1.serial.line.value) == "115200 8N1"
    assert (k1.ddr.odt_enable.value.word, k1.ddr.odt_strength.value.word) == (3, 1)
    assert k1.ddr.arbitration_offset is None
    assert not [key for key, fact in k1.facts() if fact and fact.confirmed]


def test_virt_keeps_the_facts_of_k1_that_it_does_not_replace() -> None:
    k1, virt = board.load("k1"), board.load("virt")
    assert (virt.name, virt.extends, virt.builder) == ("virt", "k1", "debian")
    assert virt.memory == k1.memory
    assert virt.software.libc.value == "glibc"
    assert virt.qemu and virt.qemu.cpu.startswith("rv64,")


def test_names_lists_every_board_folder(boards: MakeBoards) -> None:
    (boards(b="", a="") / "empty").mkdir()
    assert board.names() == ["a", "b"]


def test_unknown_board_lists_near_names_and_all() -> None:
    with pytest.raises(K1Error, match="no board 'vrit'") as caught:
        board.load("vrit")
    assert "did you mean virt?" in caught.value.hint
    assert "k1, virt" in caught.value.hint


def test_find_takes_the_nearest_file_of_the_boards_extended(boards: MakeBoards) -> None:
    folder = boards(base=document({**K1, "name": "base"}), top='extends = "base"\nname = "top"\ntitle = "t"')
    (folder / "base" / "a").touch()
    (folder / "base" / "b").touch()
    (folder / "top" / "b").touch()
    top = board.load("top")
    assert (top.find("a"), top.find("b")) == (folder / "base" / "a", folder / "top" / "b")
    with pytest.raises(K1Error, match="board top has no c"):
        top.find("c")


# --- who a node is


def test_identity_adds_the_rank() -> None:
    node = board.load("k1").identity(3)
    assert (node.rank, node.hostname, node.mac) == (3, "k1-3", "00:11:22:33:44:53")
    assert node.address == IPv4Interface("192.168.1.103/24")


def test_identity_refuses_the_rank_of_the_factory_mac() -> None:
    with pytest.raises(
        K1Error, match=r"rank 5 would get 00:11:22:33:44:55, the MAC every board leaves the factory with"
    ):
        board.load("k1").identity(5)


@pytest.mark.parametrize("rank", [-1, 155, 10**9])
def test_identity_refuses_ranks_beyond_the_network(rank: int) -> None:
    with pytest.raises(K1Error, match=f"rank {rank} has no MAC and address") as caught:
        board.load("k1").identity(rank)
    assert "from 0 to 154" in caught.value.hint


def test_identity_refuses_to_carry_over_the_last_byte_of_the_mac(file: Path) -> None:
    file.write_text(document(with_fact("network.mac_base", "00:11:22:33:44:fe")))
    found = board.load_file(file)
    assert found.identity(1).mac == "00:11:22:33:44:ff"
    with pytest.raises(K1Error, match="rank 2 has no MAC"):
        found.identity(2)


# --- inheritance


def test_a_fact_with_a_value_replaces_the_old_one_whole(boards: MakeBoards) -> None:
    text = 'extends = "base"\nname = "mine"\ntitle = "t"\n[cpu.cores]\nvalue = 4\nconfirmed = true'
    folder = boards(base=document({**K1, "name": "base"}), mine=text)
    with pytest.raises(K1Error) as caught:
        board.load("mine")
    assert f"{folder}/mine/board.toml: cpu.cores.source: is missing" in caught.value.message


def test_a_fact_can_be_confirmed_without_repeating_it(boards: MakeBoards) -> None:
    text = 'extends = "base"\nname = "mine"\ntitle = "t"\n[cpu.cores]\nconfirmed = true'
    boards(base=document({**K1, "name": "base"}), mine=text)
    fact = board.load("mine").cpu.cores
    assert (fact.value, fact.source, fact.confirmed) == (2, "reference 000, 4.4", True)


def test_a_fault_of_the_base_is_reported_in_the_base(boards: MakeBoards) -> None:
    folder = boards(base=document(with_fact("network.mtu", 5)), mine='extends = "base"\nname = "mine"\ntitle = "t"')
    with pytest.raises(K1Error) as caught:
        board.load("mine")
    assert caught.value.message.startswith(f"{folder}/base/board.toml: network.mtu: ")


def test_name_and_title_are_not_inherited(boards: MakeBoards) -> None:
    boards(base=document({**K1, "name": "base"}), mine='extends = "base"')
    with pytest.raises(K1Error, match=r"mine/board.toml: name: is missing.*\n.*title: is missing"):
        board.load("mine")


@pytest.mark.parametrize("parent", ['"nowhere"', "7", '"mine"'])
def test_extends_must_name_another_board(boards: MakeBoards, parent: str) -> None:
    boards(base=document({**K1, "name": "base"}), mine=f"extends = {parent}")
    with pytest.raises(K1Error, match=r"mine/board.toml: extends: not a board to build on, got .*; allowed: base\n"):
        board.load("mine")


def test_boards_cannot_extend_each_other(boards: MakeBoards) -> None:
    boards(a='extends = "b"', b='extends = "a"')
    with pytest.raises(K1Error, match=r"b/board.toml: extends: not a board to build on, got 'a'"):
        board.load("a")


def test_a_board_has_the_name_of_its_folder(boards: MakeBoards) -> None:
    boards(mine=document(K1))
    with pytest.raises(K1Error, match=r'mine/board.toml: name: is not the folder\'s, got "k1"; allowed: "mine"'):
        board.load("mine")


# --- faults of a file


def test_syntax_error_names_the_line(file: Path) -> None:
    assert refusal(file, 'name = "k1"\ntitle = = 3\n') == f"{file}:2: Invalid value"


def test_syntax_error_at_the_end_names_the_last_line(file: Path) -> None:
    assert refusal(file, 'name = "k1"\ntitle = [\n').startswith(f"{file}:2: ")


def test_a_file_that_is_not_text_is_refused(file: Path) -> None:
    file.write_bytes(b'name = "\xff"')
    with pytest.raises(K1Error, match="not UTF-8 text"):
        board.load_file(file)


def test_every_fault_is_listed_on_its_own_line(file: Path) -> None:
    data = with_fact("network.mtu", 5)
    data["cpu"]["cores"]["value"] = 0
    del data["l2"]["ways"]
    lines = refusal(file, document(data)).splitlines()
    assert lines == [
        f"{file}: cpu.cores: wrong value, got 0; allowed: greater than 0",
        f"{file}: l2.ways: is missing; allowed: a table with value, source, confirmed, note",
        f"{file}: network.mtu: wrong value, got 5; allowed: greater than or equal to 1280",
    ]


BAD_FACTS = [
    ("cpu.isa", "rv64gc_zbx", "unknown extension 'zbx'", "did you mean"),
    ("cpu.isa", "rv64gc_zba_zba", "extension 'zba' is given twice", "once"),
    ("cpu.isa", "rv32gc", "not a 64-bit base", "rv64i or rv64g"),
    ("cpu.isa", "rv64cg", "not a 64-bit base", "rv64i or rv64g"),
    ("cpu.isa", "rv64gca", "letters 'ca' after rv64g", "in this order"),
    ("cpu.isa", "rv64gcv", "states V, which is found out at run time", "without v"),
    ("cpu.abi", "ilp32", "wrong value", "'lp64d'"),
    ("cpu.absent", ["zba"], "'zba' is part of cpu.isa", "does not name"),
    ("cpu.worker_cpus", [0, 4], "no such CPU", "CPUs 0 to 3"),
    ("cpu.worker_cpus", [0, 1], "two workers on one core", "one CPU of each group of 2"),
    ("cpu.worker_cpus", [], "no worker", "CPUs 0 to 3"),
    ("cpu.threads_per_core", 0, "wrong value", "greater than or equal to 1"),
    ("memory.kind", "DDR3", "wrong value", "'LPDDR4x'"),
    ("memory.usable_mib", 4096, "more than there is", "at most memory.total_mib, 2048"),
    ("memory.total_mib", "2048", "wrong value", "a valid integer"),
    ("l2.line_bytes", 48, "not a power of two", "64"),
    ("l2.size_kib", 1999, "does not fit ways and line_bytes", "times a power of two"),
    ("gmac.rtt_us", [110, 85], "a range that ends before it begins", "[low, high]"),
    ("gmac.advertise_pause", 0, "wrong value", "a valid boolean"),
    ("network.mac_base", "00:11:22:33:44", "wrong form", "six pairs of lower-case hex digits"),
    ("network.mac_base", "01:11:22:33:44:50", "a multicast address", "unicast"),
    ("network.address_base", "192.168.1.300/24", "not a host's address", "address/prefix"),
    ("network.address_base", "192.168.1.0/24", "not a host's address", "address/prefix"),
    ("network.address_base", "192.168.1.100", "not a host's address", "address/prefix"),
    ("network.mtu", 70000, "wrong value", "less than or equal to 9216"),
    ("dfu.usb_id", "0x1234:0x5678", "wrong form", "vendor:product"),
    ("dfu.alt", -1, "wrong value", "greater than or equal to 0"),
    ("software.linux", "six", "wrong form", "numbers joined by dots"),
    ("power.node_w", 0.0, "wrong value", "greater than 0"),
    ("uboot.gmac_delay_us", 5000, "PHY may be unpowered", "at least uboot.supply_skew_ms, 15000"),
]


@pytest.mark.parametrize(("key", "value", "problem", "allowed"), BAD_FACTS)
def test_a_wrong_fact_is_named_with_its_value(file: Path, key: str, value: Any, problem: str, allowed: str) -> None:
    line = refusal(file, document(with_fact(key, value)))
    assert line.startswith(f"{file}: {key}")
    assert f": {problem}, got {json.dumps(value)}; allowed: " in line
    assert allowed in line.split("allowed: ")[1]


BAD_KEYS = [
    ("cpu.isa.source", " ", "cpu.isa.source: wrong value", "at least 1 character"),
    ("cpu.isa", "rv64gc", "cpu.isa: wrong value", "a table with value, source, confirmed, note"),
    ("cpu.isaa", 1, "cpu.isaa: unknown key", "did you mean isa?"),
    ("extra", 1, "extra: unknown key", "name, title"),
    ("serial.line.value.parity", "X", "serial.line.parity: wrong value", "'N', 'E' or 'O'"),
    ("ddr.weights.value.cpu", 61, "ddr.weights: sum is 101", "sum to 100"),
    ("ddr.weights.value.cpu", 160, "ddr.weights.cpu: wrong value", "less than or equal to 100"),
    ("ddr.odt_strength.value.strength", "RZQ/8", "ddr.odt_strength.strength: wrong value", "'RZQ/7'"),
    ("ddr.odt_strength.value.strength", "RZQ/6", "ddr.odt_strength.strength: no known register word", "off, RZQ/7"),
    ("ddr.odt_strength.value.strength", "off", "ddr.odt_enable.word: contradicts strength off", "0 for"),
    ("ddr.odt_strength.value.word", 2, "ddr.odt_strength.word: is not RZQ/7", "0x0001"),
    ("ddr.odt_enable.value.word", 0, "ddr.odt_enable.word: contradicts strength RZQ/7", "bits of the buses"),
    ("ddr.odt_words.value", {"RZQ/9": 1}, "ddr.odt_words.RZQ/9", "'RZQ/7'"),
    (
        "gmac.gmac_ctrl_offset",
        {"value": 6, "source": "s", "confirmed": True},
        "gmac.gmac_ctrl_offset: not aligned",
        "multiple of 4",
    ),
    ("image.builder", "yocto", "image.builder: wrong value", "'debian' or 'buildroot'"),
    ("image.builder", "debian", "image: has not all that builder debian needs", "image.sources and image.root"),
    ("image.root", {"suites": [], "packages": ["a2"]}, "image.root.suites: is empty", "at least one name"),
    ("image.root", {"suites": ["s"], "packages": ["A"]}, "image.root.packages[0]: wrong form", "Debian package"),
    ("image.root", {"suites": ["s"], "packages": ["a2", "a2"]}, "image.root.packages: 'a2' is given twice", "once"),
    (
        "image.root",
        {"suites": ["s"], "packages": ["a2"], "prune": ["../etc"]},
        "image.root.prune[0]: leaves the root file system",
        "relative path",
    ),
    ("card.slot_mib", 80, "card.slot_mib: smaller than storage.root_budget_mb (86 MB)", "a slot that holds"),
    ("card.data_mib", 9000, "card: does not fit storage.emmc_gb (8 GB)", "within the eMMC"),
    ("card.disk_uuid", "1234", "card.disk_uuid: wrong value", ""),
    ("card.data_uuid", K1["card"]["env_uuid"], "card.data_uuid: used twice", "not that of card.env_uuid"),
    ("qemu", {"cpu": "rv64 v=on"}, "qemu.cpu: wrong form", "-cpu argument"),
    ("name", "K 1", "name: wrong form", "lower-case letters"),
]


@pytest.mark.parametrize(("key", "value", "problem", "allowed"), BAD_KEYS)
def test_a_wrong_key_is_named(file: Path, key: str, value: Any, problem: str, allowed: str) -> None:
    line = refusal(file, document(with_value(key, value)))
    assert line.startswith(f"{file}: {problem}")
    assert "\n" not in line
    assert allowed in line.split("allowed: ")[1]


SOURCE = {"name": "linux", "kind": "source", "package": "linux", "suites": ["bookworm"]}
BAD_SOURCES = [
    ([{**SOURCE, "architecture": "riscv64"}], "image.sources[0].architecture: has no meaning here"),
    ([{**SOURCE, "kind": "binary", "only": "*.xz"}], "image.sources[0].only: has no meaning here"),
    ([{**SOURCE, "kind": "git"}], "image.sources[0].kind: wrong value, got \"git\"; allowed: 'source' or 'binary'"),
    ([SOURCE, SOURCE], "image.sources: 'linux' is given twice"),
]


@pytest.mark.parametrize(("sources", "problem"), BAD_SOURCES)
def test_a_wrong_image_source_is_named(file: Path, sources: list[Any], problem: str) -> None:
    assert refusal(file, document(with_value("image.sources", sources))).startswith(f"{file}: {problem}")


# --- any board file

any_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
words = st.text(string.ascii_letters + string.digits + " .,-", min_size=1).filter(str.strip)


def _mac(number: int) -> str:
    return number.to_bytes(6, "big").hex(":")


@st.composite
def valid_values(draw: st.DrawFn) -> dict[str, Any]:
    """Consistent values for most facts."""
    cores, threads = draw(st.integers(1, 64)), draw(st.integers(1, 8))
    used = draw(st.lists(st.integers(0, cores - 1), min_size=1, unique=True))
    total, skew = draw(st.integers(1, 2**20)), draw(st.integers(1, 500))
    ways, line, sets = draw(st.integers(1, 32)), 2 ** draw(st.integers(4, 8)), 2 ** draw(st.integers(6, 14))
    cpu = draw(st.integers(0, 100))
    dma = draw(st.integers(0, 100 - cpu))
    ratio, word = f"RZQ/{draw(st.integers(1, 7))}", draw(st.integers(0, 0xFFFF))
    names = draw(st.lists(st.sampled_from(sorted(isa.EXTENSIONS - {"zvbb", "zvkb"})), unique=True, max_size=6))
    return {
        "cpu.isa": "_".join([draw(st.sampled_from(["rv64g", "rv64gc", "rv64imafdc"])), *names]),
        "cpu.cores": cores,
        "cpu.threads_per_core": threads,
        "cpu.worker_cpus": [core * threads + draw(st.integers(0, threads - 1)) for core in used],
        "memory.total_mib": total,
        "memory.usable_mib": draw(st.integers(1, total)),
        "l2.ways": ways,
        "l2.line_bytes": line,
        "l2.size_kib": ways * line * sets // 1024,
        "gmac.rtt_us": sorted(draw(st.tuples(st.integers(1, 9999), st.integers(1, 9999)))),
        "network.mac_base": _mac(draw(st.integers(0, 2**48 - 1)) & ~(1 << 40)),
        "network.mtu": draw(st.integers(1280, 9216)),
        "dfu.usb_id": f"{draw(st.integers(0, 0xFFFF)):04x}:{draw(st.integers(0, 0xFFFF)):04x}",
        "ddr.weights": {"cpu": cpu, "dma": dma, "gpu": 100 - cpu - dma},
        "ddr.odt_strength": {"offset": 0x13, "word": word, "strength": ratio},
        "ddr.odt_words": {ratio: word},
        "uboot.supply_skew_ms": skew,
        "uboot.gmac_delay_us": draw(st.integers(skew * 1000, 1_000_000)),
    }


@any_machine
@given(values=valid_values(), source=words, confirmed=st.booleans(), note=words)
def test_any_consistent_facts_load_and_round_trip(
    file: Path, values: dict[str, Any], source: str, confirmed: bool, note: str
) -> None:
    data = copy.deepcopy(K1)
    for key, value in values.items():
        section, name = key.split(".")
        data[section][name] = {"value": value, "source": source, "confirmed": confirmed, "note": note}
    file.write_text(document(data))
    found = board.load_file(file)
    dumped = found.model_dump(mode="json", exclude_none=True)
    for key, value in values.items():
        section, name = key.split(".")
        assert dumped[section][name]["value"] == value
    file.write_text(document(dumped))
    assert board.load_file(file) == found


WRONG: dict[str, st.SearchStrategy[Any]] = {
    "cpu.isa": st.text(string.ascii_lowercase).map("rv64gc_q".__add__),
    "cpu.cores": st.integers(max_value=0) | st.booleans() | words,
    "cpu.worker_cpus": st.integers(4, 99).map(lambda cpu: [cpu]),
    "memory.usable_mib": st.integers(min_value=2049),
    "l2.line_bytes": st.integers(1, 99999).filter(lambda n: n & (n - 1)),
    "gmac.advertise_pause": st.integers() | words,
    "network.mac_base": words | st.integers(0, 2**48 - 1).map(lambda n: _mac(n | 1 << 40)),
    "network.address_base": words.filter(lambda text: "." not in text),
    "network.mtu": st.integers(max_value=1279) | st.integers(min_value=9217),
    "dfu.usb_id": words.filter(lambda text: ":" not in text),
    "software.libc": words.filter(lambda text: text not in {"musl", "glibc", "uclibc"}),
    "ddr.arbitration": words,
    "uboot.gmac_delay_us": st.integers(max_value=14999),
}


@any_machine
@given(data=st.data(), key=st.sampled_from(sorted(WRONG)))
def test_any_single_wrong_value_is_refused_by_file_key_and_value(file: Path, data: st.DataObject, key: str) -> None:
    value = data.draw(WRONG[key])
    line = refusal(file, document(with_fact(key, value)))
    assert "\n" not in line
    assert line.startswith(f"{file}: {key}: ")
    assert f"got {json.dumps(value)[:80]}" in line


# --- the command


def test_list_shows_boards_as_json() -> None:
    found = json.loads(CliRunner().invoke(board_cli.app, ["list", "--json"], catch_exceptions=False).stdout)
    assert {"name": "virt", "title": board.load("virt").title, "builder": "debian", "extends": "k1"} in found


def test_list_shows_a_line_for_each_board() -> None:
    lines = CliRunner().invoke(board_cli.app, ["list"], catch_exceptions=False).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["name", *board.names()]


def test_show_prints_facts_with_their_sources() -> None:
    found = json.loads(CliRunner().invoke(board_cli.app, ["show", "k1", "--json"], catch_exceptions=False).stdout)
    assert found["network.address_base"]["value"] == "192.168.1.100/24"
    assert found["cpu.isa"]["source"] == "reference 000, 4.3"
    assert found["gmac.gmac_ctrl_offset"] is None


def test_show_says_what_is_not_published() -> None:
    text = CliRunner().invoke(board_cli.app, ["show", "k1"], catch_exceptions=False).stdout
    assert "115200 8N1" in text
    assert "0x13 = 0x0001" in text
    assert "not published" in text
