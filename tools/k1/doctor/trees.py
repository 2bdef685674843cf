"""Decision trees: questions that lead to a cause and its fix. Checked when loaded: no dead end, nothing unreachable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from k1 import typedtoml
from k1.errors import K1Error
from k1.typedtoml import Model, fault

_DATA = Path(__file__).parents[1] / "data" / "doctor" / "trees"

_Text = Annotated[str, StringConstraints(min_length=1)]


class Answer(Model):
    """What can be answered: `key` is typed, `next` names a question or a leaf."""

    key: _Text
    text: _Text
    next: _Text


class Question(Model):
    """A question with at least two answers."""

    text: _Text
    answers: Annotated[tuple[Answer, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        keys = [answer.key for answer in self.answers]
        if twice := next((key for key in keys if keys.count(key) > 1), ""):
            raise fault("given twice", allowed="each key once", key="answers", got=twice)
        return self


class Leaf(Model):
    """An end: the cause, and at least one thing to do."""

    cause: _Text
    fix: Annotated[tuple[_Text, ...], Field(min_length=1)]
    reference: _Text


class Tree(Model):
    """A whole tree."""

    title: _Text
    start: _Text
    question: dict[str, Question]
    leaf: dict[str, Leaf]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        names = self.question.keys() | self.leaf.keys()
        if both := sorted(self.question.keys() & self.leaf.keys()):
            raise fault("both a question and a leaf", allowed="a name of its own", key=f"leaf.{both[0]}", got=both[0])
        if self.start not in self.question:
            raise fault("no such question", allowed=", ".join(self.question), key="start", got=self.start)
        for name, question in self.question.items():
            for answer in question.answers:
                if answer.next not in names:
                    guess = typedtoml.near(answer.next, names) or "a question or a leaf of this tree"
                    raise fault("a dead end", allowed=guess, key=f"question.{name}.{answer.key}", got=answer.next)
        reached = self._reach(self.start, ())
        if lost := sorted(names - reached):
            raise fault("never reached", allowed="an answer that leads to it", key=lost[0], got=lost[0])
        return self

    def _reach(self, name: str, above: tuple[str, ...]) -> set[str]:
        """All that can be reached from there; a way that comes back to itself never ends."""
        if name in above:
            raise fault("goes round in a circle", allowed="ways that end in a leaf", key=f"question.{name}", got=name)
        reached = {name}
        for answer in self.question[name].answers if name in self.question else ():
            reached |= self._reach(answer.next, (*above, name))
        return reached


@dataclass(frozen=True)
class Way:
    """The questions with the answers that were given, and where they led."""

    steps: tuple[tuple[Question, Answer], ...]
    leaf: Leaf


def names() -> list[str]:
    """Every tree."""
    return sorted(path.stem for path in _DATA.glob("*.toml"))


def load(name: str) -> Tree:
    """The tree of that name, or a `K1Error` that lists all."""
    if name not in names():
        hint = " ".join(filter(None, (typedtoml.near(name, names()), f"trees: {', '.join(names())}")))
        raise K1Error(f"no decision tree named {name}", hint=hint)
    return load_file(_DATA / f"{name}.toml")


def load_file(path: Path) -> Tree:
    """The tree of a file; any fault in it is a `K1Error`."""
    return typedtoml.validate(Tree, typedtoml.read(path), path)


def walk(tree: Tree, ask: Callable[[Question], str]) -> Way:
    """From the start to a leaf; `ask` gives a key, or a number from 1, and is asked again until one fits."""
    steps: list[tuple[Question, Answer]] = []
    name = tree.start
    while name in tree.question:
        question = tree.question[name]
        answer = find(question, ask(question))
        if answer:
            steps.append((question, answer))
            name = answer.next
    return Way(tuple(steps), tree.leaf[name])


def find(question: Question, given: str) -> Answer | None:
    """The answer of that key, or of that number when no key is so."""
    for number, answer in enumerate(question.answers, 1):
        if given == answer.key or (given == str(number) and given not in {a.key for a in question.answers}):
            return answer
    return None


def replay(tree: Tree, answers: Iterable[str]) -> Way:
    """The way of given answers; one that is wrong, missing or too many is a `K1Error`."""
    rest = [answer.strip() for answer in answers]

    def ask(question: Question) -> str:
        keys = ", ".join(answer.key for answer in question.answers)
        if not rest:
            raise K1Error(f"no answer is left for: {question.text}", hint=f"add one of {keys}")
        given = rest.pop(0)
        if find(question, given) is None:
            raise K1Error(f"{given!r} does not answer: {question.text}", hint=f"answers: {keys}")
        return given

    way = walk(tree, ask)
    if rest:
        raise K1Error(f"the answer {rest[0]!r} comes after the end", hint="leave it out")
    return way
