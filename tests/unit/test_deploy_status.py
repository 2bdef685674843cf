"""Where nodes differ from each other."""

from __future__ import annotations

from k1.deploy.status import Row, mark_drift


def row(rank: int, **facts: str) -> Row:
    usual = {"release": "one", "model": "m.gguf", "init": "busybox", "image": "1ea0", "kernel": "6.1"}
    return Row(f"k1-{rank}", rank, "", reached=True, **(usual | facts))  # type: ignore[arg-type]


def test_a_node_that_differs_from_most_is_flagged() -> None:
    other = {"image": "0b5c", "kernel": "6.6"}
    rows = [row(0), row(1, release="two"), row(2, **other), row(3), Row("k1-4", 4, "")]
    mark_drift(rows)
    assert rows[1].drift == ["release two, others one"]
    assert rows[2].drift == ["image 0b5c, others 1ea0", "kernel 6.6, others 6.1"]
    assert not rows[0].drift + rows[3].drift + rows[4].drift


def test_other_systems_may_have_other_kernels_but_no_other_release() -> None:
    debian = {"init": "systemd", "image": "Debian GNU/Linux 13 (trixie)"}
    rows = [row(0), row(1, **debian, kernel="6.12"), row(2, **debian, kernel="6.6", release="two"), row(3)]
    mark_drift(rows)
    assert [each.drift for each in rows] == [[], [], ["release two, others one"], []]


def test_nobody_reached_is_no_drift() -> None:
    rows = [Row("k1-0", 0, "", drift=["is not reached"])]
    mark_drift(rows)
    assert rows[0].drift == ["is not reached"]
