"""The root file system: Debian riscv64 packages, our overlay and the kernel, as one squashfs."""

from __future__ import annotations

import io
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from k1 import files, output, render, sources
from k1.board import Board
from k1.errors import CheckFailed, K1Error
from k1.image import programs
from k1.image.context import CROSS_COMPILE, Context, recipe
from k1.run import run
from k1.steps import Step

# The packages are usr-merged: what they ship below /usr is also found at these old names.
_LINKS = {
    "bin": "usr/bin",
    "sbin": "usr/sbin",
    "lib": "usr/lib",
    "etc/mtab": "/proc/mounts",
    "etc/resolv.conf": "/run/resolv.conf",
    "opt/k1": "/data/opt/k1",
    "var/lock": "/run/lock",
    "var/log": "/data/log",
    "var/run": "/run",
    "var/tmp": "/tmp",  # noqa: S108
}
_FOLDERS = (
    *("boot/env", "data", "dev", "etc", "home", "mnt", "opt", "proc", "rom", "root/.ssh", "run", "sys", "tmp"),
    *("usr/bin", "usr/lib", "usr/local/bin", "usr/local/sbin", "usr/sbin"),
    *("var/empty", "var/lib/openntpd/db", "var/lib/openntpd/run", "var/spool"),
)
_MODES = {"tmp": 0o1777, "root": 0o700, "root/.ssh": 0o700, "root/.ssh/authorized_keys": 0o600, "etc/shadow": 0o600}
_NEEDED = re.compile(r"\(NEEDED\)\s+Shared library: \[([^\]]+)\]")


def step(ctx: Context) -> Step:
    """Build images/rootfs.squashfs, and images/root.json: how much of the budget it takes."""
    squashfs = ctx.images / "rootfs.squashfs"
    report = ctx.images / "root.json"
    contents = ctx.board.image.root
    assert contents, "builder debian has a root"

    def build(task: output.Task) -> None:
        log = ctx.log("rootfs")
        root = ctx.work / "rootfs"
        files.remove_tree(root)
        root.mkdir(parents=True)
        for number, package in enumerate(ctx.packages):
            task.detail(package.package)
            task.advance(number, len(ctx.packages))
            sources.verify(package, ctx.cache, task)
            unpack(package.files[0].path(ctx.cache), root, contents.only.get(package.package), log)
        prune(root, contents.prune)
        for overlay in overlays(ctx):
            lay_over(overlay, root, ctx.board)
        merge_usr(root)
        link_applets(root)
        _personalize(root, ctx)
        files.copy(ctx.images / "Image", root / "boot" / "Image")
        for name in programs.NAMES:
            shutil.copy2(ctx.images / "bin" / name, root / "usr" / "bin" / name)
        check_libraries(root)
        identify(root, ctx.board)
        files.write_json(report, check_budget(root, ctx.board.storage.root_budget_mb.value))
        task.detail("squashfs")
        archive = ctx.work / "rootfs.tar"
        write_tar(root, archive, ctx.epoch)
        make_squashfs(archive, squashfs, ctx.epoch, log)

    inputs = {
        "packages": sources.digest(ctx.packages),
        "overlay": files.digest([files.tree_digest([folder], folder) for folder in overlays(ctx)]),
        "contents": contents.model_dump_json(),
        "board.toml": files.digest(ctx.board.model_dump(mode="json")),
        "recipe": recipe(__file__, render.__file__),
        "keys": files.digest(asdict(ctx.logins)),
        "epoch": str(ctx.epoch),
        "tools": ctx.tools,
    }
    return Step("rootfs", inputs, (squashfs, report), build, needs=("linux", "programs"))


def overlays(ctx: Context) -> list[Path]:
    """Overlay folders, the base board's first."""
    return [folder / "overlay" for folder in ctx.board.folders if (folder / "overlay").is_dir()]


def unpack(deb: Path, root: Path, only: Sequence[str] | None, log: Path) -> None:
    """Unpack a package without running its scripts; with `only`, nothing but these paths of it."""
    if only is None:
        run(["dpkg-deb", "-x", deb, root], log=log)
        return
    whole = root.with_name(f"{root.name}-whole")
    run(["dpkg-deb", "-x", deb, whole], log=log)
    for path in only:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(whole / path, root / path)
    shutil.rmtree(whole)


def prune(root: Path, patterns: Sequence[str]) -> None:
    """Drop what a board never reads; licences (`copyright` files) stay."""
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                _remove_but_licences(path)
            else:
                path.unlink(missing_ok=True)


def _remove_but_licences(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink() or path.is_file():
            if path.name != "copyright":
                path.unlink()
        elif not any(path.iterdir()):
            path.rmdir()
    if not any(folder.iterdir()):
        folder.rmdir()


def lay_over(overlay: Path, root: Path, board: Board) -> None:
    """Copy an overlay over the root, its templates rendered."""

    def copy(source: str, target: str) -> None:
        Path(target).unlink(missing_ok=True)  # a link there is replaced, not written through
        shutil.copy2(source, target, follow_symlinks=False)

    shutil.copytree(overlay, root, symlinks=True, dirs_exist_ok=True, copy_function=copy)
    for template in list(root.rglob("*.j2")):
        files.write(template.with_suffix(""), render.render_text(template, board))
        template.unlink()


def merge_usr(root: Path) -> None:
    """Make the folders and links that Debian's base-files would bring; move what still lies at old places."""
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for link, target in _LINKS.items():
        old = root / link
        if old.is_dir() and not old.is_symlink():
            shutil.copytree(old, (old.parent / target).resolve(), symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(old)
        old.symlink_to(target)


def link_applets(root: Path) -> None:
    """Link busybox's applets, except where a package brings the real program."""
    busybox = root / "usr" / "bin" / "busybox"
    for line in run(["qemu-riscv64-static", busybox, "--list-full"]).output.split():
        place = line if line.startswith("usr/") else f"usr/{line}"
        applet = root / place
        twin = root / ("usr/bin" if "/sbin/" in place else "usr/sbin") / applet.name
        if applet.is_symlink() or applet.exists() or twin.exists():
            continue
        applet.parent.mkdir(parents=True, exist_ok=True)
        applet.symlink_to("/usr/bin/busybox")


def _personalize(root: Path, ctx: Context) -> None:
    files.write(root / "root" / ".ssh" / "authorized_keys", ctx.logins.authorized_keys)
    shadow = root / "etc" / "shadow"
    files.write(shadow, ctx.logins.shadow(shadow.read_text()))


def identify(root: Path, board: Board) -> None:
    """Name the image as os-release(5) has it; IMAGE_VERSION is a hash of all the rest of the root."""
    lines = ["ID=k1", f'NAME="{board.title}"', f'PRETTY_NAME="K1 cluster stack, {board.title}"']
    lines += [f"IMAGE_ID=k1-{board.name}", f"IMAGE_VERSION={files.tree_digest([root], root)[:16]}"]
    files.write(root / "etc" / "os-release", "".join(f"{line}\n" for line in lines))


def check_libraries(root: Path) -> None:
    """Every shared library that a program of the root names must be in the root."""
    present = {path.name for path in root.rglob("*.so*")}
    missing: dict[str, str] = {}
    for path in root.rglob("*"):
        if path.is_symlink() or not path.is_file() or path.open("rb").read(4) != b"\x7fELF":
            continue
        for name in _NEEDED.findall(run([f"{CROSS_COMPILE}readelf", "-d", path]).output):
            if name not in present:
                missing[name] = path.relative_to(root).as_posix()
    if missing:
        text = ", ".join(f"{name} (for {user})" for name, user in sorted(missing.items()))
        raise K1Error(f"the root lacks {text}", hint="add the Debian packages that bring them to image.root.packages")


def check_budget(root: Path, budget_mb: int) -> dict[str, int]:
    """Sizes of the unpacked root. Over its budget (in 10^6 bytes) is an error that names the biggest files."""
    found = sorted(((p.lstat().st_size, p.relative_to(root)) for p in root.rglob("*") if not p.is_dir()), reverse=True)
    total = sum(size for size, _ in found)
    if total > budget_mb * 1_000_000:
        biggest = "".join(f"\n  {output.size(size):>9}  /{name}" for size, name in found[:10])
        raise CheckFailed(
            f"the root takes {output.size(total)}, over its budget of {budget_mb} MB; the biggest files:{biggest}",
            hint="drop a package or prune a path in board.toml",
        )
    return {"bytes": total, "budget": budget_mb * 1_000_000, "files": len(found)}


def write_tar(root: Path, archive: Path, epoch: int) -> None:
    """Write `root` as a tar that depends on names, contents and x bits only: sorted, owned by root, one time."""
    with files.replacing(archive) as temporary, tarfile.open(temporary, "w", format=tarfile.GNU_FORMAT) as tar:
        for path in _sorted(root):
            name = path.relative_to(root).as_posix()
            info = tar.gettarinfo(path, arcname=f"./{name}")
            if info.islnk():  # a hard link in the packages or in our cache; each name gets its own content
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = epoch
            executable = info.isdir() or info.issym() or bool(info.mode & 0o100)
            info.mode = _MODES.get(name, 0o755 if executable else 0o644)
            tar.addfile(info, io.BytesIO(path.read_bytes()) if info.isreg() else None)


def _sorted(root: Path) -> Iterator[Path]:
    for folder, names, leaves in os.walk(root):
        names.sort()
        for name in sorted([*leaves, *names]):
            yield Path(folder) / name


def make_squashfs(archive: Path, target: Path, epoch: int, log: Path) -> None:
    """Make the squashfs, the same bytes each time. U-Boot 2023.01 reads no file from one with fragments."""
    options = [
        "-comp",
        "gzip",
        "-no-fragments",
        "-no-progress",
        "-root-mode",
        "0755",
        "-mkfs-time",
        str(epoch),
        "-all-time",
        str(epoch),
    ]
    with files.replacing(target) as temporary:
        # sqfstar refuses its time options beside SOURCE_DATE_EPOCH.
        run(["env", "-u", "SOURCE_DATE_EPOCH", "sqfstar", *options, temporary], stdin=archive, log=log)
