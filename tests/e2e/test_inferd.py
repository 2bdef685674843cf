"""A virtual board with a model serves it from boot on, and another board gets an answer over their network."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from k1 import model, output, paths
from k1.drivers.patience import scaled
from k1.lab import Lab

MODEL = "/opt/k1/models/model.gguf"


@pytest.fixture(scope="module")
def smollm2() -> Path:
    with output.task("SmolLM2") as task:
        return model.fetch("smollm2", paths.cache_dir(), task)


@pytest.mark.slow
def test_the_daemon_starts_at_boot_and_answers_another_board(lab: Lab, smollm2: Path) -> None:
    server, client = lab.ssh(0), lab.ssh(1)
    upload = f"mkdir -p /opt/k1/models && cat > {MODEL}.new && mv {MODEL}.new {MODEL}"
    server.run(upload, stdin=smollm2, timeout=300)
    server.run("sync; reboot", check=False)
    deadline = time.monotonic() + scaled(180)
    while '"status":"ok"' not in server.run("wget -qO- http://127.0.0.1:8080/health", check=False).output:
        assert time.monotonic() < deadline, "k1-inferd is not up after the reboot"
        time.sleep(1)

    token = server.run("cat /data/etc/k1/api_tokens").output.strip()
    ask = "k1-cli --host 192.168.1.100 --n_predict 3 'The capital of France is'"
    assert client.run(ask, check=False, timeout=300).returncode != 0, "answered without a token"
    answer = client.run(f"{ask} --token {token}", timeout=300)
    assert "Paris" in answer.output
    assert "tokens/s" in answer.stderr
