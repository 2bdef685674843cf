"""Stages of a boot and the signatures of its failures, from data/bringup-signatures.toml."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from k1 import typedtoml
from k1.typedtoml import Model, fault

FILE = Path(__file__).parent / "data" / "bringup-signatures.toml"
Verdict = Literal["failure", "warning", "clue"]
_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Stage(Model):
    """A stage that must come within `deadline_s` seconds, and what it means when it does not."""

    deadline_s: Annotated[float, Field(gt=0)]
    signature: _Text
    cause: _Text
    remedy: _Text


class Signature(Model):
    """What lines that match `pattern` mean; `ends`: nothing more is to be waited for."""

    pattern: _Text
    verdict: Verdict
    count: Annotated[int, Field(ge=1)] = 1
    ends: bool = False
    cause: _Text
    remedy: _Text
    test: _Text

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, compiled."""
        return re.compile(self.pattern)

    @model_validator(mode="after")
    def _matches(self) -> Self:
        try:
            found = re.search(self.pattern, self.test)
        except re.error as error:
            allowed = f"a regular expression ({error})"
            raise fault("cannot be compiled", allowed=allowed, key="pattern", got=self.pattern) from error
        if not found:
            raise fault("is not matched by pattern", allowed="a line that is", key="test", got=self.test)
        return self


class Knowledge(Model):
    """All of the file."""

    stages: dict[str, Stage]
    signatures: dict[str, Signature]


def load(path: Path = FILE) -> Knowledge:
    """The knowledge in `path`; any fault in it is a K1Error."""
    return typedtoml.validate(Knowledge, typedtoml.read(path), path)
