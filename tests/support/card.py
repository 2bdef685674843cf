"""Where things are on a card's image."""

import json
import subprocess
from pathlib import Path

from k1.run import require


def slots(card: Path) -> list[tuple[int, int]]:
    """Offset and size in bytes of slot A and slot B."""
    answer = subprocess.run([require("sfdisk"), "--json", card], capture_output=True, check=True).stdout
    parts = {part["name"]: part for part in json.loads(answer)["partitiontable"]["partitions"]}
    return [(parts[name]["start"] * 512, parts[name]["size"] * 512) for name in ("slotA", "slotB")]
