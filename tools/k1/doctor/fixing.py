"""Applying the safe fixes, so that each can be undone."""

from __future__ import annotations

import shlex
from pathlib import Path

from k1 import files
from k1.doctor.check import Finding, Fix
from k1.doctor.system import System
from k1.errors import K1Error

UNDO = "/var/lib/k1/doctor-undo.sh"
_HEAD = "#!/bin/sh\n# Undoes what `k1 doctor --fix` did, the newest first.\n"
# Written in place: a file of the kernel cannot be replaced by another.
_KERNEL = ("/proc/", "/sys/")


def safe(findings: list[Finding]) -> list[Fix]:
    """The fixes that can be applied, each once, in the order of the findings."""
    return list(dict.fromkeys(fix for finding in findings for fix in finding.fixes if fix.writes))


def undo_commands(system: System, fix: Fix) -> list[str]:
    """Shell commands that bring back what the fix is about to overwrite."""
    return [_undo(system, name) for name, _ in fix.writes]


def _undo(system: System, name: str) -> str:
    old, path = system.find(name), shlex.quote(name)
    if old is not None:
        # The mode of a transparent huge page file is read as a list with the chosen one in brackets.
        chosen = old.split("[")[1].split("]")[0] if name.startswith("/sys/") and "[" in old else old
        return f"printf '%s\\n' {shlex.quote(chosen)} >{path}"
    if name.startswith(_KERNEL):
        return f"# {name} starts an action and keeps nothing: there is nothing to undo"
    return f"rm -f {path}"


def apply(system: System, fix: Fix) -> None:
    """Write the fix's files on this machine, after noting in `UNDO` how to go back."""
    note = system.path(UNDO)
    before = note.read_text().removeprefix(_HEAD) if note.is_file() else ""
    lines = "".join(f"{line}\n" for line in undo_commands(system, fix))
    try:
        # Newest first, so that running all of it ends with what was there before the first.
        files.write(note, _HEAD + lines + before, mode=0o755)
        for name, content in fix.writes:
            _write(system.path(name), content, in_place=name.startswith(_KERNEL))
    except PermissionError as error:
        raise K1Error(f"{error.filename}: not allowed", hint="run `sudo k1 doctor --fix`") from error


def _write(path: Path, content: str, *, in_place: bool) -> None:
    if in_place:
        path.write_text(content)
    else:
        files.write(path, content)
