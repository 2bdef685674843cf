"""What every unit test starts from."""

import pytest


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the caller must not decide a test."""
    for name in ("K1_TIMEOUT_SCALE", "K1_AUTHORIZED_KEYS", "K1_ROOT_PASSWORD_HASH", "SOURCE_DATE_EPOCH", "K1_DEBUG"):
        monkeypatch.delenv(name, raising=False)
