"""The vendor's source trees, which are not public: what is needed of them, and patched copies for the build."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from k1 import files
from k1.board import Board
from k1.errors import CheckFailed, K1Error
from k1.kconfig import check as kconfig
from k1.patches import series, template
from k1.patches.series import Patch
from k1.patches.template import Component
from k1.run import run

_KEY = ".k1-key"


@dataclass(frozen=True)
class Bsp:
    """The vendor's trees below one folder, and which patches to leave out."""

    folder: Path
    skip: tuple[str, ...] = ()

    def tree(self, component: Component) -> Path:
        """Where a component's tree must lie."""
        return self.folder / component


def needed(board: Board) -> Iterator[tuple[Component, str, Path]]:
    """Component, what must be in its tree for people, and a path below it that must be there."""
    config = board.image.buildroot
    assert config, "a board for Buildroot has image.buildroot"
    software = board.software
    platform = f"platform/{config.opensbi_platform}"
    yield "opensbi", f"the vendor's OpenSBI {software.opensbi.value} with {platform}/", Path(platform)
    uboot = f"configs/{config.uboot_defconfig}_defconfig"
    yield "uboot", f"the vendor's U-Boot with {uboot} and board/k1/k1/k1.c", Path(uboot)
    linux = f"arch/riscv/configs/{config.linux_defconfig}_defconfig" if config.linux_defconfig else "arch/riscv"
    text = f"the vendor's Linux {software.linux.value} with {linux} and drivers/net/ethernet/k1/gmac.c"
    yield "linux", text, Path(linux)


def missing(board: Board, folder: Path | None) -> list[str]:
    """A line for each vendor tree that is not there, or is not the right one."""
    lines = []
    for component, text, path in needed(board):
        if folder is None:
            lines.append(f"{component}: {text}")
        elif not (folder / component / path).exists():
            lines.append(f"{component}: no {path} in {folder / component}; needed: {text}")
    return lines


def check_fragments(board: Board, bsp: Bsp, fragments: Path) -> None:
    """Check the kernel's and U-Boot's fragments below `fragments` against the vendor's Kconfig trees."""
    config = board.image.buildroot
    assert config, "a board for Buildroot has image.buildroot"
    bases: dict[Component, str] = {
        "linux": f"arch/riscv/configs/{f'{config.linux_defconfig}_' if config.linux_defconfig else ''}defconfig",
        "uboot": f"configs/{config.uboot_defconfig}_defconfig",
    }
    found = [
        finding
        for component, base in bases.items()
        for finding in kconfig.check(
            [fragments / f"{component}.fragment"], bsp.tree(component), base=bsp.tree(component) / base
        )
        if finding.fault not in kconfig.HARMLESS
    ]
    refuse(found, "change the fragment in board/k1, or take a tree that has these settings")


def refuse(findings: Collection[kconfig.Finding], hint: str) -> None:
    """Raise one error for all findings."""
    if findings:
        lines = "".join(f"\n  {finding}" for finding in findings)
        raise CheckFailed(f"Kconfig would not keep these settings:{lines}", hint=hint)


def check_patches(board: Board, bsp: Bsp) -> dict[Component, list[Patch]]:
    """What each patch would do to its tree; a fault is a `K1Error`. A --skip counts for the components it fits."""
    found = {}
    for component in template.COMPONENTS:
        names = [path.name for path in template.paths(component)]
        skip = [wanted for wanted in bsp.skip if any(name.startswith(wanted) for name in names)]
        found[component] = series.check(component, board, bsp.tree(component), skip)
    series.refuse_faults([patch for patches in found.values() for patch in patches])
    every = [patch.name for patches in found.values() for patch in patches]
    for wanted in bsp.skip:
        if not any(name.startswith(wanted) for name in every):
            raise K1Error(f"--skip {wanted}: no patch of that name", hint=f"patches: {', '.join(every)}")
    return found


def copy(source: Path, patches: list[Path], target: Path) -> str:
    """Make `target` a patched copy of the tree at `source`, unless it is one. Returns a digest of both."""
    key = files.digest([_listing(source), files.tree_digest(patches, patches[0].parent) if patches else ""])
    stamp = target.with_name(f"{target.name}{_KEY}")
    if stamp.is_file() and stamp.read_text() == key:
        return key
    stamp.unlink(missing_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    run(["rsync", "-a", "--delete", "--exclude=/.git", f"{source}/", f"{target}/"])
    for patch in patches:
        series.apply(patch, target)
    files.write(stamp, key)
    return key


def _listing(source: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of every file: enough to see a change, and quick on a kernel."""
    found = ((path, path.lstat()) for path in source.rglob("*") if ".git" not in path.relative_to(source).parts)
    return sorted((path.relative_to(source).as_posix(), stat.st_size, stat.st_mtime_ns) for path, stat in found)
