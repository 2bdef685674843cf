"""The debian builder: real firmware, kernel and root from Debian's source and riscv64 packages."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from k1 import files, output, paths, sources, userland
from k1.board import Board
from k1.image import card, keys, linux, manifest, opensbi, programs, rootfs, uboot
from k1.image.context import Context, work_folder
from k1.steps import Plan, State

FETCH = "sources"
STEPS = ("opensbi", "uboot", "linux", "programs", "rootfs", "card")
_ROOT = "root/"


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    authorized_keys: file with public keys for root; none means a key of this build folder's own.
    password_hash: crypt(3) hash for root on the serial console; empty means none works.
    locked: accept only the versions of the board's lock file.
    update_lock: write what was fetched to the lock file.
    refresh: ask the mirror again although everything is known.
    """

    jobs: int
    authorized_keys: Path | None = None
    password_hash: str = ""
    locked: bool = False
    update_lock: bool = False
    refresh: bool = False


class Image:
    """One board's image: fetched sources, then steps."""

    def __init__(self, board: Board, options: Options) -> None:
        self.board = board
        self.options = options
        self.build = paths.build_dir(board.name)
        self.cache = paths.cache_dir()

    @property
    def lock_file(self) -> Path:
        """The committed record of source versions."""
        return paths.BOARDS / self.board.name / "sources.lock"

    @property
    def record(self) -> Path:
        """What a fetch of just these packages brought."""
        key = files.digest([wanted.model_dump() for wanted in self.wanted()])
        return self.build / "steps" / f"sources-{key[:12]}.json"

    @cached_property
    def logins(self) -> keys.Logins:
        """Who may log in."""
        return keys.logins(self.build, self.options.authorized_keys, self.options.password_hash)

    def wanted(self) -> list[sources.Wanted]:
        """All sources and root packages that board.toml names, and what our programs are linked against."""
        image, root = self.board.image, self.board.image.root
        assert root, "builder debian has a root"
        return (
            [sources.Wanted(**source.model_dump()) for source in image.sources]
            + [
                sources.Wanted(
                    name=f"{_ROOT}{package}",
                    kind="binary",
                    package=package,
                    architecture="riscv64",
                    suites=root.suites,
                )
                for package in root.packages
            ]
            + userland.wanted()
        )

    @cached_property
    def known_sources(self) -> list[sources.Source] | None:
        """What an earlier call fetched, when it is all still there and the user asks for nothing new."""
        if self.options.refresh or self.options.update_lock:
            return None
        found = sources.load(self.record)
        if found and self.options.locked and found != sources.load(self.lock_file):
            return None
        return found if found and all(_is_cached(source, self.cache) for source in found) else None

    def fetch(self) -> list[sources.Source]:
        """Bring all sources into the cache, or find them there."""
        if self.known_sources is not None:
            return self.known_sources
        with output.task("sources") as task:
            found = sources.fetch(
                sorted(self.wanted(), key=lambda wanted: wanted.name),  # as load() gives them the next time
                cache=self.cache,
                lock=sources.load(self.lock_file),
                locked=self.options.locked,
                refresh=self.options.refresh or self.options.update_lock,
                task=task,
            )
        total = sum(file.size for source in found for file in source.files)
        output.note(f"{'sources':<10} {output.duration(task.seconds):>8}   {len(found)} packages, {output.size(total)}")
        sources.save(self.record, found)
        if self.options.update_lock:
            sources.save(self.lock_file, found)
        return found

    def context(self, found: list[sources.Source]) -> Context:
        """Everything the steps need, over the given sources."""
        return Context(
            board=self.board,
            build=self.build,
            cache=self.cache,
            jobs=self.options.jobs,
            fetched={source.name: source for source in found if "/" not in source.name},
            packages=tuple(source for source in found if source.name.startswith(_ROOT)),
            sysroot=tuple(source for source in found if source.name.startswith(userland.PREFIX)),
            logins=self.logins,
        )

    def plan(self, ctx: Context) -> Plan:
        """The steps in order."""
        makers = (opensbi.step, uboot.step, linux.step, programs.step, rootfs.step, card.step)
        return Plan([make(ctx) for make in makers], self.build / "steps")

    def run(self, upto: str | None, *, force: bool) -> list[State]:
        """Build what is out of date, up to one step or all; a whole build ends with the manifest."""
        _ = self.logins  # a fault in them is told before the downloads
        ctx = self.context(self.fetch())
        if upto == FETCH:
            return []
        plan, listing = self.plan(ctx), ctx.images / manifest.NAME
        if force or any(state.reason for state in plan.states(upto)):
            listing.unlink(missing_ok=True)  # from here until the end the images do not belong together
        states = plan.run(upto, force=force)
        if upto is None and not listing.is_file():
            manifest.write(ctx, states)
        return states


def _is_cached(source: sources.Source, cache: Path) -> bool:
    """Whether the files are there with their sizes; a step that uses them looks at every byte."""
    paths_ = ((file.path(cache), file.size) for file in source.files)
    return all(path.is_file() and path.stat().st_size == size for path, size in paths_)


def clean(board: str, *, everything: bool) -> list[Path]:
    """Remove one board's build: objects and images, and with `everything` its keys and labs too."""
    build = paths.build_dir(board)
    parts = ("images", "log", "patches", "rendered", "steps", "work")
    names = [build] if everything else [build / part for part in parts]
    removed = []
    for path in (work_folder(build, paths.cache_dir()), *names):
        if path.exists():
            shutil.rmtree(path)
            removed.append(path)
    return removed
