"""The connection of a client for tasks, and its reports of losses."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Coroutine

from .._base import Base
from .._errors import ConnectionLost, LockError, LostError, Unavailable, log
from .._table import Notifier, OnLost
from ._conn import Conn


class Link(Base):
    """A client for tasks. It belongs to the loop on which it is first used."""

    @staticmethod
    def _running() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _reset(self) -> None:
        super()._reset()
        self._mu = threading.Lock()  # guards the first use
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        """End the connection: the daemon releases everything that is held on it. Idempotent.

        Waiting requests fail with ConnectionLost. The call's first step releases, and a cancellation does not undo
        that.
        """
        if self._loop is not None:
            self._here()
        self._closed = True
        if self._loop is None:
            return
        self._end()
        if self._conn is not None and not self._conn.ended.done():
            await asyncio.wait([self._conn.ended])  # not cancelled together with this task
        await self._notifier.stop()

    aclose = close

    def _here(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, which must be the client's."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._move(loop)
        return loop

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._mu:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this client belongs to another event loop; each loop needs a client of its own")
            self._orphaned()
            self._loop = loop
            self._notifier = _Notifier(loop)
            self._connecting = asyncio.Lock()
            self._failed = (-math.inf, Unavailable())

    def _orphaned(self) -> None:
        """End the connection of a loop that was closed before it."""
        if self._conn is not None:
            self._conn.die(ConnectionLost("the event loop was closed"), quiet=True)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _turn(self, start: float) -> tuple[Conn | None, LockError]:
        # If the task is cancelled, the others still have a working client, and no task is left behind.
        async with self._connecting:
            return await self._attempt(start)

    async def _dial(self) -> Conn:
        conn = Conn(self._here(), self._timeout, self._notifier, self._known)
        self._own(conn, conn.ear.abandon)
        await conn.connect(self._path, self._name, self._label)
        return conn


class _Notifier(Notifier):
    """Reports on the loop. A report that is a coroutine runs as a task."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Notice losses soon."""
        self.needed = True

    def _record(self, tell: OnLost, why: LostError) -> None:
        self._loop.call_soon(self._tell, tell, why)

    def _tell(self, tell: OnLost, why: LostError) -> None:
        try:
            told = tell(why)
            if isinstance(told, Coroutine):
                task = self._loop.create_task(self._run(told, why))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception:
            log.exception("on_lost failed for lock %r", why.key)

    @staticmethod
    async def _run(told: Awaitable[object], why: LostError) -> None:
        try:
            await told
        except Exception:
            log.exception("on_lost failed for lock %r", why.key)

    async def stop(self) -> None:
        """Cancel the tasks that still run, except the caller's own, and wait for them."""
        left = self._tasks - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
