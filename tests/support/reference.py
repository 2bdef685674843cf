"""The forward pass of llama, qwen2 and qwen3 in numpy and double precision, from a GGUF file. Nothing is
rounded but the weights in the file and, when asked for, keys and values to half precision.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

Array = NDArray[np.float64]

NEIGHBOURS = {"llama"}  # how rotated pairs lie in a head; the others have halves


def round_half(x: Array) -> Array:
    """What half precision keeps of x."""
    return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float64)


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@dataclass
class Reference:
    """A model of at most a few hundred million weights."""

    path: Path
    half_kv: bool = False

    @cached_property
    def reader(self) -> GGUFReader:
        """The open file."""
        return GGUFReader(self.path)

    @cached_property
    def tensors(self) -> dict[str, Any]:
        """Tensors by name."""
        return {t.name: t for t in self.reader.tensors}

    @cached_property
    def arch(self) -> str:
        """general.architecture."""
        return str(self.reader.fields["general.architecture"].contents())

    def key(self, suffix: str, default: Any = None) -> Any:
        """A value of the architecture's metadata."""
        field = self.reader.fields.get(f"{self.arch}.{suffix}")
        return default if field is None else field.contents()

    def weights(self, name: str) -> Array:
        """A tensor in double precision."""
        tensor = self.tensors[name]
        values = dequantize(tensor.data, tensor.tensor_type)
        return values.reshape(tuple(int(n) for n in reversed(tensor.shape))).astype(np.float64)

    def embeddings(self, ids: NDArray[np.int64]) -> Array:
        """The rows of the embedding for some tokens."""
        tensor = self.tensors["token_embd.weight"]
        rows = tensor.data.reshape(int(tensor.shape[1]), -1)[ids]
        return dequantize(rows, tensor.tensor_type).astype(np.float64)

    def product(self, name: str, x: Array) -> Array:
        """x times a weight matrix, and its bias where there is one."""
        y = x @ self.weights(name).T
        bias = name.replace(".weight", ".bias")
        return y + self.weights(bias) if bias in self.tensors else y

    def angles(self, n: int, n_rot: int) -> Array:
        """RoPE angles: [position][pair]."""
        base = float(self.key("rope.freq_base", 10000.0))
        freqs = base ** (-2.0 * np.arange(n_rot // 2) / n_rot)
        kind = self.key("rope.scaling.type", "none")
        if kind == "linear":
            freqs = freqs / float(self.key("rope.scaling.factor"))
        elif kind == "llama3":
            freqs = self.llama3(freqs)
        if "rope_freqs.weight" in self.tensors:
            freqs = freqs / self.weights("rope_freqs.weight")
        return np.arange(n, dtype=np.float64)[:, None] * freqs

    def llama3(self, freqs: Array) -> Array:
        """Llama 3.1's scaling, by wavelength."""
        factor = float(self.key("rope.scaling.factor"))
        low = float(self.key("rope.scaling.low_freq_factor", 1.0))
        high = float(self.key("rope.scaling.high_freq_factor", 4.0))
        context = float(self.key("rope.scaling.original_context_length"))
        out = []
        for freq in freqs:
            wavelength = 2 * np.pi / freq
            if wavelength < context / high:
                out.append(freq)
            elif wavelength > context / low:
                out.append(freq / factor)
            else:
                smooth = (context / wavelength - low) / (high - low)
                out.append((1 - smooth) * freq / factor + smooth * freq)
        return np.array(out)

    def rotate(self, x: Array, angles: Array) -> Array:
        """RoPE of x[window][position][head][dim]."""
        n_pairs = angles.shape[1]
        cos, sin = np.cos(angles).astype(x.dtype)[:, None, :], np.sin(angles).astype(x.dtype)[:, None, :]
        if self.arch in NEIGHBOURS:
            first, second = slice(0, 2 * n_pairs, 2), slice(1, 2 * n_pairs, 2)
        else:
            first, second = slice(0, n_pairs), slice(n_pairs, 2 * n_pairs)
        a, b = x[..., first], x[..., second]
        out = x.copy()
        out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
        return out

    def attention(self, prefix: str, x: Array) -> Array:
        """Causal attention of one layer over normalised input x[window][position][n_embd]."""
        heads = int(self.key("attention.head_count"))
        kv_heads = int(self.key("attention.head_count_kv", heads))
        dim = int(self.key("attention.key_length", int(self.key("embedding_length")) // heads))
        q = self.product(prefix + "attn_q.weight", x).reshape(*x.shape[:2], heads, dim)
        k = self.product(prefix + "attn_k.weight", x).reshape(*x.shape[:2], kv_heads, dim)
        v = self.product(prefix + "attn_v.weight", x).reshape(*x.shape[:2], kv_heads, dim)
        if prefix + "attn_q_norm.weight" in self.tensors:
            q = self.norm(prefix + "attn_q_norm.weight", q)
            k = self.norm(prefix + "attn_k_norm.weight", k)
        angles = self.angles(x.shape[1], int(self.key("rope.dimension_count", dim)))
        q, k = self.rotate(q, angles), self.rotate(k, angles)
        if self.half_kv:
            k, v = round_half(k), round_half(v)
        out = np.empty_like(q)
        for h in range(heads):
            g = h * kv_heads // heads
            out[:, :, h] = self.attend(q[:, :, h], k[:, :, g], v[:, :, g])
        return self.product(prefix + "attn_output.weight", out.reshape(*x.shape[:2], heads * dim))

    def attend(self, q: Array, k: Array, v: Array) -> Array:
        """One head: [window][position][dim]."""
        n, dim = q.shape[1:]
        hidden = np.triu(np.full((n, n), -np.inf), 1)
        return softmax(q @ k.swapaxes(1, 2) / np.sqrt(dim) + hidden) @ v

    def norm(self, name: str, x: Array) -> Array:
        """RMSNorm over the last axis."""
        eps = float(self.key("attention.layer_norm_rms_epsilon"))
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * self.weights(name)

    def swiglu(self, gate: Array, up: Array) -> Array:
        """silu(gate) * up."""
        return gate / (1 + np.exp(-gate)) * up

    def feed_forward(self, prefix: str, x: Array) -> Array:
        """The second half of a layer."""
        gate = self.product(prefix + "ffn_gate.weight", x)
        return self.product(prefix + "ffn_down.weight", self.swiglu(gate, self.product(prefix + "ffn_up.weight", x)))

    def logits(self, ids: NDArray[np.int64]) -> Array:
        """Logits of every position of ids[window][position]; each window is a text of its own."""
        x = self.embeddings(ids)
        for i in range(int(self.key("block_count"))):
            prefix = f"blk.{i}."
            x = x + self.attention(prefix, self.norm(prefix + "attn_norm.weight", x))
            x = x + self.feed_forward(prefix, self.norm(prefix + "ffn_norm.weight", x))
        x = self.norm("output_norm.weight", x)
        return self.product("output.weight" if "output.weight" in self.tensors else "token_embd.weight", x)


def log_likelihood(logits: NDArray[Any], ids: NDArray[np.int64]) -> Array:
    """Natural log of each next token's probability: [window][position - 1]."""
    rows = logits[:, :-1].astype(np.float64)
    top = rows.max(axis=-1)
    total = np.log(np.exp(rows - top[..., None]).sum(axis=-1)) + top
    return np.take_along_axis(rows, ids[:, 1:, None], axis=-1)[..., 0] - total
