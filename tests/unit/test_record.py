"""The time before every line, whatever the bytes and however they are cut."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from k1.record import Stamper

STAMP = re.compile(rb"\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\] ")


@given(st.lists(st.binary(max_size=30)))
def test_stamps_come_off_again_and_one_is_before_every_line(parts: list[bytes]) -> None:
    stamper = Stamper()
    stamped = b"".join(stamper.feed(part, 1.5) for part in parts)
    lines = re.findall(rb"[^\n]*\n|[^\n]+", stamped)
    assert all(STAMP.match(line) for line in lines)
    assert b"".join(line[26:] for line in lines) == b"".join(parts)


def test_a_line_has_the_time_of_its_first_byte() -> None:
    stamper = Stamper()
    text = stamper.feed(b"log", 0.25) + stamper.feed(b"in: ", 9.0) + stamper.feed(b"\nnext", 9.5)
    assert [line[20:24] for line in text.split(b"\n")] == [b".250", b".500"]
