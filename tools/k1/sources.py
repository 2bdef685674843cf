"""What a build takes from Debian: what is wanted, what was got, and the lock that records it.

Files lie in the cache under their own hash, so a file there is either right or damaged, never outdated. The suites
of a wanted package are tried in the order given: the first that has the package and delivers all its files wins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from k1.apt import LAYOUTS, AptRoot, Kind, MissingError, NoListError, Offer, RefusedError, RemoteFile, find_mirror
from k1.errors import K1Error
from k1.files import digest as value_digest
from k1.files import locked as hold
from k1.files import sha256, write_json
from k1.output import Task, note, warn

# Of binary packages; as Debian names them.
Architecture = Literal["arm64", "riscv64"]
_UPDATE_LOCK = "k1 image --update-lock records the versions that the mirror offers now"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Wanted(_Model):
    """A package that a build needs; `name` is what the build calls it.

    architecture: of a binary package; None for one that is the same everywhere (`all`), or a source.
    suites: in the order of preference.
    only: pattern for the names of the files needed of a source package, where not all are.
    """

    name: str
    kind: Kind
    package: str
    architecture: Architecture | None = None
    suites: tuple[str, ...]
    only: str = "*"


class SourceFile(_Model):
    """One file as the signed index describes it; `size` in bytes."""

    filename: Annotated[str, Field(pattern=r"^[A-Za-z0-9][^/]*$")]
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def path(self, cache: Path) -> Path:
        """Where the file lies below `cache`."""
        return cache / "files" / self.sha256 / self.filename


class Source(_Model):
    """A package that was got: its exact version and files."""

    name: str
    kind: Kind
    package: str
    architecture: Architecture | None = None
    version: str
    suite: str
    files: tuple[SourceFile, ...]


class _List(_Model):
    sources: tuple[Source, ...]


class _NotOfferedError(K1Error):
    """The package lists at hand do not have what is asked for; newer lists may."""


def load(path: Path) -> list[Source] | None:
    """Read a list written by `save`, be it a lock or what the last build resolved; None when there is no such file."""
    if not path.exists():
        return None
    try:
        return list(_List.model_validate_json(path.read_bytes()).sources)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise K1Error(f"{path}: {where}: {first['msg']}", hint=_UPDATE_LOCK) from error


def save(path: Path, sources: Sequence[Source]) -> None:
    """Write `sources` to `path` as JSON, sorted by name; the same sources give the same bytes."""
    write_json(path, _List(sources=tuple(sorted(sources, key=lambda s: s.name))).model_dump(mode="json"))


def digest(packages: Sequence[Source]) -> str:
    """One value for binary packages in their order: other versions or files, another value."""
    return value_digest([[p.package, p.version, p.files[0].sha256] for p in packages])


def fetch(
    wanted: Sequence[Wanted],
    *,
    cache: Path,
    lock: Sequence[Source] | None = None,
    locked: bool = False,
    refresh: bool = False,
    task: Task,
) -> list[Source]:
    """Bring every wanted package into the cache and say what was got, in the order wanted.

    locked: take exactly what `lock` records, or raise an error that lists what the mirror offers instead.
    refresh: ask the mirror for new package lists first. Old lists are also renewed when they lack something.
    Nothing is asked of the mirror when lists and files are in the cache.
    """
    if locked:
        recorded = _recorded(wanted, lock)
    with _turn(cache):
        fetcher = _Fetcher(wanted, cache, task)
        if refresh:
            fetcher.update()
        found = fetcher.renewing(lambda: fetcher.again(recorded) if locked else fetcher.newest(wanted))
    if lock and not locked:
        _tell_drift(found, lock)
    return found


def verify(source: Source, cache: Path, task: Task) -> None:
    """Hash the cached files of `source` in full; fetch again each that is damaged or missing."""
    if all(_intact(file, cache) for file in source.files):
        return
    for file in source.files:
        if not file.path(cache).exists():
            warn(f"{file.filename} is missing in the cache and is fetched again")
    with _turn(cache):
        fetcher = _Fetcher([source], cache, task)
        fetcher.renewing(lambda: fetcher.again([source]))


def _recorded(wanted: Sequence[Wanted], lock: Sequence[Source] | None) -> list[Source]:
    """The lock's entry for each wanted package."""
    known = {(s.name, s.kind, s.package, s.architecture): s for s in lock or ()}
    keys = [(w.name, w.kind, w.package, w.architecture) for w in wanted]
    lacking = [key[0] for key in keys if key not in known]
    if lacking:
        what = "there is no lock; it would have to record" if lock is None else "the lock has no entry for"
        raise K1Error(f"{what} {', '.join(lacking)}", hint=_UPDATE_LOCK)
    return [known[key] for key in keys]


def _tell_drift(found: Sequence[Source], lock: Sequence[Source]) -> None:
    old = {s.name: s for s in lock}
    changes = [
        f"{new.name} {old[new.name].version} → {new.version}"
        for new in found
        if new.name in old and old[new.name].files != new.files
    ]
    if changes:
        warn(f"other versions than the lock records: {', '.join(changes)} (--locked keeps the recorded ones)")


@contextmanager
def _turn(cache: Path) -> Iterator[None]:
    """Be the only k1 process that changes the cache; wait for another one to end."""
    with ExitStack() as stack:
        waited = 0
        while True:
            try:
                stack.enter_context(hold(cache / "apt" / "lock", str(cache)))
                break
            except K1Error:
                if waited == 4:
                    note("waiting for another k1 command that fetches packages")
                waited += 1
                time.sleep(0.25)
        yield


def _intact(file: SourceFile, cache: Path) -> bool:
    path = file.path(cache)
    return path.is_file() and path.stat().st_size == file.size and sha256(path) == file.sha256


class _Fetcher:
    """One look into the package lists and at the mirror; both are opened when first needed."""

    def __init__(self, packages: Sequence[Wanted] | Sequence[Source], cache: Path, task: Task) -> None:
        self._cache = cache
        self._task = task
        self._names = sorted({_root(package) for package in packages})
        self._updated = False
        self._not_renewed: set[tuple[str, str]] = set()  # root and suite
        self._expected: dict[str, int] = {}  # bytes to download, by name
        self._done = 0

    @cached_property
    def _roots(self) -> dict[str, AptRoot]:
        mirror = find_mirror()
        return {name: AptRoot(self._cache, name, mirror) for name in self._names}

    def update(self) -> None:
        """Renew the package lists."""
        for name, root in self._roots.items():
            self._task.detail(f"package lists ({name})")
            self._not_renewed |= {(name, suite) for suite in root.update()}
        self._updated = True

    def renewing(self, step: Callable[[], list[Source]]) -> list[Source]:
        """Do `step`; if the package lists lack something for it, renew them and do it once more."""
        try:
            return step()
        except _NotOfferedError:
            if self._updated:
                raise
        self.update()
        return step()

    def newest(self, wanted: Sequence[Wanted]) -> list[Source]:
        """Bring what the first delivering suite of each wanted package has."""
        plans = [(item, self._candidates(item)) for item in wanted]
        for item, offers in plans:
            self._expect(item.name, offers[0].files)
        return [self._first_delivered(item, offers) for item, offers in plans]

    def again(self, sources: Sequence[Source]) -> list[Source]:
        """Bring exactly the recorded files, from whichever suite still has them."""
        plans = [(source, missing) for source in sources if (missing := self._absent(source.files))]
        offers = {source.name: self._known(source) for source, _ in plans}
        lost = [s for s, missing in plans if not {f.sha256 for f in missing} <= _by_hash(offers[s.name]).keys()]
        if not lost:
            for source, missing in plans:
                self._expect(source.name, missing)
            lost = [s for s, missing in plans if not self._deliver(s, missing, offers[s.name])]
        if lost:
            rows = "".join(f"\n  {_lost(source, offers[source.name])}" for source in lost)
            raise _NotOfferedError(f"the mirror does not offer what is recorded:{rows}", hint=_UPDATE_LOCK)
        return list(sources)

    def _candidates(self, item: Wanted) -> list[Offer]:
        """The newest version in each suite, in the order of the suites."""
        allowed = LAYOUTS[_root(item)].suites(item.kind)
        for suite in item.suites:
            if suite not in allowed:
                raise K1Error(f"{item.name}: suite {suite!r} is not one of {', '.join(allowed)}")
        newest = [self._offers(item, suite)[:1] for suite in item.suites]
        found = [
            replace(offer, files=tuple(file for file in offer.files if fnmatchcase(file.filename, item.only)))
            for offers in newest
            for offer in offers
        ]
        if not found:
            where = f"{item.kind} package {item.package} is in none of the suites {', '.join(item.suites)}"
            raise _NotOfferedError(f"{item.name}: {where}", hint="check the package's name and the suites")
        for offer in found:
            if not offer.files:
                raise K1Error(f"{item.name}: no file of {item.package} {offer.version} matches {item.only!r}")
        return found

    def _known(self, source: Source) -> list[Offer]:
        """Every version in every suite; those of the recorded suite first."""
        suites = LAYOUTS[_root(source)].suites(source.kind)
        ordered = sorted(suites, key=lambda suite: suite != source.suite)
        return [offer for suite in ordered for offer in self._offers(source, suite)]

    def _offers(self, package: Wanted | Source, suite: str) -> list[Offer]:
        name = _root(package)
        if (name, suite) in self._not_renewed:
            self._not_renewed.remove((name, suite))
            warn(f"the mirror's package list of {suite} is damaged or being replaced, and was not renewed")
        try:
            return self._roots[name].offers(package.kind, suite, package.package)
        except NoListError as error:
            if self._updated:
                return []
            raise _NotOfferedError(error.message) from error

    def _first_delivered(self, item: Wanted, offers: Sequence[Offer]) -> Source:
        root = self._roots[_root(item)]
        for offer in offers:
            self._expect(item.name, offer.files)
            try:
                files = tuple(self._get(root, file) for file in offer.files)
            except MissingError as error:
                if not self._updated:
                    raise _NotOfferedError(error.message) from error
                warn(f"{item.name}: {offer.version} of {offer.suite} is passed over: {error.message}")
                continue
            return Source(
                name=item.name,
                kind=item.kind,
                package=item.package,
                architecture=item.architecture,
                version=offer.version,
                suite=offer.suite,
                files=files,
            )
        tried = ", ".join(f"{offer.version} ({offer.suite})" for offer in offers)
        raise K1Error(
            f"{item.name}: the mirror delivers no version of {item.package} whole; tried {tried}",
            hint="use another mirror (K1_DEBIAN_MIRROR)",
        )

    def _deliver(self, source: Source, missing: Sequence[SourceFile], offers: Sequence[Offer]) -> bool:
        """Bring each missing file from the first place that has it; False when none has."""
        root = self._roots[_root(source)]
        places = _by_hash(offers)
        for file in missing:
            for place in places[file.sha256]:
                with suppress(MissingError):
                    self._get(root, replace(place, filename=file.filename))
                    break
            else:
                return False
        return True

    def _get(self, root: AptRoot, remote: RemoteFile) -> SourceFile:
        """Have one file in the cache: it appears there whole and checked, or not at all."""
        file = SourceFile(filename=remote.filename, size=remote.size, sha256=remote.sha256)
        target = file.path(self._cache)
        if _intact(file, self._cache):
            return file
        if target.exists():
            warn(f"{file.filename} is damaged in the cache and is fetched again")
            target.unlink()
        partial = self._cache / "files" / "partial" / file.sha256
        partial.parent.mkdir(parents=True, exist_ok=True)
        self._task.detail(file.filename)
        with self._shown(partial):
            try:
                root.download(remote, partial)
            except RefusedError:  # perhaps an old part was gone on with: once more from the start
                root.download(remote, partial)
        target.parent.mkdir(exist_ok=True)
        partial.replace(target)
        self._done += file.size
        return file

    def _absent(self, files: Sequence[SourceFile]) -> list[SourceFile]:
        return [file for file in files if not _intact(file, self._cache)]

    def _expect(self, name: str, files: Sequence[SourceFile] | Sequence[RemoteFile]) -> None:
        missing = (f.size for f in files if not (self._cache / "files" / f.sha256 / f.filename).exists())
        self._expected[name] = sum(missing)

    @contextmanager
    def _shown(self, partial: Path) -> Iterator[None]:
        """Show how much has come while apt fills `partial`."""
        ended = threading.Event()

        def poll() -> None:
            total = sum(self._expected.values())
            while not ended.wait(0.2):
                with suppress(FileNotFoundError):
                    self._task.advance(min(self._done + partial.stat().st_size, total), total)

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _root(package: Wanted | Source) -> str:
    """The apt configuration that has the package."""
    return package.architecture or "host"


def _by_hash(offers: Sequence[Offer]) -> dict[str, list[RemoteFile]]:
    found: dict[str, list[RemoteFile]] = {}
    for offer in offers:
        for file in offer.files:
            found.setdefault(file.sha256, []).append(file)
    return found


def _lost(source: Source, offers: Sequence[Offer]) -> str:
    offered = offers[0].version if offers else "nothing"
    changed = ", but not the recorded files" if offered == source.version else ""
    return f"{source.name}: recorded {source.version}, offered {offered}{changed}"
