"""A Debian riscv64 root with systemd, and Debian's kernel for it, made from the packages of the mirror.

Needs neither root nor binfmt: packages are unpacked under fakeroot, and their scripts run in QEMU at a first start.
They must never run on the host: systemd's would tidy up the host's own folders.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from k1 import board as boards
from k1 import files
from k1.apt import AptRoot, MissingError, NoListError, RemoteFile, find_mirror
from k1.drivers import qemu
from k1.drivers.console import tail
from k1.errors import CheckFailed
from k1.run import CommandError, run

DATA = Path(__file__).parents[1] / "data" / "debian"
# A minimal Debian, and what docs/deploy.md asks of a node.
PACKAGES = ("?priority(required)", "apt", "systemd-sysv", "udev", "dbus", "iproute2", "iputils-ping")
FOR_DEPLOY = ("openssh-server", "rsync", "sudo")
# What Debian's kernel needs for a virtual machine, each after those it builds on; all others are built in.
MODULES = (
    *("crc32c_generic", "crc16", "mbcache", "jbd2", "ext4", "failover", "net_failover"),
    *("virtio_mmio", "virtio_blk", "virtio_net", "virtio-rng"),
)
RANK = 1
# The cluster's network has a fixed address, and the one that QEMU makes for its host gives one.
_CLUSTER = """\
[Match]
MACAddress={identity.mac}
[Network]
Address={identity.address}
"""
_HOST = """\
[Match]
Name=e*
[Network]
DHCP=ipv4
"""
_READY = "the root is ready"
_FIRST_START = 900.0


@dataclass(frozen=True)
class Root:
    """A finished root: its file system, what boots it, and the key that lets one in as `owner`."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "root.img"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinux"

    @property
    def initramfs(self) -> Path:
        return self.folder / "initramfs"

    @property
    def key(self) -> Path:
        return self.folder / "id_ed25519"


class _Packages(AptRoot):
    """Debian's riscv64 packages with what they depend on."""

    def __init__(self, cache: Path) -> None:
        super().__init__(cache, "riscv64", find_mirror())
        self._cache = cache / "files"

    def closure(self, *packages: str) -> list[RemoteFile]:
        """The packages and all that they need in an empty system, without what they only recommend.

        NoListError when the package lists do not have them.
        """
        words = ["apt-get", "install", "-qq", "--no-install-recommends", "--print-uris"]
        try:
            text = run([*words, "-o", "Acquire::ForceHash=SHA256", *packages], env=self._env).output
        except CommandError as error:
            raise NoListError(error.message) from error
        found = [re.fullmatch(r"'(.+)' (\S+) (\d+) SHA256:(\w+)", line) for line in text.splitlines()]
        return [RemoteFile(unquote(each[2]), int(each[3]), each[4], each[1]) for each in found if each]

    def fetch(self, file: RemoteFile) -> Path:
        """The package's file, from the cache when it is there and right."""
        path = self._cache / file.sha256 / file.filename
        if not path.is_file() or files.sha256(path) != file.sha256:
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(path) as temporary:
                self.download(file, temporary)
        return path


@dataclass(frozen=True)
class _Wanted:
    root: list[RemoteFile]
    kernel: RemoteFile
    busybox: RemoteFile

    @property
    def all(self) -> list[RemoteFile]:
        return [*self.root, self.kernel, self.busybox]


def find(cache: Path) -> Root:
    """The root of what the mirror offers now, from the cache when it is there."""
    packages = _Packages(cache)
    try:
        return _made(packages, _resolve(packages), cache)
    except (NoListError, MissingError):  # no package lists yet, or old ones
        packages.update()
        return _made(packages, _resolve(packages), cache)


def command(root: Root, title: str, *words: str, start: str = "/sbin/init") -> list[str]:
    """QEMU's command line but for disk and network; `start`: what runs as the first process."""
    return [
        *(qemu.PROGRAM, "-name", title, "-nodefaults", "-no-user-config", "-display", "none"),
        *qemu.Machine("rv64", 2, 1, 1024).arguments(),
        *("-global", "virtio-mmio.force-legacy=false"),
        *("-kernel", str(root.kernel), "-initrd", str(root.initramfs)),
        *("-append", f"console=ttyS0 panic=-1 start={start}"),
        *("-chardev", f"file,id=serial,path={qemu.SERIAL_LOG}", "-serial", "chardev:serial"),
        *("-device", "virtio-rng-device"),
        *words,
    ]


def disk(path: Path, form: str, *options: str) -> list[str]:
    """QEMU's options for the one disk."""
    what = ",".join((f"file={path}", f"format={form}", "if=none", "id=disk", *options))
    return ["-drive", what, "-device", "virtio-blk-device,drive=disk"]


def _resolve(packages: _Packages) -> _Wanted:
    def one(package: str, stem: str) -> RemoteFile:
        (found,) = (file for file in packages.closure(package) if file.filename.startswith(stem))
        return found

    return _Wanted(
        packages.closure(*PACKAGES, *FOR_DEPLOY),
        one("linux-image-riscv64", "linux-image-6"),
        one("busybox-static", "busybox-static_"),
    )


def _made(packages: _Packages, wanted: _Wanted, cache: Path) -> Root:
    recipe = files.tree_digest([DATA, Path(__file__)], Path(__file__).parents[1])
    key = files.digest([recipe, *(file.sha256 for file in wanted.all)])[:16]
    home = cache / "debian"
    with files.locked(home / "lock", "the Debian root of the tests"):
        if not (home / key).is_dir():
            for old in [path for path in home.iterdir() if path.is_dir()]:
                shutil.rmtree(old)
            work = Root(home / "work")
            _lay_out(work, packages, wanted)
            _first_start(work)
            work.folder.rename(home / key)
    return Root(home / key)


def _lay_out(root: Root, packages: _Packages, wanted: _Wanted) -> None:
    """File system, kernel and initramfs, before any program of them has run."""
    debs, overlay, kernel = (root.folder / name for name in ("debs", "overlay", "kernel"))
    debs.mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(wanted.all, pool.map(packages.fetch, wanted.all), strict=True))
    for file in wanted.root:
        (debs / file.filename).symlink_to(found[file])
    _write_overlay(root, overlay)
    run(["fakeroot", DATA / "build-root", root.folder])
    run(["dpkg-deb", "--extract", found[wanted.kernel], kernel])
    (image,) = (kernel / "boot").glob("vmlinu*")
    image.rename(root.kernel)
    _build_initramfs(root, kernel, found[wanted.busybox])
    for used in (debs, overlay, kernel, root.folder / "root"):
        shutil.rmtree(used)


def _write_overlay(root: Root, overlay: Path) -> None:
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", root.key])
    identity = boards.load("virt").identity(RANK)
    contents = {
        "etc/hostname": "debian\n",
        "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 debian\n",
        "etc/ssh/owner.pub": root.key.with_suffix(".pub").read_text(),
        # One key is made soon; three take an emulated machine half a minute.
        "etc/ssh/sshd_config.d/hostkey.conf": "HostKey /etc/ssh/ssh_host_ed25519_key\n",
        "etc/systemd/network/10-cluster.network": _CLUSTER.format(identity=identity),
        "etc/systemd/network/20-host.network": _HOST,
    }
    for name, text in contents.items():
        files.write(overlay / name, text)
    shutil.copy(DATA / "first-start", overlay)


def _build_initramfs(root: Root, kernel: Path, busybox: Path) -> None:
    folder = root.folder / "early"
    for name in ("dev", "root", "modules"):
        (folder / name).mkdir(parents=True)
    run(["dpkg-deb", "--extract", busybox, folder / "package"])
    (folder / "package" / "usr" / "bin" / "busybox").rename(folder / "busybox")
    shutil.rmtree(folder / "package")
    shutil.copy(DATA / "initramfs", folder / "init")
    modules = {name: path for name in MODULES for path in kernel.rglob(f"{name}.ko.xz")}
    for name, path in modules.items():
        (folder / "modules" / f"{name}.ko").write_bytes(lzma.decompress(path.read_bytes()))
    files.write(folder / "modules" / "order", "".join(f"{name}\n" for name in modules))
    names = "".join(f"{path.relative_to(folder)}\n" for path in sorted(folder.rglob("*")))
    run(["cpio", "-o", "-H", "newc", "--quiet", "-R", "0:0", "-O", root.initramfs], cwd=folder, stdin=names)
    shutil.rmtree(folder)


def _first_start(root: Root) -> None:
    """Let the packages' scripts run, in the machine; a disk that is lost with a crash is made anew anyway."""
    lab = f"debian-root-{os.getpid()}"
    title = qemu.name(lab, 0)
    words = command(root, title, "-no-reboot", *disk(root.disk, "raw", "cache=unsafe"), start="/first-start")
    log = root.folder / qemu.SERIAL_LOG
    try:
        qemu.start(words, root.folder, title)
        qemu.wait_end(qemu.running(lab).values(), _FIRST_START)
    finally:
        qemu.kill(lab)
    text = log.read_text(errors="replace")
    if _READY not in text:
        raise CheckFailed(f"the Debian root did not come to an end of its set-up{tail(text)}", hint=f"see {log}")
