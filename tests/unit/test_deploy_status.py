"""Where nodes differ from each other."""

from __future__ import annotations

from k1.deploy.status import Row, mark_drift


def row(rank: int, **facts: str) -> Row:
    usual = {"release": "one", "model": "m.gguf", "arch": "riscv64", "kernel": "6.1"}
    return Row(f"k1-{rank}", rank, "", reached=True, **(usual | facts))  # type: ignore[arg-type]


def test_a_node_that_differs_from_most_is_flagged() -> None:
    rows = [row(0), row(1, release="two"), row(2, kernel="6.6"), row(3), Row("k1-4", 4, "")]
    mark_drift(rows)
    assert [each.drift for each in rows] == [[], ["release two, others one"], ["kernel 6.6, others 6.1"], [], []]


def test_another_architecture_may_have_another_kernel_but_no_other_release() -> None:
    arm = {"arch": "aarch64", "kernel": "6.12"}
    rows = [row(0), row(1), row(2), row(3, **arm), row(4, **arm), row(5, **arm | {"kernel": "6.6", "release": "two"})]
    mark_drift(rows)
    assert [each.drift for each in rows[:5]] == [[]] * 5
    assert rows[5].drift == ["release two, others one", "kernel 6.6, others 6.12"]


def test_nobody_reached_is_no_drift() -> None:
    rows = [Row("k1-0", 0, "", drift=["is not reached"])]
    mark_drift(rows)
    assert rows[0].drift == ["is not reached"]
