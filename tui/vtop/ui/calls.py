"""Calls of the service from the screen: never awaited by the painter, errors shown, none waited for at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Calls:
    """The calls under way."""

    def __init__(self, failed: Callable[[BaseException, str], None]) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed = failed

    def run(
        self, call: Coroutine[Any, Any, Result], what: str, then: Callable[[Result], None] | None = None
    ) -> asyncio.Task[None]:
        """Starts a call; `then` gets its result, the error handler its error.

        Args:
            call: the coroutine.
            what: for the error message: `stop baseline`.
            then: called in the event loop.
        """

        async def guarded() -> None:
            try:
                result = await call
                if then is not None:
                    then(result)
            except Exception as error:  # Shown to the person; an error in one call must not end the screen.
                self._failed(error, what)

        task = asyncio.get_running_loop().create_task(guarded(), name=what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Asks every call to end, and waits for none."""
        for task in list(self._tasks):
            task.cancel()


async def aside(function: Callable[[], Result]) -> Result:
    """Runs a blocking function in a daemon thread: a slow disk holds up neither the keys nor the exit.

    `asyncio.to_thread` would do but for the exit, where Python waits for its threads.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def deliver(result: Result | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result: Result | None = None
        failure: Exception | None = None
        try:
            result = function()
        except Exception as error:
            failure = error
        try:
            loop.call_soon_threadsafe(deliver, result, failure)
        except RuntimeError:
            # The loop is closed: vtop was left meanwhile, nobody waits for the answer.
            return

    threading.Thread(target=work, name="vtop-aside", daemon=True).start()
    return await future
