"""A command line of llama.cpp or ik_llama.cpp: the options that decide where tensors and caches lie."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any

from k1.errors import K1Error

_ALL = 10**6
_ON, _OFF = ("on", "1", "auto", "true"), ("off", "0", "false")


@dataclass(frozen=True)
class Override:
    """One `pattern=buffer` of -ot; `text` as it stands in the command."""

    text: str
    pattern: str
    buffer: str


@dataclass(frozen=True)
class Command:
    """The options, with the defaults of ik_llama.cpp at commit 8337e4c.

    ctx: tokens, 0 for what the model was trained with. amb in MiB, 0 for no limit. split: shares of the cards.
    fa_takes: the word after -fa, which newer versions would take for its value.
    """

    model: str = ""
    ngl: int = 0
    overrides: tuple[Override, ...] = ()
    split: tuple[float, ...] = ()
    cpu_moe: int = 0
    mla: int = 3
    fa: bool = True
    fa_takes: str = ""
    fmoe: bool = True
    ctk: str = "f16"
    ctv: str = "f16"
    ctx: int = 0
    ubatch: int = 512
    amb: int = 256
    threads: int = 0
    kv_on_cpu: bool = False
    split_mode: str = "layer"
    given: frozenset[str] = field(default=frozenset(), compare=False)

    def words(self) -> list[str]:
        """The command's own options as words, as far as they differ from the defaults or were given."""
        rest = [word for name in ("ngl", "ctx", "ctk", "ctv", "mla", "ubatch", "amb") for word in self._option(name)]
        flags = [f"-{name}" for name in ("fa", "fmoe") if name in self.given and getattr(self, name)]
        overrides = [word for one in self.overrides for word in ("-ot", f"{one.pattern}={one.buffer}")]
        return [*rest, *flags, *overrides]

    def _option(self, name: str) -> list[str]:
        value = getattr(self, name)
        flag = {"ctx": "-c", "ubatch": "-ub"}.get(name, f"-{name}")
        return [flag, str(value)] if name in self.given or value != getattr(Command, name) else []


def parse(words: Sequence[str]) -> Command:
    """The options in a command's words; what decides nothing here is passed over. Bad values are `K1Error`s."""
    words = list(words)
    for at, word in enumerate(words):
        if PurePath(word).name.startswith("llama-"):  # what stands before, such as numactl, has options of its own
            words = words[at + 1 :]
            break
    found: dict[str, Any] = {}
    overrides: list[Override] = []
    if words and not words[0].startswith("-"):
        found["model"] = words[0]
    at = 0
    while at < len(words):
        word, following = words[at], words[at + 1] if at + 1 < len(words) else None
        at += 1
        if word in _VALUES:
            name, read = _VALUES[word]
            if following is None:
                raise K1Error(f"{word} has no value", hint=f"write {word} VALUE")
            found[name] = read(word, following)
            at += 1
        elif word in _OVERRIDE:
            if following is None:
                raise K1Error(f"{word} has no value", hint=rf"write {word} 'blk\.[0-9]+\.ffn_.*_exps\.weight=CPU'")
            overrides += split_overrides(following)
            at += 1
        elif word in ("-fa", "--flash-attn"):
            is_value = (following or "").lower() in (*_ON, *_OFF)
            found["fa"] = not is_value or (following or "").lower() in _ON
            found["fa_takes"] = "" if is_value else following or ""
            at += is_value
        elif word in _FLAGS:
            name, value = _FLAGS[word]
            found[name] = value
    return replace(Command(**found, overrides=tuple(overrides)), given=frozenset(found))


def split(text: str) -> list[str]:
    """The words of a command as a shell would make them."""
    try:
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise K1Error(f"the command's quotes do not match: {error}", hint="close every quotation mark") from error


def split_overrides(value: str) -> list[Override]:
    """The parts of a value of -ot, cut at every comma and then at the first =, as llama.cpp does."""
    return [Override(part, *_cut(part)) for part in value.split(",")]


def _cut(part: str) -> tuple[str, str]:
    pattern, _, buffer = part.partition("=")
    return pattern, buffer


def _integer(word: str, text: str) -> int:
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise K1Error(f"{word}: not a whole number: {text!r}", hint=f"write {word} NUMBER")
    return int(text)


def _layers(word: str, text: str) -> int:
    count = _ALL if text in ("all", "auto") else _integer(word, text)
    return _ALL if count < 0 else count


def _positive(word: str, text: str) -> int:
    value = _integer(word, text)
    if value <= 0:
        raise K1Error(f"{word}: must be positive, got {value}", hint=f"write {word} NUMBER")
    return value


def _mla(word: str, text: str) -> int:
    if text not in ("0", "1", "2", "3"):
        raise K1Error(f"{word}: no such mode: {text!r}", hint="modes: 0 no MLA, 1 small cache, 2 and 3 faster prompts")
    return int(text)


def _shares(word: str, text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(share) for share in re.split(r"[,/]+", text))
    except ValueError:
        shares = ()
    if not shares or min(shares) < 0 or not 0 < sum(shares) < float("inf"):
        raise K1Error(f"{word}: not shares of cards: {text!r}", hint=f"write {word} 3,1 for two cards")
    return shares


def _text(word: str, text: str) -> str:
    return text


_Reader = Callable[[str, str], Any]
_OVERRIDE = ("-ot", "--override-tensor")
_VALUES: dict[str, tuple[str, _Reader]] = {
    **dict.fromkeys(("-m", "--model"), ("model", _text)),
    **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers"), ("ngl", _layers)),
    **dict.fromkeys(("-ts", "--tensor-split"), ("split", _shares)),
    **dict.fromkeys(("-sm", "--split-mode"), ("split_mode", _text)),
    **dict.fromkeys(("-ncmoe", "--n-cpu-moe"), ("cpu_moe", _integer)),
    **dict.fromkeys(("-mla", "--mla-use"), ("mla", _mla)),
    **dict.fromkeys(("-amb", "--attention-max-batch"), ("amb", _integer)),
    **dict.fromkeys(("-ctk", "--cache-type-k"), ("ctk", _text)),
    **dict.fromkeys(("-ctv", "--cache-type-v"), ("ctv", _text)),
    **dict.fromkeys(("-c", "--ctx-size"), ("ctx", _integer)),
    **dict.fromkeys(("-ub", "--ubatch-size"), ("ubatch", _positive)),
    **dict.fromkeys(("-t", "--threads"), ("threads", _integer)),
}
_FLAGS: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(("-fmoe", "--fused-moe"), ("fmoe", True)),
    **dict.fromkeys(("-no-fmoe", "--no-fused-moe"), ("fmoe", False)),
    **dict.fromkeys(("-cmoe", "--cpu-moe"), ("cpu_moe", _ALL)),
    **dict.fromkeys(("-nkvo", "--no-kv-offload"), ("kv_on_cpu", True)),
}
assert {name for name, _ in (*_VALUES.values(), *_FLAGS.values())} <= {one.name for one in fields(Command)}
