"""Templates: rendered the same each time, never half, with faults named by template, line and variable."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
import pytest
from jinja2 import nodes
from typer.testing import CliRunner

from k1 import board as boards
from k1.cli.main import app
from k1.errors import K1Error
from k1.paths import REPO
from k1.render import Change, changes, diff, render, render_text

K1 = boards.load("k1")


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    folder = tmp_path / "templates"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc" / "mtu.conf.j2").write_text("mtu={{ board.network.mtu.value }}\n")
    (folder / "plain.txt").write_text("no template\n")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def listed(target: Path) -> list[str]:
    return sorted(p.relative_to(target).as_posix() for p in target.rglob("[!.]*") if p.is_file())


def test_templates_keep_their_place_and_lose_their_suffix(templates: Path, target: Path) -> None:
    assert render(K1, [templates], target) == [Change(Path("etc/mtu.conf"), "new")]
    assert listed(target) == ["etc/mtu.conf"]
    assert (target / "etc" / "mtu.conf").read_text() == "mtu=9000\n"


def test_a_second_call_touches_nothing(templates: Path, target: Path) -> None:
    render(K1, [templates], target)
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
    assert render(K1, [templates], target) == [Change(Path("etc/mtu.conf"), "same")]
    assert {path: path.stat().st_mtime_ns for path in target.rglob("*")} == before


def test_a_changed_template_changes_its_file_only(templates: Path, target: Path) -> None:
    (templates / "other.j2").write_text("x")
    render(K1, [templates], target)
    (templates / "other.j2").write_text("y")
    assert [change.status for change in render(K1, [templates], target)] == ["same", "changed"]
    assert (target / "other").read_text() == "y"


def test_a_hand_edited_file_is_put_right(templates: Path, target: Path) -> None:
    render(K1, [templates], target)
    (target / "etc" / "mtu.conf").write_text("mtu=1500\n")
    assert render(K1, [templates], target) == [Change(Path("etc/mtu.conf"), "changed")]


def test_the_file_of_a_template_that_is_gone_is_removed(templates: Path, target: Path) -> None:
    (templates / "top.j2").write_text("x")
    render(K1, [templates], target)
    (templates / "etc" / "mtu.conf.j2").unlink()
    assert render(K1, [templates], target) == [Change(Path("etc/mtu.conf"), "removed"), Change(Path("top"), "same")]
    assert not (target / "etc").exists()
    assert render(K1, [templates], target) == [Change(Path("top"), "same")]


def test_a_boards_own_template_hides_that_of_the_board_it_extends(
    templates: Path, target: Path, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (templates / "motd.j2").write_text("base")
    (own / "motd.j2").write_text("own")
    render(K1, [templates, own], target)
    assert listed(target) == ["etc/mtu.conf", "motd"]
    assert (target / "motd").read_text() == "own"


def test_files_of_others_in_the_target_are_left_alone(templates: Path, target: Path) -> None:
    (target / "etc").mkdir(parents=True)
    (target / "etc" / "mine").write_text("x")
    render(K1, [templates], target)
    (templates / "etc" / "mtu.conf.j2").unlink()
    render(K1, [templates], target)
    assert listed(target) == ["etc/mine"]


def test_an_executable_template_makes_an_executable_file(templates: Path, target: Path) -> None:
    (templates / "run.sh.j2").write_text("#!/bin/sh\n")
    render(K1, [templates], target)
    (templates / "run.sh.j2").chmod(0o755)
    assert render(K1, [templates], target)[1].status == "changed"
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o755


def test_blocks_leave_no_blank_lines_and_the_last_newline_stays(templates: Path) -> None:
    path = templates / "workers.j2"
    path.write_text("a\n  {% for cpu in board.cpu.worker_cpus.value %}\ncpu {{ cpu }}\n  {% endfor %}\nb\n")
    assert render_text(path, K1) == "a\ncpu 0\ncpu 2\nb\n"


def test_further_variables_are_for_the_caller_to_give(templates: Path) -> None:
    path = templates / "x.j2"
    path.write_text("{{ board.name }} {{ rank }}")
    assert render_text(path, K1, rank=3) == "k1 3"


FAULTS = [
    ("a\n{{ missing }}\n", 2, "'missing' is undefined"),
    ("a\n\n{{ board.cpu.isaa.value }}\n", 3, "has no attribute 'isaa'"),
    ("{{ board.ddr.arbitration_offset.value }}\n", 1, "in: {{ board.ddr.arbitration_offset.value }}"),
    ("a\n{% for %}\n", 2, "Expected an expression, got 'end of statement block'"),
    ("a\n{% if 1 %}\n", 2, "Unexpected end of template"),
    ("{{ 1 // 0 }}", 1, "integer division or modulo by zero"),
]


@pytest.mark.parametrize(("text", "line", "problem"), FAULTS)
def test_a_fault_names_template_line_and_variable(templates: Path, text: str, line: int, problem: str) -> None:
    path = templates / "bad.j2"
    path.write_text(text)
    with pytest.raises(K1Error) as caught:
        render_text(path, K1)
    assert caught.value.message.startswith(f"{path}:{line}: ")
    assert problem in caught.value.message


def test_a_template_that_is_not_text_is_refused(templates: Path) -> None:
    path = templates / "bad.j2"
    path.write_bytes(b"\xff")
    with pytest.raises(K1Error, match=r"bad.j2: not UTF-8 text \(byte 0\)"):
        render_text(path, K1)


def test_nothing_is_written_when_one_template_is_bad(templates: Path, target: Path) -> None:
    (templates / "z.j2").write_text("{{ missing }}")
    with pytest.raises(K1Error):
        render(K1, [templates], target)
    assert not target.exists()


def test_changes_and_diff_write_nothing(templates: Path, target: Path) -> None:
    assert changes(K1, [templates], target) == [Change(Path("etc/mtu.conf"), "new")]
    assert diff(K1, [templates], target) == "--- /dev/null\n+++ b/etc/mtu.conf\n@@ -0,0 +1 @@\n+mtu=9000\n"
    assert not target.exists()


def test_diff_shows_changed_and_removed_files(templates: Path, target: Path) -> None:
    (templates / "gone.j2").write_text("x")
    render(K1, [templates], target)
    assert diff(K1, [templates], target) == ""
    (templates / "gone.j2").unlink()
    (target / "etc" / "mtu.conf").write_text("mtu=1500\n")
    assert diff(K1, [templates], target) == (
        "--- a/etc/mtu.conf\n+++ b/etc/mtu.conf\n@@ -1 +1 @@\n-mtu=1500\n+mtu=9000\n"
        "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\\ No newline at end of file\n"
    )


# --- the templates of this repository


def repository_templates() -> list[Path]:
    folders = [path for path in REPO.iterdir() if path.is_dir() and path.name[0] != "." and path.name != "build"]
    return sorted(path for folder in folders for path in folder.rglob("*.j2"))


def logic(source: str) -> list[str]:
    """The statements of a template that are more than text, loops and conditions."""
    found = jinja2.Environment(autoescape=True).parse(source).find_all(nodes.Stmt)
    return [type(node).__name__ for node in found if not isinstance(node, nodes.Output | nodes.For | nodes.If)]


@pytest.mark.parametrize("path", repository_templates(), ids=lambda path: str(path.relative_to(REPO)))
def test_templates_hold_no_logic_beyond_loops_and_conditions(path: Path) -> None:
    assert logic(path.read_text()) == []


def test_logic_in_a_template_would_be_found() -> None:
    source = "{% set x = 1 %}{% macro m() %}{% endmacro %}{% for a in b %}{% include 'c' %}{% endfor %}"
    assert logic(source) == ["Assign", "Macro", "Include"]


@pytest.mark.parametrize("name", boards.names())
def test_the_templates_of_every_board_render(name: str, target: Path) -> None:
    board = boards.load(name)
    render(board, board.folders, target)


# --- the command


@pytest.fixture
def build(templates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the virtual board's files, with `templates` in place of the real ones."""
    monkeypatch.setattr(boards.Board, "folders", property(lambda _self: (templates,)))
    monkeypatch.setenv("K1_BUILD", str(tmp_path / "build"))
    return tmp_path / "build" / "virt" / "rendered"


def test_command_renders_into_the_build_folder(build: Path) -> None:
    result = CliRunner().invoke(app, ["render"], catch_exceptions=False)
    assert result.stdout.split() == ["new", "etc/mtu.conf"]
    assert listed(build) == ["etc/mtu.conf"]


def test_command_with_json_lists_changes(build: Path) -> None:
    result = CliRunner().invoke(app, ["render", "--json"], catch_exceptions=False)
    assert json.loads(result.stdout) == [{"path": "etc/mtu.conf", "status": "new"}]


def test_command_with_diff_prints_it_and_writes_nothing(build: Path) -> None:
    result = CliRunner().invoke(app, ["render", "--board", "virt", "--diff"], catch_exceptions=False)
    assert result.stdout == diff(K1, [build.parents[2] / "templates"], build)
    assert "+mtu=9000" in result.stdout
    assert not build.exists()
