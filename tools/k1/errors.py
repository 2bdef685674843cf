"""The one error family of the tool, and its exit codes.

Library code raises `K1Error`; only `k1.cli.main` turns it into text and an exit code.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every k1 command."""

    OK = 0
    BUG = 1
    USER = 2
    WARNINGS = 3
    FAILURES = 4
    INTERRUPTED = 130


class K1Error(Exception):
    """Something the user can act on: what went wrong, where, and what to try.

    The message is one sentence that names the file, key or program concerned; `hint` says what to try.
    """

    exit_code: Exit = Exit.USER

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  try: {self.hint}" if self.hint else self.message


class CheckFailed(K1Error):
    """A check, a build or a boot ran and failed; the input may be fine."""

    exit_code = Exit.FAILURES
