"""Source trees: unpacked from verified archives, with our patch series on top."""

from __future__ import annotations

from pathlib import Path

from k1 import files, output, paths, sources
from k1.errors import CheckFailed, K1Error
from k1.image import kconfig
from k1.image.context import Context, recipe
from k1.run import CommandError, run


def series(component: str, flavour: str) -> list[Path]:
    """The patches of patches/<component>/<flavour>/ in the order of its series file."""
    folder = paths.PATCHES / component / flavour
    listing = folder / "series"
    if not listing.is_file():
        return []
    names = [line.strip() for line in listing.read_text().splitlines() if line.strip() and not line.startswith("#")]
    for name in names:
        if not (folder / name).is_file():
            raise K1Error(f"{listing}: {name} is listed but absent", hint="add the patch or drop the line")
    return [folder / name for name in names]


def unpack(
    ctx: Context,
    component: str,
    log: Path,
    task: output.Task,
    *,
    leave_out: Path | None = None,
) -> Path:
    """The component's patched source tree; an unchanged one is kept, so that make goes on where it stopped.

    leave_out: file of tar patterns for paths that the build never reads; unpacking is faster without them.
    """
    source = ctx.fetched[component]
    patches = series(component, ctx.board.name)
    left_out = leave_out.read_text() if leave_out else ""
    key = files.digest([[f.sha256 for f in source.files], files.tree_digest(patches, paths.REPO), left_out])
    folder = ctx.work / component
    stamp = folder / "unpacked"
    if stamp.is_file() and stamp.read_text() == key:
        return folder / "src"
    task.detail("unpacking")
    files.remove_tree(folder)
    folder.mkdir(parents=True)
    sources.verify(source, ctx.cache, task)
    _extract(source, ctx.cache, folder, leave_out, log)
    for patch in patches:
        apply(patch, folder / "src", log)
    files.write(stamp, key)
    return folder / "src"


def inputs(ctx: Context, component: str, module: str) -> dict[str, str]:
    """What decides a component's build: its source, our patches, compiler, time stamp, and the code in `module`."""
    source = ctx.fetched[component]
    return {
        "source": f"{source.package} {source.version} " + " ".join(f.sha256 for f in source.files),
        "patches": files.tree_digest(series(component, ctx.board.name), paths.REPO),
        "tools": ctx.tools,
        "epoch": str(ctx.epoch),
        "recipe": recipe(__file__, kconfig.__file__, module),
    }


def _extract(source: sources.Source, cache: Path, folder: Path, leave_out: Path | None, log: Path) -> None:
    """Unpack a source into `folder`/src: with Debian's patches where its .dsc came along."""
    archives = folder / "archives"
    archives.mkdir()
    for file in source.files:
        (archives / file.filename).symlink_to(file.path(cache))
    if dsc := list(archives.glob("*.dsc")):
        run(["dpkg-source", "--no-check", "--no-copy", "-x", dsc[0], folder / "src"], log=log)
        return
    archive = archives / source.files[0].filename
    if archive.suffix == ".deb":  # a *-source package: one tar archive that holds the patched tree
        run(["dpkg-deb", "-x", archive, folder / "deb"], log=log)
        archive = next((folder / "deb" / "usr" / "src").glob("*.tar.*"))
    (folder / "src").mkdir()
    excludes: list[str | Path] = ["--anchored", "-X", leave_out] if leave_out else []
    compression = ["-I", "xz -T0"] if archive.suffix == ".xz" else []
    run(["tar", "-C", folder / "src", "--strip-components=1", *excludes, *compression, "-xf", archive], log=log)
    files.remove_tree(folder / "deb")


def apply(patch: Path, tree: Path, log: Path) -> None:
    """Apply one patch without fuzz; a failing one is reported with the hunks that were rejected."""
    rejects = tree.parent / f"{patch.name}.rej"
    try:
        run(["patch", "-p1", "-F0", "--batch", "--forward", "-r", rejects, "-i", patch], cwd=tree, log=log)
    except CommandError as error:
        rejected = rejects.read_text().rstrip() if rejects.is_file() else ""
        raise CheckFailed(
            f"{patch} does not apply without fuzz:\n{error.result.output.rstrip()}\n{rejected}",
            hint="refresh the patch against this version of the source",
        ) from error
