"""Freeing the memory of a Hailo-10H: hailo-ollama unloads a model that gets keep_alive 0."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from k1.errors import CheckFailed, K1Error

SECONDS = 5.0
# Unloading waits for a running answer to end.
_UNLOAD_SECONDS = 60.0


class _Refused(CheckFailed):
    """The server answered with an error."""


def loaded(server: str) -> list[str]:
    """Models that the server holds, from /api/ps; where there is no such call, all that it has."""
    try:
        answer = _ask(f"{server}/api/ps")
    except _Refused:
        answer = _ask(f"{server}/api/tags")
    models = answer.get("models") if isinstance(answer, dict) else None
    if not isinstance(models, list):
        raise CheckFailed(f"{server} does not answer as ollama does", hint="--host and --port of hailo-ollama")
    return [str(model["name"]) for model in models if isinstance(model, dict) and "name" in model]


def unload(server: str, models: Sequence[str]) -> None:
    """Send each model keep_alive 0."""
    for model in models:
        _ask(f"{server}/api/generate", {"model": model, "keep_alive": 0, "stream": False}, _UNLOAD_SECONDS)


def _ask(url: str, body: dict[str, Any] | None = None, seconds: float = SECONDS) -> Any:
    data = json.dumps(body).encode() if body else None
    request = Request(url, data=data, headers={"Content-Type": "application/json"})  # noqa: S310 - http by `server`
    try:
        with urlopen(request, timeout=seconds) as answer:  # noqa: S310
            return json.loads(answer.read(1 << 20) or b"{}")
    except HTTPError as error:
        raise _Refused(f"{url}: {error.code} {error.reason}", hint="is the model's name right?") from error
    except (URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise K1Error(f"{url}: {reason}", hint="systemctl status hailo-ollama; --host and --port") from error
    except ValueError as error:
        raise CheckFailed(f"{url}: the answer is not JSON", hint="--host and --port of hailo-ollama") from error
