"""The tokenizer in C against tokenizers (BPE) and sentencepiece (SPM), which get the same vocabularies."""

from __future__ import annotations

import io
import json
import random
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader, GGUFWriter, TokenType
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = Path(__file__).parents[1] / "data" / "tokenizer" / "words.txt"
LINES = 2000
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER = ("<tool", "<tool_call>", "   ")

# As in the models' tokenizer.json.
LLAMA_BPE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN2 = LLAMA_BPE.replace("{1,3}", "")


def words() -> dict[str, list[str]]:
    """Kinds of words, with the escapes of spaces and controls decoded."""
    kinds = {}
    for line in WORDS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            kind, _, rest = line.partition(": ")
            found = rest.split(" ")
            if kind in ("spaces", "controls"):
                found = [word.encode("ascii").decode("unicode_escape") for word in found]
            kinds[kind] = found
    return kinds


def make_lines(seed: int, count: int = LINES) -> list[str]:
    """Texts of mixed scripts; the same for the same seed."""
    chance = random.Random(seed)
    kinds = words()
    lines = []
    for _ in range(count):
        chosen = chance.choices(list(kinds), k=chance.randint(1, 3)) + ["english", "spaces"]
        text = ""
        for _ in range(chance.randint(0, 14)):
            text += chance.choice(kinds[chance.choice(chosen)])
            text += chance.choices(("", " ", "  ", "\n", chance.choice(kinds["spaces"])), (4, 10, 1, 1, 1))[0]
        lines.append(text)
    return lines


def break_bytes(lines: Iterable[str], seed: int) -> Iterator[bytes]:
    """The texts as UTF-8 with bytes changed, added and taken out."""
    chance = random.Random(seed)
    for line in lines:
        data = bytearray(line.encode())
        for _ in range(chance.randint(1, 6)):
            at = chance.randint(0, len(data))
            data[at : at + chance.randint(0, 2)] = bytes(chance.choices(range(256), k=chance.randint(0, 3)))
        yield bytes(data)


class Encoded:
    """What the C side makes of one text: ids, and the text it shows for them."""

    def __init__(self, line: str) -> None:
        ids, _, text = line.partition("\t")
        self.ids = [int(number) for number in ids.split()]
        self.text = bytes.fromhex(text)


Encode = Callable[..., list[Encoded]]


@pytest.fixture(scope="session")
def encode(userland_build: Path) -> Encode:
    """Encode texts with the vocabulary of a GGUF file by the C tokenizer."""

    def run(model: Path, texts: Sequence[str | bytes], *, special: bool = True) -> list[Encoded]:
        data = [text.encode() if isinstance(text, str) else text for text in texts]
        stdin = b"".join(struct.pack("<I", len(text)) + text for text in data)
        argv = [userland_build / "tests" / "tokenize", model] + ["--special"] * special
        done = subprocess.run(argv, input=stdin, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        lines = done.stdout.decode("ascii").split("\n")[:-1]
        assert len(lines) == len(texts)
        return [Encoded(line) for line in lines]

    return run


def byte_level(use_regex: bool = True) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern: str) -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)])


PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "gpt-2": byte_level,
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]),
    "llama-bpe": lambda: split(LLAMA_BPE),
    "qwen2": lambda: split(QWEN2),
}


def make_oracle(pre: str, vocab: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    oracle = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    oracle.pre_tokenizer = PRE_TOKENIZERS[pre]()
    oracle.decoder = decoders.ByteLevel()
    return oracle


def add_tokens(oracle: Any, control: Iterable[str], user: Iterable[str] = ()) -> None:
    oracle.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in control])
    oracle.add_tokens([AddedToken(text, normalized=False) for text in user])


def strings(reader: GGUFReader, key: str) -> list[str]:
    return reader.fields[f"tokenizer.ggml.{key}"].contents()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def smollm2_oracle(smollm2: Path) -> Any:
    """A tokenizer from the vocabulary in the file."""
    reader = GGUFReader(smollm2)
    tokens, types = strings(reader, "tokens"), strings(reader, "token_type")
    merges = [tuple(merge.split(" ")) for merge in strings(reader, "merges")]
    oracle = make_oracle("smollm", {text: i for i, text in enumerate(tokens)}, merges)  # type: ignore[arg-type]
    add_tokens(oracle, [t for t, kind in zip(tokens, types, strict=True) if kind == TokenType.CONTROL])
    return oracle


class Trained:
    """A small BPE vocabulary, as a GGUF file and as its oracle."""

    def __init__(self, pre: str, folder: Path) -> None:
        trainer = trainers.BpeTrainer(
            vocab_size=2500,
            special_tokens=list(CONTROL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        teacher = make_oracle(pre, {}, [])
        teacher.train_from_iterator(make_lines(seed=1), trainer)
        vocab = teacher.get_vocab()
        # Tokens that no merge makes: only Llama 3 finds them.
        for text in ("Ġheartbeat", "watching"):
            vocab.setdefault(text, len(vocab))
        merges = [tuple(merge) for merge in json.loads(teacher.to_str())["model"]["merges"]]
        self.oracle = make_oracle(pre, vocab, merges)
        add_tokens(self.oracle, CONTROL, USER)
        self.path = folder / f"{pre}.gguf"
        write_bpe(self.path, pre, self.oracle, merges)


def write_bpe(path: Path, pre: str, oracle: Any, merges: Iterable[tuple[str, str]]) -> None:
    vocab = oracle.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = dict.fromkeys(CONTROL, TokenType.CONTROL) | dict.fromkeys(USER, TokenType.USER_DEFINED)
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    finish(writer)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module", params=["gpt-2", "llama-bpe", "qwen2", "smollm"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(request.param, tmp_path_factory.mktemp("bpe"))


def assert_same(oracle: Any, texts: Sequence[str], got: Sequence[Encoded]) -> None:
    for text, encoded in zip(texts, got, strict=True):
        assert encoded.ids == oracle.encode(text, add_special_tokens=False).ids, repr(text)


def with_special(lines: Sequence[str], seed: int) -> list[str]:
    """The lines with added tokens strewn in, whole and cut."""
    chance = random.Random(seed)
    texts = []
    for line in lines:
        at = chance.randint(0, len(line))
        token = chance.choice(CONTROL + USER)
        texts.append(line[:at] + token[: chance.choice((len(token), len(token), len(token) - 1))] + line[at:])
    return texts


def token_bytes(oracle: Any, ids: Iterable[int]) -> bytes:
    """What byte-level tokens stand for, also where that is no UTF-8."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
    tokens = [oracle.id_to_token(i) for i in ids]
    return b"".join(t.encode() if t in CONTROL + USER else bytes(spelled[character] for character in t) for t in tokens)


def test_smollm2_agrees_with_tokenizers_on_mixed_text(smollm2: Path, smollm2_oracle: Any, encode: Encode) -> None:
    lines = make_lines(seed=2)
    assert_same(smollm2_oracle, lines, encode(smollm2, lines))


def test_smollm2_text_survives(smollm2: Path, encode: Encode) -> None:
    # Its vocabulary lacks tokens for some control characters and for bytes that UTF-8 hardly uses.
    lines = [line for line in make_lines(seed=3) if not set("\x04\x06\x13\x14\x1d\U000e0001\U0010ffff") & set(line)]
    assert len(lines) > LINES // 2
    assert [encoded.text.decode() for encoded in encode(smollm2, lines)] == lines


def test_smollm2_special_tokens_count_only_when_asked(smollm2: Path, smollm2_oracle: Any, encode: Encode) -> None:
    texts = with_special(make_lines(seed=4), seed=5)
    assert_same(smollm2_oracle, texts, encode(smollm2, texts))
    for encoded in encode(smollm2, texts, special=False):
        assert not set(encoded.ids) & set(range(17))


def test_trained_vocabularies_agree_with_tokenizers_on_mixed_text(trained: Trained, encode: Encode) -> None:
    lines = make_lines(seed=6)
    got = encode(trained.path, lines)
    assert_same(trained.oracle, lines, got)
    assert [encoded.text.decode() for encoded in got] == lines


def test_added_tokens_agree_with_tokenizers(trained: Trained, encode: Encode) -> None:
    texts = with_special(make_lines(seed=7, count=500), seed=8)
    assert_same(trained.oracle, texts, encode(trained.path, texts))


def test_control_tokens_as_text_agree_with_tokenizers(trained: Trained, encode: Encode) -> None:
    texts = with_special(make_lines(seed=9, count=500), seed=10)
    trained.oracle.encode_special_tokens = True
    try:
        assert_same(trained.oracle, texts, encode(trained.path, texts, special=False))
    finally:
        trained.oracle.encode_special_tokens = False


def test_broken_utf8_is_encoded_byte_for_byte(trained: Trained, encode: Encode) -> None:
    texts = list(break_bytes(make_lines(seed=11), seed=12))
    for text, encoded in zip(texts, encode(trained.path, texts), strict=True):
        assert token_bytes(trained.oracle, encoded.ids) == text
        assert encoded.text.decode() == text.decode(errors="replace")


@pytest.mark.parametrize("text", ["Z" * 131072, " " * 131072, "\n \t" * 43690 + "x", "1" * 131072, "<tool" * 26214])
def test_long_runs_agree_with_tokenizers(trained: Trained, encode: Encode, text: str) -> None:
    assert_same(trained.oracle, [text], encode(trained.path, [text]))


class SentencePiece:
    """A small SentencePiece vocabulary, as a GGUF file and as its oracle."""

    def __init__(self, path: Path, *, byte_fallback: bool = True, space_prefix: bool = True) -> None:
        # As in Gemma, which has tokens for runs of spaces and no space in front.
        self.user = ["<tool", "<tool_call>"] + ["▁▁▁"] * (not space_prefix)
        trained = io.BytesIO()
        SentencePieceTrainer.train(
            sentence_iterator=iter(line.replace("\n", " ").replace("\0", "") for line in make_lines(seed=13)),
            model_writer=trained,
            model_type="bpe",
            vocab_size=2500,
            character_coverage=0.98,
            byte_fallback=byte_fallback,
            add_dummy_prefix=space_prefix,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            user_defined_symbols=self.user,
            num_threads=1,
            minloglevel=2,
        )
        self.oracle = SentencePieceProcessor(model_proto=trained.getvalue())
        self.path = path
        self.write(space_prefix)

    def write(self, space_prefix: bool) -> None:
        ids = range(self.oracle.get_piece_size())
        writer = GGUFWriter(self.path, "llama")
        writer.add_tokenizer_model("llama")
        writer.add_token_list([self.oracle.id_to_piece(i) for i in ids])
        writer.add_token_scores([self.oracle.get_score(i) for i in ids])
        writer.add_token_types([self.kind(i) for i in ids])
        writer.add_add_space_prefix(space_prefix)
        finish(writer)

    def kind(self, i: int) -> TokenType:
        if self.oracle.is_unknown(i):
            return TokenType.UNKNOWN
        if self.oracle.is_control(i):
            return TokenType.CONTROL
        if self.oracle.is_byte(i):
            return TokenType.BYTE
        return TokenType.USER_DEFINED if self.oracle.id_to_piece(i) in self.user else TokenType.NORMAL

    def agree(self, texts: Sequence[str], got: Sequence[Encoded]) -> None:
        for text, encoded in zip(texts, got, strict=True):
            assert encoded.ids == self.oracle.encode(text), repr(text)


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> SentencePiece:
    return SentencePiece(tmp_path_factory.mktemp("spm") / "spm.gguf")


def test_spm_agrees_with_sentencepiece_on_mixed_text(spm: SentencePiece, encode: Encode) -> None:
    lines = make_lines(seed=14)
    got = encode(spm.path, lines, special=False)
    spm.agree(lines, got)
    assert [encoded.text.decode() for encoded in got] == lines


def test_spm_user_tokens_agree_with_sentencepiece(spm: SentencePiece, encode: Encode) -> None:
    texts = with_special(make_lines(seed=15, count=500), seed=16)
    spm.agree(texts, encode(spm.path, texts, special=False))


@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("space_prefix", [True, False])
def test_spm_variants_agree_with_sentencepiece(
    tmp_path: Path, encode: Encode, byte_fallback: bool, space_prefix: bool
) -> None:
    spm = SentencePiece(tmp_path / "spm.gguf", byte_fallback=byte_fallback, space_prefix=space_prefix)
    lines = make_lines(seed=17, count=500)
    spm.agree(lines, encode(spm.path, lines, special=False))


def test_spm_encodes_broken_utf8_byte_for_byte(spm: SentencePiece, encode: Encode) -> None:
    texts = list(break_bytes(make_lines(seed=18), seed=19))
    for text, encoded in zip(texts, encode(spm.path, texts, special=False), strict=True):
        assert spm_bytes(spm.oracle, encoded.ids) == (b" " + text if text else b"")
        assert encoded.text.decode() == text.decode(errors="replace")


def spm_bytes(oracle: Any, ids: Iterable[int]) -> bytes:
    pieces = (oracle.id_to_piece(i) for i in ids)
    return b"".join(
        bytes.fromhex(p[3:5]) if oracle.is_byte(oracle.piece_to_id(p)) else p.replace("▁", " ").encode() for p in pieces
    )


@pytest.mark.parametrize("text", ["Z" * 131072, " " * 131072, "\U0001f680" * 32768])
def test_spm_long_runs_agree_with_sentencepiece(spm: SentencePiece, encode: Encode, text: str) -> None:
    spm.agree([text], encode(spm.path, [text], special=False))
