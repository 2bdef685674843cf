"""Regular expressions as llama.cpp reads them: C++ std::regex, grammar ECMAScript, in libstdc++.

A pattern is checked and translated for Python's `re`, whose dialect differs: in std::regex `(?` goes on with `:`, `=`
or `!` only, `{` always begins a count, `\\A` is the letter A, and `[]` matches nothing. Python's search backtracks as
libstdc++'s does, so it needs exponential time for the same patterns; it runs in a process that can be ended.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from k1.run import CommandTimeout, run

SECONDS = 2.0
_SEARCH = """
import json, re, sys
text, names = json.load(sys.stdin)
found = re.compile(text, re.ASCII)
json.dump([name for name in names if found.search(name)], sys.stdout)
"""
_CLASS_NAMES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "d": r"\d",
    "digit": r"\d",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "s": r"\s",
    "space": r"\s",
    "upper": "A-Z",
    "w": r"\w",
    "xdigit": "0-9A-Fa-f",
}
_KEPT = set("dDwWsSbBfnrtv0123456789")
_CLASSES = ("\\d", "\\D", "\\w", "\\W", "\\s", "\\S")
_COUNT = re.compile(r"\{\d+(,\d*)?\}")


class PatternError(Exception):
    """The pattern does not compile, or takes too long; the text says why and where."""


@dataclass
class _Group:
    """An open group: whether it only looks ahead, and whether something in it repeats without bound."""

    looks_ahead: bool = False
    repeats: bool = False


class _Translator:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.out: list[str] = []
        self.nested = False
        self._open = [_Group()]
        self._closed = _Group()  # what the last word was: the group it closed, else an empty one
        at, can_repeat = 0, False
        while at < len(pattern):
            if pattern[at] in "*+?{":
                at += self._repeat(at, can_repeat)
                can_repeat = False
            else:
                word, text, can_repeat = self._atom(at)
                self.out.append(text)
                at += len(word)

    def _repeat(self, at: int, can_repeat: bool) -> int:
        char = self.pattern[at]
        if not can_repeat:
            again = self.out and self.out[-1][0] in "*+?{"
            problem = "a second repetition: write one" if again else "there is nothing to repeat"
            raise PatternError(f"{char!r} at position {at}: {problem}")
        word = _count(self.pattern, at) if char == "{" else char
        if char in "*+" or word.endswith(",}"):
            self.nested |= self._closed.repeats
            self._open[-1].repeats = True
        lazy = "?" if self.pattern.startswith("?", at + len(word)) else ""
        self.out.append(word + lazy)
        return len(word + lazy)

    def _atom(self, at: int) -> tuple[str, str, bool]:
        """The word at that place, its translation, and whether a repetition may follow."""
        self._closed = _Group()
        char = self.pattern[at]
        if char == "\\":
            word, text = _escape(self.pattern, at)
            return word, text, word not in ("\\b", "\\B")
        if char == "[":
            word, text = _bracket(self.pattern, at)
            return word, text, True
        if char == "(":
            return self._open_group(at)
        if char == ")" and len(self._open) > 1:
            self._closed = self._open.pop()
            self._open[-1].repeats |= self._closed.repeats
            return char, char, not self._closed.looks_ahead
        if char in ".)|^$":
            return char, char, char == "."
        return char, re.escape(char), True

    def _open_group(self, at: int) -> tuple[str, str, bool]:
        word = self.pattern[at]
        if self.pattern.startswith("?", at + 1):
            word = self.pattern[at : at + 3]
            if word not in ("(?:", "(?=", "(?!"):
                raise PatternError(f"{self.pattern[at : at + 4]!r} at position {at}: std::regex knows (?: (?= (?! only")
        self._open.append(_Group(looks_ahead=word in ("(?=", "(?!")))
        return word, word, False


def _count(pattern: str, at: int) -> str:
    found = _COUNT.match(pattern, at)
    if not found:
        raise PatternError(f"'{{' at position {at} begins no count such as {{2}} or {{1,3}}; write \\{{ for the sign")
    return found[0]


def _escape(pattern: str, at: int) -> tuple[str, str]:
    name = pattern[at + 1 : at + 2]
    if not name:
        raise PatternError("ends in a lone backslash")
    if found := re.compile(r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}").match(pattern, at + 1):
        return f"\\{found[0]}", f"\\{found[0]}"
    if name == "c" and (letter := pattern[at + 2 : at + 3]).isascii() and letter.isalpha():
        return f"\\c{letter}", f"\\x{ord(letter) % 32:02x}"
    return f"\\{name}", f"\\{name}" if name in _KEPT else re.escape(name)


def _bracket(pattern: str, at: int) -> tuple[str, str]:
    end = at + 1 + pattern.startswith("^", at + 1)
    negated = end > at + 1
    body: list[str] = []
    while pattern[end : end + 1] != "]":
        if end >= len(pattern):
            raise PatternError(f"'[' at position {at} is not closed")
        if pattern[end : end + 2] in ("[:", "[.", "[="):
            found = re.compile(r"\[:(\w+):\]").match(pattern, end)
            if not found or found[1] not in _CLASS_NAMES:
                raise PatternError(f"{pattern[end : end + 9]!r} at position {end} names no class such as [:digit:]")
            word, text = found[0], _CLASS_NAMES[found[1]]
        elif pattern[end] == "\\":
            word, text = _escape(pattern, end)
            if body[1:] and body[-1] == "-" and word in _CLASSES:
                raise PatternError(f"'-{word}' at position {end - 1}: a range cannot end in a class")
        else:
            word = pattern[end]
            text = word if word == "-" and body[-1:] != ["-"] else re.escape(word)
        body.append(text)
        end += len(word)
    if not body:
        return pattern[at : end + 1], r"[\s\S]" if negated else "(?!)"
    return pattern[at : end + 1], f"[{'^' if negated else ''}{''.join(body)}]"


class Pattern:
    """A compiled pattern; `nested` when a repetition repeats, which can take exponential time."""

    def __init__(self, text: str) -> None:
        translator = _Translator(text)
        self.text = text
        self.nested = translator.nested
        self._translated = "".join(translator.out)
        try:
            re.compile(self._translated, re.ASCII)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(str(error)) from error

    def matching(self, names: Iterable[str]) -> set[str]:
        """The names it is found in, as std::regex_search finds it; `PatternError` when that takes too long."""
        found = _search(self._translated, tuple(names))
        if found is None:
            raise PatternError("needs exponential time: a repetition within a repetition, such as (a+)+ or (.*)*")
        return set(found)


@lru_cache
def _search(text: str, names: tuple[str, ...]) -> frozenset[str] | None:
    """The names in which Python finds the expression; None when that takes too long."""
    try:
        done = run([sys.executable, "-I", "-c", _SEARCH], stdin=json.dumps([text, names]), timeout=SECONDS)
    except CommandTimeout:
        return None
    return frozenset(json.loads(done.output))
