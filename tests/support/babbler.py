"""A tiny model with random weights, whose likeliest tokens are printable characters."""

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

N_VOCAB = 258
END = 257
N_CTX_TRAIN = 1 << 17
_EMBD, _HEADS, _KV_HEADS, _FF = 64, 4, 2, 128


def byte_characters() -> list[str]:
    """The characters that stand for the 256 bytes in byte-level BPE (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def write_babbler(
    path: Path, arch: str = "llama", seed: int = 1, norm: float = 1.0, n_ctx_train: int = N_CTX_TRAIN, layers: int = 2
) -> Path:
    """Write the model; token ids are bytes, but for 256, "ab", and 257, the end. norm: its last norm's weights."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * scale).astype(np.float32)

    writer = GGUFWriter(path, arch)
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(_EMBD)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(_FF)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_EMBD // _HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*byte_characters(), "ab", "<|end|>"])
    writer.add_token_types([TokenType.NORMAL] * 257 + [TokenType.CONTROL])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(END)

    output = matrix(N_VOCAB, _EMBD, 0.25)
    printable = [*range(0x20, 0x7F)]
    output[[i for i in range(N_VOCAB) if i not in printable]] = 0
    kv = _EMBD // _HEADS * _KV_HEADS
    writer.add_tensor("token_embd.weight", matrix(N_VOCAB, _EMBD, 1.0))
    writer.add_tensor("output_norm.weight", np.full(_EMBD, norm, np.float32))
    writer.add_tensor("output.weight", output)
    for i in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(_EMBD, np.float32))
        shapes = {
            "attn_q": (_EMBD, _EMBD),
            "attn_k": (kv, _EMBD),
            "attn_v": (kv, _EMBD),
            "attn_output": (_EMBD, _EMBD),
            "ffn_gate": (_FF, _EMBD),
            "ffn_up": (_FF, _EMBD),
            "ffn_down": (_EMBD, _FF),
        }
        for name, (rows, columns) in shapes.items():
            writer.add_tensor(f"blk.{i}.{name}.weight", matrix(rows, columns, columns**-0.5))
            if arch == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                writer.add_tensor(f"blk.{i}.{name}.bias", matrix(1, rows, 0.3)[0])
        for name in ("attn_q_norm", "attn_k_norm") if arch == "qwen3" else ():
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(_EMBD // _HEADS, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
