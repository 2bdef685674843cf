"""`k1 doctor ask`: every way through a tree ends in a fix, and a tree with a fault is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from k1.cli import doctor as doctor_cli
from k1.doctor import trees
from k1.doctor.trees import Tree
from k1.errors import K1Error

RUN = CliRunner().invoke


def ways(tree: Tree, name: str = "", before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The answers of every way from the start to a leaf."""
    name = name or tree.start
    if name in tree.leaf:
        yield before
        return
    for answer in tree.question[name].answers:
        yield from ways(tree, answer.next, (*before, answer.key))


def test_the_guides_tree_and_those_of_the_board_are_there() -> None:
    assert trees.names() == ["hybrid-moe-numa-and-edge-npu-trap", "k1-boot", "k1-network", "slow-inference"]


@pytest.mark.parametrize("name", trees.names())
def test_every_way_ends_in_a_cause_and_a_fix(name: str) -> None:
    tree = trees.load(name)
    for answers in ways(tree):
        way = trees.replay(tree, answers)
        assert way.leaf.cause and way.leaf.fix
        assert [answer.key for _, answer in way.steps] == list(answers)


@pytest.mark.parametrize(
    ("name", "answers", "said"),
    [
        ("hybrid-moe-numa-and-edge-npu-trap", "server,slower,on", "sudo sysctl -w kernel.numa_balancing=0"),
        ("hybrid-moe-numa-and-edge-npu-trap", "server,oom-load,none", r"blk\.[0-9]+\.ffn_.*_exps\.weight=CPU"),
        ("hybrid-moe-numa-and-edge-npu-trap", "hailo,firmware", "sudo apt install hailo-h10-all"),
        ("hybrid-moe-numa-and-edge-npu-trap", "rk3588,init,unlimited,no", "cma=512M"),
        ("k1-boot", "ddr", "0x0003"),
        ("k1-network", "down,never", "udelay(20000)"),
        ("k1-network", "up,sometimes", "another rank on each board"),
        ("slow-inference", "cluster,no,yes", "from 1.0 to 0.7"),
    ],
)
def test_known_troubles_lead_to_the_documents_fix(name: str, answers: str, said: str) -> None:
    result = RUN(doctor_cli.app, ["ask", name, "--answers", answers])
    assert result.exit_code == 0
    assert said in result.stdout


def test_questions_are_put_until_an_answer_fits() -> None:
    result = RUN(doctor_cli.app, ["ask", "k1-boot"], input="what?\nresets\n1\n")
    assert result.exit_code == 0
    assert "use the maker's own supply, 5 V/3 A" in result.stdout
    assert result.output.count("What does the serial console") == 2


def test_the_way_as_json() -> None:
    result = RUN(doctor_cli.app, ["ask", "k1-boot", "--answers", "uboot, bootlimit", "--json"])
    data = json.loads(result.stdout)
    assert [step["answer"] for step in data["steps"]] == ["uboot", "bootlimit"]
    assert data["cause"].startswith("The new slot never called itself good")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ("uboot", "no answer is left for: What does it say?"),
        ("kernal", "'kernal' does not answer: What does the serial console"),
        ("ddr,more", "the answer 'more' comes after the end"),
    ],
)
def test_wrong_answers_are_named(answers: str, message: str) -> None:
    with pytest.raises(K1Error) as caught:
        trees.replay(trees.load("k1-boot"), answers.split(","))
    assert message in caught.value.message


def test_nobody_to_answer_is_a_user_error() -> None:
    with pytest.raises(K1Error, match="there is nobody to answer"):
        RUN(doctor_cli.app, ["ask", "k1-boot"], input="", catch_exceptions=False)


def test_an_unknown_tree_lists_all() -> None:
    with pytest.raises(K1Error, match="no decision tree named k1-bot") as caught:
        trees.load("k1-bot")
    assert "did you mean k1-boot?" in caught.value.hint


SOUND = """
title = "t"
start = "a"

[question.a]
text = "?"
answers = [{ key = "x", text = "x", next = "b" }, { key = "y", text = "y", next = "end" }]

[question.b]
text = "?"
answers = [{ key = "x", text = "x", next = "end" }, { key = "y", text = "y", next = "end" }]

[leaf.end]
cause = "c"
fix = ["f"]
reference = "r"
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('next = "b"', 'next = "c"', 'question.a.x: a dead end, got "c"'),
        ('next = "b"', 'next = "end"', "b: never reached"),
        ('start = "a"', 'start = "end"', 'start: no such question, got "end"; allowed: a, b'),
        ('fix = ["f"]', "fix = []", "leaf.end.fix: wrong value"),
        ('{ key = "x", text = "x", next = "end" }', '{ key = "x", text = "x", next = "a" }', "goes round in a circle"),
        (
            '{ key = "y", text = "y", next = "end" }]\n\n[question.b]',
            "]\n\n[question.b]",
            "question.a.answers: wrong value",
        ),
        (
            'key = "y", text = "y", next = "end" }]\n\n[leaf',
            'key = "x", text = "y", next = "end" }]\n\n[leaf',
            "given twice",
        ),
        ("[leaf.end]", "[leaf.b]\ncause = 'c'\nfix = ['f']\nreference = 'r'\n[leaf.end]", "both a question and a leaf"),
    ],
)
def test_a_tree_with_a_fault_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "tree.toml"
    file.write_text(SOUND)
    assert trees.load_file(file).title == "t"
    assert old in SOUND
    file.write_text(SOUND.replace(old, new, 1))
    with pytest.raises(K1Error) as caught:
        trees.load_file(file)
    assert message in caught.value.message, caught.value.message
