"""TOML files as typed models: one error lists every fault of a file by file, key, value and what is allowed."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from k1.errors import K1Error
from k1.paths import REPO

_GOT_LENGTH = 80
_ALLOWED = re.compile(r"(Input|String|List|Tuple|Dictionary|Value) (?:should (?:be|have|contain)|is not) ")


class Model(BaseModel):
    """A table of a TOML file: no unknown keys, no silent conversions, never changed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


_M = TypeVar("_M", bound=Model)


def fault(problem: str, *, allowed: str, key: str = "", got: Any = None) -> PydanticCustomError:
    """What a validator of a `Model` raises.

    key: where the fault lies below the validated value, for checks over several keys.
    got: what to show instead of the validated value.
    """
    return PydanticCustomError("fault", "{problem}", {"problem": problem, "allowed": allowed, "key": key, "got": got})


def that(test: Callable[[Any], bool], problem: str, allowed: str) -> AfterValidator:
    """A check of one value by a yes-or-no question."""

    def check(value: Any) -> Any:
        if not test(value):
            raise fault(problem, allowed=allowed)
        return value

    return AfterValidator(check)


def matching(pattern: str, allowed: str) -> AfterValidator:
    """A check that a text as a whole has the form of a regular expression; `allowed` says the form in words."""
    return that(lambda text: re.fullmatch(pattern, text) is not None, "wrong form", allowed)


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean …?` for a name close to known ones, else nothing."""
    found = difflib.get_close_matches(name, sorted(known))
    return f"did you mean {' or '.join(found)}?" if found else ""


def shown(path: Path) -> str:
    """A path for messages: relative inside the checkout, else as given."""
    return str(path.relative_to(REPO) if path.is_relative_to(REPO) else path)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, or an error that names it."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise K1Error(f"{shown(path)}: not UTF-8 text (byte {error.start})", hint="save it as UTF-8") from error


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; a syntax error names file and line."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = (found and found[1]) or len(text.splitlines())
        problem = re.sub(r" \(at .*\)$", "", str(error))
        raise K1Error(f"{shown(path)}:{line}: {problem}", hint="mend the TOML syntax of that line") from error


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, table by table; lists, and tables with a `value` of their own, replace the old whole."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        deeper = isinstance(old, dict) and isinstance(value, dict) and "value" not in value
        merged[key] = merge(old, value) if deeper else value  # type: ignore[arg-type]
    return merged


def validate(model: type[_M], data: Mapping[str, Any], path: Path, *, hint: str = "") -> _M:
    """`data` of the file `path` as a `model`, or one error with a line for each fault."""
    # Strict JSON mode is what TOML needs: arrays become tuples and texts addresses, but 1 never becomes true or "1".
    text = json.dumps(data, default=str)
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        lines = [f"{shown(path)}: {_line(model, item)}" for item in error.errors(include_url=False)]
        raise K1Error("\n".join(lines), hint=hint) from error


def _line(model: type[Model], error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    parts, kind = error["loc"], error["type"]
    if kind == "missing":
        table, wanted = _model_at(model, parts[:-1]), _model_at(model, parts)
        form = f"a table with {_keys(wanted)}" if wanted else f"a table with {_keys(table)}"
        return f"{_key(parts)}: is missing; allowed: {form}"
    got = json.dumps(error["input"] if context.get("got") is None else context["got"], ensure_ascii=False)
    got = got if len(got) <= _GOT_LENGTH else got[:_GOT_LENGTH] + "…"
    if kind == "extra_forbidden":
        table = _model_at(model, parts[:-1])
        guess = near(str(parts[-1]), table.model_fields if table else ())
        return f"{_key(parts)}: unknown key, got {got}; allowed: {_keys(table)}" + (f" ({guess})" if guess else "")
    if kind == "fault":
        place = _key((*parts, context["key"]) if context["key"] else parts)
        return f"{place}: {context['problem']}, got {got}; allowed: {context['allowed']}"
    wanted = _model_at(model, parts)
    allowed = f"a table with {_keys(wanted)}" if kind == "model_type" else _ALLOWED.sub("", error["msg"], count=1)
    return f"{_key(parts)}: wrong value, got {got}; allowed: {allowed}"


def _key(parts: tuple[int | str, ...]) -> str:
    """The key path as a user thinks of it: `image.sources[0].suites`; a fact's value goes by the fact's name."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part != "value":
            text += f".{part}" if text else part
    return text


def _keys(model: type[BaseModel] | None) -> str:
    return ", ".join(model.model_fields) if model else "no such key"


def _model_at(model: type[BaseModel], parts: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model of the table at a key path; None where the value there is no table of its own."""
    found: type[BaseModel] | None = model
    for part in parts:
        if isinstance(part, int):
            continue
        if not found or part not in found.model_fields:
            return None
        found = _model_in(found.model_fields[part].annotation)
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
