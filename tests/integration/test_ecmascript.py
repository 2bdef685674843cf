"""Patterns of -ot are read as C++ std::regex reads them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k1.doctor.ecmascript import Pattern, PatternError

NAME = "blk.12.ffn_up_exps.weight"
SOURCE = Path(__file__).parents[1] / "data" / "ecmascript" / "search.cpp"
PATTERNS = [
    *(r"blk\.[0-9]+\.ffn_.*_exps\.weight", "blk.1.", "^blk", "weight$", "(up|down)", "[[:digit:]]+", r"\d{2}", ""),
    *("(?<=a)b", "(?P<n>a)", "(?i)BLK", "(?>b)", "(?#c)b", r"\Ablk", r"weight\Z", "(?=blk)", "(?!blk)", "(?:blk)"),
    *("{", "a{", "a{1", "a{x}", "b{2,1}", "a{,3}", r"blk\.{1}", "}", "]", "[]", "[^]", "[]a]", "[z-a]", r"[a-\d]"),
    *(
        "*a",
        "^*",
        r"\b*",
        "(?=a)*",
        "(",
        ")",
        "[",
        "\\",
        "x|",
        "||",
        "()",
        r"\1",
        r"(b)\1",
        "[[:nope:]]",
        "[[:alpha:]]",
    ),
    *(
        r"\cA",
        r"\x62",
        r"\u0062",
        r"\h",
        r"\e",
        r"\_",
        r"\-",
        r"[\w-]",
        "[a-]",
        "[-a]",
        "[[a]",
        "[a&&b]",
        "[a||b]",
        "[[:]",
        "[[.]",
    ),
]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("ecmascript") / "search"
    subprocess.run(["clang++-19", "-o", target, SOURCE], check=True)
    return target


def std(program: Path, patterns: list[str]) -> list[str]:
    text = "".join(f"{pattern}\n" for pattern in patterns)
    return subprocess.run([program, NAME], input=text, capture_output=True, text=True, check=True).stdout.split()


def ours(pattern: str) -> str:
    try:
        return str(int(NAME in Pattern(pattern).matching([NAME])))
    except PatternError as error:
        return "slip" if "a second repetition" in str(error) else "error"


def test_known_patterns_mean_the_same(program: Path) -> None:
    assert [ours(pattern) for pattern in PATTERNS] == std(program, PATTERNS)


@settings(max_examples=200, deadline=None)
@given(pattern=st.text(r"blk.12fn_09\[](){}|*+?^$:=!d-,", max_size=9))
def test_any_pattern_means_the_same(program: Path, pattern: str) -> None:
    found = ours(pattern)
    # What std::regex allows and nobody means, such as a** or a++ (in other dialects another thing), is refused.
    if found != "slip":
        assert found == std(program, [pattern])[0]
