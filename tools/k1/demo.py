"""The whole product once, on virtual boards: a model on each, one prompt, one answer from all of them."""

from __future__ import annotations

import http.client
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from k1 import files
from k1.drivers.patience import scaled
from k1.drivers.ssh import Target
from k1.errors import CheckFailed
from k1.lab import Lab, Status

MODEL = "/opt/k1/models/model.gguf"
KEY = "/data/etc/k1/cluster_key"
CONFIG = "/data/etc/k1/inferd.conf"
TOKENS = "/data/etc/k1/api_tokens"
LOG = "/data/log/messages"
# The boards' network ends at the host here (QEMU's user networking).
HOST = "10.0.2.2"
# What a board under emulation needs more than a real one between two signs of life.
BOARD_PATIENCE = 10
_CHUNK = 1 << 20
# Seconds between two looks whether the daemons still run.
_GRACE = 10.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class Answer:
    """Text of the answer and the server's timings (milliseconds), as /v1/completions gives them."""

    text: str
    timings: dict[str, Any]


def config(nodes: list[str], rank: int, n_ctx: int) -> str:
    """The options of k1-inferd on one board; `nodes`: addresses by rank."""
    lines = {
        "model": MODEL,
        "host": "0.0.0.0",  # noqa: S104 - inside the board; a token is asked for
        "port": 8080,
        "api_token_file": TOKENS,
        "n_ctx": n_ctx,
        "n_batch": 64,
        "nodes": ",".join(nodes),
        "rpc_rank": rank,
        "rpc_master": nodes[0],
        "cluster_key_file": KEY,
        "timeout_scale": BOARD_PATIENCE,
    }
    return "# Written by k1 demo.\n" + "".join(f"{key} = {value}\n" for key, value in lines.items())


class Cluster:
    """The boards of a running lab as one server."""

    def __init__(self, lab: Lab, boards: list[Status], n_ctx: int = 512) -> None:
        self.lab = lab
        self.boards = boards
        self.n_ctx = n_ctx
        self._targets = [lab.ssh(board.rank) for board in boards]
        self._token = ""

    @property
    def url(self) -> str:
        """Where this host reaches rank 0's API."""
        return f"http://127.0.0.1:{self.boards[0].api_port}"

    @property
    def token(self) -> str:
        """The API token that rank 0 has made for itself."""
        if not self._token:
            self._token = self._targets[0].run(f"cat {TOKENS}").output.split()[0]
        return self._token

    def put_model(self, model: Path, report: Callable[[int, int], None]) -> bool:
        """Copy the model to the boards that lack it, several at once; whether any did.

        report: is told bytes sent and bytes to send, of all boards together.
        """
        size = model.stat().st_size
        lacking = [t for t in self._targets if t.run(f"stat -c %s {MODEL}", check=False).output.strip() != str(size)]
        if not lacking:
            return False
        with _serve(model, lambda sent: report(sent, size * len(lacking))) as port_and_path:
            url = f"http://{HOST}:{port_and_path}"
            fetch = f"mkdir -p {Path(MODEL).parent} && wget -q -O {MODEL}.new {url} && mv {MODEL}.new {MODEL}"
            _everywhere(lacking, lambda target: target.run(fetch, timeout=900))
        return True

    def configure(self) -> list[int]:
        """Give each board the cluster's key and its options; the ranks where something changed."""
        key = self._cluster_key()
        nodes = [board.address for board in self.boards]
        changed = []

        def write(rank: int) -> None:
            target = self._targets[rank]
            private = _put(target, KEY, key, "umask 077", f"chown inferd {KEY}.new")
            options = _put(target, CONFIG, config(nodes, rank, self.n_ctx))
            if private or options:
                changed.append(rank)

        _everywhere(range(len(self.boards)), write)
        return sorted(changed)

    def start(self, ranks: list[int]) -> None:
        """Start the daemon anew on `ranks`, and on all others where it does not run."""

        def act(rank: int) -> None:
            running = self._targets[rank].run("pidof k1-inferd", check=False).returncode == 0
            if rank in ranks or not running:
                self._targets[rank].run("/etc/init.d/S50inferd restart", timeout=120)

        _everywhere(range(len(self.boards)), act)

    def wait_ready(self, report: Callable[[str], None], timeout: float = 300.0) -> dict[str, Any]:
        """Wait until rank 0 says that all ranks agree; its /health. `timeout` in seconds, scaled."""
        deadline = time.monotonic() + scaled(timeout)
        look = time.monotonic() + scaled(_GRACE)
        reason = "k1-inferd does not answer yet"
        while time.monotonic() < deadline:
            if time.monotonic() > look:
                _everywhere(self._targets, _require_daemon)
                look = time.monotonic() + scaled(_GRACE)
            health = self._health()
            if health.get("status") == "ok":
                return health
            reason = str(health.get("reason", reason))
            report(reason)
            time.sleep(0.5)
        hint = f"k1 lab ssh --name {self.lab.name} 0 grep k1-inferd {LOG} shows what the daemon says"
        raise CheckFailed(f"the boards did not agree within {scaled(timeout):.0f} s: {reason}", hint=hint)

    def ask(self, prompt: str, n_predict: int, show: Callable[[str], None]) -> Answer:
        """Complete the line of `prompt` greedily; `show` gets the text as it comes."""
        wanted = {"prompt": prompt, "max_tokens": n_predict, "temperature": 0, "stop": "\n", "stream": True}
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        connection = self._connect(scaled(600.0))
        try:
            connection.request("POST", "/v1/completions", json.dumps(wanted), headers)
            return _read_stream(connection.getresponse(), show)
        except (OSError, http.client.HTTPException) as error:
            raise CheckFailed(f"{self.url}: the answer broke off: {error}", hint="make demo again") from error
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.boards[0].api_port, timeout=timeout)

    def _health(self) -> dict[str, Any]:
        connection = self._connect(scaled(10.0))
        try:
            connection.request("GET", "/health")
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()

    def _cluster_key(self) -> str:
        """The lab's key, made at the first call; it stays in the lab's folder."""
        path = self.lab.folder / "cluster_key"
        if not path.is_file():
            files.write(path, secrets.token_hex(32) + "\n", mode=0o600)
        return path.read_text()


def _everywhere(items: Iterable[_T], act: Callable[[_T], object]) -> None:
    """Do the same for all, at once; the first error is raised when all have ended."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        for done in [pool.submit(act, item) for item in items]:
            done.result()


def _put(target: Target, path: str, text: str, before: str = "true", after: str = "true") -> bool:
    """Write a small file on a board unless it is there as it should be; whether it was written."""
    if target.run(f"cat {path}", check=False).output == text:
        return False
    new = f"{path}.new"
    steps = (f"mkdir -p {Path(path).parent}", before, f"cat > {new}", after, f"mv {new} {path}", "sync")
    target.run(" && ".join(steps), stdin=text)
    return True


def _require_daemon(target: Target) -> None:
    """CheckFailed with the daemon's last words when it does not run."""
    last = f"grep k1-inferd: {LOG} | tail -n 1"
    found = target.run(f"pidof k1-inferd > /run/pid || {last}", check=False).output.strip()
    if found:
        raise CheckFailed(f"{target.alias}: k1-inferd has ended: {found.partition('k1-inferd: ')[2] or found}")


@contextmanager
def _serve(file: Path, report: Callable[[int], None]) -> Iterator[str]:
    """Serve one file to the boards, under a name that nobody else knows; yields `port/name`.

    Ten times as fast under emulation as SSH, whose ciphers the boards' CPUs have to work for.
    """
    name = secrets.token_urlsafe(16)
    sent = 0
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal sent
            if self.path != f"/{name}":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(file.stat().st_size))
            self.end_headers()
            with file.open("rb") as source:
                for piece in iter(partial(source.read, _CHUNK), b""):
                    self.wfile.write(piece)
                    with lock:
                        sent += len(piece)
                        report(sent)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{server.server_port}/{name}"
    finally:
        server.shutdown()
        server.server_close()


def _read_stream(response: http.client.HTTPResponse, show: Callable[[str], None]) -> Answer:
    text = ""
    timings: dict[str, Any] = {}
    if response.status != 200:
        message = json.loads(response.read())["error"]["message"]
        raise CheckFailed(f"the server answered HTTP {response.status}: {message}", hint="make demo again")
    for line in response:
        event = line.decode().strip().removeprefix("data: ")
        if event == "[DONE]":
            return Answer(text, timings)
        if not event:
            continue
        part = json.loads(event)
        if "error" in part:
            raise CheckFailed(f"the server gave up: {part['error']['message']}", hint="make demo again")
        piece = part["choices"][0]["text"] if part["choices"] else ""
        text += piece
        timings = part.get("timings", timings)
        show(piece)
    raise CheckFailed("the answer ended too early", hint="make demo again")
