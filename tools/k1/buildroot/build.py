"""The buildroot builder: an image by Buildroot, out of tree, from our external tree and the vendor's sources."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from k1 import files, output, paths, userland
from k1.board import Board
from k1.buildroot import bsp, external, fetch
from k1.buildroot.bsp import Bsp
from k1.buildroot.progress import Follower
from k1.errors import CheckFailed, K1Error
from k1.image import keys, manifest, rootfs
from k1.image.context import EPOCH, work_folder
from k1.kconfig import check as kconfig
from k1.kconfig import tree as kconfig_tree
from k1.patches import series, template
from k1.patches.series import Patch
from k1.patches.template import Component
from k1.run import CommandError, run, run_attached

# What of Buildroot's images is ours; a name with a star may be there several times.
_IMAGES = ("fw_*.bin", "u-boot.bin", "Image", "rootfs.squashfs", "sdcard.img")
_GET_BSP = (
    "get the K1-DevKit-B02 board support package from the board's maker, Prima Semiconductor, put its trees into one "
    "folder as opensbi/, uboot/ and linux/, and give that folder by --bsp; docs/firmware.md has more"
)


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    buildroot: top folder of a Buildroot tree. bsp: folder with the vendor's trees. skip: patches to leave out.
    authorized_keys, password_hash: as for the debian builder.
    """

    jobs: int
    buildroot: Path | None = None
    bsp: Path | None = None
    skip: tuple[str, ...] = ()
    authorized_keys: Path | None = None
    password_hash: str = ""


class Image:
    """One board's image: checked first, then built by one call of make."""

    def __init__(self, board: Board, options: Options) -> None:
        self.board = board
        self.options = options
        self.build = paths.build_dir(board.name)
        self.out = work_folder(self.build, paths.cache_dir()) / "buildroot"

    @property
    def external(self) -> Path:
        """The rendered external tree."""
        return self.out.parent / "buildroot-ext"

    @cached_property
    def buildroot(self) -> Path:
        """The Buildroot tree: the user's own, else that of the cache, fetched if need be."""
        if self.options.buildroot:
            return self.options.buildroot.resolve()
        with output.task("fetch Buildroot") as task:
            return fetch.fetch(self.board.software.buildroot.value, paths.cache_dir(), task).resolve()

    @property
    def bsp(self) -> Bsp | None:
        """The vendor's trees; a board without hardware needs none."""
        if external.machine(self.board) == external.VIRTUAL or not self.options.bsp:
            return None
        return Bsp(self.options.bsp.resolve(), self.options.skip)

    def check_inputs(self) -> None:
        """Everything that must be there is, or one error lists what is missing and how to get it."""
        if not self.board.image.buildroot:
            hint = "give its board.toml that table; board/k1/board.toml has one"
            raise K1Error(f"board {self.board.name} has no image.buildroot", hint=hint)
        wanted, hints = [], []
        if self.options.buildroot and (problem := self._buildroot_problem(self.options.buildroot)):
            wanted.append(f"buildroot: {problem}")
            hints.append("leave --buildroot out, and k1 fetches it")
        if external.machine(self.board) == external.REAL and (lines := bsp.missing(self.board, self.options.bsp)):
            wanted += lines
            hints.append(_GET_BSP)
        if wanted:
            lines_ = "".join(f"\n  {line}" for line in wanted)
            raise K1Error(f"board {self.board.name} cannot be built, for want of{lines_}", hint="\n       ".join(hints))

    def _buildroot_problem(self, tree: Path) -> str:
        version = self.board.software.buildroot.value
        if not (tree / "Config.in").is_file():
            return f"{tree} is no Buildroot tree; needed: a Buildroot {version} tree"
        if (found := kconfig_tree.buildroot_version(tree)) != version:
            return f"{tree} is Buildroot {found}; needed: {version}"
        return ""

    def check(self) -> dict[Component, list[Patch]]:
        """All that can be known before the build: inputs, patches, every line of the Kconfig files. Writes nothing."""
        self.check_inputs()
        patches = bsp.check_patches(self.board, self.bsp) if self.bsp else {}
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / "ext"
            external.render(self.board, tree)
            findings = kconfig.check([tree / "configs" / self.defconfig], self.buildroot, externals=[tree])
            serious = [finding for finding in findings if finding.fault not in kconfig.HARMLESS]
            bsp.refuse(serious, "the template is buildroot-ext/configs/defconfig.j2")
            if self.bsp:
                bsp.check_fragments(self.board, self.bsp, tree / "board" / external.REAL)
        return patches

    @property
    def defconfig(self) -> str:
        """Name of the board's defconfig."""
        return external.defconfig(self.board)

    @cached_property
    def logins(self) -> keys.Logins:
        """Who may log in."""
        return keys.logins(self.build, self.options.authorized_keys, self.options.password_hash)

    def run(self) -> None:
        """Check, patch, configure and build; a build that stopped goes on where it was."""
        _ = self.logins  # a fault in them is told at once
        with output.task("checks"):
            patches = self.check()
        for patch in (patch for found in patches.values() for patch in found):
            if patch.state == "unconfirmed":
                output.warn(f"{patch.name} is left out: {patch.detail}")
        self.prepare(patches)
        self._make()
        self._collect()

    def prepare(self, patches: dict[Component, list[Patch]]) -> None:
        """Render the external tree, make patched copies of the vendor's trees, and load the defconfig if it changed."""
        folder = self.build / "patches"
        written = {component: series.write(found, folder / component) for component, found in patches.items()}
        external.render(self.board, self.external, logins=self.logins, vendor_patches=folder if patches else None)
        self.out.mkdir(parents=True, exist_ok=True)
        self._configure()
        self._clean_stale(self._inputs(self._override(written)))

    def _configure(self) -> None:
        """Load the defconfig, but keep what the user has changed by menuconfig while ours is the same."""
        stamp = self.out / ".k1-defconfig"
        digest = files.sha256(self.external / "configs" / self.defconfig)
        if (self.out / ".config").is_file() and stamp.is_file() and stamp.read_text() == digest:
            return
        run(self.command(self.defconfig), env=self.make_env, log=self._log("configure"))
        files.write(stamp, digest)

    def _override(self, written: dict[Component, list[Path]]) -> dict[str, str]:
        """Have Buildroot build the vendor's trees instead of the versions of the defconfig. Component → digest."""
        digests: dict[str, str] = {}
        lines = []
        for component, patches in written.items():
            assert self.bsp
            target = self.out.parent / "bsp" / component
            lines.append(f"{component.upper()}_OVERRIDE_SRCDIR = {target}\n")
            with output.task(f"{component}: patched copy"):
                digests[component] = bsp.copy(self.bsp.tree(component), patches, target)
        files.write(self.out / "local.mk", "".join(lines))
        return digests

    def _inputs(self, trees: dict[str, str]) -> dict[str, str]:
        """Package → digest of what Buildroot does not watch: trees, patches, fragments."""
        name = external.machine(self.board)
        board, patches = self.external / "board" / name, self.external / "patches" / name
        found = {"k1-userland": files.tree_digest([userland.SOURCE], userland.SOURCE)}
        for component in template.COMPONENTS:
            parts = [patches / component, *board.glob(f"{component}.fragment"), board / "k1.env"]
            digest = files.tree_digest([path for path in parts if path.exists()], self.external)
            found[component] = files.digest([digest, trees.get(component, "")])
        return found

    def _clean_stale(self, inputs: dict[str, str]) -> None:
        """Have Buildroot forget what it built of packages whose inputs changed; it only looks at its own stamps."""
        for package, digest in inputs.items():
            stamp = self.out / f".k1-{package}"
            built = any((self.out / "build").glob(f"{package}-*"))
            if built and (not stamp.is_file() or stamp.read_text() != digest):
                run(self.command(f"{package}-dirclean"), env=self.make_env, log=self._log(f"{package}-dirclean"))
            files.write(stamp, digest)

    def command(self, *targets: str) -> list[str | Path]:
        """Buildroot's make, out of tree."""
        settings = (f"O={self.out}", f"BR2_EXTERNAL={self.external}", f"BR2_JLEVEL={self.options.jobs}")
        return ["make", "-C", self.buildroot, *settings, *targets]

    @cached_property
    def make_env(self) -> dict[str, str]:
        """Downloads and compiled objects are shared by all builds."""
        cache = paths.cache_dir()
        return {
            "BR2_DL_DIR": os.environ.get("BR2_DL_DIR") or str(cache / "buildroot-dl"),
            "BR2_CCACHE_DIR": os.environ.get("BR2_CCACHE_DIR") or str(cache / "buildroot-ccache"),
            "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or str(EPOCH),
        }

    def packages(self) -> dict[str, Any]:
        """What Buildroot will build: package → what `make show-info` says of it."""
        text = run(self.command("-s", "show-info"), env=self.make_env).output
        found: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
        return found

    def menuconfig(self) -> None:
        """Buildroot's own menu on this build's configuration."""
        self.prepare(self.check())
        run_attached(self.command("menuconfig"), env=self.make_env)

    def _make(self) -> None:
        log = self._log("buildroot")
        folder = self.build / "log" / "packages"
        folder.mkdir(parents=True, exist_ok=True)
        with output.task("buildroot") as task:
            follower = Follower(task, folder, len(self.packages()))
            try:
                run(self.command(), env=self.make_env, log=log, on_line=follower)
            except CommandError as error:
                text = f"Buildroot failed at {follower.package} ({follower.step}){follower.tail()}"
                hint = f"see {follower.log}; a further call goes on at this package"
                raise CheckFailed(text, hint=hint) from error
            output.note(f"{'buildroot':<10} {output.duration(task.seconds):>8}")

    def _collect(self) -> None:
        """Copy the images, look at the root's budget, and write the manifest."""
        target = self.build / "images"
        target.mkdir(parents=True, exist_ok=True)
        (target / manifest.NAME).unlink(missing_ok=True)
        report = rootfs.check_budget(self.out / "target", self.board.storage.root_budget_mb.value)
        files.write_json(target / "root.json", report)
        found = sorted(path for pattern in _IMAGES for path in (self.out / "images").glob(pattern))
        if lacking := [name for name in _IMAGES if not any(path.match(name) for path in found)]:
            hint = "your menuconfig may have turned it off; remove the build's .config to start from ours"
            raise CheckFailed(f"Buildroot made no {', '.join(lacking)}", hint=hint)
        for path in found:
            files.copy(path, target / path.name)
        files.write_json(target / manifest.NAME, self._manifest(found))
        output.note(f"images and {manifest.NAME} are in {target}")

    def _manifest(self, found: list[Path]) -> dict[str, Any]:
        packages = {name: info.get("version", "") for name, info in self.packages().items()}
        trees = [self.out.parent / "bsp" / component for component in template.COMPONENTS] if self.bsp else []
        return {
            "board": self.board.name,
            "builder": "buildroot",
            "buildroot": self.board.software.buildroot.value,
            "external": files.tree_digest(
                [path for path in self.external.iterdir() if not path.is_symlink()], self.external
            ),
            "config": files.sha256(self.out / ".config"),
            "bsp": {tree.name: files.tree_digest([tree], tree) for tree in trees},
            "packages": packages,
            "images": {p.name: {"size": p.stat().st_size, "sha256": files.sha256(p)} for p in found},
        }

    def _log(self, name: str) -> Path:
        path = self.build / "log" / f"{name}.log"
        path.unlink(missing_ok=True)
        return path
