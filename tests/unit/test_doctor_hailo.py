"""`k1 doctor hailo unload`: what is sent to hailo-ollama, and what is said when it does not answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from k1.cli import doctor as doctor_cli
from k1.errors import CheckFailed, K1Error


class Ollama(HTTPServer):
    """Answers as hailo-ollama does; keeps the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {"/api/ps": {"models": [{"name": "qwen2:1.5b"}, {"name": "llama3.2:1b"}]}}
        self.raw = b""


class Handler(BaseHTTPRequestHandler):
    server: Ollama

    def do_GET(self) -> None:
        self.answer(None)

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, body: Any) -> None:
        self.server.requests.append((self.path, body))
        known = self.path in self.server.answers or body
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(self.server.raw or json.dumps(self.server.answers.get(self.path, {})).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def ollama() -> Iterator[Ollama]:
    server = Ollama()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def unload(ollama: Ollama, *words: str) -> str:
    words = ("hailo", "unload", "--port", str(ollama.server_port), *words)
    return CliRunner().invoke(doctor_cli.app, words, catch_exceptions=False).output


def test_every_loaded_model_gets_keep_alive_0(ollama: Ollama) -> None:
    assert "unloaded llama3.2:1b" in unload(ollama)
    assert ollama.requests[1:] == [
        ("/api/generate", {"model": "qwen2:1.5b", "keep_alive": 0, "stream": False}),
        ("/api/generate", {"model": "llama3.2:1b", "keep_alive": 0, "stream": False}),
    ]


def test_named_models_only(ollama: Ollama) -> None:
    unload(ollama, "qwen2:1.5b")
    assert [path for path, _ in ollama.requests] == ["/api/generate"]


def test_dry_run_sends_nothing_that_changes(ollama: Ollama) -> None:
    assert "would unload qwen2:1.5b" in unload(ollama, "--dry-run")
    assert [path for path, _ in ollama.requests] == ["/api/ps"]


def test_a_server_without_ps_is_asked_for_all_models(ollama: Ollama) -> None:
    ollama.answers = {"/api/tags": {"models": [{"name": "a"}]}}
    assert "unloaded a" in unload(ollama)


def test_nothing_loaded_is_said(ollama: Ollama) -> None:
    ollama.answers = {"/api/ps": {"models": []}}
    assert "no model is loaded" in unload(ollama)


def test_another_server_is_told(ollama: Ollama) -> None:
    ollama.raw = b"<html>"
    with pytest.raises(CheckFailed, match="the answer is not JSON"):
        unload(ollama)
    ollama.raw = b"[]"
    with pytest.raises(CheckFailed, match="does not answer as ollama does"):
        unload(ollama)


def test_nobody_there_is_a_user_error(ollama: Ollama) -> None:
    words = ["hailo", "unload", "--port", "1"]
    with pytest.raises(K1Error, match=r"http://127.0.0.1:1/api/ps: .*refused"):
        CliRunner().invoke(doctor_cli.app, words, catch_exceptions=False)
