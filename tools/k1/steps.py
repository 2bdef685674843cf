"""Build steps: run once, skipped while their inputs and outputs stay as they were.

A step's key is the digest of its inputs and of the keys of the steps it needs. After a build the key, the
inputs and the outputs' sizes and times are recorded; a step whose record still fits is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k1 import files, output
from k1.errors import K1Error


@dataclass(frozen=True)
class Step:
    """One piece of a build.

    inputs: label → value or digest; whatever can change the outputs belongs here.
    outputs: files that exist when the step has run.
    build: does the work; it may find the remains of an interrupted run of the same key.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: tuple[Path, ...]
    build: Callable[[output.Task], None]
    needs: tuple[str, ...] = ()


@dataclass
class State:
    """What is known of a step: its key, and why it has to run (empty when it is up to date)."""

    step: Step
    key: str
    reason: str
    seconds: float = 0.0


class Plan:
    """The steps of one build in order, with their records below `folder`."""

    def __init__(self, steps: Sequence[Step], folder: Path) -> None:
        self.steps = {step.name: step for step in steps}
        self.folder = folder

    def states(self, upto: str | None = None) -> Iterator[State]:
        """States of the steps, or of `upto` and those it needs, each when it is asked for."""
        keys: dict[str, str] = {}
        for step in self._needed(upto):
            key = files.digest({"inputs": dict(step.inputs), "needs": {name: keys[name] for name in step.needs}})
            keys[step.name] = key
            yield self._compare(step, key)

    def run(self, upto: str | None = None, *, force: bool = False) -> list[State]:
        """Run what is out of date; `force` runs `upto` itself in any case. Returns all states, with times."""
        done = []
        for state in self.states(upto):
            if not state.reason and force and state.step.name == upto:
                state.reason = "forced"
            if state.reason:
                self._run_one(state)
            done.append(state)
        return done

    def _needed(self, upto: str | None) -> list[Step]:
        if upto is None:
            return list(self.steps.values())
        if upto not in self.steps:
            raise K1Error(f"no step named {upto}", hint=f"one of {', '.join(self.steps)}")
        wanted = {upto}
        for step in reversed(list(self.steps.values())):
            if step.name in wanted:
                wanted.update(step.needs)
        return [step for step in self.steps.values() if step.name in wanted]

    def _record_path(self, step: Step) -> Path:
        return self.folder / f"{step.name}.json"

    def _compare(self, step: Step, key: str) -> State:
        try:
            record = json.loads(self._record_path(step).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return State(step, key, "not built yet")
        state = State(step, key, "", record.get("seconds", 0.0))
        if record.get("key") != key:
            state.reason = _changed(record.get("inputs", {}), step)
        else:
            state.reason = next((f"{o.name} changed" for o in step.outputs if not _fits(o, record)), "")
        return state

    def _run_one(self, state: State) -> None:
        step = state.step
        self._record_path(step).unlink(missing_ok=True)
        with output.task(step.name) as task:
            step.build(task)
            state.seconds = task.seconds
        for path in step.outputs:
            if not path.is_file():
                raise RuntimeError(f"step {step.name} did not make {path}")
        record = {
            "key": state.key,
            "inputs": dict(step.inputs),
            "seconds": round(state.seconds, 1),
            "outputs": {str(path): _stamp(path) for path in step.outputs},
        }
        files.write_json(self._record_path(step), record)
        sizes = ", ".join(f"{path.name} {output.size(path.stat().st_size)}" for path in step.outputs)
        output.note(f"{step.name:<10} {output.duration(state.seconds):>8}   {sizes}")


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _fits(path: Path, record: Mapping[str, Any]) -> bool:
    return path.is_file() and record.get("outputs", {}).get(str(path)) == _stamp(path)


def _changed(before: Mapping[str, str], step: Step) -> str:
    names = [name for name in {**before, **step.inputs} if before.get(name) != step.inputs.get(name)]
    return f"changed: {', '.join(sorted(names))}" if names else "a step it needs changed"
