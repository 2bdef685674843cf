"""DFU suffixes, and the descriptors that tell what a device can do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulators.dfu import CAN_DOWNLOAD, CAN_UPLOAD, TOLERANT, Board, State
from k1 import board as boards
from k1 import flash
from k1.drivers import dfu, usb
from k1.errors import K1Error


@given(st.binary(max_size=300), st.from_regex(r"[0-9a-f]{4}:[0-9a-f]{4}", fullmatch=True))
def test_a_suffix_comes_off_as_it_went_on(data: bytes, usb_id: str) -> None:
    assert dfu.split(dfu.join(data, usb_id), "x") == (data, usb_id)


def test_dfu_suffix_agrees(tmp_path: Path) -> None:
    path = tmp_path / "x.dfu"
    path.write_bytes(dfu.join(b"firmware", "1234:5678"))
    result = subprocess.run(["dfu-suffix", "-c", path], capture_output=True, text=True, check=True)
    assert "Product ID:\t0x5678\nVendor ID:\t0x1234\n" in result.stdout


def test_a_damaged_file_with_suffix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.dfu"
    whole = bytearray(dfu.join(b"firmware", "1234:5678"))
    whole[2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(K1Error, match=r"x\.dfu: damaged: the checksum in its DFU suffix is wrong"):
        flash.firmware(boards.load("k1"), path, any_file=True)


def test_a_file_for_another_device_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.dfu"
    path.write_bytes(dfu.join(b"firmware", "0483:df11"))
    with pytest.raises(K1Error, match=r"is for the device 0483:df11, not for 1234:5678 \(k1\)"):
        flash.firmware(boards.load("k1"), path, any_file=True)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").touch()
    with pytest.raises(K1Error, match=r"x\.bin: is empty"):
        flash.firmware(boards.load("k1"), tmp_path / "x.bin", any_file=True)


def test_a_file_that_is_only_a_suffix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.dfu").write_bytes(dfu.join(b"", "1234:5678"))
    with pytest.raises(K1Error, match=r"x\.dfu: is empty but for its DFU suffix"):
        flash.firmware(boards.load("k1"), tmp_path / "x.dfu", any_file=True)


def test_no_built_firmware_says_how_to_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K1_BUILD", str(tmp_path))
    with pytest.raises(K1Error, match=r"opensbi-k1-fixed\.bin: no such file\n  try: make image BOARD=k1, or --file"):
        flash.firmware(boards.load("k1"), None)


@pytest.mark.parametrize("text", ["[]", "{", '{"images": 3}', '{"images": {"a": {}}}'])
def test_a_damaged_manifest_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("K1_BUILD", str(tmp_path))
    images = tmp_path / "k1" / "images"
    images.mkdir(parents=True)
    (images / "opensbi-k1-fixed.bin").write_bytes(b"x")
    (images / "manifest.json").write_text(text)
    with pytest.raises(K1Error, match=r"manifest\.json: damaged: no list of images"):
        flash.firmware(boards.load("k1"), None)


def test_descriptors_tell_what_the_download_interface_can() -> None:
    assert usb.parse_dfu(Board(attributes=CAN_DOWNLOAD | CAN_UPLOAD | TOLERANT).descriptors()) == usb.Dfu(
        False, True, True
    )
    assert usb.parse_dfu(Board(state=State.APP_IDLE).descriptors()) == usb.Dfu(True, False, False)


@given(st.binary(max_size=100))
def test_no_descriptors_are_too_strange(data: bytes) -> None:
    usb.parse_dfu(data)
