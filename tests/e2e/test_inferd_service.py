"""How init handles the engine on a virtual board, with a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from k1.lab import Lab
from support.babbler import write_babbler

MODEL = "/opt/k1/models/model.gguf"
SERVICE = "/etc/init.d/S50inferd"
WAIT = "for i in $(seq 100); do wget -qO- http://127.0.0.1:8080/health && exit 0; sleep 0.3; done; exit 1"
RUNNING = "ps -o user,args | grep '[k]1-inferd --config'"


def ask(lab: Lab, rank: int, command: str) -> str:
    """What `command` prints on a board."""
    return lab.ssh(rank).run(command).output.strip()


@pytest.fixture(scope="module")
def served(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Two boards, of which board 0 has a model and serves it."""
    babbler = write_babbler(tmp_path_factory.mktemp("model") / "babbler.gguf")
    ask(lab, 0, f"{SERVICE} stop; mkdir -p {Path(MODEL).parent}")
    lab.ssh(0).run(f"cat > {MODEL}", stdin=babbler)
    ask(lab, 0, f"{SERVICE} start; {WAIT}")
    return lab


def test_without_a_model_the_board_says_what_is_missing(lab: Lab) -> None:
    wanted = f"k1-inferd not started: no {MODEL}; copy a model there and run {SERVICE} start"
    assert wanted in ask(lab, 1, "dmesg")


def test_it_runs_without_privileges_and_logs_to_syslog(served: Lab) -> None:
    assert ask(served, 0, RUNNING).startswith("inferd ")
    assert " info listening " in ask(served, 0, "grep k1-inferd: /data/log/messages")
    assert ask(served, 0, "stat -c '%A %U %G' /data/etc/k1/api_tokens") == "-rw-r----- root inferd"


def test_its_token_lets_others_in(served: Lab) -> None:
    command = "k1-cli --host 192.168.1.100 --temperature 0 -n 12 hello"
    refused = served.ssh(1).run(f"{command} 2>&1", check=False)
    assert refused.returncode == 2
    assert "HTTP 401" in refused.output
    token = ask(served, 0, "cat /data/etc/k1/api_tokens")
    assert len(ask(served, 1, f"K1_API_TOKEN={token} {command} 2>/dev/null")) == 12


def test_it_can_be_stopped_and_started_again(served: Lab) -> None:
    before = ask(served, 0, "cat /run/inferd.pid")
    assert ask(served, 0, f"{SERVICE} start; sleep 1; cat /run/inferd.pid") == before
    assert served.ssh(0).run(f"{SERVICE} stop; {RUNNING}", check=False).output == ""
    assert '"status":"ok"' in ask(served, 0, f"{SERVICE} restart; {WAIT}")
    assert ask(served, 0, "cat /run/inferd.pid") != before
