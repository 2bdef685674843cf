"""What a model file holds: its tensors with types and sizes, and its metadata. Weights are never read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any

from k1.errors import K1Error
from k1.typedtoml import read_text

# Types of KV caches that only ik_llama.cpp has: elements and bytes of a block (its ggml-common.h).
_IK_SIZES = {"Q6_0": (32, 26)}
_SHARD = re.compile(r"(.*)-00001-of-(\d{5})\.gguf")


@cache
def _sizes() -> dict[str, tuple[int, int]]:
    from k1.doctor.gguf_header import SIZES

    return _IK_SIZES | SIZES


def block_bytes(kind: str, elements: int) -> int:
    """Bytes of a row of that many elements; an unknown type is a `K1Error`."""
    if kind.upper() not in _sizes():
        hint = f"types: {', '.join(sorted(name.lower() for name in _sizes()))}"
        raise K1Error(f"no tensor type named {kind}", hint=hint)
    per_block, size = _sizes()[kind.upper()]
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
    def by_layer(self) -> dict[int | None, list[Tensor]]:
        """Layer → its tensors, as far as they are loaded."""
        found: dict[int | None, list[Tensor]] = defaultdict(list)
        for tensor in self.loaded:
            found[tensor.layer].append(tensor)
        return found

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


def _read_gguf(path: Path) -> Model:
    from k1.doctor.gguf_header import Header

    headers = [Header(part) for part in _parts(path)]
    return Model(str(path), tuple(_tensor(*info) for header in headers for info in header.infos()), headers[0].keys())


def _tensor(name: str, kind: str, shape: tuple[int, ...], room: int) -> Tensor:
    """A tensor; the size of a type that only ik_llama.cpp has is the room in the file."""
    known = kind in _sizes()
    return Tensor(name, kind, shape, block_bytes(kind, shape[0]) * prod(shape[1:]) if known else max(room, 0))


def _parts(path: Path) -> list[Path]:
    found = _SHARD.fullmatch(path.name)
    if not found:
        return [path]
    parts = [path.with_name(f"{found[1]}-{i:05d}-of-{found[2]}.gguf") for i in range(1, int(found[2]) + 1)]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise K1Error(f"{path}: {missing[0]} is missing", hint="all parts of a split model must lie in one folder")
    return parts


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
            tensors.append(Tensor(words[0], words[1], shape, block_bytes(words[1], shape[0]) * prod(shape[1:])))
        elif words:
            hint = "each line is `key = value` or `name TYPE 7168x2048x256`; or give a GGUF"
            raise K1Error(f"{path}:{number}: neither a key nor a tensor: {line.strip()[:60]!r}", hint=hint)
    return Model(str(path), tuple(tensors), keys)
