"""How much of each card a model takes: weights, KV cache, compute buffer; and the nearest settings that fit.

Formulas: ik_llama.cpp at commit 8337e4c, get_layer_sizes and llama_model::cache_size, and for what those leave out
build_deepseek2.cpp and ggml_backend_cuda_offload_op. `docs/doctor.md` writes them out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from k1.doctor import tensors
from k1.doctor.llama_command import Command, Override
from k1.doctor.model_table import Model, Tensor, block_bytes
from k1.doctor.tensors import CPU, EXPERTS, Placement

_MIB = 1 << 20
_OFFLOAD_BATCH = 32  # GGML_CUDA_MIN_BATCH_OFFLOAD
_CONTEXT_STEP = 1024


@dataclass(frozen=True)
class Card:
    """Bytes on one card: weights by type, what is made from weights at the start, KV cache, compute buffer."""

    weights: dict[str, int]
    derived: int
    kv: int
    compute: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.weights.values()) + self.derived + self.kv + self.compute


@dataclass(frozen=True)
class Budget:
    """All cards, and bytes of weights and KV cache in main memory; `ctx` is the context counted with."""

    cards: tuple[Card, ...]
    host: int
    ctx: int

    def fits(self, limit: int) -> bool:
        """Whether each card stays within that many bytes."""
        return all(card.total <= limit for card in self.cards)


def budget(placement: Placement, command: Command) -> Budget:
    """The budget of a placed model."""
    model = placement.model
    ctx = command.ctx if command.ctx > 0 else model.number("context_length")
    cards = tuple(_card(placement, command, ctx, card) for card in range(placement.cards))
    host = sum(tensor.size for tensor in placement.on(CPU)) + _cache(placement, command, ctx, CPU)
    return Budget(cards, host, ctx)


def _card(placement: Placement, command: Command, ctx: int, card: int) -> Card:
    weights: Counter[str] = Counter()
    for tensor in placement.on(card):
        weights[tensor.kind] += tensor.size
    layers = [i for i, where in enumerate(placement.layers[: placement.model.n_loaded]) if where == card]
    derived = sum(_derived(placement.model, layer) for layer in layers) if command.mla else 0
    compute = max((_layer_compute(placement, command, ctx, layer, card) for layer in layers), default=0)
    if placement.output == card:
        compute = max(compute, _n_vocab(placement.model) * command.ubatch * 4)
    compute += max((_expert_copies(placement, command, layer) for layer in layers), default=0)
    return Card(dict(weights), derived, _cache(placement, command, ctx, card), compute)


def _n_vocab(model: Model) -> int:
    tensor = model.by_name.get("output.weight") or model.by_name.get("token_embd.weight")
    return tensor.rows if tensor else 0


# --- KV cache


def _cache(placement: Placement, command: Command, ctx: int, card: int) -> int:
    model = placement.model
    layers = range(model.n_loaded)
    if command.kv_on_cpu:
        return sum(cache_bytes(model, command, ctx, layer) for layer in layers) if card == CPU else 0
    return sum(cache_bytes(model, command, ctx, layer) for layer in layers if placement.layers[layer] == card)


def cache_bytes(model: Model, command: Command, ctx: int, layer: int) -> int:
    """KV cache of one layer, in bytes (llama_model::cache_size)."""
    lora = model.find("attention.kv_lora_rank")
    if lora and command.mla:
        row = int(lora) + model.number("rope.dimension_count")
        if command.fa:
            return block_bytes(command.ctk, row) * ctx
        if command.mla == 1:
            return block_bytes(command.ctk, row) * ctx + block_bytes(command.ctv, int(lora) * ctx)
        return block_bytes(command.ctv, row) * ctx
    heads = model.number("attention.head_count") if lora else _heads_kv(model, layer)
    head_k, head_v = _head_sizes(model)
    return (block_bytes(command.ctk, head_k) * heads + block_bytes(command.ctv, head_v * heads)) * ctx


def _heads_kv(model: Model, layer: int) -> int:
    value = model.find("attention.head_count_kv")
    if isinstance(value, list):
        return int(value[layer]) if layer < len(value) else 0
    return model.number("attention.head_count_kv" if value is not None else "attention.head_count")


def _head_sizes(model: Model) -> tuple[int, int]:
    """Width of a head's keys and values; those of MLA models before compression."""
    default = model.number("embedding_length") // model.number("attention.head_count")
    keys = (
        ("attention.key_length_mla", "attention.key_length"),
        ("attention.value_length_mla", "attention.value_length"),
    )
    head_k, head_v = (next((int(v) for key in pair if (v := model.find(key))), default) for pair in keys)
    return head_k, head_v


# --- what is computed from weights at the start


def _derived(model: Model, layer: int) -> int:
    """MLA works with attn_kv_b and with its halves attn_k_b and attn_v_b; what the file lacks is made at the start."""
    whole = model.by_name.get(f"blk.{layer}.attn_kv_b.weight")
    halves = [model.by_name.get(f"blk.{layer}.attn_{half}_b.weight") for half in ("k", "v")]
    if whole:
        return whole.size // 2 * halves.count(None)
    if None in halves:
        return 0
    head_k, head_v = _head_sizes(model)
    rows = model.number("attention.head_count") * (head_k - model.number("rope.dimension_count") + head_v)
    return block_bytes("Q8_0", model.number("attention.kv_lora_rank")) * rows


# --- compute buffer


def _layer_compute(placement: Placement, command: Command, ctx: int, layer: int, card: int) -> int:
    """The largest intermediate results of a layer, in bytes of F32."""
    model = placement.model
    widths = Counter[str]()
    for tensor in model.by_layer[layer]:
        if ".ffn_" in tensor.name and placement.where[tensor.name] == card:
            widths[_kind_of_ffn(tensor)] += tensor.rows
    widths["exps"] *= int(model.find("expert_used_count") or 1)
    ffn = max(widths.values(), default=0) + 2 * model.number("embedding_length")
    return max(ffn * command.ubatch * 4, _attention(model, command, ctx))


def _kind_of_ffn(tensor: Tensor) -> str:
    if not tensor.name.endswith(".weight") or len(tensor.shape) < 2 or "_inp" in tensor.name:
        return "none"
    return "exps" if tensor.is_routed_expert else "shexp" if "_shexp" in tensor.name else "dense"


def _attention(model: Model, command: Command, ctx: int) -> int:
    """Keys and values that -mla 2 and 3 uncompress for a prompt, or the scores without flash attention."""
    heads, limit = model.number("attention.head_count"), command.amb * _MIB
    if not command.fa:
        scores = ctx * command.ubatch * heads * 4
        return min(scores, limit) if command.amb > 0 else scores
    if command.mla < 2 or not model.find("attention.kv_lora_rank"):
        return 0
    head_k, head_v = _head_sizes(model)
    one = (head_k - model.number("rope.dimension_count") + head_v) * ctx * 4
    if command.amb <= 0 or one * heads <= limit:
        return one * heads
    # Heads are taken in equal groups, the largest whose keys and values stay below -amb.
    groups = (n for n in range(2, heads) if heads % n == 0 and one * heads // n <= limit)
    return one * (heads // next(groups, heads))


def _expert_copies(placement: Placement, command: Command, layer: int) -> int:
    """Experts in memory are copied to the card for large batches: one tensor, or gate and up at once with -fmoe."""
    model = placement.model
    used, total = int(model.find("expert_used_count") or 0), int(model.find("expert_count") or 0)
    if not total or command.ubatch * used < _OFFLOAD_BATCH * total:
        return 0
    sizes = {
        tensor.name.split(".")[2]: tensor.size
        for tensor in model.by_layer[layer]
        if tensor.is_routed_expert and placement.where[tensor.name] == CPU
    }
    fused = sizes.get("ffn_gate_exps", 0) + sizes.get("ffn_up_exps", 0) if command.fmoe else 0
    return max(fused, *sizes.values()) if sizes else 0


# --- what would fit


@dataclass(frozen=True)
class Proposal:
    """Settings that fit: what to change, the changed command, and the bytes of its fullest card."""

    text: str
    command: Command
    peak: int


def proposals(model: Model, command: Command, limit: int) -> list[Proposal]:
    """The nearest settings whose cards stay within `limit` bytes: each single change that does, else all at once."""

    def measure(changed: Command) -> int:
        return max(card.total for card in budget(tensors.place(model, changed), changed).cards)

    found: list[Proposal] = []
    together, names = command, list[str]()
    for text, change in _changes(model, command):
        if (peak := measure(changed := change(command))) <= limit:
            found.append(Proposal(text, changed, peak))
        together = change(together)
        names.append(text)
    if not found and names and (peak := measure(together)) <= limit:
        found.append(Proposal(" ".join(names), together, peak))
    shrunk = list(_shrink(model, command, limit, measure, ""))
    if not found and not shrunk:
        shrunk = list(_shrink(model, together, limit, measure, " ".join(names)))
    return found + shrunk


_Change = Callable[[Command], Command]
_Measure = Callable[[Command], int]


def _changes(model: Model, command: Command) -> Iterator[tuple[str, _Change]]:
    """Changes that cost little, the cheapest first, as far as they are not made yet."""
    if tensors.place(model, command).experts_on_cards:
        fixed = (Override(f"{EXPERTS}=CPU", EXPERTS, "CPU"),)
        yield f"-ot '{EXPERTS}=CPU'", lambda c: replace(c, overrides=fixed)
    if not command.fa:
        yield "-fa", lambda c: replace(c, fa=True)
    if model.find("attention.kv_lora_rank") and command.mla != 3:
        yield "-mla 3", lambda c: replace(c, mla=3)
    if command.ctk in ("f16", "bf16", "f32"):
        yield "-ctk q8_0", lambda c: replace(c, ctk="q8_0", ctv="q8_0" if c.fa else c.ctv)
    if command.amb <= 0 or command.amb > 512:
        yield "-amb 512", lambda c: replace(c, amb=512)
    if command.ubatch > 512:
        yield "-ub 512", lambda c: replace(c, ubatch=512)


def _shrink(model: Model, command: Command, limit: int, measure: _Measure, lead: str) -> Iterator[Proposal]:
    """The largest -c, and the largest -ngl, that fit; `lead` names what was changed before."""
    ctx = command.ctx if command.ctx > 0 else model.number("context_length")

    def with_ctx(count: int) -> Command:
        return replace(command, ctx=count * _CONTEXT_STEP)

    def with_ngl(count: int) -> Command:
        return replace(command, ngl=count)

    if best := _largest((ctx - 1) // _CONTEXT_STEP, lambda count: measure(with_ctx(count)) <= limit):
        changed = with_ctx(best)
        yield Proposal(f"{lead} -c {changed.ctx}".strip(), changed, measure(changed))
    if best := _largest(min(command.ngl, model.n_layer + 1) - 1, lambda count: measure(with_ngl(count)) <= limit):
        changed = with_ngl(best)
        yield Proposal(f"{lead} -ngl {best}".strip(), changed, measure(changed))


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 1 to `most` that fits, by halving; 0 when none does."""
    low, high = 0, max(most, 0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
