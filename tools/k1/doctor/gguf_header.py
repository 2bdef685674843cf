"""The header of a GGUF file, read by the package gguf. Imported where it is used: numpy takes a third of a second."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader
from gguf.gguf_reader import ReaderField

from k1.errors import K1Error

# Elements and bytes of a block, by type.
SIZES: dict[str, tuple[int, int]] = {kind.name: size for kind, size in GGML_QUANT_SIZES.items()}


class Header(GGUFReader):
    """Reads no data: the file may be cut short after its header, and have types that gguf does not know."""

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path)
        except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
            hint = "compare its size and hash with the source's"
            raise K1Error(f"{path}: not a readable GGUF: {error}", hint=hint) from error

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        self._start = start_offs
        self._infos = [(f.name, tuple(map(int, f.parts[3])), int(f.parts[4][0]), int(f.parts[5][0])) for f in fields]

    def keys(self) -> dict[str, Any]:
        """The metadata, without the tokenizer's."""
        left_out = ("GGUF.", "tokenizer.")
        return {name: field.contents() for name, field in self.fields.items() if not name.startswith(left_out)}

    def infos(self) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
        """Name, type, shape and room of each tensor: the bytes to the next one, padding included."""
        offsets = [*sorted({offset for *_, offset in self._infos}), len(self.data) - self._start]
        room = {first: second - first for first, second in pairwise(offsets)}
        for name, shape, number, offset in self._infos:
            try:
                kind = GGMLQuantizationType(number).name
            except ValueError:
                kind = f"type{number}"
            yield name, kind, shape, room[offset]
