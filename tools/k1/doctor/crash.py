"""The five steps after a segmentation fault: core and backtrace, memory map, model file, memory, one node alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from k1 import files
from k1.board import Board
from k1.doctor import model_table, vram
from k1.doctor.check import Finding, Fix, Outcome, Verdict, fail, finding, ok, warn
from k1.doctor.llama_command import Command
from k1.doctor.system import Skip, System
from k1.errors import K1Error
from k1.run import CommandTimeout, run

_GDB_SECONDS = 60.0
_LOCAL_SECONDS = 300.0
_FRAMES = 12
_MIB = 1 << 20
# What holds the target of a copy at its start, by architecture.
_TARGET_REGISTERS = ("a0", "rdi", "x0")


@dataclass(frozen=True)
class Crash:
    """What is known of a crash; a step whose input is missing is skipped."""

    system: System
    board: Board
    program: Path | None = None
    core: Path | None = None
    maps: Path | None = None
    model: Path | None = None
    sha256: str = ""
    n_ctx: int = 2048
    cli: str = "k1-cli"


@dataclass(frozen=True)
class Trace:
    """What a core tells: the frames, innermost first, the map's lines, and where a copy was to write."""

    frames: tuple[str, ...]
    maps: str
    target: int | None


def examine(crash: Crash) -> list[Finding]:
    """All five steps, in the document's order."""
    trace: Trace | None = None
    try:
        trace = read_core(crash.program, crash.core) if crash.program and crash.core else None
        outcomes = [(_CORE, _core(crash, trace))]
    except K1Error as error:
        outcomes = [(_CORE, fail(error.message.splitlines()[0]))]
    for step, look in ((_MAPS, _maps), (_MODEL, _model), (_MEMORY, _memory), (_LOCAL, _local)):
        try:
            outcomes.append((step, look(crash, trace)))
        except Skip as reason:
            outcomes.append((step, Outcome(Verdict.SKIP, str(reason))))
    return [finding(step, "here", "a program that crashed", outcome, step.fixes) for step, outcome in outcomes]


@dataclass(frozen=True)
class _Step:
    id: str
    title: str
    cause: str
    fixes: tuple[Fix, ...]
    reference: str = "reference 000, 5.2"


_CORE = _Step(
    "crash-core",
    "1 core dump and backtrace",
    "Without a core there is no backtrace.",
    (
        Fix(("ulimit -c unlimited", "echo core.%e.%p | sudo tee /proc/sys/kernel/core_pattern", "# then crash again")),
        Fix(("k1 doctor crash --program build/userland/riscv64/k1-inferd --core core.k1-inferd.318",)),
    ),
)
_MAPS = _Step(
    "crash-maps",
    "2 memory map",
    "A copy writes where no buffer is: a length or an address is wrong.",
    (Fix(("k1 userland build -f debug --test    # the sanitizers name the buffer",)),),
)
_MODEL = _Step(
    "crash-model",
    "3 model file",
    "The file differs from its source: the eMMC now and then writes a wrong bit into a large file.",
    (Fix(("scp MODEL.gguf root@192.168.1.101:/opt/k1/models/model.gguf    # copy it again, then compare",)),),
)
_MEMORY = _Step(
    "crash-memory",
    "4 KV cache and memory",
    "Weights and KV cache exceed the board's memory.",
    (Fix(("--n_ctx 512    # when that runs, it was the memory",)),),
)
_LOCAL = _Step(
    "crash-local",
    "5 one node alone",
    "It fails without the network too: model, memory or engine.",
    (Fix(("k1 userland build -f debug --test",)),),
)
# reference 000, 5.2: the RPC ring was not aligned to a cache line, and DMA spoiled the vdso's translation.
_VDSO = (Fix(("posix_memalign(&buf, 64, size)    # each ring buffer on a cache line of its own",)),)


def read_core(program: Path, core: Path) -> Trace:
    """What gdb reads from a core of any architecture; failures are `K1Error`s."""
    for path in (program, core):
        if not path.is_file():
            raise K1Error(f"{path} is not there", hint="name the program with its symbols, and its core file")
    registers = [word for name in _TARGET_REGISTERS for word in ("-ex", f"p/x (unsigned long) ${name}")]
    looks = ["-ex", f"bt {_FRAMES}", "-ex", "info proc mappings", "-ex", "info auxv", *registers]
    argv = ["gdb-multiarch", "-nx", "-batch", *looks]
    done = run([*argv, program, core], check=False, timeout=_GDB_SECONDS)
    frames = tuple(dict.fromkeys(re.findall(r"^#\d+ +.*$", done.output, re.MULTILINE)))
    if not frames:
        last = (done.stderr.strip().splitlines() or ["gdb said nothing"])[-1]
        raise K1Error(f"no backtrace from {core}: {last}", hint="program and core must belong together")
    values = [int(value, 16) for value in re.findall(r"^\$\d+ = (0x[0-9a-f]+)$", done.output, re.MULTILINE)]
    return Trace(frames, _mappings(done.output), values[0] if values else None)


def _mappings(text: str) -> str:
    """gdb's table as /proc/PID/maps has it, `start-end … name`, and the vdso, two pages of which it knows the start."""
    rows = re.findall(r"^ *(0x[0-9a-f]+) +(0x[0-9a-f]+) +0x[0-9a-f]+ +0x[0-9a-f]+ *(\S.*)?$", text, re.MULTILINE)
    lines = [f"{start[2:]}-{end[2:]} {name}".rstrip() for start, end, name in rows]
    if vdso := re.search(r"AT_SYSINFO_EHDR .*(0x[0-9a-f]+)$", text, re.MULTILINE):
        lines.append(f"{int(vdso[1], 16):x}-{int(vdso[1], 16) + 0x2000:x} [vdso]")
    return "\n".join(lines)


def _core(crash: Crash, trace: Trace | None) -> Outcome:
    if trace:
        return ok("\n".join(trace.frames))
    found = re.search(r"^Max core file size +(\S+)", crash.system.find("/proc/self/limits") or "", re.MULTILINE)
    pattern = crash.system.find("/proc/sys/kernel/core_pattern") or "unknown"
    if not found:
        return Outcome(Verdict.SKIP, "the core limit is not known")
    where = "cores go to a program: coredumpctl list" if pattern.startswith("|") else f"cores are named {pattern}"
    text = f"ulimit -c is {found[1]}; {where}"
    return warn(text) if found[1] == "0" and not pattern.startswith("|") else ok(text)


def _maps(crash: Crash, trace: Trace | None) -> Outcome:
    maps = crash.maps.read_text(errors="replace") if crash.maps else trace.maps if trace else ""
    if not trace or not maps:
        raise Skip("needs --program, --core and, where the core has no map, --maps")
    copying = re.search(r"\b(?:__)?mem(?:cpy|move|set)\w*", trace.frames[0])
    if not copying or trace.target is None:
        return ok(f"the innermost frame copies nothing: {trace.frames[0]}")
    name = region(maps, trace.target)
    text = f"{copying[0]} to {trace.target:#x}, in {name or 'no known mapping'}"
    if name == "[vdso]":
        return fail(f"{text}: a ring buffer that is not aligned to cache lines", fixes=_VDSO)
    if name in ("[heap]", "[stack]", "anonymous"):
        return ok(f"{text}: a buffer; check the length")
    # A core knows the mappings of files only.
    if not name and not crash.maps:
        return warn(f"{text}; --maps tells heap and stack")
    return fail(text)


def region(maps: str, address: int) -> str:
    """The name of the mapping that holds an address; `anonymous` without a name, empty when there is none."""
    for line in maps.splitlines():
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+)\b", line)
        if found and int(found[1], 16) <= address < int(found[2], 16):
            name = re.search(r"(\[\w+\]|/\S.*)$", line)
            return name[1] if name else "anonymous"
    return ""


def _model(crash: Crash, trace: Trace | None) -> Outcome:
    if not crash.model:
        raise Skip("needs --model")
    beside = Path(f"{crash.model}.sha256")
    words = beside.read_text(errors="replace").split() if beside.is_file() else []
    wanted = crash.sha256.lower() or (words[0] if words else "")
    found = files.sha256(crash.model)
    if not wanted:
        return ok(f"{found}; compare it with the source's: --sha256 or {beside.name}")
    return ok(found) if found == wanted else fail(f"{found}, expected {wanted}")


def _memory(crash: Crash, trace: Trace | None) -> Outcome:
    if not crash.model:
        raise Skip("needs --model")
    try:
        model = model_table.read(crash.model)
        command = Command(ctk="f16", ctv="f16")
        per_position = sum(vram.cache_bytes(model, command, 1, layer) for layer in range(model.n_loaded))
    except K1Error as error:
        return fail(error.message)
    weights = sum(tensor.size for tensor in model.tensors)
    usable = crash.board.memory.usable_mib.value * _MIB
    largest = max(usable - weights, 0) // per_position
    text = (
        f"weights {weights // _MIB} MiB and KV cache {per_position * crash.n_ctx // _MIB} MiB at n_ctx {crash.n_ctx}, "
        f"of {usable // _MIB} MiB; n_ctx up to {largest} fits"
    )
    return ok(text) if crash.n_ctx <= largest else fail(text)


def _local(crash: Crash, trace: Trace | None) -> Outcome:
    if not crash.model:
        raise Skip("needs --model")
    argv: Sequence[str | Path] = [crash.cli, "--local", crash.model, "--n_predict", "4", "The capital of France is"]
    try:
        done = run(argv, check=False, timeout=_LOCAL_SECONDS)
    except CommandTimeout as error:
        return fail(error.message)
    except K1Error as error:
        raise Skip(f"{error.message}; name it with --cli") from error
    if done.returncode == 0:
        return ok("it answers: the fault is in the network part, or in what several nodes share")
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return fail(f"ended with status {done.returncode} {last}".strip())
