"""The one place that starts programs.

A program that is missing is named with its Debian package; one that fails carries its result on the
exception; one that is running when the user presses Ctrl-C is ended with all its children.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from k1.errors import CheckFailed, K1Error
from k1.paths import REPO

_TAIL = 20
_running: set[subprocess.Popen[str]] = set()
# What a calling make, or a user's habit of building kernels, would smuggle into the builds that k1 starts.
_NOT_INHERITED = {
    *("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL"),
    *("KBUILD_OUTPUT", "KCONFIG_CONFIG", "KCFLAGS", "KAFLAGS", "LOCALVERSION"),
}
# What tells the cause in the output of a compiler or make; with -j it stands far above the end.
_TROUBLE = re.compile(r"\berror:|\bfatal:|No space left on device|cannot stat|undefined reference")


@dataclass(frozen=True)
class Result:
    """How a program ended. `output` is stdout; with a log, the lines of it that matter when it failed."""

    argv: tuple[str, ...]
    returncode: int
    output: str
    stderr: str
    seconds: float


class CommandError(CheckFailed):
    """A program ended with a non-zero status; `result` holds everything known about it."""

    def __init__(self, result: Result, log: Path | None = None) -> None:
        self.result = result
        lines = (result.stderr or result.output).rstrip().splitlines()[-_TAIL:]
        text = "".join(f"\n  | {line}" for line in lines)
        hint = f"see {log}" if log else ""
        if any("No space left on device" in line for line in lines):
            hint = "free some disk space and call again; finished steps are kept"
        command = shlex.join(result.argv[:6]) + (" …" if len(result.argv) > 6 else "")
        super().__init__(f"{command} failed with status {result.returncode}{text}", hint=hint)


class CommandTimeout(CheckFailed):
    """A program did not end within its time."""


@cache
def debian_packages() -> dict[str, str]:
    """Program name → the Debian package that brings it, from packaging/debian-packages.txt."""
    found: dict[str, str] = {}
    for line in (REPO / "packaging" / "debian-packages.txt").read_text().splitlines():
        package, *programs = line.split("#")[0].split() or [""]
        found.update(dict.fromkeys(programs, package))
    return found


def require(program: str) -> str:
    """Path of `program`, or an error that names the Debian package to install."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if found:
        return found
    package = debian_packages().get(program)
    hint = f"apt install {package} (or: make setup)" if package else f"install {program}"
    raise K1Error(f"{program} is not installed", hint=hint)


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | Path | None = None,
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    check: bool = True,
    timeout: float | None = None,
) -> Result:
    """Run a program to its end.

    env: added to the inherited environment.
    stdin: text, or a file, for its standard input; none means /dev/null.
    log: file that takes stdout and stderr together, line by line.
    on_line: sees each line of that, or without `log` of stdout, as it comes; a carriage return ends a line too.
    check: raise `CommandError` on a non-zero status.
    timeout: seconds, after which it is ended and `CommandTimeout` raised (not together with `log`).
    """
    words = [require(str(argv[0])), *map(str, argv[1:])]
    started = time.monotonic()
    text = stdin if isinstance(stdin, str) else None
    with Path(stdin if isinstance(stdin, Path) else os.devnull).open("rb") as source:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=_environment(env),
            stdin=source if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if log else subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    _running.add(process)
    try:
        if log:
            output, stderr = _follow(process, log, on_line), ""
        elif on_line:
            output, stderr = _stream(process, on_line, timeout)
        else:
            output, stderr = process.communicate(text, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise CommandTimeout(f"{shlex.join(words[:4])} did not end within {timeout:.0f} s") from error
    finally:
        _end(process)
        _running.discard(process)
    result = Result(tuple(map(str, argv)), process.returncode, output, stderr, time.monotonic() - started)
    if check and result.returncode != 0:
        raise CommandError(result, log)
    return result


def end_all() -> None:
    """End the programs that other threads run: Ctrl-C reaches only the main one."""
    for process in tuple(_running):
        _end(process)


def run_attached(argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
    """Run a program that talks to the user's terminal, such as a menu. A non-zero status is a `CommandError`."""
    words = [require(str(argv[0])), *map(str, argv[1:])]
    started = time.monotonic()
    status = subprocess.run(words, env=_environment(env)).returncode
    if status != 0:
        raise CommandError(Result(tuple(map(str, argv)), status, "", "", time.monotonic() - started))


@contextmanager
def background(argv: Sequence[str | Path], *, stdin: str = "") -> Iterator[None]:
    """Run a program while the block runs: it gets `stdin`, and its input ends with the block; then it is ended."""
    words = [require(str(argv[0])), *map(str, argv[1:])]
    process = subprocess.Popen(
        words,
        env=_environment(None),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(stdin)
            process.stdin.flush()
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
        _end(process)


def _environment(added: Mapping[str, str] | None) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED} | dict(added or {})


def _follow(process: subprocess.Popen[str], log: Path, on_line: Callable[[str], None] | None) -> str:
    """Copy the program's output to `log`; return the lines that tell of trouble, else the last ones."""
    log.parent.mkdir(parents=True, exist_ok=True)
    trouble: list[str] = []
    tail: deque[str] = deque(maxlen=_TAIL)
    assert process.stdout is not None
    with log.open("a", buffering=1) as stream:
        for line in process.stdout:
            stream.write(line)
            tail.append(line)
            if len(trouble) < _TAIL and _TROUBLE.search(line):
                trouble.append(line)
            if on_line:
                on_line(line.rstrip())
    process.wait()
    return "".join(trouble or tail)


def _stream(process: subprocess.Popen[str], on_line: Callable[[str], None], timeout: float | None) -> tuple[str, str]:
    """Hand on stdout line by line; stderr is kept apart, for its lines would land in the middle of others."""
    assert process.stdout is not None
    assert process.stderr is not None
    errors, late = deque[str](), threading.Event()

    def expire() -> None:
        late.set()
        _end(process)

    clock = threading.Timer(timeout or 0, expire)
    reader = threading.Thread(target=lambda stream: errors.append(stream.read()), args=(process.stderr,), daemon=True)
    reader.start()
    if timeout is not None:
        clock.start()
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            on_line(line.rstrip("\n"))
        process.wait()
    finally:
        clock.cancel()
    if late.is_set():
        raise subprocess.TimeoutExpired(process.args, timeout or 0)
    reader.join()
    return "".join(lines), "".join(errors)


def _end(process: subprocess.Popen[str]) -> None:
    """End the program's whole session if it still runs."""
    if process.poll() is not None:
        return
    try:
        _signal(process, signal.SIGTERM)
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also when the user presses Ctrl-C again
        if process.poll() is None:
            _signal(process, signal.SIGKILL)
            process.wait(5.0)


def _signal(process: subprocess.Popen[str], sign: signal.Signals) -> None:
    # While another thread waits for the program poll() does not tell that it has ended.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, sign)
