"""Where each tensor of a model goes by -ngl, -ts and -ot, and what is wrong with the overrides."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from k1.doctor.check import Verdict
from k1.doctor.ecmascript import Pattern, PatternError
from k1.doctor.llama_command import Command, Override
from k1.doctor.model_table import Model, Tensor
from k1.typedtoml import near

CPU = -1
EXPERTS = r"blk\.[0-9]+\.ffn_.*_exps\.weight"
_CARD = re.compile(r"(?:CUDA|ROCm|Vulkan|SYCL|MUSA|CANN)(\d+)")
_HOST = re.compile(r"CPU|Metal|\w+_Host|RPC\[.*\]")
_QUOTES = "\"'“”‘’«»"


@dataclass(frozen=True)
class Fault:
    """What is wrong, and what to do."""

    verdict: Verdict
    text: str
    remedy: str


@dataclass(frozen=True)
class Effect:
    """What one override does: the tensors it moves, in the file's order, and its faults."""

    override: Override
    moved: tuple[Tensor, ...]
    faults: tuple[Fault, ...]

    @property
    def size(self) -> int:
        """Bytes that it moves."""
        return sum(tensor.size for tensor in self.moved)


@dataclass(frozen=True)
class Placement:
    """Every loaded tensor's card, or `CPU`; the layers' own cards; how many cards there are."""

    model: Model
    cards: int
    where: dict[str, int]
    layers: tuple[int, ...]
    output: int
    effects: tuple[Effect, ...]

    def on(self, card: int) -> list[Tensor]:
        """The tensors on a card, or on the `CPU`."""
        return [tensor for tensor in self.model.loaded if self.where[tensor.name] == card]

    @property
    def experts_on_cards(self) -> list[Tensor]:
        """Routed experts that stay on cards."""
        return [t for t in self.model.loaded if t.is_routed_expert and self.where[t.name] != CPU]


def place(model: Model, command: Command) -> Placement:
    """Put the model where the command says."""
    effects = _effects(model, command)
    named = [int(found[1]) + 1 for o in command.overrides if (found := _CARD.fullmatch(o.buffer))]
    cards = max(len(command.split), *named, 1) if named or command.split else 1
    layers, output = _layers(model, command, cards)
    where: dict[str, int] = {}
    in_memory = _cpu_moe(model, command)
    for tensor in model.loaded:
        if tensor.layer is None:
            # The embedding is read by few rows a token and always stays in memory.
            where[tensor.name] = CPU if tensor.name.startswith("token_embd") else output
        else:
            where[tensor.name] = layers[tensor.layer]
            if tensor.is_routed_expert and tensor.layer in in_memory:
                where[tensor.name] = CPU
    for effect in effects:
        found = _CARD.fullmatch(effect.override.buffer)
        where |= {tensor.name: int(found[1]) if found else CPU for tensor in effect.moved}
    against = tuple(_against_split(effect, layers, command) for effect in effects)
    return Placement(model, cards, where, tuple(layers), output, against)


def _layers(model: Model, command: Command, cards: int) -> tuple[list[int], int]:
    """The card of each layer and of the output: the LAST layers go to cards (llama.cpp, llm_load_tensors)."""
    first = max(model.n_layer - command.ngl, 0)
    offloaded = min(command.ngl, model.n_layer + 1)
    shares = (command.split + (0.0,) * cards)[:cards] if command.split else (1.0,) * cards
    ends = [end / sum(shares) for end in accumulate(shares)]

    def card(layer: int) -> int:
        return min(bisect_right(ends, (layer - first) / offloaded), cards - 1)

    layers = [card(layer) if layer >= first and offloaded else CPU for layer in range(model.n_layer)]
    return layers, card(model.n_layer) if command.ngl > model.n_layer else CPU


def _cpu_moe(model: Model, command: Command) -> set[int]:
    """Layers whose experts -cmoe or -ncmoe keep in memory: the first ones that have experts."""
    having = sorted({t.layer for t in model.loaded if t.is_routed_expert and t.layer is not None})
    return set(having[: command.cpu_moe])


def _effects(model: Model, command: Command) -> list[Effect]:
    """What each override moves: the first that matches a tensor wins."""
    effects: list[Effect] = []
    taken: set[str] = set()
    for override in command.overrides:
        matched, faults = _judge(override, model)
        new = matched - taken
        moved = tuple(tensor for tensor in model.loaded if tensor.name in new)
        if matched and not moved:
            text = "moves nothing: an override before it takes all that it matches"
            faults.append(Fault(Verdict.WARN, text, "put the narrower pattern first"))
        taken |= matched
        effects.append(Effect(override, moved, tuple(faults)))
    return effects


def _judge(override: Override, model: Model) -> tuple[set[str], list[Fault]]:
    """The names that an override matches, and its faults."""
    if faults := list(_form(override)):
        return set(), faults
    try:
        pattern = Pattern(override.pattern)
        matched = pattern.matching(tensor.name for tensor in model.loaded)
    except PatternError as error:
        text = f"std::regex does not take it: {error}"
        return set(), [Fault(Verdict.FAIL, text, f"for the routed experts write '{EXPERTS}=CPU'")]
    if pattern.nested:
        text = "a repetition within a repetition: on some names it needs exponential time"
        faults.append(Fault(Verdict.WARN, text, f"repeat once, as in '{EXPERTS}=CPU'"))
    faults += _no_match(override.pattern, model) if not matched else _bare_dots(override.pattern, matched, model)
    return matched, faults


def _form(override: Override) -> Iterator[Fault]:
    """Faults of quoting, of the form pattern=buffer, and of the buffer's name."""
    whole, buffer = override.text, override.buffer
    if found := [sign for sign in whole if sign in _QUOTES]:
        problem = f"the quotation mark {found[0]} is part of the argument, so nothing can match"
        remedy = f"quote once for the shell, and not at all in an element of a JSON or YAML list: {EXPERTS}=CPU"
        yield Fault(Verdict.FAIL, problem, remedy)
    elif "=" not in whole:
        comma = whole[:1].isdecimal() or whole.count("{") != whole.count("}")
        cause = "llama.cpp cuts at commas, also inside {1,2}" if comma else "the form is pattern=buffer"
        yield Fault(
            Verdict.FAIL, f"no = in it: {cause}", f"write '{EXPERTS}=CPU', and (a|b) or [0-9][0-9]? for {{1,2}}"
        )
    elif not override.pattern:
        yield Fault(Verdict.FAIL, "an empty pattern matches every tensor", f"write '{EXPERTS}=CPU'")
    elif whole.count("{") != whole.count("}"):
        yield Fault(Verdict.FAIL, "llama.cpp cuts at commas, also inside {1,2}", "write [0-9][0-9]? for [0-9]{1,2}")
    elif re.search(r"\(\?<?$", override.pattern):
        look = override.pattern[override.pattern.rindex("(") :]
        yield Fault(
            Verdict.FAIL, f"llama.cpp cuts at the first =, so '{look}=' cannot be used", f"write '{EXPERTS}=CPU'"
        )
    elif not (_CARD.fullmatch(buffer) or _HOST.fullmatch(buffer)):
        guess = near(buffer.upper(), ("CPU", "CUDA0", "CUDA1"))
        yield Fault(Verdict.FAIL, f"no buffer is named {buffer!r}", guess or "buffers: CPU, CUDA0, CUDA1, …")


def _no_match(pattern: str, model: Model) -> Iterator[Fault]:
    names = [tensor.name for tensor in model.loaded]
    example = next((name for name in names if "_exps." in name), names[0])
    cause, remedy = "no tensor has such a name", f"names look like {example}"
    if "\\\\" in pattern:
        cause = r"\\ is a backslash in the name, and no name has one: it was escaped twice"
        remedy = f"one backslash: '{pattern.replace(chr(92) * 2, chr(92))}'"
    elif _matches(pattern.lower(), names):
        cause, remedy = "the case of letters counts", f"write '{pattern.lower()}'"
    elif "experts" in pattern:
        cause = "the tensors are named _exps, not experts"
    yield Fault(Verdict.FAIL, f"moves nothing: {cause}", remedy)


def _bare_dots(pattern: str, matched: set[str], model: Model) -> Iterator[Fault]:
    """A dot that is not escaped stands for any sign; tell whether that moves more than was meant."""
    escaped = re.sub(r"(?<!\\)\.(?![*+?{])", r"\\.", pattern)
    if escaped == pattern:
        return
    more = sorted(matched - _matches(escaped, (tensor.name for tensor in model.loaded)))
    if more:
        text = f"unescaped dots stand for any sign: it also moves {len(more)} tensors such as {more[0]}"
    else:
        text = "unescaped dots stand for any sign: the shell took the backslashes away, or they were left out"
    yield Fault(Verdict.WARN, text, f"write '{escaped}' in single quotes")


def _matches(pattern: str, names: Iterable[str]) -> set[str]:
    try:
        return Pattern(pattern).matching(names)
    except PatternError:
        return set()


def _against_split(effect: Effect, layers: list[int], command: Command) -> Effect:
    """The effect with a fault when it puts tensors of a layer on another card than -ts puts the layer."""
    found = _CARD.fullmatch(effect.override.buffer)
    if not found:
        return effect
    card = int(found[1])
    strangers = sorted({t.layer for t in effect.moved if t.layer is not None and layers[t.layer] not in (CPU, card)})
    if not strangers:
        return effect
    others = ", ".join(f"CUDA{other}" for other in sorted({layers[layer] for layer in strangers}))
    shares = ",".join(f"{share:g}" for share in command.split) or "equal shares"
    text = (
        f"contradicts -ts ({shares}): layers {ranges(strangers)} are on {others} with their KV cache, their tensors go "
        f"to CUDA{card}; programs crash at the warm-up"
    )
    fault = Fault(Verdict.FAIL, text, "name the layers that -ts gives to the card, or change -ts")
    return Effect(effect.override, effect.moved, (*effect.faults, fault))


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as a person writes them: `3-60`, `0-2, 7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
