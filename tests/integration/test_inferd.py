"""k1-inferd and its clients as users meet them: started on a free port, with a tiny model that babbles."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.babbler import write_babbler
from support.inferd import SCALE, Answer, Daemon, Run, wait_until
from support.reference import Reference, log_likelihood

N_CTX = 60000
MAX_BODY = 64 * N_CTX + (64 << 10)
ENDLESS = {"prompt": "x", "max_tokens": N_CTX, "temperature": 0}
TOKEN = "0123456789abcdef0123"
EVERYWHERE = "0.0.0.0"  # noqa: S104


@pytest.fixture(scope="session")
def programs(userland_build: Path) -> Path:
    return userland_build


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_babbler(tmp_path_factory.mktemp("model") / "babbler.gguf")


Start = Callable[..., Any]


@pytest.fixture(scope="session")
def start(programs: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Run a k1-inferd with some options, and see that it ends well."""

    @contextmanager
    def run(*options: str | Path) -> Iterator[Daemon]:
        log = tmp_path_factory.mktemp("log") / "inferd.log"
        argv = [programs / "k1-inferd", "--model", model, "--n_ctx", str(N_CTX), "--port", "0", *options]
        with log.open("w") as stderr, subprocess.Popen(argv, stderr=stderr, text=True) as process:
            try:
                daemon = Daemon(process, log)
                yield daemon
                if process.poll() is None:
                    assert daemon.stop() == 0, daemon.log
            finally:
                process.kill()
            print(daemon.log)
            assert "Sanitizer" not in daemon.log

    return run


@pytest.fixture(scope="module")
def shared(start: Start) -> Iterator[Daemon]:
    with start() as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: Daemon) -> Iterator[Daemon]:
    """The shared daemon, idle before and after."""
    wait_until("the daemon is idle", shared.is_idle)
    yield shared
    assert shared.process.poll() is None, shared.log
    wait_until("the daemon is idle", shared.is_idle)


def resident(daemon: Daemon) -> int:
    """Bytes of a daemon's memory."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


# ---- completions


def test_health_says_what_runs(daemon: Daemon) -> None:
    answer = daemon.ask("GET", "/health?verbose")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    health = answer.json
    assert (health["status"], health["model"], health["n_ctx"]) == ("ok", "babbler", N_CTX)
    assert health["n_threads"] >= 1
    assert health["version"] != "0"
    assert [m["id"] for m in daemon.ask("GET", "/v1/models").json["data"]] == ["babbler"]


def test_a_completion_has_openai_s_form_and_llama_cpp_s_timings(daemon: Daemon) -> None:
    answer = daemon.complete(prompt="hello", max_tokens=10, temperature=0).json
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert abs(answer["created"] - time.time()) < 60
    assert answer["model"] == "babbler"
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15}
    (choice,) = answer["choices"]
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "length")
    assert len(choice["text"]) == 10
    timings = answer["timings"]
    assert (timings["prompt_n"], timings["predicted_n"]) == (5, 10)
    assert timings["predicted_per_second"] == pytest.approx(1000 * 10 / timings["predicted_ms"], rel=1e-3)
    assert daemon.complete(prompt="hello", model="mine").json["model"] == "mine"


def test_the_same_seed_gives_the_same_text(daemon: Daemon) -> None:
    texts = [daemon.complete(prompt="hello", max_tokens=40, temperature=1, seed=seed).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    unseeded = [daemon.complete(prompt="hello", max_tokens=40, temperature=1).text for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_a_stream_adds_up_to_the_same_text(daemon: Daemon) -> None:
    fields = {"prompt": "hello", "max_tokens": 40, "temperature": 1.5, "seed": 5}
    whole = daemon.complete(**fields)
    events = daemon.complete(**fields, stream=True).events
    assert len(events) > 20
    assert "".join(event["choices"][0]["text"] for event in events) == whole.text
    assert {event["id"] for event in events} == {events[0]["id"]}
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["length"]
    assert events[-1]["timings"]["predicted_n"] == 40
    assert not any("usage" in event for event in events)


def test_the_usage_comes_in_an_event_of_its_own_when_asked_for(daemon: Daemon) -> None:
    events = daemon.complete(prompt="hello", max_tokens=3, stream=True, stream_options={"include_usage": True}).events
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert all(event["choices"] and event["usage"] is None for event in events[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_a_stop_string(daemon: Daemon, stream: bool) -> None:
    fields = {"prompt": "hello", "max_tokens": 60, "temperature": 1, "seed": 7}
    text = daemon.complete(**fields).text
    stop = text[20:24]
    answer = daemon.complete(**fields, stop=["never in it", stop], stream=stream)
    if stream:
        shown = "".join(event["choices"][0]["text"] for event in answer.events)
        reason = answer.events[-1]["choices"][0]["finish_reason"]
    else:
        shown, reason = answer.text, answer.json["choices"][0]["finish_reason"]
    assert shown == text[: text.index(stop)]
    assert reason == "stop"


def test_token_ids_are_a_prompt(daemon: Daemon) -> None:
    fields = {"max_tokens": 20, "temperature": 0}
    prompts: list[Any] = ["hello", ["hello"], list(b"hello"), [list(b"hello")]]
    assert len({daemon.complete(prompt=prompt, **fields).text for prompt in prompts}) == 1


def test_control_tokens_can_be_written_in_the_prompt(daemon: Daemon) -> None:
    assert daemon.complete(prompt="hi<|end|>", max_tokens=1).json["usage"]["prompt_tokens"] == 3


def test_no_tokens_wanted_measures_the_prompt(daemon: Daemon) -> None:
    answer = daemon.complete(prompt="hello", max_tokens=0)
    assert answer.text == ""
    assert answer.json["timings"]["prompt_ms"] > 0


def test_one_connection_takes_many_requests(daemon: Daemon) -> None:
    connection = daemon.connect()
    for stream in (True, False, True, False):
        body = json.dumps({"prompt": "hello", "max_tokens": 3, "stream": stream})
        connection.request("POST", "/v1/completions", body)
        assert Answer(connection.getresponse()).status == 200
    connection.close()


def test_requests_wait_for_each_other(daemon: Daemon) -> None:
    body = {"prompt": "hello", "max_tokens": 200, "seed": 1}
    wanted = daemon.complete(**body).text
    connections = [daemon.send(body) for _ in range(8)]
    for connection in connections:
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert Answer(response).text == wanted
        connection.close()


# ---- bad requests


@pytest.mark.parametrize(
    ("body", "field", "part"),
    [
        (b"", None, "not valid JSON"),
        (b'{"prompt":"x"', None, "not valid JSON: line 1"),
        (b'{"prompt":"\xff\xfe"}', None, "not valid JSON"),
        (b"[" * 5000, None, "not valid JSON"),
        (b"[]", None, "must be a JSON object"),
        ({}, "prompt", "is missing"),
        ({"prompt": 5}, "prompt", "must be a string"),
        ({"prompt": ""}, "prompt", "has no tokens"),
        ({"prompt": "x" * N_CTX}, "prompt", f"has {N_CTX} tokens, but n_ctx is {N_CTX}"),
        ({"prompt": [5] * N_CTX}, "prompt", f"has {N_CTX} tokens, but n_ctx is {N_CTX}"),
        ({"prompt": ["a", "b"]}, "prompt", "only one prompt in a request"),
        ({"prompt": [[5], [6]]}, "prompt", "only one prompt in a request"),
        ({"prompt": [5, 258]}, "prompt", "token id 258 is outside the vocabulary of 258"),
        ({"prompt": "x", "max_tokens": "many"}, "max_tokens", "must be a whole number"),
        ({"prompt": "x", "temperature": -1}, "temperature", "temperature"),
        ({"prompt": "x", "top_p": 2}, "top_p", "top_p"),
        ({"prompt": "x", "min_p": 2}, "min_p", "min_p"),
        ({"prompt": "x", "repeat_penalty": 0}, "repeat_penalty", "repeat_penalty"),
        ({"prompt": "x", "stop": ["a", "b", "c", "d", "e"]}, "stop", "up to 4"),
        ({"prompt": "x", "stream": "yes"}, "stream", "true or false"),
        ({"prompt": "x", "logprobs": 1}, "logprobs", "not supported"),
        ({"prompt": "x", "n": 2}, "n", "only 1"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_told_what_is_wrong(
    daemon: Daemon, body: Any, field: str | None, part: str, stream: bool
) -> None:
    if isinstance(body, dict):
        body = {"stream": stream, **body}
    answer = daemon.ask("POST", "/v1/completions", body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] == field
    assert part in answer.error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/completions/", 404),
        ("GET", "/v1/completions", 405),
        ("PUT", "/v1/completions", 405),
        ("PATCH", "/health", 405),
        ("POST", "/health", 405),
    ],
)
def test_wrong_paths_and_methods(daemon: Daemon, method: str, path: str, status: int) -> None:
    answer = daemon.ask(method, path, b"" if method != "GET" else None)
    assert answer.status == status
    assert answer.error["message"]
    assert ("Allow" in answer.headers) == (status == 405)


def test_a_body_may_be_as_long_as_the_context_needs(daemon: Daemon) -> None:
    body = b'{"prompt":"x","max_tokens":1}'
    assert daemon.ask("POST", "/v1/completions", body.ljust(MAX_BODY)).status == 200
    answer = daemon.ask("POST", "/v1/completions", body.ljust(MAX_BODY + 1))
    assert answer.status == 413
    assert answer.error["type"] == "invalid_request_error"
    assert f"at most {MAX_BODY} are read for n_ctx {N_CTX}: shorten the prompt" in answer.error["message"]


def test_a_body_of_any_length_is_refused_before_it_comes(daemon: Daemon) -> None:
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=60 * SCALE) as connection:
        length = 2 * MAX_BODY + 1
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length)
        before = resident(daemon)
        connection.sendall(b" " * length)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
        assert resident(daemon) - before < MAX_BODY


@pytest.mark.parametrize(
    "noise",
    [
        b"\0" * 100,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    ],
)
def test_noise_does_no_harm(daemon: Daemon, noise: bytes) -> None:
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=10 * SCALE) as connection:
        connection.sendall(noise)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    assert daemon.health()["status"] == "ok"


# ---- clients that leave, and too many of them


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_engine(daemon: Daemon, stream: bool) -> None:
    connection = daemon.send({**ENDLESS, "stream": stream})
    wait_until("the request runs", lambda: daemon.health()["running"] == 1)
    if stream:
        assert connection.recv(100)
    connection.close()
    wait_until("the engine is free", daemon.is_idle)
    assert "outcome=cancelled" in daemon.log
    assert daemon.complete(prompt="x", max_tokens=1).status == 200


def test_a_client_that_leaves_the_queue_never_runs(daemon: Daemon) -> None:
    first = daemon.send(ENDLESS)
    second = daemon.send(ENDLESS)
    wait_until("one waits", lambda: daemon.health()["waiting"] == 1)
    second.close()
    wait_until("none waits", lambda: daemon.health()["waiting"] == 0)
    assert daemon.health()["running"] == 1
    first.close()


def test_a_full_queue_refuses(daemon: Daemon) -> None:
    connections = [daemon.send(ENDLESS) for _ in range(33)]
    wait_until("the queue is full", lambda: daemon.health()["waiting"] == 32)
    answer = daemon.complete(prompt="x")
    assert answer.status == 503
    assert answer.error["type"] == "overloaded_error"
    assert answer.headers["Retry-After"]
    for connection in connections:
        connection.close()


def test_bytes_sent_ahead_are_read_after_the_answer(daemon: Daemon) -> None:
    connection = daemon.send({"prompt": "x", "max_tokens": 2000, "stream": True})
    wait_until("the request runs", lambda: daemon.health()["running"] == 1)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    received = b""
    while piece := connection.recv(65536):
        received += piece
    assert received.count(b"HTTP/1.1 200 OK") == 2
    assert received.index(b"[DONE]") < received.index(b'"status":"ok"')
    connection.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_sends_far_ahead_is_cut_off(daemon: Daemon, stream: bool) -> None:
    connection = daemon.send({**ENDLESS, "stream": stream})
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        for _ in range(1000):
            connection.sendall(b"x" * 65536)
    connection.close()


# ---- starting and stopping


def test_tokens_keep_others_out(start: Start, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"# one a line\n{TOKEN}\n")
    with start("--host", EVERYWHERE, "--api_token_file", tokens) as daemon:
        assert daemon.ask("GET", "/health").status == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/nothing")):
                answer = daemon.ask(method, path, b"{}" if method == "POST" else None, headers)
                assert answer.status == 401
                assert answer.error["type"] == "authentication_error"
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        good = {"Authorization": f"Bearer {TOKEN}"}
        assert daemon.ask("POST", "/v1/completions", {"prompt": "x"}, good).status == 200


def test_others_are_served_without_a_token_only_on_demand(start: Start) -> None:
    with start("--host", EVERYWHERE, "--insecure") as daemon:
        assert daemon.complete(prompt="x").status == 200


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--host", EVERYWHERE), "give --api_token_file FILE, or --insecure"),
        (("--api_token_file", "/nonexistent"), "cannot read the API tokens in /nonexistent: No such file"),
        (("--n_threads", "0"), "n_threads: 0 is outside 1 to 256"),
        (("--n_threads", "1000"), "n_threads: 1000 is outside 1 to 256"),
        (("--cpu_list", "0-"), "cpu_list"),
        (("--cpu_list", "0", "--n_threads", "2"), "2 threads do not fit the 1 CPUs"),
        (("--cpu_list", "0,999"), "999"),
        (("--n_ctx", "3"), "n_ctx: 3 is outside"),
        (("--model", "/nonexistent.gguf"), "/nonexistent.gguf"),
        (("--model", __file__), "not a GGUF file"),
        (("--log_level", "loud"), 'log_level: "loud" is none of'),
        (("--modle", "x"), 'unknown option "--modle"; did you mean --model?'),
        (("--host", "203.0.113.1", "--insecure"), "cannot listen on 203.0.113.1 port 0"),
        (("--config", "/nonexistent"), "cannot read /nonexistent"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(programs: Path, model: Path, options: tuple[str, ...], part: str) -> None:
    run = Run(programs / "k1-inferd", "--model", model, "--n_ctx", "64", "--port", "0", *options)
    assert run.code == 2
    assert run.err.startswith("k1-inferd: ")
    assert run.err.count("\n") == 1
    assert part in run.err


def test_no_model(programs: Path) -> None:
    run = Run(programs / "k1-inferd")
    assert (run.code, run.err) == (2, "k1-inferd: no model: give --model FILE, a GGUF file\n")


def test_a_port_in_use_is_named(start: Start, programs: Path, model: Path) -> None:
    with start() as daemon:
        run = Run(programs / "k1-inferd", "--model", model, "--port", str(daemon.port))
        assert run.code == 2
        assert f"cannot listen on 127.0.0.1 port {daemon.port}: Address already in use" in run.err


def test_a_model_without_usable_logits_is_told_and_harms_nobody(start: Start, tmp_path: Path) -> None:
    broken = write_babbler(tmp_path / "broken.gguf", norm=float("nan"))
    with start("--model", broken) as daemon:
        answer = daemon.complete(prompt="x", max_tokens=1)
        assert answer.status == 500
        assert b"no usable logits" in answer.body
        assert daemon.is_idle()


def test_a_model_may_have_any_file_name(start: Start, model: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"m\xff\x1b\xc3\xa9\xe2\x82.gguf")
    odd.symlink_to(model)
    with start("--model", odd, "--n_ctx", "64") as daemon:
        assert daemon.health()["model"] == "m?\x1bé??"
        assert daemon.complete(prompt="x", max_tokens=1).json["model"] == "m?\x1bé??"
        assert "model=m??é?? " in daemon.log


def test_a_long_file_name_is_cut_between_characters(start: Start, model: Path, tmp_path: Path) -> None:
    long = tmp_path / ("é" * 100 + ".gguf")
    long.symlink_to(model)
    with start("--model", long, "--n_ctx", "64") as daemon:
        assert daemon.health()["model"] == "é" * 63


@pytest.mark.parametrize(("n_ctx", "warned"), [(64, False), (65, True)])
def test_a_context_beyond_the_training_is_warned_of(
    start: Start, programs: Path, tmp_path: Path, n_ctx: int, warned: bool
) -> None:
    short = write_babbler(tmp_path / "short.gguf", n_ctx_train=64)
    with start("--model", short, "--n_ctx", str(n_ctx)) as daemon:
        assert (f"warn long_context n_ctx={n_ctx} trained=64" in daemon.log) == warned
    run = cli(programs, "--local", short, "--n_ctx", str(n_ctx), "-n", "1", "x")
    assert run.code == 0
    assert ("n_ctx 65 is more than the 64 tokens that the model was trained for" in run.err) == warned


def test_options_may_come_from_a_file(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "inferd.conf"
    config.write_text("# board\nn_ctx = 99\nhost = ::1\nport = 1\nlog_level = info\n")
    with start("--config", config, "--host", "127.0.0.1", "--n_ctx", "77") as daemon:
        assert daemon.health()["n_ctx"] == 77


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_tells_the_clients(start: Start, stream: bool, number: signal.Signals) -> None:
    with start() as daemon:
        connections = [daemon.send({**ENDLESS, "stream": stream}) for _ in range(3)]
        wait_until("two wait", lambda: daemon.health()["waiting"] == 2)
        if stream:
            assert connections[0].recv(1, socket.MSG_PEEK)
        daemon.process.send_signal(number)
        for i, connection in enumerate(connections):
            response = http.client.HTTPResponse(connection)
            response.begin()
            answer = Answer(response)
            assert answer.status == (200 if stream and i == 0 else 503)
            assert b"the server is stopping" in answer.body
            assert b"[DONE]" not in answer.body
            connection.close()
        assert daemon.process.wait(timeout=30 * SCALE) == 0


def test_idle_clients_do_not_hold_it_up(start: Start) -> None:
    with start() as daemon, socket.create_connection(("127.0.0.1", daemon.port)):
        assert daemon.stop() == 0


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    with suppress(BlockingIOError):
        return client.recv(1) == b""
    return False


def test_idle_clients_give_way_to_new_ones(start: Start) -> None:
    with start() as daemon:
        running = daemon.send({**ENDLESS, "stream": True})
        assert running.recv(100)
        begun = time.monotonic()
        clients = [socket.create_connection(("127.0.0.1", daemon.port)) for _ in range(200)]
        assert daemon.ask("GET", "/health").status == 200
        closed = [is_closed(client) for client in clients]
        assert closed == sorted(closed, reverse=True)  # those that came first
        assert 50 <= closed.count(False) <= 96
        assert 1 <= daemon.log.count(" warn clients_full ") <= 1 + (time.monotonic() - begun) // 10
        assert running.recv(100)
        for client in (running, *clients):
            client.close()


@pytest.mark.slow
def test_a_client_that_says_nothing_for_a_minute_is_dropped(start: Start) -> None:
    with start() as daemon, socket.create_connection(("127.0.0.1", daemon.port), timeout=60 + 30 * SCALE) as client:
        begun = time.monotonic()
        client.sendall(b"GET /health HT")
        assert client.recv(1) == b""
        assert 50 < time.monotonic() - begun < 60 + 20 * SCALE


def test_clients_wait_while_no_file_can_be_opened(start: Start) -> None:
    with start() as daemon:
        limit = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (0, limit[1]))
        with socket.create_connection(("127.0.0.1", daemon.port), timeout=30 * SCALE) as client:
            wait_until("files have run out", lambda: ' warn accept error="Too many open files"' in daemon.log)
            time.sleep(1)  # it has tried again by now
            assert daemon.log.count(" warn accept ") == 1
            resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, limit)
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_too_few_files_are_told_at_the_start(programs: Path, model: Path) -> None:
    run = Run("prlimit", "--nofile=100:100", programs / "k1-inferd", "--model", model, "--port", "0")
    assert run.code == 2
    assert re.fullmatch(r"k1-inferd: 100 open files are allowed, \d+ are needed: raise ulimit -Hn\n", run.err)


# ---- k1-cli


def cli(programs: Path, *argv: str | Path, **kwargs: Any) -> Run:
    return Run(programs / "k1-cli", *argv, **kwargs)


def test_cli_shows_the_server_s_text(programs: Path, daemon: Daemon) -> None:
    options = ("--port", str(daemon.port), "-n", "30", "--temperature", "0")
    run = cli(programs, *options, "hello")
    assert run.code == 0, run.err
    assert run.out == daemon.complete(prompt="hello", max_tokens=30, temperature=0).text + "\n"
    assert re.fullmatch(r"prompt 5 tokens, [\d.]+ tokens/s; generated 30 tokens, [\d.]+ tokens/s\n", run.err)
    assert cli(programs, *options, stdin="hello\n").out == run.out


def test_cli_local_gives_the_same_text(programs: Path, model: Path, daemon: Daemon) -> None:
    options = ("-n", "50", "--temperature", "1", "--seed", "9", "--stop", "zzz", "hello")
    served = cli(programs, "--port", str(daemon.port), *options)
    local = cli(programs, "--local", model, *options)
    assert served.code == local.code == 0
    assert served.out == local.out


def test_text_does_not_depend_on_threads_and_batches(programs: Path, model: Path) -> None:
    prompt = "the quick brown fox jumps over the lazy dog " * 5
    outs = {
        cli(programs, "--local", model, "--temperature", "0", "--n_threads", n, "--n_batch", batch, prompt).out
        for n, batch in (("1", "512"), ("2", "512"), ("4", "512"), ("2", "1"), ("2", "7"), ("2", "64"))
    }
    assert len(outs) == 1
    assert len(outs.pop()) > 100


def test_cli_says_why_it_cannot(programs: Path, daemon: Daemon, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = cli(programs, "--port", str(port), "x")
    assert run.code == 2
    assert f"cannot connect to 127.0.0.1 port {port}: Connection refused; is k1-inferd running there" in run.err
    run = cli(programs, "--port", str(daemon.port), "")
    assert run.code == 2
    assert "HTTP 400: prompt: has no tokens" in run.err
    run = cli(programs, "--port", str(daemon.port), "--temperature", "-1", "x")
    assert run.code == 2
    assert "temperature" in run.err
    run = cli(programs, "--local", tmp_path / "none.gguf", "x")
    assert run.code == 2
    assert "none.gguf" in run.err


def test_cli_shows_a_token(start: Start, programs: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    with start("--api_token_file", tokens) as daemon:
        options = ("--port", str(daemon.port), "-n", "2", "x")
        refused = cli(programs, *options)
        assert refused.code == 2
        assert "HTTP 401" in refused.err
        assert "K1_API_TOKEN" in refused.err
        assert cli(programs, "--token", TOKEN, *options).code == 0
        assert cli(programs, "--token_file", tokens, *options).code == 0
        assert cli(programs, *options, env={"K1_API_TOKEN": TOKEN}).code == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "its first line is empty"),
        ("\nx\n", "its first line is empty"),
        ("x" * 600, "its first word is longer than 510 bytes"),
        (None, "No such file or directory"),
    ],
)
def test_cli_says_why_a_file_holds_no_token(programs: Path, tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
    run = cli(programs, "--token_file", path, "x")
    assert (run.code, run.err) == (2, f"k1-cli: no token in {path}: {why}\n")


def test_cli_says_that_a_prompt_is_too_long_for_the_server(programs: Path, start: Start) -> None:
    with start("--n_ctx", "64") as daemon:
        options = ("--port", str(daemon.port))
        run = cli(programs, *options, stdin="x" * 100_000)
        assert run.code == 2
        assert "HTTP 413: the body has" in run.err
        run = cli(programs, *options, stdin="x" * 1_000_000)
        assert (run.code, run.err) == (2, "k1-cli: the server answered HTTP 413: the prompt is too long for it\n")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (json.dumps({"error": {"message": "a\x1b[2J\nb\u009b2J"}}).encode(), ": a?[2J?b??2J"),
        (b"<html>no such page</html>", ""),
        (b"x" * 100_000, ", and more than we can take; is that k1-inferd?"),
    ],
)
def test_cli_takes_any_server_s_error(programs: Path, body: bytes, told: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = [programs / "k1-cli", "--port", str(server.getsockname()[1]), "x"]
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as client:
            connection, _ = server.accept()
            with connection, suppress(ConnectionError):
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n" + body)
            _, err = client.communicate(timeout=30 * SCALE)
    assert err == f"k1-cli: the server answered HTTP 404{told}\n"


def test_cli_does_not_take_half_an_answer_for_whole(start: Start, programs: Path) -> None:
    with start() as daemon:
        argv = [programs / "k1-cli", "--port", str(daemon.port), "-n", str(N_CTX), "--temperature", "0", "x"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
            assert client.stdout
            assert client.stdout.read(5)
            daemon.process.kill()
            daemon.process.wait()
            _, err = client.communicate(timeout=30 * SCALE)
            assert client.returncode in (2, 4)
            assert re.search("before the text was complete|connection .* broke", err)


# ---- k1-bench


def test_bench_measures_each_number_of_threads(programs: Path, model: Path) -> None:
    run = Run(programs / "k1-bench", "engine", "-m", model, "-p", "16", "-n", "8", "-t", "1,2", "-r", "1", "--json")
    assert run.code == 0, run.err
    rows = json.loads(run.out)
    assert [row["n_threads"] for row in rows] == [1, 2]
    assert all(row["prefill_tokens_per_s"] > 0 and row["decode_tokens_per_s"] > 0 for row in rows)
    table = Run(programs / "k1-bench", "engine", "-m", model, "-p", "16", "-n", "8", "-t", "2", "-r", "1").out
    assert re.search(r"threads +prefill tokens/s +decode tokens/s\n +2 +[\d.]+ +[\d.]+\n", table)
    bad = Run(programs / "k1-bench", "engine", "-m", model, "-t", "1,none")
    assert (bad.code, "--threads: must be" in bad.err) == (2, True)


@pytest.mark.parametrize("command", ["engine", "perplexity"])
def test_bench_reads_the_options_of_all_commands_alike(programs: Path, command: str) -> None:
    help_ = Run(programs / "k1-bench", command, "--help")
    assert (help_.code, help_.err) == (0, "")
    assert f"k1-bench {command} --model FILE" in help_.out
    for options, message in (
        ([], "give "),
        (["--modle", "x"], 'unknown option "--modle"; did you mean --model?'),
        (["--n_batch", "0"], "n_batch: 0 is outside 1 to 65536"),
        (["--model", "/nonexistent", "--file", __file__][: 4 if command == "perplexity" else 2], "/nonexistent: "),
    ):
        run = Run(programs / "k1-bench", command, *options)
        assert (run.code, run.out) == (2, "")
        assert run.err.startswith("k1-bench: ")
        assert message in run.err
        assert run.err.count("\n") == 1


def test_perplexity_is_llama_cpp_s(programs: Path, model: Path, tmp_path: Path) -> None:
    n_ctx = 64
    data = np.random.default_rng(3).integers(0x20, 0x7F, 3 * n_ctx + 9, np.uint8).tobytes().replace(b"ab", b"xx")
    text = tmp_path / "text"
    text.write_bytes(data + b"\n")
    run = Run(programs / "k1-bench", "perplexity", "-m", model, "--file", text, "--n_ctx", str(n_ctx))
    assert run.code == 0, run.err

    chunks = np.frombuffer(data[: 3 * n_ctx], np.uint8).astype(np.int64).reshape(3, n_ctx)
    scored = -log_likelihood(Reference(model).logits(chunks), chunks)[:, n_ctx // 2 :]
    assert scored.size == 3 * (n_ctx - 1 - n_ctx // 2)
    ppl = math.exp(np.mean(scored))
    error = np.std(scored) / math.sqrt(scored.size - 1) * ppl
    found = re.fullmatch(r"PPL = ([\d.]+) \+/- ([\d.]+)\n", run.out)
    assert found
    assert float(found[1]) == pytest.approx(ppl, rel=1e-3)
    assert float(found[2]) == pytest.approx(error, rel=1e-2)


def test_perplexity_wants_enough_text(programs: Path, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("short")
    run = Run(programs / "k1-bench", "perplexity", "-m", model, "--file", text)
    assert run.code == 2
    assert "has 5 tokens, and two chunks of n_ctx 512 need 1024; take a longer text" in run.err


# ---- a real model


def test_smollm2_knows_the_capital_of_france(start: Start, smollm2: Path) -> None:
    with start("--model", smollm2, "--n_ctx", "256") as daemon:
        answer = daemon.complete(prompt="The capital of France is", max_tokens=8, temperature=0)
        assert answer.text.startswith(" Paris")
        chat = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        reply = daemon.complete(prompt=chat, max_tokens=40, temperature=0)
        assert reply.text == "The capital of France is Paris."
        assert reply.json["choices"][0]["finish_reason"] == "stop"


def test_the_end_token_ends_it(daemon: Daemon) -> None:
    """The babbler's end has logit 0, so that a hot enough request draws it."""
    reasons = set()
    for seed in range(40):
        answer = daemon.complete(prompt="x", max_tokens=300, temperature=20, top_k=0, top_p=1, min_p=0, seed=seed)
        reasons.add(answer.json["choices"][0]["finish_reason"])
        assert "<|end|>" not in answer.text

    assert "stop" in reasons
