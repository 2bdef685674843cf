"""Kconfig trees: Buildroot's, the kernel's and U-Boot's, read by kconfiglib as their own makefiles set it up."""

from __future__ import annotations

import io
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO

import kconfiglib

from k1.errors import K1Error
from k1.run import run

Kind = Literal["buildroot", "linux", "uboot"]
KINDS: tuple[Kind, ...] = ("buildroot", "linux", "uboot")
# BR2_LEGACY is selected by 643 symbols, and kconfiglib walks such expressions by recursion.
_RECURSION = 20_000
_EXTERNAL_PATH = re.compile(r'config (BR2_EXTERNAL_\w+_PATH)\n\tstring\n\tdefault "(.*)"')
_MODULES = re.compile(r"^(\s+)modules$", re.MULTILINE)
_NEWEST_GCC = re.compile(r"^HOSTCC_MAX_VERSION := (\d+)", re.MULTILINE)
_VERSION = re.compile(r"^export BR2_VERSION := (\S+)", re.MULTILINE)


def kind(source: Path) -> Kind:
    """Which of the trees lies at `source`; none of them is a `K1Error`."""
    if (source / "Config.in").is_file() and (source / "support" / "scripts" / "br2-external").is_file():
        return "buildroot"
    if (source / "Kconfig").is_file():
        return "uboot" if (source / "include" / "u-boot").is_dir() else "linux"
    hint = "give the top folder of a Buildroot, Linux or U-Boot source tree"
    raise K1Error(f"{source} has no Kconfig tree", hint=hint)


def buildroot_version(source: Path) -> str:
    """The version that a Buildroot tree's Makefile states."""
    found = _VERSION.search((source / "Makefile").read_text())
    return found[1] if found else "unknown"


def read(source: Path, *, externals: Sequence[Path] = (), arch: str = "riscv") -> kconfiglib.Kconfig:
    """All symbols of the tree at `source`, with default values.

    externals: BR2_EXTERNAL trees to read with a Buildroot tree.
    arch: the kernel's ARCH.
    """
    source = source.resolve()
    if kind(source) == "buildroot":
        with tempfile.TemporaryDirectory() as base:
            return _parse("Config.in", _buildroot(source, Path(base), externals))
    if externals:
        raise K1Error(f"{source} is no Buildroot tree", hint="leave --external out")
    return _parse("Kconfig", _kbuild(source, arch))


class _Kconfig(kconfiglib.Kconfig):  # type: ignore[misc]
    """A reader that knows how the kernel has marked its symbol MODULES since 5.16; kconfiglib is older."""

    def _open(self, filename: str, mode: str) -> TextIO:
        stream: TextIO = super()._open(filename, mode)
        if mode != "r":
            return stream
        with stream:
            return io.StringIO(_MODULES.sub(r"\1option modules", stream.read()))


def _parse(top: str, environment: Mapping[str, str]) -> kconfiglib.Kconfig:
    with _environment(environment):
        try:
            return _Kconfig(top, warn_to_stderr=False)
        except (kconfiglib.KconfigError, OSError) as error:
            raise K1Error(f"Kconfig cannot be read: {str(error).strip()}", hint="is the tree whole?") from error


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """kconfiglib takes its settings from the environment, as the C programs do."""
    before, limit = dict(os.environ), sys.getrecursionlimit()
    os.environ.update(wanted)
    sys.setrecursionlimit(max(limit, _RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def deep() -> Iterator[None]:
    """Room for kconfiglib to evaluate what it has read."""
    with _environment({}):
        yield


def _buildroot(source: Path, base: Path, externals: Sequence[Path]) -> dict[str, str]:
    """What Buildroot's Makefile exports; its own script writes the `.br2-external.in.*` files."""
    script = source / "support" / "scripts" / "br2-external"
    result = run(["bash", script, "-d", base, *(path.resolve() for path in externals)], cwd=source, check=False)
    if result.returncode != 0:
        message = result.output.removeprefix("BR2_EXTERNAL_ERROR = ").strip() or result.stderr.strip()
        raise K1Error(f"Buildroot refuses the external tree: {message}", hint="mend that tree")
    return {
        "CONFIG_": "",
        "srctree": str(source),
        "BASE_DIR": str(base),
        "BR2_BASE_DIR": str(base),
        "BR2_VERSION_FULL": buildroot_version(source),
        "HOSTARCH": platform.machine(),
        "HOST_GCC_VERSION": _host_gcc(source),
        "SKIP_LEGACY": "",
        **dict(_EXTERNAL_PATH.findall((base / ".br2-external.in.paths").read_text())),
    }


def _host_gcc(source: Path) -> str:
    """The host compiler's major version; Buildroot's Makefile takes a newer one for the newest that it knows."""
    newest = _NEWEST_GCC.search((source / "Makefile").read_text())
    major = int(run(["gcc", "-dumpversion"]).output.split(".")[0])
    return str(min(major, int(newest[1])) if newest else major)


def _kbuild(source: Path, arch: str) -> dict[str, str]:
    """What the makefiles of kernel and U-Boot export to Kconfig; they ask the compiler what it can do."""
    cross = "riscv64-linux-gnu-" if arch == "riscv" else ""
    tools = {name: cross + program for name, program in (("CC", "gcc"), ("LD", "ld"), ("AR", "ar"), ("NM", "nm"))}
    return {
        **tools,
        "CONFIG_": "CONFIG_",
        "srctree": str(source),
        "ARCH": arch,
        "SRCARCH": arch,
        "HOSTCC": "gcc",
        "CC_VERSION_TEXT": run([tools["CC"], "--version"]).output.split("\n")[0],
        "KERNELVERSION": "unknown",
        "UBOOTVERSION": "unknown",
        "CLANG_FLAGS": "",
        "PAHOLE": "pahole",
        "RUSTC": "rustc",
        "BINDGEN": "bindgen",
    }
