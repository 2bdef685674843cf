"""k1 deploy as tests run it: to its end, or held at a step while something happens to the nodes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.inferd import SCALE, wait_until

# A k1 that waits, when the step $step begins on the node $node for the first time, until the file $go is there.
_HELD = """
import os, sys, time
from k1.cli.main import main
from k1.deploy import plan

step_wanted, node_wanted, hit, go = sys.argv[1:5]
del sys.argv[1:5]
report = plan.Deploy._report


def held(self, node, step, state, detail=""):
    if (node.name, step) == (node_wanted, step_wanted) and not os.path.exists(hit):
        open(hit, "w").close()
        while not os.path.exists(go):
            time.sleep(0.01)
    report(self, node, step, state, detail)


plan.Deploy._report = held
main()
"""


@dataclass(frozen=True)
class Run:
    """How k1 ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code in (0, 3, 4), self.err
        return json.loads(self.out)


def k1(*words: str | Path, code: int = 0) -> Run:
    done = subprocess.run([sys.executable, "-m", "k1", *map(str, words)], capture_output=True, text=True)
    run = Run(done.returncode, done.stdout, done.stderr)
    assert run.code == code, run.err + run.out
    assert "Traceback" not in run.err
    return run


def deploy_held(fleet: Path, node: str, step: str, act: Callable[[], object] | None, *words: str) -> Run:
    """A deploy during which `act` happens just when `step` begins on `node`; None: Ctrl-C."""
    hit, go = fleet.with_suffix(".hit"), fleet.with_suffix(".go")
    for path in (hit, go):
        path.unlink(missing_ok=True)
    argv = [sys.executable, "-c", _HELD, step, node, hit, go, "deploy", "-f", fleet, *words]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until("the step begins", lambda: hit.exists() or process.poll() is not None, 120)
        assert process.poll() is None, process.communicate()
        if act:
            act()
        else:
            process.send_signal(signal.SIGINT)
    finally:
        go.touch()
    out, err = process.communicate(timeout=300 * SCALE)
    return Run(process.returncode, out, err)


def variant(programs: Path, folder: Path, change: Callable[[bytes], bytes]) -> Path:
    """Programs of which k1-inferd is changed."""
    shutil.copytree(programs, folder)
    daemon = folder / "k1-inferd"
    daemon.write_bytes(change(daemon.read_bytes()))
    return folder


def flip(data: bytes) -> bytes:
    """One byte differs, in a text."""
    assert data.count(b"no such path; there are") == 1
    return data.replace(b"no such path; there are", b"no such path, there are")
