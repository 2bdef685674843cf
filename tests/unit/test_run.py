"""Starting programs: their results, failures and ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k1 import run as runner
from k1.errors import Exit, K1Error
from k1.run import CommandError, CommandTimeout, run, run_attached


def test_result_holds_output_and_status() -> None:
    result = run(["sh", "-c", "echo out; echo err >&2; exit 3"], check=False)
    assert (result.returncode, result.output, result.stderr) == (3, "out\n", "err\n")


def test_failure_shows_the_command_and_its_last_words() -> None:
    with pytest.raises(CommandError, match=r"sh -c .* failed with status 4") as caught:
        run(["sh", "-c", "echo no such board >&2; exit 4"])
    assert "| no such board" in str(caught.value)
    assert caught.value.result.returncode == 4
    assert caught.value.exit_code == Exit.FAILURES


def test_log_takes_every_line_and_the_error_names_it(tmp_path: Path) -> None:
    log, seen = tmp_path / "logs" / "x.log", []
    with pytest.raises(CommandError, match=r"x\.log"):
        run(["sh", "-c", "seq 50; exit 1"], log=log, on_line=seen.append)
    assert log.read_text().split() == seen == [str(i) for i in range(1, 51)]


def test_the_cause_is_shown_although_it_stands_far_above_the_end(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"filter\.c:83:10: fatal error: no such header") as caught:
        run(["sh", "-c", "echo 'filter.c:83:10: fatal error: no such header'; seq 99; exit 2"], log=tmp_path / "log")
    assert "| 99" not in str(caught.value)


def test_full_disk_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="free some disk space"):
        run(["sh", "-c", "cat /proc/version > /dev/full"], log=tmp_path / "log")


def test_text_or_file_as_input(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_text("from a file")
    assert run(["cat"], stdin="a text").output == "a text"
    assert run(["cat"], stdin=file).output == "from a file"
    assert run(["cat"]).output == ""


def test_settings_of_a_calling_make_do_not_reach_what_we_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAKEFLAGS", " -- BOARD=virt")
    monkeypatch.setenv("KCFLAGS", "-O0")
    assert run(["sh", "-c", 'echo "[$MAKEFLAGS$KCFLAGS]"']).output == "[]\n"


def test_missing_program_names_its_debian_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.shutil, "which", lambda *_args, **_options: None)
    with pytest.raises(K1Error, match="qemu-system-riscv64 is not installed") as caught:
        run(["qemu-system-riscv64"])
    assert "apt install qemu-system-misc" in caught.value.hint
    with pytest.raises(K1Error, match="install frobnicate"):
        run(["frobnicate"])


def test_timeout_ends_the_program() -> None:
    started = time.monotonic()
    with pytest.raises(CommandTimeout, match="sleep 60"):
        run(["sleep", "60"], timeout=0.2)
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("with_log", [False, True])
def test_interrupt_ends_the_children_too(tmp_path: Path, with_log: bool) -> None:
    pid_file = tmp_path / "pid"
    log = f"pathlib.Path({str(tmp_path / 'log')!r})" if with_log else "None"
    script = (
        "import pathlib; from k1.run import run; "
        f"run(['sh', '-c', 'sleep 300 & echo $! > \"{pid_file}\"; wait'], log={log})"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert not _alive(int(pid_file.read_text()))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_an_attached_program_has_the_terminal_and_its_failure_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    run_attached(["sh", "-c", "echo menu"])
    assert capfd.readouterr().out == "menu\n"
    with pytest.raises(CommandError, match="failed with status 3"):
        run_attached(["sh", "-c", "exit 3"])


def test_an_attached_program_that_is_missing_is_named() -> None:
    with pytest.raises(K1Error, match="no-such-program is not installed"):
        run_attached(["no-such-program"])


def test_lines_are_seen_as_they_come_and_stderr_is_kept_apart() -> None:
    seen: list[tuple[str, float]] = []
    started = time.monotonic()
    script = r"printf 'a\rb\n'; echo trouble >&2; sleep 1; echo c; exit 3"
    result = run(["sh", "-c", script], on_line=lambda line: seen.append((line, time.monotonic())), check=False)
    assert [line for line, _ in seen] == ["a", "b", "c"]
    assert seen[0][1] - started < 0.9
    assert (result.returncode, result.output, result.stderr) == (3, "a\nb\nc\n", "trouble\n")


def test_a_program_whose_lines_are_followed_ends_at_its_time() -> None:
    seen: list[str] = []
    with pytest.raises(CommandTimeout, match="did not end within 0 s"):
        run(["sh", "-c", "echo a; sleep 30"], on_line=seen.append, timeout=0.4)
    assert seen == ["a"]
