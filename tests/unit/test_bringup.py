"""The bring-up state machine on transcripts of consoles: each stage, each signature, at any cut of the bytes."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k1 import bringup, signatures, timeline
from k1.bootstate import READY, STAGES, Bringup
from k1.errors import K1Error

DATA = Path(__file__).parents[1] / "data" / "bringup"
KNOWLEDGE = signatures.load()
TRANSCRIPTS = sorted(path.stem for path in DATA.glob("*.txt"))


@dataclass
class Transcript:
    """What a board said and when, and what is to be found; `\\xNN` in a file is a byte."""

    expected: dict[str, str]
    parts: list[tuple[float, bytes]]

    @classmethod
    def load(cls, name: str) -> Transcript:
        lines = (DATA / f"{name}.txt").read_text().splitlines()
        expected = dict(re.fullmatch(r"# (\w+): ?(.*)", line).groups() for line in lines if line.startswith("#"))  # type: ignore[union-attr,misc]
        parts = []
        for line in lines[len(expected) :]:
            seconds, _, text = line.partition("|")
            data = re.sub(rb"\\x(..)", lambda found: bytes.fromhex(found[1].decode()), text.encode())
            # Prompts have no end of line.
            parts.append((float(seconds), data if text.endswith((": ", "=> ")) else data + b"\r\n"))
        return cls(expected, parts)


def run(transcript: Transcript, *, size: int = 1 << 16, until: str = READY) -> Bringup:
    """Play a transcript in pieces of `size` bytes, then let time pass until it is decided."""
    machine = Bringup(KNOWLEDGE, 0.0, until)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    now = 0.0
    for seconds, data in transcript.parts:
        while now < seconds and machine.state == "booting":
            now = min(now + 1, seconds)
            machine.tick(now)
        for at in range(0, len(data), size):
            machine.feed(decoder.decode(data[at : at + size]), now)
    while machine.state == "booting" and now < 1000:
        now += 1
        machine.tick(now)
    return machine


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_gives_its_state_signature_and_stage(name: str, size: int) -> None:
    transcript = Transcript.load(name)
    machine = run(transcript, size=size)
    expected = transcript.expected
    assert machine.state == expected["state"]
    assert (machine.failure.signature if machine.failure else "") == expected["signature"]
    assert machine.stage == expected["stage"]
    assert [finding.signature for finding in machine.findings] == expected.get("warnings", "").split()


def test_every_signature_and_every_late_stage_has_a_transcript() -> None:
    assert {*KNOWLEDGE.signatures, *(stage.signature for stage in KNOWLEDGE.stages.values()), "ready"} == set(
        TRANSCRIPTS
    )


def test_every_stage_is_known() -> None:
    assert tuple(KNOWLEDGE.stages) == STAGES


def test_times_count_from_the_power_and_grow() -> None:
    machine = run(Transcript.load("ready"))
    assert machine.reached == {
        "power on": 0.0,
        "OpenSBI": 0.0,
        "U-Boot": 0.9,
        "Linux": 2.7,
        "init": 5.2,
        "k1-inferd": 8.7,
    }


def test_a_known_power_on_is_where_times_begin() -> None:
    machine = Bringup(KNOWLEDGE, 100.0)
    machine.power(99.0)
    machine.feed("OpenSBI v1.2-4-gabcdef\r\n", 101.5)
    assert machine.reached == {"power on": 2.5, "OpenSBI": 2.5}


def test_until_login_does_not_wait_for_the_engine() -> None:
    machine = run(Transcript.load("no-inferd"), until="login")
    assert (machine.state, machine.stage) == ("ready", "login")


def test_a_restart_forgets_what_was_reached() -> None:
    machine = Bringup(KNOWLEDGE, 0.0)
    for now, text in ((1, "OpenSBI v1.2\n"), (2, "U-Boot 2023.01\n"), (3, "OpenSBI v1.2\n")):
        machine.feed(text, now)
    assert (machine.stage, machine.restarts, machine.state) == ("OpenSBI", 1, "booting")


def test_escape_sequences_do_not_hide_a_stage() -> None:
    machine = Bringup(KNOWLEDGE, 0.0)
    machine.feed("\x1b[2J\x1b[0;1mOpenSBI\x1b[0m v1.2\r\n", 1.0)
    assert machine.stage == "OpenSBI"


def test_a_board_that_goes_off_has_failed() -> None:
    machine = Bringup(KNOWLEDGE, 0.0)
    machine.feed("OpenSBI v1.2\n", 1.0)
    machine.end(2.0)
    assert machine.failure
    assert (machine.failure.signature, machine.waits_for) == ("went-off", "U-Boot")


@given(st.lists(st.text(max_size=50), max_size=20))
def test_no_output_breaks_the_machine(parts: list[str]) -> None:
    machine = Bringup(KNOWLEDGE, 0.0)
    for now, part in enumerate(parts):
        machine.feed(part, now)
        machine.tick(now)


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    machine = Bringup(KNOWLEDGE, 0.0)
    for now in range(100):
        machine.feed("x" * 1000, now / 100)
    assert sum(map(len, machine.tail)) + len(machine._partial) < 100_000


def test_a_board_that_never_stops_talking_is_late_all_the_same() -> None:
    class Babbler:
        is_on = True

        def read(self, timeout: float) -> bytes:
            return b"pause\n"

    quick = {name: stage.model_copy(update={"deadline_s": 0.2}) for name, stage in KNOWLEDGE.stages.items()}
    knowledge = KNOWLEDGE.model_copy(update={"stages": quick})
    (machine,) = bringup.watch([bringup.Board("x", Babbler())], knowledge)  # type: ignore[arg-type]
    assert machine.failure
    assert machine.failure.signature == "no-opensbi"


def test_time_outs_grow_on_slow_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K1_TIMEOUT_SCALE", "10")
    machine = Bringup(KNOWLEDGE, 0.0)
    machine.tick(KNOWLEDGE.stages["power on"].deadline_s * 5)
    assert machine.state == "booting"


# --- the data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pattern": "DDR("}, "signatures.x.pattern: cannot be compiled"),
        ({"test": "all is well"}, "signatures.x.test: is not matched by pattern"),
        ({"verdict": "maybe"}, "signatures.x.verdict: wrong value"),
        ({"colour": "red"}, "signatures.x.colour: unknown key"),
        ({"cause": " "}, "signatures.x.cause: wrong value"),
    ],
)
def test_a_faulty_signature_is_told_by_file_and_key(tmp_path: Path, change: dict[str, str], message: str) -> None:
    values = {"pattern": "DDR", "verdict": "failure", "cause": "c", "remedy": "r", "test": "DDR"} | change
    path = tmp_path / "signatures.toml"
    path.write_text("[stages]\n[signatures.x]\n" + "".join(f'{key} = "{value}"\n' for key, value in values.items()))
    with pytest.raises(K1Error, match=re.escape(message)):
        signatures.load(path)


# --- the picture


def test_the_timeline_is_svg_with_a_bar_for_each_stage_and_board() -> None:
    boards = {"k1 <0>": {"power on": 0.0, "OpenSBI": 0.4, "U-Boot": 1.0}, "k1 & 1": {"power on": 0.0}}
    picture = timeline.svg(boards, {"k1 & 1": "ddr-init-failed"}, STAGES)
    root = ElementTree.fromstring(picture)  # noqa: S314 - our own
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"k1 <0>", "k1 & 1", "✗ ddr-init-failed", *STAGES} <= set(texts)
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("aria-label")]
    assert [bar.get("aria-label") for bar in bars] == [
        "power on 0.00 s",
        "OpenSBI 0.40 s",
        "U-Boot 1.00 s",
        "power on 0.00 s",
    ]
    right = [float(bar.get("x", 0)) + float(bar.get("width", 0)) for bar in bars]
    assert right[2] == 960.0


def test_boards_that_said_nothing_still_make_a_picture() -> None:
    ElementTree.fromstring(timeline.svg({"a": {}}, {"a": "silence"}, STAGES))  # noqa: S314
