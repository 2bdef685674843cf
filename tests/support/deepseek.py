"""GGUF headers with the names, shapes and types of DeepSeek-R1; no weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

N_LAYER = 61
N_DENSE = 3
_MATRIX = "IQ4_XS"

_ATTENTION = {
    "attn_norm.weight": ("F32", (7168,)),
    "attn_q_a.weight": (_MATRIX, (7168, 1536)),
    "attn_q_a_norm.weight": ("F32", (1536,)),
    "attn_q_b.weight": (_MATRIX, (1536, 24576)),
    "attn_kv_a_mqa.weight": (_MATRIX, (7168, 576)),
    "attn_kv_a_norm.weight": ("F32", (512,)),
    "attn_kv_b.weight": (_MATRIX, (512, 32768)),
    "attn_k_b.weight": ("Q8_0", (128, 65536)),
    "attn_v_b.weight": (_MATRIX, (512, 16384)),
    "attn_output.weight": (_MATRIX, (16384, 7168)),
    "ffn_norm.weight": ("F32", (7168,)),
}
_DENSE = {
    "ffn_gate.weight": (_MATRIX, (7168, 18432)),
    "ffn_up.weight": (_MATRIX, (7168, 18432)),
    "ffn_down.weight": (_MATRIX, (18432, 7168)),
}
_EXPERTS = {
    "ffn_gate_inp.weight": ("F32", (7168, 256)),
    "exp_probs_b.bias": ("F32", (256,)),
    "ffn_gate_exps.weight": (_MATRIX, (7168, 2048, 256)),
    "ffn_up_exps.weight": (_MATRIX, (7168, 2048, 256)),
    "ffn_down_exps.weight": (_MATRIX, (2048, 7168, 256)),
    "ffn_gate_shexp.weight": (_MATRIX, (7168, 2048)),
    "ffn_up_shexp.weight": (_MATRIX, (7168, 2048)),
    "ffn_down_shexp.weight": (_MATRIX, (2048, 7168)),
}
_TABLE = {
    "token_embd.weight": (_MATRIX, (7168, 129280)),
    "output.weight": ("Q6_K", (7168, 129280)),
    "output_norm.weight": ("F32", (7168,)),
}
KEYS = {
    "block_count": N_LAYER,
    "context_length": 163840,
    "embedding_length": 7168,
    "feed_forward_length": 18432,
    "leading_dense_block_count": N_DENSE,
    "attention.head_count": 128,
    "attention.head_count_kv": 128,
    "attention.key_length": 192,
    "attention.value_length": 128,
    "attention.kv_lora_rank": 512,
    "rope.dimension_count": 64,
    "expert_count": 256,
    "expert_used_count": 8,
}


def shapes(leave_out: str = "no such tensor") -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name → type and shape in GGUF's order, without the tensors whose name has `leave_out` in it."""
    found: dict[str, tuple[str, tuple[int, ...]]] = dict(_TABLE)
    for layer in range(N_LAYER):
        parts = _ATTENTION | (_DENSE if layer < N_DENSE else _EXPERTS)
        found |= {f"blk.{layer}.{name}": entry for name, entry in parts.items() if leave_out not in name}
    return found


def write(path: Path, leave_out: str = "no such tensor", **keys: int) -> Path:
    """A file with the header alone."""
    writer = GGUFWriter(path, "deepseek2")
    for name, value in (KEYS | {key.replace("__", "."): value for key, value in keys.items()}).items():
        writer.add_uint32(f"deepseek2.{name}", value)
    for name, (kind, shape) in shapes(leave_out).items():
        add(writer, name, GGMLQuantizationType[kind], shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


def add(writer: GGUFWriter, name: str, kind: GGMLQuantizationType, shape: tuple[int, ...]) -> None:
    """Announce a tensor without its data."""
    from gguf import GGML_QUANT_SIZES

    per_block, size = GGML_QUANT_SIZES[kind]
    rows = int(np.prod(shape[1:], dtype=np.int64))
    bytes_per_row = shape[0] // per_block * size
    if kind == GGMLQuantizationType.F32:
        writer.add_tensor_info(name, list(reversed(shape)), np.dtype(np.float32), rows * bytes_per_row)
    else:
        byte_shape = [*reversed(shape[1:]), bytes_per_row]
        writer.add_tensor_info(name, byte_shape, np.dtype(np.uint8), rows * bytes_per_row, raw_dtype=kind)
