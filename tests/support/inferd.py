"""k1-inferd as tests start it and talk to it, and other programs of ours run to their end."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCALE = float(os.environ.get("K1_TIMEOUT_SCALE", "1"))
Dial = Callable[[int], socket.socket]


def wait_until(what: str, true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds * SCALE
    while not true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)


class Answer:
    """Status, headers and body of one HTTP answer."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The OpenAI error object."""
        assert set(self.json["error"]) == {"message", "type", "param", "code"}
        return self.json["error"]

    @property
    def text(self) -> str:
        assert self.status == 200, self.body
        return str(self.json["choices"][0]["text"])

    @property
    def events(self) -> list[Any]:
        """The JSON of each event but [DONE], which must come last."""
        assert self.headers["Content-Type"] == "text/event-stream"
        *events, done, rest = self.body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]


def dial_loopback(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60 * SCALE)


class Daemon:
    """A running k1-inferd. dial: how to reach its port, when that is not on this machine's loopback."""

    def __init__(self, process: subprocess.Popen[str], log: Path, dial: Dial = dial_loopback) -> None:
        self.process = process
        self.log_path = log
        self.dial = dial
        wait_until("k1-inferd listens", lambda: " listening " in self.log or process.poll() is not None)
        assert process.poll() is None, self.log
        found = re.search(r" listening .*port=(\d+)", self.log)
        assert found
        self.port = int(found[1])

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SCALE)
        connection.sock = self.dial(self.port)
        return connection

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection = self.connect()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, headers or {})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def complete(self, **fields: Any) -> Answer:
        return self.ask("POST", "/v1/completions", fields)

    def health(self) -> Any:
        return self.ask("GET", "/health").json

    def is_idle(self) -> bool:
        health = self.health()
        return bool(health["running"] == health["waiting"] == 0)

    def send(self, body: Any) -> socket.socket:
        """Post a completion and do not wait for the answer."""
        data = json.dumps(body).encode()
        connection = self.dial(self.port)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        return connection

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30 * SCALE)


class Run:
    """One of our programs, run to its end."""

    def __init__(self, *argv: str | Path, stdin: str = "", env: dict[str, str] | None = None) -> None:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=90 * SCALE, env={**os.environ, **(env or {})}
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
