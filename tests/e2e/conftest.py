"""Virtual boards from the image of `make image`. Without an image the tests fail: they are not skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from boards import COUNT, Boards, deploy

from k1 import paths
from k1.drivers.patience import scaled
from k1.lab import Lab
from support.babbler import write_babbler

DATA = Path(__file__).parents[1] / "data" / "e2e"


def run_k1(*words: str) -> None:
    result = subprocess.run([sys.executable, "-m", "k1", *words], capture_output=True, text=True)
    if result.returncode != 0:
        pytest.fail(f"k1 {' '.join(words)} ended with {result.returncode}:\n{result.stderr}", pytrace=False)


@pytest.fixture(scope="session")
def k1() -> Callable[..., None]:
    """Runs the `k1` command; the test fails with what it said when it fails."""
    return run_k1


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Two boards that answer on SSH. A test that changes them brings them back."""
    name = f"e2e-{os.getpid()}"
    try:
        run_k1("lab", "up", "-n", "2", "--name", name)
        yield Lab(name)
    finally:
        run_k1("lab", "down", "--name", name)


@pytest.fixture(scope="session")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boards]:
    """Four boards that serve a tiny model by one deploy. A test that changes them brings them back."""
    name, folder = f"deploy-{os.getpid()}", tmp_path_factory.mktemp("fleet")
    fleet, model = folder / "fleet.toml", write_babbler(folder / "babbler.gguf", layers=4)
    try:
        run_k1("lab", "up", "-n", str(COUNT), "--name", name)
        run_k1("fleet", "init", "-f", str(fleet), "--lab", name, "--model", str(model))
        deploy(fleet)
        yield Boards(Lab(name), fleet)
    finally:
        run_k1("lab", "down", "--name", name)


@pytest.fixture(scope="session")
def install(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str, str], None]:
    """Compiles tests/data/e2e/<program>.c for an ISA and puts it on a board as /run/<program>."""

    def put(rank: int, program: str, isa: str) -> None:
        binary = tmp_path_factory.mktemp("bin") / program
        gcc = ["riscv64-linux-gnu-gcc", "-static", "-O2", f"-march={isa}", "-o"]
        subprocess.run([*gcc, binary, DATA / f"{program}.c"], check=True)
        lab.ssh(rank).run(f"cat > /run/{program} && chmod +x /run/{program}", stdin=binary)

    return put


@pytest.fixture
def own_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The images of a build folder of the test's own, to be damaged; all k1 commands of the test use it."""
    built, images = paths.build_dir("virt"), tmp_path / "build" / "virt" / "images"
    images.mkdir(parents=True)
    shutil.copytree(built / "ssh", images.parent / "ssh")
    for name in ("fw_dynamic.bin", "u-boot.bin", "Image", "manifest.json"):
        shutil.copy(built / "images" / name, images)
    subprocess.run(["cp", "--sparse=always", built / "images" / "sdcard.img", images], check=True)
    monkeypatch.setenv("K1_BUILD", str(tmp_path / "build"))
    return images


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Boards boot slowly on a busy host; the first test waits for all of them."""
    for item in items:
        item.add_marker(pytest.mark.timeout(scaled(600)))
