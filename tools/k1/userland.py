"""The userland's C build: flavours, and the Debian sysroot that the riscv64 one links against."""

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
    """One way to build: what for, the programs it takes, and whether `userland/cross/<name>.ini` describes a target."""

    about: str
    programs: tuple[str, ...]
    cross: bool = False
    sysroot: bool = False


FLAVOURS = {
    "native": Flavour("this machine, gcc", ("gcc",)),
    "clang": Flavour("this machine, clang", ("clang-19",)),
    "debug": Flavour("this machine, with address and undefined-behaviour sanitizers", ("gcc",)),
    "fuzz": Flavour("this machine, the fuzzers", ("clang-19",)),
    "musl": Flavour("the engine's core with musl, static", ("musl-gcc",)),
    "aarch64": Flavour("the engine's core for Arm boards, static", ("aarch64-linux-gnu-gcc",), cross=True),
    "riscv64": Flavour(
        "the K1 and other riscv64 boards, static",
        ("clang-19", "ld.lld-19", "riscv64-linux-gnu-ar", "pkg-config", "qemu-riscv64-static"),
        cross=True,
        sysroot=True,
    ),
}


def wanted() -> list[sources.Wanted]:
    """The Debian packages that make up the riscv64 sysroot."""
    return [
        sources.Wanted(
            name=f"{PREFIX}{package}",
            kind="binary",
            package=package,
            architecture="riscv64",
            suites=SYSROOT_SUITES,
        )
        for package in SYSROOT_PACKAGES
    ]


def sysroot(cache: Path, task: output.Task) -> Path:
    """The riscv64 sysroot below `cache`, fetched and unpacked when it is not there yet."""
    return unpack(sources.fetch(wanted(), cache=cache, task=task), cache, task)


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
            root = unpack(packages, cache, task) if packages else sysroot(cache, task)
            constants = f"[constants]\nsysroot = '{root}'\n"
        configure(flavour, constants, log)
        run(["ninja", "-C", folder, "-j", str(jobs)], log=log, on_line=task.detail)
        if test:
            task.detail("tests")
            options = ["--print-errorlogs", "--no-rebuild", "--num-processes", str(jobs)]
            run(["meson", "test", "-C", folder, *options], log=log, on_line=task.detail)
    return folder


def configure(flavour: str, constants: str, log: Path) -> None:
    """Set up the build folder, anew when its machine files are no longer those it was set up with."""
    folder, machine = build_folder(flavour), SOURCE / "cross" / f"{flavour}.ini"
    kind = "--cross-file" if FLAVOURS[flavour].cross else "--native-file"
    options: list[str | Path] = []
    if constants:
        given = folder.with_name(f"{flavour}.ini")
        files.write(given, constants)
        options += [kind, given]
    if machine.is_file():
        options += [kind, machine]
    key = files.digest([constants, machine.read_text() if machine.is_file() else "", list(map(str, options))])
    stamp = folder / "k1-key"
    if stamp.is_file() and stamp.read_text() == key:
        return
    files.remove_tree(folder)
    # Nothing of the environment may change what is built.
    clean = dict.fromkeys(("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "PKG_CONFIG_PATH"), "")
    run(["meson", "setup", *options, folder, SOURCE], env=clean if kind == "--cross-file" else None, log=log)
    files.write(stamp, key)
