"""Patch series: found in order, applied without fuzz, and refused with their rejects."""

from pathlib import Path

import pytest

from k1 import paths
from k1.errors import CheckFailed, K1Error
from k1.image import tree

PATCH = """\
--- a/ddr.c
+++ b/ddr.c
@@ -1,3 +1,3 @@
 init();
-odt(0x0000);
+odt(0x0003);
 done();
"""


def write_patch(folder: Path) -> Path:
    patch = folder / "odt.patch"
    patch.write_text(PATCH)
    return patch


def test_patch_changes_the_tree(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "ddr.c").write_text("init();\nodt(0x0000);\ndone();\n")
    tree.apply(write_patch(tmp_path), source, tmp_path / "log")
    assert "odt(0x0003);" in (source / "ddr.c").read_text()


def test_patch_that_would_need_fuzz_is_refused_with_its_reject(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "ddr.c").write_text("init(now);\nodt(0x0000);\ndone();\n")
    with pytest.raises(CheckFailed, match=r"odt\.patch does not apply without fuzz") as caught:
        tree.apply(write_patch(tmp_path), source, tmp_path / "log")
    assert "+odt(0x0003);" in str(caught.value)
    assert "FAILED at 1" in str(caught.value)


def test_series_gives_the_order_and_names_an_absent_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PATCHES", tmp_path)
    folder = tmp_path / "opensbi" / "virt"
    assert tree.series("opensbi", "virt") == []
    folder.mkdir(parents=True)
    for name in ("b.patch", "a.patch"):
        (folder / name).touch()
    (folder / "series").write_text("# comment\nb.patch\n\na.patch\n")
    assert [p.name for p in tree.series("opensbi", "virt")] == ["b.patch", "a.patch"]
    (folder / "series").write_text("c.patch\n")
    with pytest.raises(K1Error, match=r"series: c\.patch is listed but absent"):
        tree.series("opensbi", "virt")
