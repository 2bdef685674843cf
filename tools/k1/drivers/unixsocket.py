"""Unix sockets below folders of any name and depth."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def connect(path: Path, timeout: float) -> socket.socket:
    """A stream socket connected to `path`, with `timeout` seconds for each call; OSError if nothing listens."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    found = socket.socket(socket.AF_UNIX)
    try:
        found.settimeout(timeout)
        # An address holds 107 bytes at most; this one is short however deep the folder is.
        found.connect(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        found.close()
        raise
    finally:
        os.close(folder)
    return found
