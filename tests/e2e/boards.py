"""Four virtual boards with a fleet.toml, as tests of `k1 deploy` use them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k1 import paths
from k1.lab import Lab
from support.deploying import flip, k1, variant
from support.inferd import wait_until

COUNT = 4


def deploy(fleet: Path, *words: str) -> Any:
    return k1("deploy", "-f", fleet, "--json", *words).json


@dataclass(frozen=True)
class Boards:
    """The lab, and the fleet.toml that its boards serve."""

    lab: Lab
    fleet: Path

    @property
    def current(self) -> list[str]:
        """The release of each board."""
        return [self.sh(rank, "basename $(readlink /opt/k1/current)") for rank in range(COUNT)]

    def sh(self, rank: int, script: str) -> str:
        return self.lab.ssh(rank).run(script).output.strip()

    def another(self, name: str, model: Path | None = None) -> Path:
        """The same fleet with a daemon that differs in one byte, and perhaps another model."""
        text = self.fleet.read_text()
        (line,) = (line for line in text.splitlines() if line.startswith("programs"))
        programs = variant(paths.build_dir("virt") / "images" / "bin", self.fleet.parent / name, flip)
        text = text.replace(line, f'programs = "{programs}"')
        if model:
            text = text.replace("babbler.gguf", model.name)
        other = self.fleet.with_name(f"{name}.toml")
        other.write_text(text)
        return other

    def power_on(self) -> None:
        """Boards that are off start again, with their daemons, where they were reached before."""
        ports = [board.ssh_port for board in self.lab.status()]
        k1("lab", "up", "--name", self.lab.name)
        assert [board.ssh_port for board in self.lab.status()] == ports
        for rank in range(COUNT):
            running = "grep -lsx k1-inferd /proc/[0-9]*/comm"
            wait_until(f"board {rank} serves", lambda: bool(self.lab.ssh(rank).run(running, check=False).output), 60)  # noqa: B023

    def assert_serving(self, release: str) -> None:
        """All boards run that release and make one cluster."""
        assert set(self.current) == {release}
        assert deploy(self.fleet, "--only", "health")["health"]["status"] == "ok"
