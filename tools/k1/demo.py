"""The whole product once, on virtual boards: a model on each, one prompt, one answer from all of them."""

from __future__ import annotations

import http.client
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from k1 import files, fleet, labfleet
from k1.deploy import release
from k1.deploy.plan import Deploy, Event, Options
from k1.deploy.session import BASE, Session
from k1.drivers.patience import scaled
from k1.errors import CheckFailed
from k1.lab import Lab, Status
from k1.together import together

# The boards' network ends at the host here (QEMU's user networking).
HOST = "10.0.2.2"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Answer:
    """Text of the answer and the server's timings (milliseconds), as /v1/completions gives them."""

    text: str
    timings: dict[str, Any]


class Cluster:
    """The boards of a running lab as one server."""

    def __init__(self, lab: Lab, boards: list[Status], model: Path, n_ctx: int = 512) -> None:
        self.boards = boards
        self._targets = [lab.ssh(board.rank) for board in boards]
        path = lab.folder / "fleet.toml"
        files.write(path, labfleet.text(boards, str(model.absolute()), n_ctx))
        self._fleet = fleet.read(path)
        self._draft = release.prepare(self._fleet)

    @property
    def url(self) -> str:
        """Where this host reaches rank 0's API."""
        return f"http://127.0.0.1:{self.boards[0].api_port}"

    @property
    def token(self) -> str:
        """The API token of the cluster."""
        return self._draft.tokens.split()[0]

    def put_model(self, report: Callable[[int, int], None]) -> bool:
        """Copy the model to the boards that lack it, several at once; whether any did. `deploy` checks its hash.

        report: is told bytes sent and bytes to send, of all boards together.
        """
        model = self._draft.model
        path = f"{BASE}/models/{model.name}"
        size = str(model.size)
        lacking = [t for t in self._targets if t.run(f"stat -c %s {path}", check=False).output.strip() != size]
        if not lacking:
            return False
        with _serve(model.file, lambda sent: report(sent, model.size * len(lacking))) as port_and_path:
            url = f"http://{HOST}:{port_and_path}"
            fetch = f"mkdir -p {BASE}/models && wget -q -O {path}.new {url} && mv {path}.new {path}"
            for ended in together(lacking, lambda target: target.run(fetch, timeout=900)):
                ended.result()
        return True

    def deploy(self, report: Callable[[Event], None]) -> dict[str, Any]:
        """Bring all into service as k1 deploy does; /health of rank 0."""
        with Session(self._fleet) as session:
            return Deploy(session, self._draft, Options(), report).run().health

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

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a board that leaves in the middle fails its own command, which says so

    server = Server(("127.0.0.1", 0), Handler)
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
