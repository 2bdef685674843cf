"""Packages from a small signed Debian archive on loopback, through the real apt."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from k1.apt import find_mirror
from k1.errors import K1Error
from k1.output import Task
from k1.sources import Source, Wanted, fetch, verify

SUITES = ("bookworm", "bookworm-updates", "bookworm-security", "trixie", "trixie-updates", "trixie-security")
PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")
FIRMWARE = Wanted(name="firmware", kind="source", package="opensbi", suites=("bookworm", "trixie"))
SHELL = Wanted(
    name="shell", kind="binary", package="busybox", architecture="riscv64", suites=("trixie-security", "trixie")
)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Archive:
    """A Debian archive in a folder, served on loopback."""

    def __init__(self, folder: Path, keys: Path) -> None:
        self.folder = folder
        self.keys = keys
        self.keyring = keys / "public.gpg"
        self.requests: list[str] = []
        self.cut: set[str] = set()  # names of files whose transfer breaks off half-way
        self._stanzas: dict[tuple[str, str], list[str]] = {}
        native = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True)
        self._architectures = sorted({native.stdout.strip(), "arm64", "riscv64"})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, self))
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def source(self, suite: str, package: str, version: str, files: Mapping[str, bytes]) -> None:
        rows = "".join(f"\n {sha256(content)} {len(content)} {name}" for name, content in files.items())
        self._add(
            suite,
            "source/Sources",
            f"Package: {package}\nFormat: 3.0 (quilt)\nVersion: {version}\nDirectory: pool/{package}\n"
            f"Checksums-Sha256:{rows}\nPackage-List:\n {package} deb misc optional arch=all\n",
        )
        for name, content in files.items():
            self.put(f"pool/{package}/{name}", content)

    def binary(self, suite: str, package: str, version: str, content: bytes, machine: str = "riscv64") -> str:
        name = f"pool/{package}/{package}_{version.partition(':')[2] or version}_{machine}.deb"
        self._add(
            suite,
            f"binary-{machine}/Packages",
            f"Package: {package}\nVersion: {version}\nArchitecture: {machine}\nMaintainer: nobody\n"
            f"Description: a test\nFilename: {name}\nSize: {len(content)}\nSHA256: {sha256(content)}\n",
        )
        self.put(name, content)
        return name

    def put(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def withdraw(self, package: str) -> None:
        """Take every version of a package out of the lists and the pool."""
        for stanzas in self._stanzas.values():
            stanzas[:] = [text for text in stanzas if f"Package: {package}\n" not in text]
        shutil.rmtree(self.folder / "pool" / package)

    def publish(self) -> None:
        """Write and sign the lists of every suite."""
        for suite in SUITES:
            lists = {f"main/{name}": "\n".join(self._stanzas.get((suite, name), [])).encode() for name in self._lists()}
            for name, content in lists.items():
                self.put(f"dists/{suite}/{name}", content)
            hashes = "".join(f" {sha256(content)} {len(content)} {name}\n" for name, content in lists.items())
            release = (
                f"Origin: Test\nSuite: {suite}\nCodename: {suite}\nDate: Mon, 01 Jan 2024 00:00:00 UTC\n"
                f"Architectures: {' '.join(self._architectures)}\nComponents: main\nSHA256:\n{hashes}"
            )
            sign(self.keys, release, self.folder / "dists" / suite / "InRelease")

    def _lists(self) -> list[str]:
        return ["source/Sources", *(f"binary-{name}/Packages" for name in self._architectures)]

    def _add(self, suite: str, name: str, stanza: str) -> None:
        self._stanzas.setdefault((suite, name), []).append(stanza)


class Handler(SimpleHTTPRequestHandler):
    """Serves the archive, as a mirror and as a proxy to it."""

    def __init__(self, archive: Archive, *args: object) -> None:
        self.archive = archive
        super().__init__(*args, directory=str(archive.folder))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.archive.requests.append(self.path)
        del self.headers["If-Modified-Since"]  # in whole seconds: too coarse for an archive that a test changes
        self.path = "/" + self.path.removeprefix("http://").partition("/")[2]
        if Path(self.path).name not in self.archive.cut:
            return super().do_GET()
        content = Path(self.translate_path(self.path)).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])

    def log_message(self, *args: object) -> None:
        pass


def gpg(home: Path, *words: str, text: str = "") -> bytes:
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--yes", "--passphrase", "", *words]
    return subprocess.run(command, input=text.encode(), check=True, capture_output=True).stdout


def make_keys(home: Path) -> Path:
    home.mkdir(mode=0o700)
    gpg(home, "--quick-generate-key", "test@example.org", "ed25519", "sign", "never")
    (home / "public.gpg").write_bytes(gpg(home, "--export"))
    return home


def sign(home: Path, text: str, target: Path) -> None:
    target.write_bytes(gpg(home, "--clearsign", text=text))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = make_keys(tmp_path_factory.mktemp("gpg") / "k")
    yield home
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)


@pytest.fixture
def archive(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Archive]:
    made = Archive(tmp_path / "archive", keys)
    host_settings(tmp_path, monkeypatch, "")
    monkeypatch.setenv("K1_DEBIAN_MIRROR", made.address)
    monkeypatch.setenv("K1_DEBIAN_SECURITY_MIRROR", made.address)
    monkeypatch.setenv("K1_DEBIAN_KEYRING", str(made.keyring))
    yield made
    made.stop()


def host_settings(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Stand in for the apt configuration of the host."""
    path = folder / "host-apt.conf"
    nothing = "".join(f'Dir::Etc::{name} "/dev/null";\n' for name in ("main", "parts", "sourcelist", "sourceparts"))
    path.write_text(f'{nothing}Acquire::Retries "0";\n{text}')
    monkeypatch.setenv("APT_CONFIG", str(path))
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


def get(cache: Path, *wanted: Wanted, lock: list[Source] | None = None, locked: bool = False) -> list[Source]:
    return fetch(wanted, cache=cache, lock=lock, locked=locked, task=Task(None, "fetch"))


def contents(source: Source, cache: Path) -> dict[str, bytes]:
    return {file.filename: file.path(cache).read_bytes() for file in source.files}


def delivered(cache: Path) -> list[str]:
    """Names of the files that a build would take from the cache."""
    return sorted(path.name for path in cache.glob("files/*/*") if path.parent.name != "partial")


def test_a_source_arrives_with_all_files_and_the_hashes_of_the_index(archive: Archive, tmp_path: Path) -> None:
    files = {"opensbi_1.6-1.dsc": b"description", "opensbi_1.6+dfsg.orig.tar.gz": b"tar"}
    archive.source("trixie", "opensbi", "1.6-1", files)
    archive.publish()
    [got] = get(tmp_path / "cache", FIRMWARE)
    assert (got.version, got.suite) == ("1.6-1", "trixie")
    assert contents(got, tmp_path / "cache") == files
    assert {file.filename: file.sha256 for file in got.files} == {name: sha256(c) for name, c in files.items()}


@pytest.mark.parametrize("machine", ["riscv64", "arm64"])
def test_a_package_for_another_machine_arrives_on_any_host(archive: Archive, tmp_path: Path, machine: str) -> None:
    for each in ("riscv64", "arm64"):
        archive.binary("trixie", "busybox", "1:1.37-6", each.encode(), each)
    archive.publish()
    [got] = get(tmp_path / "cache", SHELL.model_copy(update={"architecture": machine}))
    assert got.version == "1:1.37-6"
    assert contents(got, tmp_path / "cache") == {f"busybox_1.37-6_{machine}.deb": machine.encode()}


def test_only_the_files_asked_for_are_fetched(archive: Archive, tmp_path: Path) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"d", "o.orig.tar.gz": b"tar"})
    (archive.folder / "pool/opensbi/o.dsc").unlink()
    archive.publish()
    [got] = get(tmp_path / "cache", FIRMWARE.model_copy(update={"only": "*.orig.tar.*"}))
    assert contents(got, tmp_path / "cache") == {"o.orig.tar.gz": b"tar"}


def test_a_pattern_without_a_match_is_an_error(archive: Archive, tmp_path: Path) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"d"})
    archive.publish()
    with pytest.raises(K1Error, match=r"firmware: no file of opensbi 1\.6-1 matches '\*\.zip'"):
        get(tmp_path / "cache", FIRMWARE.model_copy(update={"only": "*.zip"}))


def test_the_newest_version_in_a_suite_is_taken_by_debian_rules(archive: Archive, tmp_path: Path) -> None:
    for version in ("1.9-1", "1.10~rc1-1", "1.10-1", "1.2-1"):
        archive.source("trixie", "opensbi", version, {f"o_{version}.dsc": version.encode()})
    archive.publish()
    assert get(tmp_path / "cache", FIRMWARE)[0].version == "1.10-1"


def test_the_first_suite_wins_over_a_newer_version_in_a_later_one(archive: Archive, tmp_path: Path) -> None:
    archive.source("bookworm", "opensbi", "1.1-2", {"old.dsc": b"old"})
    archive.source("trixie", "opensbi", "1.6-1", {"new.dsc": b"new"})
    archive.publish()
    assert get(tmp_path / "cache", FIRMWARE)[0].suite == "bookworm"


def test_a_hole_in_the_mirror_is_filled_from_the_next_suite_with_a_warning(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.source("bookworm", "opensbi", "1.1-2", {"old.dsc": b"old", "old.tar.gz": b"old tar"})
    archive.source("trixie", "opensbi", "1.6-1", {"new.dsc": b"new"})
    archive.publish()
    (archive.folder / "pool/opensbi/old.tar.gz").unlink()
    assert get(tmp_path / "cache", FIRMWARE)[0].suite == "trixie"
    warning = capsys.readouterr().err
    assert "firmware: 1.1-2 of bookworm is passed over" in warning
    assert "old.tar.gz" in warning


def test_a_package_that_no_suite_delivers_is_an_error_with_what_was_tried(archive: Archive, tmp_path: Path) -> None:
    archive.source("bookworm", "opensbi", "1.1-2", {"old.dsc": b"old"})
    archive.publish()
    (archive.folder / "pool/opensbi/old.dsc").unlink()
    with pytest.raises(K1Error, match=r"firmware: the mirror delivers no version.*tried 1\.1-2 \(bookworm\)"):
        get(tmp_path / "cache", FIRMWARE)


def test_an_unknown_package_is_named_with_its_suites(archive: Archive, tmp_path: Path) -> None:
    archive.publish()
    with pytest.raises(K1Error, match="firmware: source package opensbi is in none of the suites bookworm, trixie"):
        get(tmp_path / "cache", FIRMWARE)


def test_a_file_changed_on_the_mirror_is_refused_with_both_hashes(archive: Archive, tmp_path: Path) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"good"})
    archive.publish()
    archive.put("pool/opensbi/o.dsc", b"evil")
    with pytest.raises(K1Error) as caught:
        get(tmp_path / "cache", FIRMWARE)
    for part in ("o.dsc is not the file that the signed index names", sha256(b"good"), sha256(b"evil")):
        assert part in caught.value.message
    assert delivered(tmp_path / "cache") == []


def test_lists_signed_by_another_key_are_refused(
    archive: Archive, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.publish()
    other = make_keys(tmp_path_factory.mktemp("gpg") / "k")
    monkeypatch.setenv("K1_DEBIAN_KEYRING", str(other / "public.gpg"))
    with pytest.raises(K1Error, match=f"{archive.address} are not signed by a key in {other}"):
        get(tmp_path / "cache", FIRMWARE)
    subprocess.run(["gpgconf", "--homedir", str(other), "--kill", "all"], check=False)


def test_a_changed_list_is_left_out_with_a_warning_and_other_suites_go_on(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.binary("trixie", "busybox", "1:1.37-6", b"deb")
    archive.binary("trixie-security", "busybox", "1:1.37-7", b"fixed")
    archive.publish()
    archive.put("dists/trixie-security/main/binary-riscv64/Packages", b"Package: busybox\nVersion: 666\n")
    assert get(tmp_path / "cache", SHELL)[0].suite == "trixie"
    assert "package list of trixie-security is damaged or being replaced" in capsys.readouterr().err


def test_without_network_the_mirror_is_named_with_what_to_check(archive: Archive, tmp_path: Path) -> None:
    archive.stop()
    with pytest.raises(K1Error, match=f"cannot reach the Debian mirror {archive.address}") as caught:
        get(tmp_path / "cache", FIRMWARE)
    assert "network and proxy" in caught.value.hint


def test_without_network_what_is_in_the_cache_is_used(archive: Archive, tmp_path: Path) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"good"})
    archive.publish()
    first = get(tmp_path / "cache", FIRMWARE)
    archive.stop()
    assert get(tmp_path / "cache", FIRMWARE) == first


def test_a_version_that_replaced_the_listed_one_is_found_without_asking_for_a_refresh(
    archive: Archive, tmp_path: Path
) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o_1.dsc": b"old"})
    archive.source("trixie", "u-boot", "1", {"u.dsc": b"u"})
    archive.publish()
    get(tmp_path / "cache", FIRMWARE.model_copy(update={"package": "u-boot"}))
    archive.withdraw("opensbi")
    archive.source("trixie", "opensbi", "1.6-2", {"o_2.dsc": b"new"})
    archive.publish()
    assert get(tmp_path / "cache", FIRMWARE)[0].version == "1.6-2"


def test_an_interrupted_transfer_leaves_no_file_and_the_next_call_goes_on(archive: Archive, tmp_path: Path) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"d", "o.tar.gz": b"tar" * 1000})
    archive.publish()
    archive.cut.add("o.tar.gz")
    with pytest.raises(K1Error, match="cannot reach the Debian mirror"):
        get(tmp_path / "cache", FIRMWARE)
    assert delivered(tmp_path / "cache") == ["o.dsc"]
    archive.cut.clear()
    archive.requests.clear()
    [got] = get(tmp_path / "cache", FIRMWARE)
    assert contents(got, tmp_path / "cache")["o.tar.gz"] == b"tar" * 1000
    assert archive.requests == ["/pool/opensbi/o.tar.gz"]


@pytest.mark.parametrize("damage", [b"", b"shorter", b"GOOD FILE"])
def test_verify_fetches_a_damaged_file_again(
    archive: Archive, tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"good file"})
    archive.publish()
    [got] = get(tmp_path / "cache", FIRMWARE)
    got.files[0].path(tmp_path / "cache").write_bytes(damage)
    verify(got, tmp_path / "cache", Task(None, "verify"))
    assert contents(got, tmp_path / "cache") == {"o.dsc": b"good file"}
    assert "o.dsc is damaged in the cache and is fetched again" in capsys.readouterr().err


def test_verify_fetches_a_missing_file_again(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"good file"})
    archive.publish()
    [got] = get(tmp_path / "cache", FIRMWARE)
    got.files[0].path(tmp_path / "cache").unlink()
    verify(got, tmp_path / "cache", Task(None, "verify"))
    assert contents(got, tmp_path / "cache") == {"o.dsc": b"good file"}
    assert "o.dsc is missing in the cache" in capsys.readouterr().err


def test_fetch_replaces_a_truncated_file_in_the_cache(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"good file"})
    archive.publish()
    [got] = get(tmp_path / "cache", FIRMWARE)
    got.files[0].path(tmp_path / "cache").write_bytes(b"good")
    assert contents(get(tmp_path / "cache", FIRMWARE)[0], tmp_path / "cache") == {"o.dsc": b"good file"}
    assert "o.dsc is damaged in the cache" in capsys.readouterr().err


def test_locked_takes_the_recorded_version_though_a_newer_one_is_offered(archive: Archive, tmp_path: Path) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o_1.dsc": b"old"})
    archive.publish()
    lock = get(tmp_path / "one", FIRMWARE)
    archive.source("trixie", "opensbi", "1.6-2", {"o_2.dsc": b"new"})
    archive.publish()
    assert get(tmp_path / "two", FIRMWARE, lock=lock, locked=True) == lock
    assert delivered(tmp_path / "two") == ["o_1.dsc"]


def test_locked_takes_a_recorded_file_from_whichever_suite_still_has_it(archive: Archive, tmp_path: Path) -> None:
    archive.binary("trixie-security", "busybox", "1.37-6", b"deb")
    archive.publish()
    lock = get(tmp_path / "one", SHELL)
    archive.withdraw("busybox")
    archive.binary("trixie", "busybox", "1.37-6", b"deb")
    archive.publish()
    assert get(tmp_path / "two", SHELL, lock=lock, locked=True) == lock


def test_locked_lists_every_package_that_the_mirror_no_longer_offers(archive: Archive, tmp_path: Path) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o_1.dsc": b"old"})
    archive.binary("trixie", "busybox", "1.37-6", b"deb")
    archive.publish()
    lock = get(tmp_path / "one", FIRMWARE, SHELL)
    archive.withdraw("opensbi")
    archive.withdraw("busybox")
    archive.source("trixie", "opensbi", "1.6-2", {"o_2.dsc": b"new"})
    archive.publish()
    with pytest.raises(K1Error) as caught:
        get(tmp_path / "two", FIRMWARE, SHELL, lock=lock, locked=True)
    assert "firmware: recorded 1.6-1, offered 1.6-2" in caught.value.message
    assert "shell: recorded 1.37-6, offered nothing" in caught.value.message
    assert "k1 image --update-lock" in caught.value.hint


def test_locked_refuses_a_version_whose_files_the_mirror_changed(archive: Archive, tmp_path: Path) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"old"})
    archive.publish()
    lock = get(tmp_path / "one", FIRMWARE)
    archive.withdraw("opensbi")
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"new"})
    archive.publish()
    with pytest.raises(K1Error, match=r"recorded 1\.6-1, offered 1\.6-1, but not the recorded files"):
        get(tmp_path / "two", FIRMWARE, lock=lock, locked=True)


def test_without_locked_the_newest_is_taken_and_the_difference_is_told_in_one_line(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o_1.dsc": b"old"})
    archive.publish()
    lock = get(tmp_path / "one", FIRMWARE)
    archive.source("trixie", "opensbi", "1.6-2", {"o_2.dsc": b"new"})
    archive.publish()
    assert get(tmp_path / "two", FIRMWARE, lock=lock)[0].version == "1.6-2"
    warning = capsys.readouterr().err
    assert "other versions than the lock records: firmware 1.6-1 → 1.6-2" in warning
    assert warning.count("\n") == 1


def test_two_commands_at_once_share_the_cache(archive: Archive, tmp_path: Path) -> None:
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"d", "o.tar.gz": b"tar" * 100_000})
    archive.publish()
    with ProcessPoolExecutor(2) as pool:
        one, two = (pool.submit(get, tmp_path / "cache", FIRMWARE) for _ in range(2))
        assert one.result() == two.result()
    assert archive.requests.count("/pool/opensbi/o.tar.gz") == 1


def test_the_hooks_of_the_host_never_run(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = f'APT::Update::Pre-Invoke {{ "touch {tmp_path}/hook-ran"; }};\n'
    host_settings(tmp_path, monkeypatch, hook)
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"d"})
    archive.publish()
    get(tmp_path / "cache", FIRMWARE)
    assert not (tmp_path / "hook-ran").exists()


def test_the_proxy_of_the_host_is_used(archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host_settings(tmp_path, monkeypatch, f'Acquire::http::Proxy "{archive.address}";\n')
    monkeypatch.setenv("K1_DEBIAN_MIRROR", "http://mirror.invalid")
    monkeypatch.setenv("K1_DEBIAN_SECURITY_MIRROR", "http://mirror.invalid")
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"d"})
    archive.publish()
    get(tmp_path / "cache", FIRMWARE)
    assert "http://mirror.invalid/pool/opensbi/o.dsc" in archive.requests


def test_a_mirror_in_a_folder_is_copied_from_and_not_linked_to(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K1_DEBIAN_MIRROR", f"file:{archive.folder}")
    archive.source("trixie", "opensbi", "1.6-1", {"o.dsc": b"d"})
    archive.publish()
    [got] = get(tmp_path / "cache", FIRMWARE)
    assert not got.files[0].path(tmp_path / "cache").is_symlink()
    assert contents(got, tmp_path / "cache") == {"o.dsc": b"d"}


def test_without_a_security_mirror_its_suites_are_left_out_with_a_warning(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("K1_DEBIAN_SECURITY_MIRROR")
    archive.binary("trixie-security", "busybox", "1.37-7", b"fixed")
    archive.binary("trixie", "busybox", "1.37-6", b"deb")
    archive.publish()
    assert get(tmp_path / "cache", SHELL)[0].version == "1.37-6"
    assert "K1_DEBIAN_SECURITY_MIRROR" in capsys.readouterr().err


MAIN = "deb http://mirror.example/debian bookworm main\n"
UPDATES = "deb http://mirror.example/debian bookworm-updates main\n"
SECURITY = "deb http://mirror.example/debian-security bookworm-security main\n"
VENDOR = "deb http://vendor.example/apt bookworm main\n"


@pytest.fixture
def host(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The apt sources of a Debian 12 host; returns the file to write them to."""
    host_settings(tmp_path, monkeypatch, f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\n')
    for name in ("K1_DEBIAN_MIRROR", "K1_DEBIAN_SECURITY_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("K1_DEBIAN_KEYRING", str(keys / "public.gpg"))
    release = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    return tmp_path / "sources.list"


@pytest.mark.parametrize(
    "lines", [MAIN + UPDATES + SECURITY, VENDOR + SECURITY + MAIN + UPDATES, VENDOR + MAIN + SECURITY]
)
def test_the_mirrors_of_a_debian_host_are_used_and_never_a_vendors(host: Path, lines: str) -> None:
    host.write_text(lines)
    found = find_mirror()
    assert found.main == "http://mirror.example/debian"
    assert found.security == "http://mirror.example/debian-security"


def test_a_setting_wins_over_the_sources_of_the_host(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write_text(MAIN + SECURITY)
    monkeypatch.setenv("K1_DEBIAN_MIRROR", "http://other.example/debian/")
    monkeypatch.setenv("K1_DEBIAN_SECURITY_MIRROR", "http://other.example/security/")
    assert find_mirror().main == "http://other.example/debian"
    assert find_mirror().security == "http://other.example/security"


def test_another_system_needs_the_setting(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write_text(MAIN)
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "ubuntu"})
    with pytest.raises(K1Error, match="no Debian mirror is known") as caught:
        find_mirror()
    assert "K1_DEBIAN_MIRROR" in caught.value.hint


def test_missing_archive_keys_are_named_with_their_package(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write_text(MAIN)
    monkeypatch.setenv("K1_DEBIAN_KEYRING", "/nonexistent/keys.gpg")
    with pytest.raises(K1Error, match=r"/nonexistent/keys\.gpg") as caught:
        find_mirror()
    assert "debian-archive-keyring" in caught.value.hint
