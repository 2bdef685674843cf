"""A fragment line that Kconfig drops is an error, not a surprise at boot."""

from pathlib import Path

import pytest

from k1.errors import CheckFailed
from k1.image import kconfig


def test_dropped_and_changed_lines_are_named(tmp_path: Path) -> None:
    fragment, config = tmp_path / "linux.fragment", tmp_path / ".config"
    fragment.write_text(
        '# --- net\nCONFIG_NET=y\nCONFIG_GONE=y\n# CONFIG_MODULES is not set\nCONFIG_LOCALVERSION="-k1"\n'
    )
    config.write_text('CONFIG_NET=y\nCONFIG_MODULES=y\nCONFIG_LOCALVERSION="-k1"\n')
    with pytest.raises(CheckFailed) as caught:
        kconfig.check([fragment], config)
    assert "CONFIG_GONE asked y, got n" in str(caught.value)
    assert "CONFIG_MODULES asked n, got y" in str(caught.value)
    assert "CONFIG_NET" not in str(caught.value)


def test_a_kept_fragment_passes(tmp_path: Path) -> None:
    fragment, config = tmp_path / "f", tmp_path / ".config"
    fragment.write_text("CONFIG_NET=y\n# CONFIG_MODULES is not set\n")
    config.write_text("CONFIG_NET=y\n")
    kconfig.check([fragment], config)
