"""Patch templates: `patches/<component>/vendor/*.toml.j2` say what is to change, and how to find the place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from k1 import typedtoml
from k1.board import Board
from k1.image.tree import series
from k1.render import render_text
from k1.typedtoml import Model, fault

Component = Literal["opensbi", "uboot", "linux"]
COMPONENTS: tuple[Component, ...] = ("opensbi", "uboot", "linux")


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise fault(f"no regular expression ({error})", allowed="one of Python's re module") from error
    return text


Regex = Annotated[str, AfterValidator(_regex)]
Text = Annotated[str, Field(min_length=1)]


class Edit(Model):
    """One change at one place of a file. Patterns see the code only, never comments or literals.

    what: what is sought, for people.
    find: the one place to change; its group `at`, when it has one, else all of it.
    place: replace the place, or put a line of its own before or after it.
    text: what comes there; `\\g<name>` stands for a group.
    present: how the place looks when the change, perhaps with other numbers, is there already.
    comment: what the comment behind the place becomes, where it has one.
    near: a word of the place, for showing lines that come near.
    if_exists: the change is for trees that have this file.
    if_matches: the change is for files whose code has this somewhere.
    """

    what: Text
    find: Regex
    place: Literal["replace", "before", "after"] = "replace"
    text: str
    present: Regex | None = None
    comment: Text | None = None
    near: Text
    if_exists: str | None = None
    if_matches: Regex | None = None


class Template(Model):
    """One patch: subject, reason, licence of what it patches, and its edits of one file.

    facts: the keys of board.toml that it rests on.
    only_if: facts that must have this value, or the board wants no such patch.
    """

    subject: Text
    message: Text
    license: Text
    file: Text
    facts: Annotated[tuple[str, ...], Field(min_length=1)]
    only_if: dict[str, bool] = Field(default_factory=dict)
    edit: Annotated[tuple[Edit, ...], Field(min_length=1)]


def paths(component: Component) -> list[Path]:
    """The templates of a component, in the order in which the patches build on each other."""
    return series(component, "vendor")


def outline(path: Path) -> Template:
    """The template before the board's numbers are in it: good for its subject and for the facts it needs."""
    return _parse(path, path.read_text(encoding="utf-8"))


def load(path: Path, board: Board) -> Template:
    """The template with the board's numbers in it."""
    return _parse(path, render_text(path, board))


def _parse(path: Path, text: str) -> Template:
    return typedtoml.validate(Template, tomllib.loads(text), path)
