"""QMP: QEMU's control protocol, JSON lines on a Unix socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from k1.closing import Closing
from k1.drivers import unixsocket
from k1.drivers.patience import scaled
from k1.errors import CheckFailed


class Qmp(Closing):
    """A control connection to one QEMU; QEMU serves one at a time."""

    def __init__(self, path: Path, title: str) -> None:
        """Connect to the socket `path`; `title` names the board in errors. Raises CheckFailed."""
        self._title = title
        try:
            self._socket = unixsocket.connect(path, scaled(5.0))
        except OSError as error:
            raise CheckFailed(f"{title}: QEMU's control socket does not answer ({error})") from error
        self._stream = self._socket.makefile("rwb")
        try:
            self._receive()
            self.execute("qmp_capabilities")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the socket to the next client."""
        self._stream.close()
        self._socket.close()

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run a QMP command and return its result; CheckFailed when QEMU refuses or does not answer."""
        try:
            self._stream.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            self._stream.flush()
        except OSError as error:
            raise CheckFailed(f"{self._title}: QEMU closed its control socket during {command}") from error
        while True:
            answer = self._receive()
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise CheckFailed(f"{self._title}: QEMU refused {command}: {answer['error'].get('desc')}")

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._stream.readline()
        except TimeoutError as error:
            hint = "end other users of its control socket"
            raise CheckFailed(f"{self._title}: QEMU does not answer on its control socket", hint=hint) from error
        except OSError as error:
            raise CheckFailed(f"{self._title}: QEMU's control socket broke ({error})") from error
        if not line:
            raise CheckFailed(f"{self._title}: QEMU closed its control socket")
        answer: dict[str, Any] = json.loads(line)
        return answer
