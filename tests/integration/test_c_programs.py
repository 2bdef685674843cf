"""The C tests, in every flavour that can run here: under sanitizers, for the K1 under qemu-user, with musl, for Arm."""

import os

import pytest

from k1 import userland


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "flavour",
    ["debug", "riscv64", pytest.param("musl", marks=pytest.mark.slow), pytest.param("aarch64", marks=pytest.mark.slow)],
)
def test_c_tests_pass(flavour: str) -> None:
    userland.build(flavour, jobs=os.cpu_count() or 1, test=True)
