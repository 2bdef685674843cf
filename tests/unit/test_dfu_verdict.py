"""What is made of dfu-util's exit statuses that no emulated board brings about."""

from __future__ import annotations

import pytest

from k1.drivers import dfu
from k1.run import Result


@pytest.mark.parametrize(("status", "words"), [(70, "dfu-util: unable to write to file"), (76, "dfu-util: bad answer")])
def test_software_and_protocol_errors_are_failures_with_dfu_utils_own_words(status: int, words: str) -> None:
    result = Result(("dfu-util",), status, "Download\t[=====      ] 40% 26214 bytes\n", f"{words}\n", 1.0)
    verdict = dfu.judge(result)
    assert (verdict.written, verdict.sent) == (False, 26214)
    assert f"dfu-util ended with {status}: {words}" in verdict.cause
    assert verdict.try_
