"""An event loop in a thread of its own, which the sync client's calls and the sync watcher run in."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from agentroute.errors import UsageError

R = TypeVar("R")


class Portal:
    """Runs coroutines for threads that have no loop. Its thread is started by the first of them.

    ``last`` is run before the thread ends: when it is closed, or when nobody has it any more.
    """

    def __init__(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._last = last
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self.closed = False
        self._end: weakref.finalize[..., Portal] | None = None

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run it to its end. Who is interrupted while he waits (Ctrl-C) cancels it, and waits for that.

        Raises ``UsageError`` once it is closed, be it meanwhile.
        """
        try:
            with self._lock:  # what is begun before the loop is told to end is ended by it, and nobody waits for ever
                loop = self._running()
                future: Future[R] = asyncio.run_coroutine_threadsafe(work, loop)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            if self.closed:
                raise UsageError("the client was closed while this call was under way") from None
            raise
        except BaseException:
            if not future.done():
                future.cancel()
                self._quiet(loop)
            raise

    def close(self) -> None:
        """Run what is to be the last, and end its thread, for good."""
        with self._lock:
            self.closed = True
            end, self._end = self._end, None
        if end is not None:
            end()

    def _running(self) -> asyncio.AbstractEventLoop:
        """The loop; called under the lock."""
        if self.closed:
            raise UsageError("the client is closed; make a new one")
        if self._loop is not None and self._pid != os.getpid():
            raise UsageError("the client was used before this process was forked; make a new one in it")
        if self._loop is None:
            self._pid, self._loop = os.getpid(), asyncio.new_event_loop()
            thread = threading.Thread(target=_serve, args=(self._loop,), name="agentroute", daemon=True)
            thread.start()
            self._end = weakref.finalize(self, _stop, self._loop, thread, self._pid, self._last)
        return self._loop

    def _quiet(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give what was cancelled the time to close its connection."""
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), loop).result(5.0)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _stop(
    loop: asyncio.AbstractEventLoop,
    thread: threading.Thread,
    pid: int,
    last: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    if pid != os.getpid() or loop.is_closed():
        return
    ending = asyncio.run_coroutine_threadsafe(last(), loop)
    ending.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    if thread is not threading.current_thread():  # it may be the one that collects what nobody has any more
        thread.join(5.0)
