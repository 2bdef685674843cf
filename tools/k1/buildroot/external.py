"""The external tree (BR2_EXTERNAL): `buildroot-ext/`, rendered for a board, with all that its defconfigs name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from k1 import board as boards
from k1 import files
from k1.board import Board
from k1.image.keys import Logins
from k1.image.tree import series
from k1.patches import template
from k1.paths import REPO
from k1.render import render_text

SOURCE = REPO / "buildroot-ext"
# The two machines of the tree: the real board, and the one without hardware.
REAL, VIRTUAL = "k1", "virt"
_SUFFIX = ".j2"
_DEFCONFIG, _CARD = SOURCE / "configs" / "defconfig.j2", SOURCE / "board" / "card.conf.j2"


@dataclass(frozen=True)
class _File:
    """A file of the rendered tree: its content, or with `link` the folder that it points to."""

    content: bytes = b""
    executable: bool = False
    link: Path | None = None


def machine(board: Board) -> str:
    """Which of the tree's machines a board is: `virt` when it has no hardware, else `k1`."""
    return VIRTUAL if board.qemu else REAL


def defconfig(board: Board) -> str:
    """Name of the defconfig that builds a board."""
    return "k1_virt_defconfig" if machine(board) == VIRTUAL else "k1_defconfig"


def render(board: Board, target: Path, *, logins: Logins | None = None, vendor_patches: Path | None = None) -> None:
    """Make `target` the external tree for `board`, and for the standard board of the other machine.

    A file that is right already is not touched; one that does not belong is removed.
    logins: who may log in as root; none leaves root locked.
    vendor_patches: what `k1 patch render` wrote, a folder per component.
    """
    wanted = dict(_files(board, logins, vendor_patches))
    wanted[Path(".checkpackageignore")] = _File(_ignored(wanted).encode())
    for path in sorted(target.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(target) not in wanted:
            path.unlink()
    for name, file in wanted.items():
        _put(target / name, file)


def _ignored(wanted: Iterable[Path]) -> str:
    """For utils/check-package --ignore-list: our init scripts are a whole system's, not made like those of packages."""
    scripts = sorted(path.as_posix() for path in wanted if path.match("overlay/etc/init.d/S??*"))
    return "".join(f"{script} Variables\n" for script in scripts)


def _put(path: Path, file: _File) -> None:
    if file.link:
        if not path.is_symlink() or path.readlink() != file.link:
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(file.link)
        return
    same = path.is_file() and path.read_bytes() == file.content and os.access(path, os.X_OK) == file.executable
    if not same:
        files.write(path, file.content, mode=0o755 if file.executable else 0o644)


def _files(board: Board, logins: Logins | None, vendor_patches: Path | None) -> Iterator[tuple[Path, _File]]:
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and path.suffix != _SUFFIX:
            yield path.relative_to(SOURCE), _file(path, board)
    yield Path("LICENSE"), _file(REPO / "LICENSE", board)
    yield Path("userland"), _File(link=REPO / "userland")
    for name in (REAL, VIRTUAL):
        one = board if name == machine(board) else boards.load(name)
        yield Path("configs", defconfig(one)), _File(_defconfig(one).encode())
        for path, file in _board_files(one, logins):
            yield Path("board", name, path), file
    for component in template.COMPONENTS:
        for path in series(component, "virt"):
            yield Path("patches", VIRTUAL, component, path.name), _file(path, board)
        if vendor_patches:
            for path in sorted((vendor_patches / component).glob("*")):
                yield Path("patches", REAL, component, path.name), _file(path, board)


def _defconfig(board: Board) -> str:
    return render_text(_DEFCONFIG, board, k1=boards.load(REAL), machine=machine(board))


def _board_files(board: Board, logins: Logins | None) -> Iterator[tuple[Path, _File]]:
    """What the defconfig names of a board: overlay, fragments, environment, card."""
    found: dict[Path, _File] = {}
    for folder in board.folders:  # a board's own files hide those of the board it extends
        overlay = folder / "overlay"
        for path in sorted(overlay.rglob("*")):
            if path.is_file():
                name = path.relative_to(folder)
                found[name.with_suffix("") if path.suffix == _SUFFIX else name] = _file(path, board)
    if logins:
        shadow = Path("overlay/etc/shadow")
        found[shadow] = _File(logins.shadow(found[shadow].content.decode()).encode())
        found[Path("overlay/root/.ssh/authorized_keys")] = _File(logins.authorized_keys.encode())
    found[Path("linux.fragment")] = _file(boards.load(REAL).find("kernel/linux.fragment"), board)
    found[Path("uboot.fragment")] = _file(board.find("uboot/uboot.fragment"), board)
    found[Path("k1.env")] = _File(_environment(board).encode())
    found[Path("genimage.cfg")] = _file(board.find("genimage.cfg.j2"), board)
    found[Path("card.conf")] = _file(_CARD, board)
    yield from found.items()


def _environment(board: Board) -> str:
    """U-Boot's environment: the same on both machines, but for the interface that the card hangs on."""
    text = boards.load(VIRTUAL).find("uboot/k1.env").read_text()
    return text if machine(board) == VIRTUAL else text.replace("virtio 0:", "mmc 0:")


def _file(path: Path, board: Board) -> _File:
    content = render_text(path, board).encode() if path.suffix == _SUFFIX else path.read_bytes()
    return _File(content, os.access(path, os.X_OK))
