"""What a model file holds: its tensors with types and sizes, and its metadata. Weights are never read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from gguf.gguf_reader import ReaderField

from k1.errors import K1Error
from k1.typedtoml import read_text

# Types of KV caches that only ik_llama.cpp has: elements and bytes of a block (its ggml-common.h).
_IK_SIZES = {"Q6_0": (32, 26)}
_SIZES = _IK_SIZES | {kind.name: size for kind, size in GGML_QUANT_SIZES.items()}
_SHARD = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")


def block_bytes(kind: str, elements: int) -> int:
    """Bytes of a row of that many elements; an unknown type is a `K1Error`."""
    if kind.upper() not in _SIZES:
        hint = f"types: {', '.join(sorted(name.lower() for name in _SIZES))}"
        raise K1Error(f"no tensor type named {kind}", hint=hint)
    per_block, size = _SIZES[kind.upper()]
    return -(-elements // per_block) * size


@dataclass(frozen=True)
class Tensor:
    """One tensor; shape in GGUF's order (rows last), size in bytes."""

    name: str
    kind: str
    shape: tuple[int, ...]
    size: int

    @cached_property
    def layer(self) -> int | None:
        """The layer it belongs to; None for embedding and output."""
        found = re.match(r"blk\.(\d+)\.", self.name)
        return int(found[1]) if found else None

    @cached_property
    def is_routed_expert(self) -> bool:
        """Whether it is one that only few tokens need: the guide's tensors for the CPU."""
        return re.search(r"\.ffn_(?:gate|up|down|gate_up)_exps\.", self.name) is not None

    @property
    def rows(self) -> int:
        """Elements of the output of a product with it, for one token."""
        return self.shape[1] if len(self.shape) > 1 else self.shape[0]


@dataclass(frozen=True, repr=False)
class Model:
    """Tensors and metadata of one model; `name` for messages."""

    name: str
    tensors: tuple[Tensor, ...]
    keys: Mapping[str, Any]

    @property
    def arch(self) -> str:
        """The architecture, the prefix of the metadata's keys."""
        return str(self.keys["general.architecture"])

    def find(self, key: str) -> Any:
        """A value of the architecture, such as `block_count`; None when the file has none."""
        return self.keys.get(f"{self.arch}.{key}")

    def number(self, key: str) -> int:
        """A count of the architecture that must be there, and be positive."""
        value = self.find(key)
        if not isinstance(value, int) or value <= 0:
            problem = "is missing" if value is None else f"is no positive number: {value!r:.40}"
            raise K1Error(f"{self.name}: {self.arch}.{key} {problem}", hint="is it a whole GGUF of a language model?")
        return value

    @cached_property
    def n_layer(self) -> int:
        """Layers, those for predicting further tokens included, as llama.cpp counts them for -ngl."""
        return self.number("block_count")

    @cached_property
    def n_loaded(self) -> int:
        """Layers that are loaded: those for predicting further tokens (at the end) are not."""
        return self.n_layer - int(self.find("nextn_predict_layers") or 0)

    @cached_property
    def loaded(self) -> tuple[Tensor, ...]:
        """The tensors that are loaded."""
        return tuple(tensor for tensor in self.tensors if tensor.layer is None or tensor.layer < self.n_loaded)

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        """Name → tensor."""
        return {tensor.name: tensor for tensor in self.tensors}


def read(path: Path) -> Model:
    """A GGUF (all parts of a split one), or a text file that lists tensors (`docs/doctor.md` has its form)."""
    with path.open("rb") as stream:
        is_gguf = stream.read(4) == b"GGUF"
    model = _read_gguf(path) if is_gguf else _read_list(path)
    if not isinstance(model.keys.get("general.architecture"), str):
        raise K1Error(f"{path}: general.architecture is missing", hint="is it a whole GGUF of a language model?")
    if not model.tensors:
        raise K1Error(f"{path} names no tensor", hint="give a GGUF, or its first part when it is split")
    return model


class _Header(GGUFReader):
    """Reads no data: the file may be cut short after its header, and have types that gguf does not know."""

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        self.start = start_offs
        self.infos = [(f.name, tuple(map(int, f.parts[3])), int(f.parts[4][0]), int(f.parts[5][0])) for f in fields]


def _read_gguf(path: Path) -> Model:
    headers = [_header(part) for part in _parts(path)]
    keys = {
        name: field.contents()
        for name, field in headers[0].fields.items()
        if not name.startswith(("GGUF.", "tokenizer."))
    }
    return Model(str(path), tuple(tensor for header in headers for tensor in _tensors(header)), keys)


def _parts(path: Path) -> list[Path]:
    found = _SHARD.fullmatch(path.name)
    if not found:
        return [path]
    parts = [path.with_name(f"{found[1]}-{i:05d}-of-{found[2]}.gguf") for i in range(1, int(found[2]) + 1)]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise K1Error(f"{path}: {missing[0]} is missing", hint="all parts of a split model must lie in one folder")
    return parts


def _header(path: Path) -> _Header:
    try:
        return _Header(path)
    except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise K1Error(
            f"{path}: not a readable GGUF: {error}", hint="compare its size and hash with the source's"
        ) from error


def _tensors(header: _Header) -> Iterable[Tensor]:
    end = len(header.data) - header.start
    offsets = [*sorted({offset for *_, offset in header.infos}), end]
    room = {first: second - first for first, second in pairwise(offsets)}
    for name, shape, number, offset in header.infos:
        try:
            kind = GGMLQuantizationType(number).name
            size = block_bytes(kind, shape[0]) * _product(shape[1:])
        except ValueError:
            # A type that only ik_llama.cpp has: what lies between this tensor and the next tells its size.
            kind, size = f"type{number}", room[offset]
        yield Tensor(name, kind, shape, max(size, 0))


def _product(factors: Iterable[int]) -> int:
    result = 1
    for factor in factors:
        result *= factor
    return result


def _read_list(path: Path) -> Model:
    """Lines `key = value` and `name TYPE 7168x2048x256`."""
    keys: dict[str, Any] = {}
    tensors: list[Tensor] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        words = line.split("#")[0].split()
        if len(words) == 3 and words[1] == "=":
            keys[words[0]] = int(words[2]) if words[2].isdecimal() else words[2]
        elif len(words) == 3 and re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", words[2]):
            shape = tuple(map(int, words[2].split("x")))
            tensors.append(Tensor(words[0], words[1], shape, block_bytes(words[1], shape[0]) * _product(shape[1:])))
        elif words:
            hint = "each line is `key = value` or `name TYPE 7168x2048x256`; or give a GGUF"
            raise K1Error(f"{path}:{number}: neither a key nor a tensor: {line.strip()[:60]!r}", hint=hint)
    return Model(str(path), tuple(tensors), keys)
