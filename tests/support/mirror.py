"""The forward pass as the engine's kernels round it: float32, 16-bit activations and every sum in the stated order
(userland/kernels/scalar.h), so that logits agree to the bit. A single rounding that falls the other way would flip
activations behind it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from support.reference import Reference, round_half

Floats = NDArray[np.float32]
F = np.float32
LANES = 8
TILE = 64
LN2_HIGH, LN2_LOW, LOG2E, MAGIC = F(0.693359375), F(-2.1219444e-4), F(1.44269504), F(12582912)
P = (1.98756915e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
EXP = [F(p) for p in P]


class Blocks(NamedTuple):
    """Weights as w = d * q + m: q[row][block][32], d and m [row][block]."""

    d: Floats
    m: Floats
    q: Floats


def nibbles(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """16 bytes to 32 values, the low halves first."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def halves(data: NDArray[np.uint8]) -> Floats:
    """Two bytes a value."""
    return np.ascontiguousarray(data).view(np.float16)[..., 0].astype(F)


def q4_0(b: NDArray[np.uint8]) -> Blocks:
    d = halves(b[..., :2])
    return Blocks(d, d * F(-8), nibbles(b[..., 2:]).astype(F))


def q4_1(b: NDArray[np.uint8]) -> Blocks:
    return Blocks(halves(b[..., :2]), halves(b[..., 2:4]), nibbles(b[..., 4:]).astype(F))


def q5_0(b: NDArray[np.uint8]) -> Blocks:
    d = halves(b[..., :2])
    fifth = np.unpackbits(b[..., 2:6], axis=-1, bitorder="little")
    return Blocks(d, d * F(-16), (nibbles(b[..., 6:]) | fifth << 4).astype(F))


def q8_0(b: NDArray[np.uint8]) -> Blocks:
    d = halves(b[..., :2])
    return Blocks(d, d * F(0), np.ascontiguousarray(b[..., 2:]).view(np.int8).astype(F))


UNPACK: dict[GGMLQuantizationType, tuple[int, Callable[[NDArray[np.uint8]], Blocks]]] = {
    GGMLQuantizationType.Q4_0: (18, q4_0),
    GGMLQuantizationType.Q4_1: (20, q4_1),
    GGMLQuantizationType.Q5_0: (22, q5_0),
    GGMLQuantizationType.Q8_0: (34, q8_0),
}


def quantize(x: Floats) -> tuple[Floats, Floats, Floats]:
    """16-bit blocks of 32: d and s [..., block], q [..., block, 32]."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    d = np.abs(blocks).max(axis=-1) / F(32767)
    scaled = blocks * (F(1) / d)[..., None]
    q = np.trunc(scaled)
    rest = scaled - q
    q = q + (rest >= F(0.5)).astype(F) - (rest <= F(-0.5)).astype(F)
    return d, d * q.sum(axis=-1, dtype=np.float64).astype(F), q


def tree(lanes: Floats) -> Floats:
    """Eight partial sums put together."""
    four = lanes[..., :4] + lanes[..., 4:]
    return (four[..., 0] + four[..., 2]) + (four[..., 1] + four[..., 3])


def dot(a: Floats, b: Floats) -> Floats:
    """Sum of products over the last axis, value k in partial sum k mod 8."""
    lanes = np.zeros((*np.broadcast_shapes(a.shape, b.shape)[:-1], LANES), F)
    for k in range(0, a.shape[-1], LANES):
        lanes += a[..., k : k + LANES] * b[..., k : k + LANES]
    return tree(lanes)


def exp(x: Floats) -> Floats:
    """userland/kernels/fmath.h."""
    x = np.clip(x, F(-87), F(88))
    shifted = x * LOG2E + MAGIC
    n = shifted - MAGIC
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = np.full_like(x, EXP[0])
    for coefficient in EXP[1:]:
        p = p * r + coefficient
    value = (p * (r * r) + r) + F(1)
    return (value.view(np.uint32) + (shifted.view(np.uint32) << np.uint32(23))).view(F)


class Mirror(Reference):
    """A model, of few tokens."""

    def __init__(self, path: Any) -> None:
        super().__init__(path, half_kv=False)

    def blocks(self, name: str, rows: Any = slice(None)) -> Blocks | None:
        """Rows of a tensor as blocks when it is multiplied with integer activations."""
        tensor = self.tensors[name]
        if tensor.tensor_type not in UNPACK:
            return None
        size, unpack = UNPACK[tensor.tensor_type]
        return unpack(tensor.data.reshape(int(tensor.shape[1]), -1, size)[rows])

    def weights(self, name: str) -> Any:
        return super().weights(name).astype(F)

    def embeddings(self, ids: NDArray[np.int64]) -> Any:
        if (blocks := self.blocks("token_embd.weight", ids)) is None:
            return super().embeddings(ids).astype(F)
        return (blocks.d[..., None] * blocks.q + blocks.m[..., None]).reshape(*ids.shape, -1)

    def product(self, name: str, x: Any) -> Any:
        if (blocks := self.blocks(name)) is None:
            w = self.weights(name)
            y = np.stack([dot(token, w) for token in x.reshape(-1, 1, x.shape[-1])])
        else:
            y = self.integer_product(blocks, x.reshape(-1, x.shape[-1]))
        y = y.reshape(*x.shape[:-1], -1)
        bias = name.replace(".weight", ".bias")
        return y + self.weights(bias) if bias in self.tensors else y

    def integer_product(self, w: Blocks, x: Floats) -> Floats:
        """Block after block; integer sums are exact in double precision."""
        d, s, q = quantize(x)
        y = np.zeros((len(x), len(w.d)), F)
        for b in range(d.shape[-1]):
            sums = (q[:, b].astype(np.float64) @ w.q[:, b].T.astype(np.float64)).astype(F)
            y += w.d[:, b] * d[:, b, None] * sums + w.m[:, b] * s[:, b, None]
        return y

    def norm(self, name: str, x: Any) -> Any:
        eps = F(self.key("attention.layer_norm_rms_epsilon"))
        scale = F(1) / np.sqrt(dot(x, x) / F(x.shape[-1]) + eps)
        return x * scale[..., None] * self.weights(name)

    def swiglu(self, gate: Any, up: Any) -> Any:
        return gate / (F(1) + exp(-gate)) * up

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        """Streaming softmax in tiles of 64 positions; tokens side by side."""
        k, v = (round_half(x).astype(F) for x in (k, v))
        n = q.shape[1]
        scores = dot(q[:, :, None], k[:, None]) * (F(1) / np.sqrt(F(q.shape[-1])))
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        top = np.full(q.shape[:2], -np.inf, F)
        total, out = np.zeros_like(top), np.zeros_like(q)
        for base in range(0, n, TILE):
            tile = slice(base, None)  # of tokens: those before see nothing of it
            last = top[:, tile]
            new = np.maximum(last, scores[:, tile, base : base + TILE].max(axis=-1))
            scale = np.where(new > last, np.where(last > -np.inf, exp(last - new), F(0)), F(1))
            top[:, tile] = new
            total[:, tile] *= scale
            out[:, tile] *= scale[..., None]
            for p in range(base, min(base + TILE, n)):
                weight = exp(scores[:, p:, p] - top[:, p:])
                total[:, p:] += weight
                out[:, p:] += weight[..., None] * v[:, p, None]
        return out * (F(1) / total)[..., None]
