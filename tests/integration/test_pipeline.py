"""Several k1-inferd as one: each in a network namespace of its own, joined by a switch."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.babbler import write_babbler
from support.inferd import SCALE, Answer, Daemon, wait_until
from support.netns import Network, network

LAYERS = 5
N_CTX = 512
LOST = 3 * SCALE + 2  # the protocol's 2 s of silence, and room
GREEDY = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
SAMPLED = {"prompt": "abab cd " * 20, "max_tokens": 24, "temperature": 0.9, "seed": 7, "repeat_penalty": 1.2}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network(4) as made:
        yield made


class Cluster:
    """Daemons by rank, all on port 8080 of their nodes."""

    def __init__(self, stack: ExitStack, net: Network, programs: Path, folder: Path, model: Path, n_ranks: int) -> None:
        self.stack, self.net, self.programs, self.folder, self.model = stack, net, programs, folder, model
        self.nodes = [net.address(r) for r in range(n_ranks)]
        self.key = self.write_key("key", secrets.token_hex(32))
        self.daemons: dict[int, Daemon] = {}
        self.n_started = 0

    def write_key(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text + "\n")
        path.chmod(0o600)
        return path

    def start(self, node: int, rank: int | None = None, model: Path | None = None, *options: str | Path) -> Daemon:
        self.n_started += 1
        log = self.folder / f"{self.n_started}-node{node}.log"
        argv: list[str | Path] = [self.programs / "k1-inferd", "--model", model or self.model, "--n_ctx", str(N_CTX)]
        argv += ["--nodes", ",".join(self.nodes), "--rpc_rank", str(node if rank is None else rank), "--n_threads", "1"]
        argv += ["--cluster_key_file", self.key, *options]
        stderr = self.stack.enter_context(log.open("w"))
        process = subprocess.Popen(self.net.command(node, *argv), stderr=stderr, text=True)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        daemon = Daemon(process, log, lambda port: self.net.dial(node, port, 60 * SCALE))
        self.daemons[node] = daemon
        return daemon

    def start_all(self, *options: str) -> Daemon:
        for r in reversed(range(len(self.nodes))):
            self.start(r, None, None, *options)
        self.wait_ready()
        return self.head

    @property
    def head(self) -> Daemon:
        return self.daemons[0]

    def wait_ready(self) -> None:
        wait_until("all ranks agree", lambda: self.head.health()["status"] == "ok")

    def wait_reason(self, *words: str) -> str:
        """The reason that rank 0 gives for not being ready, once it has all the words."""
        reason = ""

        def told() -> bool:
            nonlocal reason
            reason = self.head.health().get("reason", "")
            return all(word in reason for word in words)

        wait_until(f"rank 0 says {words}", told)
        return reason

    def stop_all(self) -> None:
        for daemon in self.daemons.values():
            if daemon.process.poll() is None:
                assert daemon.stop() == 0, daemon.log
                assert "Sanitizer" not in daemon.log


StartCluster = Callable[..., Any]


@pytest.fixture
def cluster(net: Network, userland_build: Path, tmp_path: Path, babbler: Path) -> Iterator[StartCluster]:
    with ExitStack() as stack:

        def make(n_ranks: int, model: Path = babbler) -> Cluster:
            made = Cluster(stack, net, userland_build, tmp_path, model, n_ranks)
            stack.callback(made.stop_all)
            return made

        yield make


@pytest.fixture(scope="session")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_babbler(tmp_path_factory.mktemp("model") / "babbler.gguf", layers=LAYERS)


@contextmanager
def alone(userland_build: Path, model: Path, log: Path) -> Iterator[Daemon]:
    argv = [userland_build / "k1-inferd", "--model", model, "--n_ctx", str(N_CTX), "--port", "0"]
    with log.open("w") as stderr, subprocess.Popen(argv, stderr=stderr, text=True) as process:
        try:
            yield Daemon(process, log)
        finally:
            process.terminate()


def texts(daemon: Daemon, requests: Sequence[dict[str, Any]] = (GREEDY, SAMPLED)) -> list[str]:
    return [daemon.complete(**request).text for request in requests]


# ---- the same text however many


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_any_number_of_ranks_gives_the_same_text(
    cluster: StartCluster, userland_build: Path, tmp_path: Path, arch: str
) -> None:
    model = write_babbler(tmp_path / f"{arch}.gguf", arch, layers=LAYERS)
    with alone(userland_build, model, tmp_path / "alone.log") as one:
        expected = texts(one)
    assert len(set(expected)) == 2
    for n_ranks in (2, 3, 4):
        several = cluster(n_ranks, model)
        assert texts(several.start_all()) == expected
        several.stop_all()


def test_smollm2_over_four_ranks_gives_the_same_text(
    cluster: StartCluster, userland_build: Path, tmp_path: Path, smollm2: Path
) -> None:
    request = {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0}
    with alone(userland_build, smollm2, tmp_path / "alone.log") as one:
        expected = texts(one, [request])
    assert "Paris" in expected[0]
    for n_ranks in (2, 3, 4):
        several = cluster(n_ranks, smollm2)
        assert texts(several.start_all(), [request]) == expected
        several.stop_all()


def test_requests_at_once_do_not_disturb_each_other(cluster: StartCluster) -> None:
    head = cluster(3).start_all("--n_parallel", "4")
    requests = [{**SAMPLED, "seed": seed, "prompt": "x" * (1 + 60 * seed)} for seed in range(6)]
    expected = texts(head, requests)
    got: dict[int, str] = {}

    def ask(i: int) -> None:
        got[i] = head.complete(**requests[i]).text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(6)] == expected


def test_a_prompt_alone_can_be_run(cluster: StartCluster) -> None:
    answer = cluster(2).start_all().complete(prompt="x" * 200, max_tokens=0)
    assert (answer.text, answer.json["usage"]["completion_tokens"]) == ("", 0)


def test_the_answer_says_what_each_rank_took(cluster: StartCluster) -> None:
    head = cluster(3).start_all()
    timings = head.complete(**GREEDY).json["timings"]
    assert [stage["rank"] for stage in timings["stages"]] == [0, 1, 2]
    assert all(stage["run_ms"] > 0 for stage in timings["stages"])
    assert 0 < timings["hop_ms"] < timings["predicted_per_token_ms"]
    layers = [rank["layers"] for rank in head.health()["ranks"]]
    assert (layers[0][0], layers[-1][1]) == (0, LAYERS - 1)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(layers))


def test_a_client_that_leaves_frees_the_slot_on_every_rank(cluster: StartCluster) -> None:
    head = cluster(2).start_all()
    expected = head.complete(**GREEDY).text
    client = head.send({"prompt": "x", "max_tokens": 400, "stream": True, "temperature": 0})
    assert b"200 OK" in client.recv(4096)
    client.close()
    wait_until("the daemon is idle", head.is_idle)
    assert head.complete(**GREEDY).text == expected


def batches(daemon: Daemon) -> tuple[int, int]:
    """How many a rank has computed, and dropped."""
    told = daemon.health()["batches"]
    return told["computed"], told["dropped"]


def test_a_cancel_overtakes_the_batches_on_their_way(cluster: StartCluster, smollm2: Path) -> None:
    n = 24  # more than a rank receives ahead of its engine
    three = cluster(3, smollm2)
    head = three.start_all("--n_ctx", "2048", "--timeout_scale", str(10 * SCALE))
    middle, last = three.daemons[1], three.daemons[2]
    expected = texts(head)
    before = batches(last)[0]
    last.process.send_signal(signal.SIGSTOP)
    try:
        client = head.send({"prompt": [1000] * (64 * n), "max_tokens": 1})
        wait_until("rank 1 is through", lambda: batches(middle)[0] == before + n, 60)
        client.close()
        wait_until("the request has ended", head.is_idle)
    finally:
        last.process.send_signal(signal.SIGCONT)
    wait_until("rank 2 is through", lambda: sum(batches(last)) == before + n, 60)
    computed, dropped = batches(last)
    assert 4 * (computed - before) < dropped
    assert texts(head) == expected


# ---- nodes that are not as they should be


def test_a_missing_rank_is_named_and_a_late_one_joins(cluster: StartCluster) -> None:
    three = cluster(3)
    three.start(0)
    three.start(1)
    three.wait_reason("rank 2", three.nodes[2])
    answer = three.head.complete(**GREEDY)
    assert (answer.status, "rank 2" in answer.error["message"]) == (503, True)
    three.start(2)
    three.wait_ready()
    assert three.head.complete(**GREEDY).status == 200


def lines_with(daemon: Daemon, *words: str) -> list[str]:
    return [line for line in daemon.log.splitlines() if all(word in line for word in words)]


def both_say(one: Daemon, other: Daemon, *words: str) -> None:
    for daemon in (one, other):
        wait_until(f"the log says {words}", lambda daemon=daemon: lines_with(daemon, *words) != [])
    time.sleep(1.5 * SCALE)  # retries say nothing new
    for daemon in (one, other):
        assert 1 <= len(lines_with(daemon, *words)) <= 2, daemon.log  # one for each of the two connections


def test_strangers_learn_nothing_of_the_other_nodes(cluster: StartCluster, tmp_path: Path) -> None:
    two = cluster(2)
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef\n")
    head = two.start(0, None, None, "--api_token_file", tokens)
    health = head.ask("GET", "/health")
    assert (health.status, health.json["status"]) == (503, "waiting")
    assert not {"reason", "ranks"} & set(health.json)
    told = head.ask("GET", "/health", None, {"Authorization": "Bearer 0123456789abcdef"}).json
    assert "rank 1" in told["reason"]
    assert [rank["up"] for rank in told["ranks"]] == [True, False]


def test_idle_strangers_keep_neither_links_nor_requests_out(cluster: StartCluster) -> None:
    two = cluster(2)
    head = two.start(0)
    strangers = [two.net.dial(0, head.port, 60 * SCALE) for _ in range(200)]
    two.start(1)
    two.wait_ready()
    assert head.complete(**GREEDY).status == 200
    assert len(list(Path(f"/proc/{head.process.pid}/fd").iterdir())) < 150
    for stranger in strangers:
        stranger.close()


def test_another_cluster_key_is_refused_by_both(cluster: StartCluster) -> None:
    two = cluster(2)
    two.start(0)
    two.key = two.write_key("other", secrets.token_hex(32))
    two.start(1)
    two.wait_reason("key", "rank 1")
    both_say(two.daemons[0], two.daemons[1], "peer_refused", "key")


def test_another_model_is_refused_by_both(cluster: StartCluster, tmp_path: Path) -> None:
    two = cluster(2)
    two.start(0)
    two.start(1, None, write_babbler(tmp_path / "other.gguf", seed=2, layers=LAYERS))
    two.wait_reason("model", "rank 1")
    both_say(two.daemons[0], two.daemons[1], "peer_refused", "model")


def test_two_nodes_of_one_rank_are_told_apart(cluster: StartCluster) -> None:
    three = cluster(3)
    three.start(0)
    three.start(1)
    three.start(2, 1)
    three.wait_reason("rank 1", "rank 2")
    assert lines_with(three.daemons[2], "peer_refused", "rank")


# ---- nodes that are lost


def ask_for_long(head: Daemon) -> tuple[threading.Thread, list[Answer]]:
    answers: list[Answer] = []
    body = {"prompt": "x", "max_tokens": N_CTX - 20, "temperature": 0}
    thread = threading.Thread(target=lambda: answers.append(head.complete(**body)))
    thread.start()
    wait_until("a request runs", lambda: head.health()["running"] == 1)
    return thread, answers


def kill(three: Cluster, rank: int) -> None:
    three.daemons[rank].process.kill()


def freeze(three: Cluster, rank: int) -> None:
    three.daemons[rank].process.send_signal(signal.SIGSTOP)


def unplug(three: Cluster, rank: int) -> None:
    three.net.plug(rank, "down")


@pytest.mark.parametrize("lose", [kill, freeze, unplug])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_lost_rank_ends_the_request_in_time(
    cluster: StartCluster, smollm2: Path, lose: Callable[[Cluster, int], None], rank: int
) -> None:
    three = cluster(3, smollm2)
    head = three.start_all()
    thread, answers = ask_for_long(head)
    begun = time.monotonic()
    try:
        lose(three, rank)
        thread.join(timeout=60 * SCALE)
    finally:
        three.net.plug(rank, "up")
        if three.daemons[rank].process.poll() is None:
            three.daemons[rank].process.send_signal(signal.SIGCONT)
    assert time.monotonic() - begun < LOST
    assert answers[0].status == 500
    assert f"rank {rank}" in answers[0].error["message"]
    assert three.nodes[rank] in answers[0].error["message"]
    if lose is kill:
        three.daemons[rank].process.wait()
        three.start(rank)
    three.wait_ready()
    assert "Paris" in head.complete(prompt="The capital of France is", max_tokens=4, temperature=0).text


def test_a_new_rank_0_is_served_by_the_old_others(cluster: StartCluster) -> None:
    three = cluster(3)
    expected = texts(three.start_all())
    three.head.process.kill()
    three.head.process.wait()
    three.start(0)
    three.wait_ready()
    assert texts(three.head) == expected


def test_the_other_ranks_say_that_they_are_workers(cluster: StartCluster) -> None:
    two = cluster(2)
    two.start_all()
    answer = two.daemons[1].ask("GET", "/health")
    assert (answer.status, answer.json["status"]) == (200, "worker")
    refused = two.daemons[1].complete(**GREEDY)
    assert (refused.status, "rank 0" in refused.error["message"]) == (503, True)


def test_a_broken_link_between_two_others_is_told_to_rank_0(cluster: StartCluster) -> None:
    three = cluster(3)
    head = three.start_all()
    route = ["blackhole", f"{three.nodes[2]}/32"]
    subprocess.run(three.net.command(1, "ip", "route", "add", *route), check=True)
    try:
        reason = three.wait_reason("rank 1", "rank 2")
        assert three.nodes[2] in reason
    finally:
        subprocess.run(three.net.command(1, "ip", "route", "delete", *route), check=True)
    three.wait_ready()
    assert head.complete(**GREEDY).status == 200


# ---- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rpc_rank", "0"], "nodes: missing"),
        (["--nodes", "10.77.0.1,10.77.0.2"], "rpc_rank: missing"),
        (["--nodes", "10.77.0.1", "--rpc_rank", "0"], "a cluster has two or more"),
        (["--nodes", "10.77.0.1,10.77.0.2", "--rpc_rank", "2"], "rpc_rank: 2, but nodes has the ranks 0 to 1"),
        (["--nodes", "10.77.0.1,10.77.0.1", "--rpc_rank", "0"], "stands twice, as rank 0 and rank 1"),
        (["--nodes", "10.77.0.1,10.77.0.2", "--rpc_rank", "0"], "--cluster_key_file"),
        (["--nodes", "10.77.0.1,10.77.0.2", "--rpc_rank", "1", "--rpc_master", "10.77.0.9"], "rpc_master: 10.77.0.9"),
    ],
)
def test_bad_cluster_options_are_explained(
    userland_build: Path, babbler: Path, options: list[str], message: str
) -> None:
    argv = [userland_build / "k1-inferd", "--model", babbler, *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30 * SCALE, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_more_ranks_than_layers_are_refused(cluster: StartCluster, tmp_path: Path, userland_build: Path) -> None:
    four = cluster(4, write_babbler(tmp_path / "two.gguf", layers=2))
    argv = [userland_build / "k1-inferd", "--model", four.model, "--nodes", ",".join(four.nodes), "--rpc_rank", "0"]
    done = subprocess.run(
        four.net.command(0, *argv, "--cluster_key_file", four.key), capture_output=True, text=True, check=False
    )
    assert (done.returncode, "4 ranks cannot share 2 layers" in done.stderr) == (2, True)


def test_local_ignores_the_other_nodes(userland_build: Path, babbler: Path, tmp_path: Path) -> None:
    argv = [userland_build / "k1-inferd", "--model", babbler, "--port", "0", "--local"]
    argv += ["--nodes", "10.77.0.1,10.77.0.2", "--rpc_rank", "1"]
    log = tmp_path / "log"
    with log.open("w") as stderr, subprocess.Popen(argv, stderr=stderr, text=True) as process:
        try:
            assert Daemon(process, log).complete(**GREEDY).status == 200
        finally:
            process.terminate()
