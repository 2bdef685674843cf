"""C sources as text: what of a file is code, and on which line a place is."""

from __future__ import annotations

import re
from collections.abc import Iterator

_NO_CODE = re.compile(
    r"""//[^\n]* | /\*.*?(?:\*/|\Z) | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'""", re.DOTALL | re.VERBOSE
)
_DIRECTIVE = re.compile(r"\s*#\s*(if\s+0\b|if|ifdef|ifndef|else|elif|endif)\b")


def code(text: str) -> str:
    """`text` with comments, literals and `#if 0` parts turned into spaces: every offset and line stays."""
    return "".join(_without_disabled(_NO_CODE.sub(lambda part: _blank(part[0]), text)))


def line_number(text: str, offset: int) -> int:
    """The line of an offset, counted from 1."""
    return text.count("\n", 0, offset) + 1


def line_span(text: str, offset: int) -> tuple[int, int]:
    """Start and end of the line that holds `offset`; the end is before its line ending."""
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    end = len(text) if end < 0 else end
    return start, end - text.endswith("\r", start, end)


def _blank(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


def _without_disabled(text: str) -> Iterator[str]:
    """The lines, with those between `#if 0` and its `#else`, `#elif` or `#endif` blanked."""
    nested = 0  # conditionals that are open, counted from the `#if 0`; 0 is outside of one
    for line in text.splitlines(keepends=True):
        found = _DIRECTIVE.match(line)
        word = found[1] if found else ""
        if nested == 0:
            nested = 1 if word.startswith("if") and word.endswith("0") else 0
            yield line
            continue
        if word.startswith("if"):
            nested += 1
        elif word == "endif" or (nested == 1 and word in ("else", "elif")):
            nested -= 1
        yield line if nested == 0 else _blank(line)
