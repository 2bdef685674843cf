"""Small random models as GGUF files: every architecture with weights of every type."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

N_VOCAB = 320
N_EMBD = 256
N_FF = 512
N_LAYER = 2
N_HEAD = 8
N_HEAD_KV = 2
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"]
ARCHITECTURES = ["llama", "qwen2", "qwen3"]


def random_blocks(chance: np.random.Generator, kind: GGMLQuantizationType, rows: int, n: int) -> NDArray[np.uint8]:
    """Rows of valid blocks of a type that gguf cannot quantize to: any bits are valid but those of the scales."""
    block, size = GGML_QUANT_SIZES[kind]
    data = chance.integers(0, 256, (rows, n // block, size), dtype=np.uint8)
    scales = {GGMLQuantizationType.Q4_K: ((0, 4e-4), (2, 3e-3)), GGMLQuantizationType.Q6_K: ((208, 6e-5),)}[kind]
    for at, scale in scales:
        values = (scale * chance.uniform(0.5, 1.5, data.shape[:2])).astype(np.float16)
        data[:, :, at : at + 2] = values[..., None].view(np.uint8)
    return data.reshape(rows, -1)


class TinyModel:
    """Writes one file."""

    def __init__(self, path: Path, arch: str, kind: str, **options: Any) -> None:
        self.chance = np.random.default_rng(options.get("seed", 1))
        self.kind = GGMLQuantizationType[kind]
        self.arch = arch
        self.options = options
        self.head_dim = 64 if arch == "qwen3" else N_EMBD // N_HEAD
        self.writer = GGUFWriter(path, arch)
        self.keys()
        self.tensors()
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()

    def keys(self) -> None:
        """The metadata."""
        self.writer.add_block_count(N_LAYER)
        self.writer.add_context_length(512)
        self.writer.add_embedding_length(N_EMBD)
        self.writer.add_feed_forward_length(N_FF)
        self.writer.add_head_count(N_HEAD)
        self.writer.add_head_count_kv(N_HEAD_KV)
        self.writer.add_layer_norm_rms_eps(1e-5)
        self.writer.add_rope_freq_base(5000.0)
        if self.arch == "qwen3":
            self.writer.add_key_length(self.head_dim)
            self.writer.add_value_length(self.head_dim)
        for key, value in self.options.get("keys", {}).items():
            add = self.writer.add_string if isinstance(value, str) else self.writer.add_float32
            (self.writer.add_uint32 if isinstance(value, int) else add)(f"{self.arch}.{key}", value)

    def matrix(self, name: str, n_out: int, n_in: int, scale: float = 1.0) -> None:
        """A weight matrix of the model's type."""
        values = (self.chance.standard_normal((n_out, n_in)) * scale / np.sqrt(n_in)).astype(np.float32)
        if self.kind in (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K):
            data = random_blocks(self.chance, self.kind, n_out, n_in)
        else:
            data = quantize(values, self.kind)
        self.writer.add_tensor(name, data, raw_dtype=self.kind)

    def vector(self, name: str, n: int, mean: float = 1.0) -> None:
        """A norm or a bias."""
        self.writer.add_tensor(name, (mean + 0.3 * self.chance.standard_normal(n)).astype(np.float32))

    def tensors(self) -> None:
        """All tensors; the output is the embedding for llama, and one of its own for the others."""
        self.matrix("token_embd.weight", N_VOCAB, N_EMBD, scale=4.0)
        self.vector("output_norm.weight", N_EMBD)
        if self.arch != "llama":
            self.matrix("output.weight", N_VOCAB, N_EMBD)
        if "rope_freqs" in self.options:
            self.writer.add_tensor("rope_freqs.weight", np.asarray(self.options["rope_freqs"], np.float32))
        for i in range(N_LAYER):
            self.layer(f"blk.{i}.")

    def layer(self, prefix: str) -> None:
        """One layer."""
        q_dim, kv_dim = N_HEAD * self.head_dim, N_HEAD_KV * self.head_dim
        self.vector(prefix + "attn_norm.weight", N_EMBD)
        self.matrix(prefix + "attn_q.weight", q_dim, N_EMBD, scale=1.5)
        self.matrix(prefix + "attn_k.weight", kv_dim, N_EMBD, scale=1.5)
        self.matrix(prefix + "attn_v.weight", kv_dim, N_EMBD)
        self.matrix(prefix + "attn_output.weight", N_EMBD, q_dim)
        self.vector(prefix + "ffn_norm.weight", N_EMBD)
        self.matrix(prefix + "ffn_gate.weight", N_FF, N_EMBD)
        self.matrix(prefix + "ffn_up.weight", N_FF, N_EMBD)
        self.matrix(prefix + "ffn_down.weight", N_EMBD, N_FF)
        if self.arch == "qwen2":
            self.vector(prefix + "attn_q.bias", q_dim, mean=0.0)
            self.vector(prefix + "attn_k.bias", kv_dim, mean=0.0)
            self.vector(prefix + "attn_v.bias", kv_dim, mean=0.0)
        if self.arch == "qwen3":
            self.vector(prefix + "attn_q_norm.weight", self.head_dim)
            self.vector(prefix + "attn_k_norm.weight", self.head_dim)
