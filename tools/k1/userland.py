"""The userland's C build: flavours, and the Debian sysroots that the ones for other machines link against."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from k1 import files, output, paths, sources
from k1.errors import K1Error
from k1.run import require, run

SOURCE = paths.REPO / "userland"

SYSROOT_SUITES = ("trixie",)
SYSROOT_PACKAGES = (
    *("libc6-dev", "libgcc-14-dev", "linux-libc-dev"),
    *("libevent-dev", "libjansson-dev", "libpcre2-dev", "libsodium-dev", "zlib1g-dev"),
)
PREFIX = "sysroot/"


@dataclass(frozen=True)
class Flavour:
    """One way to build: what for, and the programs it takes.

    sysroot: what Debian calls the machine of a cross build; the flavour itself has the name of `uname -m` there.
    """

    about: str
    programs: tuple[str, ...]
    sysroot: sources.Architecture | None = None


def _cross(about: str, machine: str, sysroot: sources.Architecture) -> Flavour:
    tools = (f"{machine}-linux-gnu-ar", f"{machine}-linux-gnu-strip", f"qemu-{machine}-static")
    return Flavour(about, ("clang-19", "ld.lld-19", "pkg-config", *tools), sysroot)


FLAVOURS = {
    "native": Flavour("this machine, gcc", ("gcc",)),
    "clang": Flavour("this machine, clang", ("clang-19",)),
    "debug": Flavour("this machine, with address and undefined-behaviour sanitizers", ("gcc",)),
    "fuzz": Flavour("this machine, the fuzzers", ("clang-19",)),
    "musl": Flavour("the engine's core with musl, static", ("musl-gcc",)),
    "aarch64": _cross("64-bit Arm boards, static", "aarch64", "arm64"),
    "riscv64": _cross("the K1 and other riscv64 boards, static", "riscv64", "riscv64"),
}
# The machines of nodes, by `uname -m`, for which there is a build.
MACHINES = tuple(name for name, flavour in FLAVOURS.items() if flavour.sysroot)


def wanted(architecture: sources.Architecture = "riscv64") -> list[sources.Wanted]:
    """The Debian packages that make up the sysroot of an architecture."""
    return [
        sources.Wanted(
            name=f"{PREFIX}{package}",
            kind="binary",
            package=package,
            architecture=architecture,
            suites=SYSROOT_SUITES,
        )
        for package in SYSROOT_PACKAGES
    ]


def unpack(packages: Sequence[sources.Source], cache: Path, task: output.Task) -> Path:
    """Unpack fetched packages to a folder of their own below `cache`; the same packages give the same folder."""
    key = sources.digest(packages)
    base = cache / "sysroot"
    folder = base / key[:16]
    if folder.is_dir():
        return folder
    with files.locked(base / "lock", f"{base}"):
        partial = base / "partial"
        files.remove_tree(partial)
        for package in packages:
            task.detail(package.package)
            sources.verify(package, cache, task)
            run(["dpkg-deb", "-x", package.files[0].path(cache), partial])
        link_inside(partial)
        partial.rename(folder)
    return folder


def link_inside(root: Path) -> None:
    """Make links with absolute targets point into `root`, and give the usr-merged folders their old names."""
    for name in ("bin", "lib", "sbin"):
        old = root / name
        if old.is_dir() and not old.is_symlink():
            shutil.copytree(old, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(old)
        if not old.is_symlink():
            old.symlink_to(f"usr/{name}")
    for path in root.rglob("*"):
        if path.is_symlink() and os.readlink(path).startswith("/"):
            target = root / os.readlink(path).lstrip("/")
            path.unlink()
            path.symlink_to(os.path.relpath(target, path.parent))


def build_folder(flavour: str) -> Path:
    """Where a flavour is built."""
    return paths.build_dir("userland") / flavour


def build(flavour: str, *, jobs: int, test: bool = False, packages: Sequence[sources.Source] | None = None) -> Path:
    """Build one flavour, and with `test` run its tests. Returns its build folder.

    packages: of the sysroot, where the caller has fetched them already.
    Raises `CommandError` with the compiler's or the tests' words when something fails.
    """
    if flavour not in FLAVOURS:
        raise K1Error(f"no flavour named {flavour}", hint=f"one of {', '.join(FLAVOURS)}")
    chosen, folder, cache = FLAVOURS[flavour], build_folder(flavour), paths.cache_dir()
    for program in ("meson", "ninja", *chosen.programs):
        require(program)
    log = folder.with_name(f"{flavour}.log")
    log.unlink(missing_ok=True)
    with output.task(f"userland, {flavour}") as task:
        constants = ""
        if chosen.sysroot:
            found = packages or sources.fetch(wanted(chosen.sysroot), cache=cache, task=task)
            constants = f"[constants]\nsysroot = '{unpack(found, cache, task)}'\n"
        configure(flavour, constants, log)
        run(["ninja", "-C", folder, "-j", str(jobs)], log=log, on_line=task.detail)
        if test:
            task.detail("tests")
            options = ["--print-errorlogs", "--no-rebuild", "--num-processes", str(jobs)]
            run(["meson", "test", "-C", folder, *options], log=log, on_line=task.detail)
    return folder


def configure(flavour: str, constants: str, log: Path) -> None:
    """Set up the build folder, anew when its machine files are no longer those it was set up with."""
    folder, is_cross = build_folder(flavour), bool(FLAVOURS[flavour].sysroot)
    kind = "--cross-file" if is_cross else "--native-file"
    machine = [SOURCE / "cross" / f"{flavour}.ini"]
    if constants:
        given = folder.with_name(f"{flavour}.ini")
        files.write(given, constants)
        # Later files use the constants of earlier ones.
        machine = [given, *machine, SOURCE / "cross" / "debian.ini"]
    machine = [path for path in machine if path.is_file()]
    options = [word for path in machine for word in (kind, path)]
    key = files.digest([[str(path), path.read_text()] for path in machine])
    stamp = folder / "k1-key"
    if stamp.is_file() and stamp.read_text() == key:
        return
    files.remove_tree(folder)
    # Nothing of the environment may change what is built.
    clean = dict.fromkeys(("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "PKG_CONFIG_PATH"), "")
    run(["meson", "setup", *options, folder, SOURCE], env=clean if is_cross else None, log=log)
    files.write(stamp, key)


def strip(flavour: str, folder: Path, programs: Sequence[Path]) -> None:
    """Make the files `programs`, without symbols, from those of their names in the build folder of a cross build."""
    for program in programs:
        with files.replacing(program) as stripped:
            run([f"{flavour}-linux-gnu-strip", "-o", stripped, folder / program.name])
