"""The checks of one machine as a bash script, for boxes without Python."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from k1.board import Board
from k1.doctor import k1node, system
from k1.doctor.catalogue import TOPICS
from k1.doctor.check import Check, Limits
from k1.render import render_text

_TEMPLATE = Path(__file__).parents[1] / "data" / "doctor" / "script.sh.j2"


def render(limits: Limits, board: Board) -> str:
    """The script's text. Causes, fixes and tools are those of the checks; only the way to look is written in bash."""
    return render_text(
        _TEMPLATE,
        board,
        limits=limits,
        checks=[_texts(topic, check) for topic, checks in TOPICS.items() for check in checks],
        tools=[(name, " ".join(map(bash_word, argv))) for name, argv in sorted(system.TOOLS.items())],
        folder=system.TOOL_FOLDER,
        seconds=f"{system.TOOL_SECONDS:.0f}",
        oldest_clock=k1node.OLDEST_CLOCK,
    )


def _texts(topic: str, check: Check) -> dict[str, Any]:
    lines = [f"cause: {check.cause}"]
    for fix in check.fixes:
        lines += [f"fix:   {command}" for command in fix.commands]
    return {
        "id": check.id,
        "topic": topic,
        "function": f"check_{check.id.replace('-', '_')}",
        "title": shlex.quote(check.title),
        "applies_to": shlex.quote(f"not {check.applies_to}"),
        "help": " ".join(map(shlex.quote, [*lines, f"from:  {check.reference}"])),
    }


def bash_word(word: str) -> str:
    """A word of a tool's command for bash; `{interface}` becomes the variable of that name."""
    found = re.fullmatch(r"\{(\w+)\}", word)
    if found:
        return f'"${found[1].upper()}"'
    return word if re.fullmatch(r"[\w./+-]+", word) else "'" + word.replace("'", "'\\''") + "'"
