"""Debian packages through apt with a private configuration.

The host's sources, pins, hooks and keys play no part: everything is checked against the Debian archive's keys and
lies below the cache. Only the host's way to the network is taken over: its proxies, certificates and retries.

Settings (environment):
- `K1_DEBIAN_MIRROR`, `K1_DEBIAN_SECURITY_MIRROR`: used instead of the mirrors of the host's own sources;
- `K1_DEBIAN_KEYRING`: the keys that sign them, for an own mirror; else those of debian-archive-keyring.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property, cmp_to_key
from mmap import ACCESS_READ, mmap
from pathlib import Path, PurePosixPath
from typing import Literal

from k1.errors import K1Error
from k1.files import sha256, write
from k1.output import warn
from k1.run import CommandError, Result, run

Kind = Literal["source", "binary"]

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_HELPER = "/usr/lib/apt/apt-helper"
_PLAIN = {"LC_ALL": "C"}  # apt's messages are read below

_HOST_SETTINGS = re.compile(r"Acquire::(https?|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date)\b")
_GONE = re.compile(r"\b(404|410) |File not found|No such file or directory")
_HALFWAY = re.compile(r"unexpected size|Hash Sum mismatch")
_UNSIGNED = re.compile(r"NO_PUBKEY|BADSIG|EXPKEYSIG|REVKEYSIG|not signed|signature", re.IGNORECASE)


class NoListError(K1Error):
    """The package list of a suite is not there yet."""


class MissingError(K1Error):
    """The mirror lacks a file that its index names."""


class RefusedError(K1Error):
    """A file from the mirror is not the one that the signed index names."""


@dataclass(frozen=True)
class Mirror:
    """Where packages come from: addresses without a final slash, and the keys that must have signed them."""

    main: str
    security: str | None
    keyring: Path

    def address(self, suite: str) -> str | None:
        """The address that serves `suite`; None for a security suite when no security mirror is known."""
        return self.security if suite.endswith("-security") else self.main


@dataclass(frozen=True)
class Layout:
    """The suites of one private apt configuration, and its architecture (None: the host's)."""

    binary: tuple[str, ...]
    source: tuple[str, ...] = ()
    architecture: str | None = None

    def suites(self, kind: Kind) -> tuple[str, ...]:
        """The suites that it has for sources or for binaries."""
        return self.source if kind == "source" else self.binary


_BOOKWORM = ("bookworm-security", "bookworm-updates", "bookworm")
_TRIXIE = ("trixie-security", "trixie-updates", "trixie")
LAYOUTS = {
    "host": Layout(binary=_BOOKWORM, source=(*_BOOKWORM, "trixie")),
    "arm64": Layout(binary=_TRIXIE, architecture="arm64"),
    "riscv64": Layout(binary=_TRIXIE, architecture="riscv64"),
}


@dataclass(frozen=True)
class RemoteFile:
    """A file as the signed index describes it; `size` in bytes."""

    filename: str
    size: int
    sha256: str
    uri: str


@dataclass(frozen=True)
class Offer:
    """One version of a package in one suite."""

    version: str
    suite: str
    files: tuple[RemoteFile, ...]


def find_mirror() -> Mirror:
    """The mirror of the settings, else of the host's own sources when the host is Debian; else an error."""
    keyring = Path(os.environ.get("K1_DEBIAN_KEYRING") or _KEYRING)
    if not keyring.is_file():
        hint = "apt install debian-archive-keyring (or set K1_DEBIAN_KEYRING to the keys of your own mirror)"
        raise K1Error(f"{keyring}: the keys of the Debian archive are missing", hint=hint)
    main, security = os.environ.get("K1_DEBIAN_MIRROR"), os.environ.get("K1_DEBIAN_SECURITY_MIRROR")
    if not main:
        main, host_security = _host_mirrors()
        security = security or host_security
    if not main:
        raise K1Error(
            "no Debian mirror is known: this host's own apt sources name none",
            hint="set K1_DEBIAN_MIRROR to the address of a Debian mirror, and K1_DEBIAN_SECURITY_MIRROR likewise",
        )
    if not security:
        warn("no Debian security mirror is known, security updates are left out; set K1_DEBIAN_SECURITY_MIRROR")
    return Mirror(_address(main), _address(security) if security else None, keyring.absolute())


def _address(uri: str) -> str:
    # For `file:` apt hands out links into the mirror instead of copies.
    return re.sub(r"^file:", "copy:", uri).rstrip("/")


def _host_mirrors() -> tuple[str | None, str | None]:
    """Main and security mirror in the apt sources of a Debian host.

    Of several candidates the one that looks most like a Debian mirror is taken. Should it be another archive after
    all, it is refused later, for its signature.
    """
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return None, None
    if release["ID"] != "debian":
        return None, None
    rows = _targets("COMPONENT", "RELEASE", "REPO_URI", env=_PLAIN)
    served = [(uri.rstrip("/"), suite) for part, suite, uri in rows if part == "main" and not uri.startswith("cdrom:")]

    def likeness(entry: tuple[str, str]) -> tuple[bool, bool, bool]:
        uri, suite = entry
        updated = (uri, f"{suite}-updates") in served
        return updated, suite == release.get("VERSION_CODENAME"), uri.endswith("/debian")

    main = max((entry for entry in served if "-" not in entry[1]), key=likeness, default=(None, ""))
    security = next((uri for uri, suite in served if suite.endswith("-security")), None)
    return main[0], security


def _targets(*fields: str, env: Mapping[str, str]) -> list[list[str]]:
    """The fields of each package list that apt's sources name, fetched or not."""
    form = "|".join(f"$({field})" for field in fields)
    no_lists = ["--no-release-info", "-o", "Dir::State::lists=/nonexistent"]  # else apt first reads them all: seconds
    result = run(["apt-get", "indextargets", *no_lists, "--format", form], env=env)
    return [line.split("|") for line in result.output.splitlines()]


class AptRoot:
    """A private apt configuration at `<cache>/apt/<name>` with its own package lists."""

    def __init__(self, cache: Path, name: str, mirror: Mirror) -> None:
        self.mirror = mirror
        self.layout = LAYOUTS[name]
        folder = cache.absolute() / "apt" / name
        self._lists = folder / "lists"
        (self._lists / "partial").mkdir(parents=True, exist_ok=True)
        write(folder / "status", "")
        write(folder / "sources.list", "\n".join(self._sources()) + "\n")
        write(folder / "apt.conf", "\n".join(_configuration(folder, self.layout.architecture)) + "\n")
        self._env = {**_PLAIN, "APT_CONFIG": str(folder / "apt.conf")}

    def _sources(self) -> Iterator[str]:
        for word, suites in (("deb", self.layout.binary), ("deb-src", self.layout.source)):
            for suite in suites:
                if address := self.mirror.address(suite):
                    yield f"{word} [signed-by={self.mirror.keyring}] {address} {suite} main"

    def update(self) -> set[str]:
        """Fetch the package lists from the mirror and check their signatures.

        Returns the suites whose list the mirror has only in part; they keep the list they had.
        """
        lists_only = ["-o", "pkgCacheFile::Generate=false"]  # saves seconds: the lists are read here, not by apt
        result = run(["apt-get", "update", "-q", "--error-on=any", *lists_only], env=self._env, check=False)
        failures = [line for line in result.stderr.splitlines() if line.startswith("E: Failed to fetch")]
        if result.returncode != 0 and not (failures and all(map(_HALFWAY.search, failures))):
            raise self._trouble(result)
        return {line.partition("/dists/")[2].partition("/")[0] for line in failures}

    @cached_property
    def _indexes(self) -> dict[tuple[Kind, str], Path]:
        """Where apt keeps the package list of each kind and suite."""
        rows = _targets("CREATED_BY", "ARCHITECTURE", "RELEASE", "FILENAME", env=self._env)
        kinds: dict[str, Kind] = {"Sources": "source", "Packages": "binary"}
        # Debian repeats the packages for all architectures in the list of each.
        wanted = (row for row in rows if row[1] != "all")
        return {(kinds[made_by], suite): self._lists / Path(name).name for made_by, _, suite, name in wanted}

    def offers(self, kind: Kind, suite: str, package: str) -> list[Offer]:
        """Every version of `package` in `suite`, the newest first. Raises `NoListError` before the first update."""
        address, index = self.mirror.address(suite), self._indexes.get((kind, suite))
        if address is None or index is None:
            return []
        if not index.exists():
            stem = index.name.rpartition("_main_")[0] + "_"
            if any(path.name.startswith(stem) for path in self._lists.glob("*Release")):  # apt keeps no empty list
                return []
            raise NoListError(f"there is no package list of {suite} in {self._lists}")
        found = [_offer(stanza, kind, suite, address) for stanza in _stanzas(index, package)]
        return sorted(found, key=cmp_to_key(_newest_first))

    def download(self, file: RemoteFile, target: Path) -> None:
        """Fetch `file` to `target`; go on with what an interrupted call left there.

        Raises `MissingError` when the mirror lacks it, `RefusedError` when it has another one instead; then nothing is
        left at `target`.
        """
        words = [_HELPER, "download-file", file.uri, str(target), f"SHA256:{file.sha256}"]
        result = run(words, env=self._env, check=False)
        set_aside = target.with_name(f"{target.name}.FAILED")  # by apt, when the hash differs
        received = set_aside if set_aside.exists() else target
        if result.returncode == 0 or received == set_aside:
            size, digest = received.stat().st_size, sha256(received)
            if (size, digest) != (file.size, file.sha256):
                received.unlink()
                raise RefusedError(
                    f"{file.uri} is not the file that the signed index names:\n"
                    f"  expected {file.size} bytes, sha256 {file.sha256}\n  got      {size} bytes, sha256 {digest}",
                    hint="mirror or proxy changed the file; call again later or use another mirror (K1_DEBIAN_MIRROR)",
                )
        elif _GONE.search(result.stderr):
            raise MissingError(f"the Debian mirror lacks {file.uri}", hint="use another mirror (K1_DEBIAN_MIRROR)")
        else:
            raise self._trouble(result)

    def _trouble(self, result: Result) -> K1Error:
        """What a failed apt call means for the user."""
        reasons = [line[3:] for line in result.stderr.splitlines() if line.startswith("E: Failed to fetch")]
        if "No space left on device" in result.stderr:
            return CommandError(result)
        if _UNSIGNED.search(result.stderr):
            lines = "".join(f"\n  | {line}" for line in result.stderr.splitlines() if _UNSIGNED.search(line))
            return K1Error(
                f"the package lists of {self.mirror.main} are not signed by a key in {self.mirror.keyring}{lines}",
                hint="update debian-archive-keyring, or set K1_DEBIAN_KEYRING to the keys of your own mirror",
            )
        if reasons and not _GONE.search(result.stderr):
            return K1Error(
                f"cannot reach the Debian mirror {self.mirror.main}\n  | {reasons[0]}",
                hint="check network and proxy; files already in the cache are used without network",
            )
        return CommandError(result)


def _configuration(folder: Path, architecture: str | None) -> list[str]:
    """The lines of a private apt.conf: nothing of the host's but its way to the network."""
    host = run(["apt-config", "dump"], env=_PLAIN).output.splitlines()
    if not architecture:
        architecture = next(line.split('"')[1] for line in host if line.startswith("APT::Architecture "))
    unused = ("main", "parts", "sourceparts", "preferences", "preferencesparts", "trusted", "trustedparts")
    return [
        *(f'Dir::Etc::{name} "/dev/null";' for name in unused),
        f'Dir::Etc::sourcelist "{folder}/sources.list";',
        f'Dir::State "{folder}";',
        f'Dir::State::lists "{folder}/lists";',
        f'Dir::State::status "{folder}/status";',
        f'Dir::Cache "{folder}";',
        'Dir::Cache::pkgcache "";',
        'Dir::Cache::srcpkgcache "";',
        f'APT::Architecture "{architecture}";',
        f'APT::Architectures {{ "{architecture}"; }};',
        'APT::Sandbox::User "root";',  # do not drop root: another user cannot enter a home of mode 0700
        'Acquire::Languages "none";',
        'Acquire::GzipIndexes "false";',
        *(line for line in host if _HOST_SETTINGS.match(line)),
    ]


def _stanzas(index: Path, package: str) -> Iterator[str]:
    """The paragraphs on `package` in a package list; it has some 50 MB, so it is searched and not parsed."""
    with index.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as text:
        for match in re.finditer(re.escape(f"Package: {package}\n".encode()), text):
            at = match.start()
            if at == 0 or text[at - 1 : at] == b"\n":
                start, end = text.rfind(b"\n\n", 0, at), text.find(b"\n\n", at)
                yield text[start + 2 if start >= 0 else 0 : end if end >= 0 else len(text)].decode()


def _offer(stanza: str, kind: Kind, suite: str, base: str) -> Offer:
    fields = HeaderParser().parsestr(stanza)
    if kind == "binary":
        paths = [(fields["SHA256"], fields["Size"], fields["Filename"])]
    else:
        rows = (line.split() for line in fields["Checksums-Sha256"].split("\n") if line.strip())
        paths = [(digest, size, f"{fields['Directory']}/{name}") for digest, size, name in rows]
    files = (RemoteFile(PurePosixPath(path).name, int(size), digest, f"{base}/{path}") for digest, size, path in paths)
    return Offer(fields["Version"], suite, tuple(files))


def _newest_first(one: Offer, other: Offer) -> int:
    """Order of two offers by Debian's rules for versions."""
    if one.version == other.version:
        return 0
    newer = run(["dpkg", "--compare-versions", one.version, "gt", other.version], check=False)
    return -1 if newer.returncode == 0 else 1
