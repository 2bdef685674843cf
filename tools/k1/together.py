"""The same done for several things at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from k1.run import end_all

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def together(
    items: Iterable[_Item],
    act: Callable[[_Item], _Result],
    *,
    parallel: int = 16,
    stop: Callable[[], object] = lambda: None,
) -> list[Future[_Result]]:
    """`act` on each item, at most `parallel` at once; how each has ended, in their order.

    Ctrl-C ends the programs that run for it, after `stop`, and is raised when all have ended.
    """
    begun: list[Future[_Result]] = []
    with ThreadPoolExecutor(max_workers=parallel) as pool:
        try:
            for item in items:
                begun.append(pool.submit(act, item))
            wait(begun)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            while running := [each for each in begun if not each.done()]:
                end_all()  # again: one may just have been starting a program
                wait(running, timeout=0.2)
            raise
    return begun
