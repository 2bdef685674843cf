"""Known lines of logs: what they mean and what helps."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, TextIO

from pydantic import StringConstraints

from k1 import typedtoml
from k1.doctor.check import Verdict
from k1.typedtoml import Model, matching, that

_DATA = Path(__file__).parents[1] / "data" / "doctor" / "signatures.toml"
# The meaning is in a line's first part; longer ones are data.
_LINE_LENGTH = 2000
_CHUNK = 1 << 20  # bytes


def _is_lower_regex(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return re.search(r"(?<!\\)[A-Z]", pattern) is None


_Text = Annotated[str, StringConstraints(min_length=1)]


class Signature(Model):
    """One kind of line. `pattern` is searched in its lower-case form; `test` is a line that it finds."""

    id: Annotated[str, matching(r"[a-z0-9-]+", "lower-case letters, digits and hyphens")]
    area: _Text
    found: Literal["warn", "fail"]
    pattern: Annotated[str, that(_is_lower_regex, "not a lower-case regular expression", "one of module re")]
    test: _Text
    cause: _Text
    fix: tuple[_Text, ...]
    reference: _Text

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, compiled."""
        return re.compile(self.pattern)


class _File(Model):
    signature: tuple[Signature, ...]


@dataclass(frozen=True)
class Hit:
    """A signature in a log: how many lines, and the first of them (its number counts from 1)."""

    signature: Signature
    count: int
    number: int
    line: str


def load(path: Path = _DATA) -> tuple[Signature, ...]:
    """All signatures; any fault in the file is a `K1Error`."""
    return typedtoml.validate(_File, typedtoml.read(path), path).signature


def scan(log: TextIO, signatures: tuple[Signature, ...]) -> list[Hit]:
    """What a log tells, in the order of the first line of each kind."""
    hits: dict[str, Hit] = {}
    before = 0
    while whole := log.readlines(_CHUNK):
        lines = [line[:_LINE_LENGTH].strip("\r\n") for line in whole]
        for signature, at in _find("\n".join(lines).lower(), signatures):
            old = hits.get(signature.id) or Hit(signature, 0, before + at + 1, lines[at])
            hits[signature.id] = replace(old, count=old.count + 1)
        before += len(lines)
    return sorted(hits.values(), key=lambda hit: hit.number)


def _find(text: str, signatures: tuple[Signature, ...]) -> Iterator[tuple[Signature, int]]:
    """Each signature with the index of each line that has it."""
    ends = [found.start() for found in re.finditer("\n", text)]
    for signature in signatures:
        # Searching the text as a whole is some ten times faster than line by line.
        matches = signature.regex.finditer(text)
        yield from ((signature, at) for at in dict.fromkeys(bisect_left(ends, found.start()) for found in matches))


def worst(hits: list[Hit]) -> Verdict:
    """The worst of what was found."""
    found = {hit.signature.found for hit in hits}
    return Verdict.FAIL if "fail" in found else Verdict.WARN if found else Verdict.OK
