"""One edit of one source file: find the place, or say where it was sought and what comes near."""

from __future__ import annotations

import re

from k1.errors import K1Error
from k1.patches import csource
from k1.patches.template import Edit

_GROUP = re.compile(r"\\g<(\w+)>")
_COMMENT = re.compile(r"[ \t]*(?:(?P<line>//[^\r\n]*)|/\*[^\r\n]*?\*/)[ \t]*$")
_COMMENT_MARK = re.compile(r"//|/\*|\*/")
_LEAVE_OUT = "or leave this patch out with --skip and make the change by hand"


def apply(text: str, edit: Edit, file: str) -> str:
    """`text` of `file` with the edit made; the same text when it is there already.

    A place that is missing, commented out, there more than once, or not a statement of its own is a `K1Error`.
    """
    code = csource.code(text)
    if edit.present and (spot := _only(edit, edit.present, text, code, file)):
        return _replace(text, spot, edit)
    spot = _only(edit, edit.find, text, code, file)
    if spot is None:
        raise _missing(text, edit, file)
    if edit.place == "replace":
        return _replace(text, spot, edit)
    return _insert(text, code, spot, edit, file)


def _only(edit: Edit, pattern: str, text: str, code: str, file: str) -> re.Match[str] | None:
    found = list(re.finditer(pattern, code, re.MULTILINE))
    if len(found) > 1:
        lines = " and ".join(str(csource.line_number(text, _span(match)[0])) for match in found)
        hint = f"keep one of them, {_LEAVE_OUT}"
        raise K1Error(f"{file}: {edit.what} is there {len(found)} times, on lines {lines}", hint=hint)
    return found[0] if found else None


def _span(match: re.Match[str]) -> tuple[int, int]:
    return match.span("at" if "at" in match.re.groupindex else 0)


def _new_text(text: str, match: re.Match[str], edit: Edit) -> str:
    return _GROUP.sub(lambda group: text[slice(*match.span(group[1]))], edit.text)


def _replace(text: str, match: re.Match[str], edit: Edit) -> str:
    start, end = _span(match)
    new = _new_text(text, match, edit)
    if new == text[start:end]:
        return text  # right already, whatever the comment says
    rest_end = csource.line_span(text, end)[1]
    rest = text[end:rest_end]
    comment = _COMMENT.fullmatch(rest)
    if edit.comment and comment:
        rest = f" // {edit.comment}" if comment["line"] else f" /* {edit.comment} */"
    return text[:start] + new + rest + text[rest_end:]


def _insert(text: str, code: str, match: re.Match[str], edit: Edit, file: str) -> str:
    """Put a line before or after that of the place, with its indentation and line ending."""
    start, end = _span(match)
    first, last = csource.line_span(text, start)[0], csource.line_span(text, max(start, end - 1))[1]
    number = csource.line_number(text, start)
    if code[first:start].strip() or code[end:last].strip():
        hint = f"give it a line of its own, {_LEAVE_OUT}"
        raise K1Error(f"{file}:{number}: {edit.what} shares its line with other code", hint=hint)
    if not _stands_alone(code[:first]):
        hint = f"put it in braces first, {_LEAVE_OUT}"
        raise K1Error(f"{file}:{number}: {edit.what} is part of a statement or a branch without braces", hint=hint)
    ending = "\r\n" if text.startswith("\r\n", csource.line_span(text, start)[1]) else "\n"
    before = text[first:start]
    line = before[: len(before) - len(before.lstrip(" \t"))] + _new_text(text, match, edit)
    if edit.place == "before":
        return text[:first] + line + ending + text[first:]
    return text[:last] + ending + line + text[last:]


def _stands_alone(before: str) -> bool:
    """Whether a statement can be put here: the code before ends one, or opens a block, or is a directive."""
    before = before.rstrip()
    return not before or before[-1] in ";{}:" or before.rpartition("\n")[2].lstrip().startswith("#")


def _missing(text: str, edit: Edit, file: str) -> K1Error:
    bared = _COMMENT_MARK.sub("  ", text)
    for pattern in filter(None, (edit.find, edit.present)):
        if inactive := re.search(pattern, bared, re.MULTILINE):
            number = csource.line_number(text, _span(inactive)[0])
            hint = f"make that line code again, {_LEAVE_OUT}"
            return K1Error(f"{file}:{number}: {edit.what} is commented out or disabled", hint=hint)
    near = [
        f"\n  {file}:{number}: {line.strip()}" for number, line in enumerate(text.split("\n"), 1) if edit.near in line
    ]
    seen = f"; lines that name {edit.near}:{''.join(near)}" if near else f"; nothing in it names {edit.near}"
    return K1Error(f"{file}: no {edit.what}{seen}", hint=f"compare with `k1 patch list`, {_LEAVE_OUT}")
