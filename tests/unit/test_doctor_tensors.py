"""`k1 doctor tensors`: what -ot moves, why a variant does not, and the VRAM budget against hand-computed tables."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from k1.cli import doctor as doctor_cli
from k1.doctor import llama_command, model_table, tensor_report, tensors, vram
from k1.doctor.check import Verdict
from k1.doctor.llama_command import Command
from k1.doctor.model_table import Model
from k1.doctor.tensor_report import Report
from k1.errors import K1Error
from support import deepseek

REGEX = r"blk\.[0-9]+\.ffn_.*_exps\.weight"
# The guide's command, of which the part from -ngl on decides.
GUIDE = rf"""numactl --interleave=all ./build/bin/llama-server \
    -m DeepSeek-R1-671B-IQ4_XS.gguf \
    -ngl 99 \
    -ot "{REGEX}=CPU" \
    -mla 3 -fa -fmoe \
    -ctk q8_0 -ctv q8_0 -c 32768 -t 32"""
MIB = 1 << 20
CARD = 22500 * MIB


@pytest.fixture(scope="module")
def r1(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return model_table.read(deepseek.write(tmp_path_factory.mktemp("r1") / "r1.gguf"))


def examine(model: Model, words: str, limit: int = CARD, cores: int = 0) -> Report:
    return tensor_report.examine(model, llama_command.parse(shlex.split(words)), limit, cores)


def faults(model: Model, pattern: str, more: str = "") -> list[str]:
    """What is said of one -ot in a command that is right but for it."""
    words = ["-ngl", "99", "-mla", "3", "-c", "4096", "-ot", pattern, *more.split()]
    (effect,) = tensor_report.examine(model, llama_command.parse(words), CARD, 0).placement.effects
    return [f"{fault.verdict}: {fault.text} | {fault.remedy}" for fault in effect.faults]


# --- -ot


def test_the_guides_regex_moves_exactly_the_routed_experts(r1: Model) -> None:
    report = tensor_report.examine(r1, llama_command.parse(llama_command.split(GUIDE)), CARD, 0)
    (effect,) = report.placement.effects
    wanted = {f"blk.{layer}.ffn_{part}_exps.weight" for layer in range(3, 61) for part in ("gate", "up", "down")}
    assert {tensor.name for tensor in effect.moved} == wanted
    assert effect.faults == ()
    # Three tensors of 7168 x 2048 x 256 elements in each of 58 layers, 136 bytes for 256 elements.
    assert effect.size == 58 * 3 * 7168 * 2048 * 256 // 256 * 136
    assert report.placement.experts_on_cards == []


def test_without_it_the_experts_stay_on_the_card(r1: Model) -> None:
    report = examine(r1, "-ngl 99 -c 4096")
    assert len(report.placement.experts_on_cards) == 174
    assert any("174 tensors of routed experts" in f.text and "layers 3-60" in f.text for f in report.faults)
    assert report.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (f'"{REGEX}=CPU"', 'fail: the quotation mark " is part of the argument'),
        (f"'{REGEX}=CPU'", "fail: the quotation mark ' is part of the argument"),
        (f"“{REGEX}=CPU”", "fail: the quotation mark “ is part of the argument"),
        (r"blk\\.[0-9]+\\.ffn_.*_exps\\.weight=CPU", "it was escaped twice | one backslash: 'blk\\.[0-9]+\\.ffn"),
        (
            "blk.[0-9]+.ffn_.*_exps.weight=CPU",
            f"the shell took the backslashes away, or they were left out | write '{REGEX}'",
        ),
        (
            "up.exps=CPU",
            "warn: unescaped dots stand for any sign: it also moves 58 tensors such as blk.10.ffn_up",
        ),
        (r"blk\.[0-9]+\.ffn_.*_experts\.weight=CPU", "fail: moves nothing: the tensors are named _exps, not experts"),
        (r"BLK\.[0-9]+\.FFN_.*_exps=CPU", "fail: moves nothing: the case of letters counts | write 'blk"),
        (r"blk\.(61|62)\.=CPU", "fail: moves nothing: no tensor has such a name"),
        (f"{REGEX}=cpu", "fail: no buffer is named 'cpu' | did you mean CPU?"),
        (f"{REGEX}=GPU0", "fail: no buffer is named 'GPU0'"),
        (REGEX, "fail: no = in it: the form is pattern=buffer"),
        ("=CPU", "fail: an empty pattern matches every tensor"),
        (r"blk\.([0-9]+\.ffn_.*_exps=CPU", "fail: std::regex does not take it: missing ), unterminated"),
        (r"(?i)blk\.=CPU", "fail: std::regex does not take it: '(?i)' at position 0: std::regex knows"),
        (r"(?<=blk)\.=CPU", "fail: llama.cpp cuts at the first =, so '(?<=' cannot be used"),
        (r"*exps=CPU", "fail: std::regex does not take it: '*' at position 0: there is nothing to repeat"),
        (r"blk\.[0-9=CPU", "fail: std::regex does not take it: '[' at position 5 is not closed"),
        (r"([a-z0-9_.]+)+EXPS=CPU", "fail: std::regex does not take it: needs exponential time"),
        (r"(blk\.)+[0-9]+\.(ffn_(up|gate)+_exps)+=CPU", "warn: a repetition within a repetition"),
    ],
)
def test_each_wrong_variant_is_explained(r1: Model, pattern: str, said: str) -> None:
    found = faults(r1, pattern)
    assert any(said in line for line in found), found


def test_a_count_with_a_comma_is_cut_in_two(r1: Model) -> None:
    words = ["-ngl", "99", "-c", "4096", "-ot", r"blk\.[0-9]{1,2}\.ffn_.*_exps=CPU"]
    effects = tensor_report.examine(r1, llama_command.parse(words), CARD, 0).placement.effects
    assert len(effects) == 2
    assert all("llama.cpp cuts at commas, also inside {1,2}" in effect.faults[0].text for effect in effects)


def test_a_catastrophic_pattern_ends_in_time(r1: Model) -> None:
    started = time.monotonic()
    faults(r1, r"(.*)*(.*)*(.*)*X=CPU")
    assert time.monotonic() - started < 30


def test_the_first_override_wins_and_a_hidden_one_is_told(r1: Model) -> None:
    report = examine(r1, r"-ngl 99 -c 4096 -ot 'exps=CPU,blk\.3\.ffn_up_exps=CUDA0'")
    first, second = report.placement.effects
    assert (len(first.moved), len(second.moved)) == (174, 0)
    assert "an override before it takes all" in second.faults[0].text


def test_experts_sent_to_the_card_are_no_fault_while_they_fit(r1: Model) -> None:
    report = examine(r1, r"-ngl 99 -c 4096 -ot 'blk\.3\.ffn_.*_exps=CUDA0,exps=CPU'")
    assert [tensor.layer for tensor in report.placement.experts_on_cards] == [3, 3, 3]
    assert report.verdict is Verdict.OK


def test_an_override_that_contradicts_the_split_is_explained(r1: Model) -> None:
    words = r"-ngl 99 -c 4096 -ts 1,1 -ot 'blk\.([0-9]|1[0-9])\.ffn_.*shexp=CUDA1,exps=CPU'"
    text = examine(r1, words).placement.effects[0].faults[0].text
    assert text.startswith("contradicts -ts (1,1): layers 3-19 are on CUDA0 with their KV cache")
    right = examine(r1, r"-ngl 99 -c 4096 -ts 1,1 -ot 'blk\.4[0-9]\.ffn_.*shexp=CUDA1,exps=CPU'")
    assert right.placement.effects[0].faults == ()


def test_n_cpu_moe_and_cpu_moe_keep_experts_in_memory(r1: Model) -> None:
    layers = {t.layer for t in examine(r1, "-ngl 99 -c 4096 -ncmoe 50").placement.experts_on_cards}
    assert layers == set(range(53, 61))
    assert examine(r1, "-ngl 99 -c 4096 -cmoe").placement.experts_on_cards == []


# --- the budget

# Bytes of one layer, IQ4_XS with 136 bytes for 256 elements and Q8_0 with 34 for 32.
ATTENTION = (
    (7168 * 1536 + 1536 * 24576 + 7168 * 576 + 512 * 32768 + 512 * 16384 + 16384 * 7168) // 256 * 136
    + 128 * 65536 // 32 * 34
    + (7168 + 1536 + 512 + 7168) * 4
)
DENSE = 3 * 7168 * 18432 // 256 * 136
SHARED = 3 * 7168 * 2048 // 256 * 136 + (7168 * 256 + 256) * 4
OUTPUT = 7168 * 129280 // 256 * 210 + 7168 * 4
# 512 + 64 elements a position and layer.
KV_Q8 = (512 + 64) // 32 * 34
KV_F16 = (512 + 64) * 2
LOGITS = 129280 * 512 * 4


def only_card(report: Report) -> vram.Card:
    (card,) = report.budget.cards
    return card


def test_the_guides_command_against_a_table_by_hand(r1: Model) -> None:
    card = only_card(examine(r1, f"-ngl 99 -ot '{REGEX}=CPU' -mla 3 -fa on -ctk q8_0 -ctv q8_0 -c 32768"))
    assert sum(card.weights.values()) == 61 * ATTENTION + 3 * DENSE + 58 * SHARED + OUTPUT
    assert card.derived == 0
    assert card.kv == 61 * KV_Q8 * 32768
    # 8 of 128 heads at a time stay within -amb 256: (128 + 128) x 32768 x 4 bytes each.
    assert card.compute == 8 * 256 * 32768 * 4 == 256 * MIB
    assert card.total == 11_549_304_832


def test_ngl_48_keeps_the_first_13_layers_and_the_output_in_memory(r1: Model) -> None:
    report = examine(r1, f"-ngl 48 -ot '{REGEX}=CPU' -mla 3 -fa on -ctk q8_0 -c 65536")
    assert report.placement.layers == (tensors.CPU,) * 13 + (0,) * 48
    card = only_card(report)
    assert sum(card.weights.values()) == 48 * ATTENTION + 48 * SHARED
    assert card.kv == 48 * KV_Q8 * 65536
    assert (
        sum(card.weights.values()) + card.kv + card.compute
        < only_card(examine(r1, f"-ngl 99 -ot '{REGEX}=CPU' -mla 3 -fa on -ctk q8_0 -c 65536")).total - 3000 * MIB
    )


def test_dense_layers_are_not_what_the_guide_says(r1: Model) -> None:
    assert 3 * DENSE == 631_701_504  # the guide: about 4.5 GB


@pytest.mark.parametrize(
    ("words", "kv"),
    [
        ("-mla 3 -fa on", 61 * KV_F16 * 4096),
        ("-mla 1 -fa off", 61 * (KV_F16 + 512 * 2) * 4096),
        ("-mla 1 -fa off -ctk q8_0", 61 * (KV_Q8 + 512 * 2) * 4096),
        ("-mla 2 -fa off", 61 * KV_F16 * 4096),
        ("-mla 0 -fa on", 61 * 128 * (192 + 128) * 2 * 4096),
        ("-mla 0 -fa on -ctk q8_0 -ctv q4_0", 61 * 128 * (192 // 32 * 34 + 128 // 32 * 18) * 4096),
        ("-mla 3 -fa on -ctk q6_0", 61 * 18 * 26 * 4096),
    ],
)
def test_the_kv_cache_by_mla_and_type(r1: Model, words: str, kv: int) -> None:
    assert only_card(examine(r1, f"-ngl 99 -cmoe -c 4096 {words}")).kv == kv


@pytest.mark.parametrize(
    ("words", "compute"),
    [
        ("-c 4096 -mla 3", 256 * MIB),
        ("-c 2048 -mla 1", LOGITS),
        ("-c 32768 -mla 3 -amb 0", 128 * 256 * 32768 * 4),
        ("-c 32768 -mla 3 -amb 1024", 32 * 256 * 32768 * 4),
        ("-c 32768 -mla 1 -fa off -amb 0", 32768 * 512 * 128 * 4),
        ("-c 32768 -mla 1 -fa off -amb 512", 512 * MIB),
        ("-c 2048 -mla 1 -ub 1024", 129280 * 1024 * 4 + 2 * 7168 * 2048 * 136),
        ("-c 2048 -mla 1 -ub 1024 -no-fmoe", 129280 * 1024 * 4 + 7168 * 2048 * 136),
    ],
)
def test_the_compute_buffer_by_context_batch_and_amb(r1: Model, words: str, compute: int) -> None:
    assert only_card(examine(r1, f"-ngl 99 -cmoe {words}")).compute == compute


def test_halves_of_attn_kv_b_that_the_file_lacks_are_made_on_the_card(tmp_path: Path) -> None:
    whole = 512 * 32768 // 256 * 136
    only_whole = model_table.read(deepseek.write(tmp_path / "a.gguf", "attn_k_b"))
    assert only_card(examine(only_whole, "-ngl 99 -cmoe -c 4096")).derived == 61 * (whole // 2)
    only_halves = model_table.read(deepseek.write(tmp_path / "b.gguf", "attn_kv_b"))
    assert only_card(examine(only_halves, "-ngl 99 -cmoe -c 4096")).derived == 61 * 512 * 34 // 32 * 32768


def test_layers_for_further_tokens_are_not_loaded(tmp_path: Path) -> None:
    model = model_table.read(deepseek.write(tmp_path / "a.gguf", nextn_predict_layers=1))
    card = only_card(examine(model, "-ngl 99 -cmoe -c 4096 -mla 3 -ctk q8_0"))
    assert card.kv == 60 * KV_Q8 * 4096
    assert sum(card.weights.values()) == 60 * ATTENTION + 3 * DENSE + 57 * SHARED + OUTPUT


def test_two_cards_share_layers_by_ts(r1: Model) -> None:
    report = examine(r1, "-ngl 99 -cmoe -c 4096 -ctk q8_0 -ts 3,1")
    first, second = report.budget.cards
    # 62 layers with the output: the first for which i / 62 reaches 3/4 is 47.
    assert (first.kv, second.kv) == (47 * KV_Q8 * 4096, 14 * KV_Q8 * 4096)
    assert "Q6_K" in second.weights and "Q6_K" not in first.weights


def test_kv_on_the_cpu_takes_no_vram(r1: Model) -> None:
    report = examine(r1, "-ngl 99 -cmoe -c 4096 -ctk q8_0 -nkvo")
    assert only_card(report).kv == 0
    assert report.budget.host > 61 * KV_Q8 * 4096


def test_a_model_without_mla_has_keys_and_values_of_its_heads(tmp_path: Path) -> None:
    listing = tmp_path / "qwen.txt"
    listing.write_text(
        """# a small model as a list
general.architecture = qwen2
qwen2.block_count = 2
qwen2.embedding_length = 128
qwen2.context_length = 4096
qwen2.attention.head_count = 4
qwen2.attention.head_count_kv = 2
token_embd.weight Q8_0 128x1000
blk.0.ffn_up.weight Q8_0 128x512
blk.1.ffn_up.weight Q8_0 128x512
"""
    )
    report = examine(model_table.read(listing), "-ngl 1 -c 1024")
    card = only_card(report)
    assert card.weights == {"Q8_0": 128 // 32 * 34 * 512}
    assert card.kv == 2 * 2 * 32 * 2 * 1024
    assert report.placement.layers == (tensors.CPU, 0)


# --- what would fit


def test_a_single_change_that_fits_is_proposed(r1: Model) -> None:
    report = examine(r1, "-ngl 99 -fa on -mla 3 -ctk q8_0 -c 32768")
    assert report.proposals[0].text == f"-ot '{REGEX}=CPU'"
    assert report.proposals[0].peak <= CARD


def test_changes_are_made_together_when_no_single_one_is_enough(r1: Model) -> None:
    report = examine(r1, "-ngl 99 -mla 0 -fa on -c 32768")
    assert report.proposals[0].text == f"-ot '{REGEX}=CPU' -mla 3 -ctk q8_0"


def test_proposed_context_and_layers_are_the_largest_that_fit(r1: Model) -> None:
    limit = 12_000 * MIB
    report = examine(r1, f"-ngl 99 -ot '{REGEX}=CPU' -mla 3 -fa on -ctk q8_0 -c 131072 -amb 512", limit)
    texts = {proposal.text.split()[0]: proposal for proposal in report.proposals}
    for name, step in (("-c", 1024), ("-ngl", 1)):
        proposal = texts[name]
        assert proposal.peak <= limit
        key = {"-c": "ctx", "-ngl": "ngl"}[name]
        larger = Command(**{**vars(proposal.command), key: getattr(proposal.command, key) + step})
        assert not vram.budget(tensors.place(r1, larger), larger).fits(limit)


@settings(deadline=None, max_examples=10)
@given(st.integers(256, 30000))
def test_every_proposal_fits(r1: Model, limit_mib: int) -> None:
    command = llama_command.parse(shlex.split(f"-ngl 99 -ot '{REGEX}=CPU' -mla 3 -fa on -c 65536"))
    for proposal in vram.proposals(r1, command, limit_mib * MIB):
        again = vram.budget(tensors.place(r1, proposal.command), proposal.command)
        assert max(card.total for card in again.cards) == proposal.peak <= limit_mib * MIB


# --- the command


def test_words_before_the_program_have_options_of_their_own() -> None:
    command = llama_command.parse(llama_command.split("numactl -m 0 ./llama-server -m x.gguf -ngl 3 --flash-attn off"))
    assert (command.model, command.ngl, command.fa) == ("x.gguf", 3, False)


def test_notes_on_the_options(r1: Model) -> None:
    said = " ".join(fault.text for fault in examine(r1, "-cmoe -fa -fmoe -t 32", cores=16).faults)
    assert "no -ngl: nothing goes to the card" in said
    assert "no -c: counted with what the model was trained with, 163840" in said
    assert "-fa is followed by -fmoe: newer versions take that for its value" in said
    assert "-t 32 exceeds the 16 physical cores" in said
    assert "-ctv q8_0 needs flash attention" in examine(r1, "-ngl 9 -c 1 -fa off -ctv q8_0").faults[0].text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-ngl x", "-ngl: not a whole number: 'x'"),
        ("-c", "-c has no value"),
        ("-ot", "-ot has no value"),
        ("-mla 7", "-mla: no such mode: '7'"),
        ("-ts 1,a", "-ts: not shares of cards: '1,a'"),
        ("-ts 0,0", "-ts: not shares of cards"),
        ("-ub 0", "-ub: must be positive, got 0"),
        ("-ngl 9 -c 1 -ctk q9_9", "no tensor type named q9_9"),
    ],
)
def test_bad_values_are_named(r1: Model, words: str, message: str) -> None:
    with pytest.raises(K1Error, match=message):
        examine(r1, words)


def test_quotes_that_do_not_match_are_an_error() -> None:
    with pytest.raises(K1Error, match="the command's quotes do not match"):
        llama_command.split("llama-server -ot 'blk=CPU")


@settings(deadline=None)
@given(st.lists(st.sampled_from(["-ngl", "-c", "-ot", "-ts", "-fa", "9", "x=CPU", "=", "-m", "", "llama-cli", "1,2"])))
def test_any_words_give_a_command_or_a_k1_error(words: list[str]) -> None:
    try:
        llama_command.parse(words)
    except K1Error as error:
        assert error.hint


# --- files


def test_a_tensor_type_of_ik_llama_is_sized_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "ik.gguf"
    writer = GGUFWriter(path, "qwen2")
    writer.add_uint32("qwen2.block_count", 1)
    for name in ("token_embd.weight", "blk.0.ffn_up.weight", "output.weight"):
        deepseek.add(writer, name, deepseek.GGMLQuantizationType.Q4_K, (256, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    data = bytearray(path.read_bytes())
    # The type follows the name, the number of dimensions and the two dimensions: 12 (Q4_K) becomes 139 (IQ4_K).
    at = data.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4 + 16
    assert data[at] == 12
    data[at] = 139
    path.write_bytes(data)
    tensor = model_table.read(path).by_name["blk.0.ffn_up.weight"]
    assert (tensor.kind, tensor.size) == ("type139", 4 * 144)


def test_all_parts_of_a_split_model_are_read(tmp_path: Path) -> None:
    first = deepseek.write(tmp_path / "m-00001-of-00002.gguf", "exps")
    with pytest.raises(K1Error, match=r"m-00002-of-00002\.gguf is missing"):
        model_table.read(first)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(first.read_bytes())
    assert len(model_table.read(first).tensors) == 2 * len(deepseek.shapes("exps"))


@pytest.mark.parametrize("size", [4, 20, 100, 5000, 40000])
def test_a_gguf_that_is_cut_short_is_refused(tmp_path: Path, size: int) -> None:
    path = deepseek.write(tmp_path / "r1.gguf")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(K1Error, match=r"r1.gguf: not a readable GGUF"):
        model_table.read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "general.architecture is missing"),
        ("general.architecture = llama\n", "names no tensor"),
        ("general.architecture = llama\nx Q8_0 12y4", ":2: neither a key nor a tensor"),
        ("general.architecture = llama\nblk.0.x Q99 12x4", "no tensor type named Q99"),
        ("general.architecture = llama\nblk.0.x Q8_0 32x4\n", "llama.block_count is missing"),
        ("general.architecture = llama\nllama.block_count = many\nblk.0.x Q8_0 32x4", "no positive number: 'many'"),
    ],
)
def test_faults_of_a_list_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(K1Error, match=message):
        examine(model_table.read(path), "-ngl 1")


# --- the command line


def test_the_commands_output_and_exit_codes(tmp_path: Path) -> None:
    path = str(deepseek.write(tmp_path / "r1.gguf"))
    good = [
        "tensors",
        path,
        "-ngl",
        "99",
        "-ot",
        f"{REGEX}=CPU",
        "-mla",
        "3",
        "-fa",
        "on",
        "-ctk",
        "q8_0",
        "-c",
        "32768",
    ]
    result = CliRunner().invoke(doctor_cli.app, good)
    assert result.exit_code == 0, result.output
    assert "moves 174 tensors, 331296 MiB, to CPU" in result.stdout
    assert "11015 MiB" in result.stdout.replace("\n", " ")
    bad = CliRunner().invoke(doctor_cli.app, [*good, "--max-vram", "9000", "--json"])
    data = json.loads(bad.stdout)
    assert (bad.exit_code, data["verdict"], data["limit_bytes"]) == (4, "fail", 9000 * MIB)
    assert data["fitting"][0]["peak_bytes"] <= 9000 * MIB


def test_a_whole_command_can_be_given_as_text(tmp_path: Path) -> None:
    text = GUIDE.replace("DeepSeek-R1-671B-IQ4_XS.gguf", str(deepseek.write(tmp_path / "r1.gguf")))
    result = CliRunner().invoke(doctor_cli.app, ["tensors", "--command", text, "--cores", "32", "--json"])
    data = json.loads(result.stdout)
    assert len(data["overrides"][0]["tensors"]) == 174
    assert [fault["verdict"] for fault in data["faults"]] == ["warn"]  # -fa followed by -fmoe


def test_no_model_is_a_user_error() -> None:
    with pytest.raises(K1Error, match="no model is named"):
        CliRunner().invoke(doctor_cli.app, ["tensors", "-ngl", "9"], catch_exceptions=False)
