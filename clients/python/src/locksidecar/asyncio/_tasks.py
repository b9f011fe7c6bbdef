"""What tasks bring: the client's connection, its reports of losses, the owner of a lock, and its guard."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from .._base import Base
from .._errors import LockError, LostError, Unavailable, log
from .._handle import H, Handle
from .._hold import Who
from .._table import Notifier, OnLost
from ._conn import Conn

R = TypeVar("R")
S = TypeVar("S", bound="Owned[Any]")
Later = Coroutine[Any, Any, R]


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
            self._end("the event loop was closed")
            self._loop = loop
            self._notifier = _Notifier(loop)
            self._connecting = asyncio.Lock()
            self._failed = (-math.inf, Unavailable())

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _turn(self, start: float) -> tuple[Conn | None, LockError]:
        # If the task is cancelled, the others still have a working client, and no task is left behind.
        async with self._connecting:
            return await self._attempt(start)

    async def _dial(self) -> Conn:
        conn = Conn(self._here(), self._timeout, self._notifier, self._known)
        self._own(conn, conn.receiver.abandon)
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

    def _report(self, on_lost: OnLost, why: LostError) -> None:
        self._loop.call_soon(self._call, on_lost, why)

    def _call(self, on_lost: OnLost, why: LostError) -> None:
        try:
            result = on_lost(why)
            if isinstance(result, Coroutine):
                task = self._loop.create_task(self._run(result, why))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception:
            log.exception("on_lost failed for lock %r", why.key)

    @staticmethod
    async def _run(result: Awaitable[object], why: LostError) -> None:
        try:
            await result
        except Exception:
            log.exception("on_lost failed for lock %r", why.key)

    async def stop(self) -> None:
        """Cancel the tasks that still run, except the caller's own, and wait for them."""
        left = self._tasks - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


class Owned(Handle[H]):
    """A handle of a client for tasks. Who makes a call is the owner, even if another task awaits its result."""

    _unit = "task"

    def guard(self: S) -> Guard[S]:
        """Return a scope that acquires like the handle itself, and cancels the body when the lock is lost.

        The body's task gets a CancelledError where it waits, as by asyncio.timeout, and the end of the block turns it
        into LostError. A cancellation from elsewhere is not changed. Needs Python 3.11 or later.
        """
        if sys.version_info < (3, 11):
            raise RuntimeError("guard needs Python 3.11: before, two cancellations cannot be result apart")
        return Guard(self._guarded())

    @contextlib.asynccontextmanager
    async def _guarded(self: S) -> AsyncIterator[S]:
        """Run the body of a guard.

        Cancellations are counted, as asyncio.timeout does it. This takes back its own cancellation, and raises
        LostError instead, but only if nothing else has cancelled the task.
        """
        task: Any = asyncio.current_task()
        lock: Any = self
        if task is None:
            raise RuntimeError("a guard needs a task")
        self._client._here()
        self._client._notifier.start()
        inside, why = True, None

        def lost(e: LostError) -> None:
            nonlocal why
            if inside and why is None:
                why = e
                task.cancel(str(e))

        async with lock:
            hold, before = self._mine(), task.cancelling()
            if not hold.conn.adopt(hold, lost):
                raise hold.loss(hold.lost or "silence")
            hold.conn.watch(hold)
            cancelled = None
            try:
                yield self
            except asyncio.CancelledError as e:
                cancelled = e
                raise
            finally:
                inside = False
                hold.conn.disown(hold, lost)
                if why is not None and task.uncancel() <= before and cancelled is not None:
                    raise why from cancelled

    def _who(self) -> Who:
        """Return the calling owner."""
        self._client._here()
        if self._owner is not None:
            return self._owner
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no task is running: locks belong to tasks, or to an owner that is named")
        return weakref.ref(task)

    def _owned(self) -> list[H]:
        self._client._here()
        return [] if self._owner is None and asyncio.current_task() is None else self._of(self._who())

    @staticmethod
    def _must_run(f: Callable[..., Any]) -> None:
        """Raise TypeError if a function cannot run under a lock."""
        if not inspect.iscoroutinefunction(f):
            raise TypeError(f"only coroutine functions can be decorated with an asyncio lock, not {f!r}")


class Guard(Generic[S]):
    """``async with lock.guard() as held:``, made by Lock.guard. It is used once."""

    def __init__(self, scope: AbstractAsyncContextManager[S]) -> None:
        self._scope = scope
        self._used = False

    async def __aenter__(self) -> S:
        if self._used:
            raise RuntimeError("a guard is used once; make another one")
        self._used = True
        return await self._scope.__aenter__()

    async def __aexit__(self, *body: Any) -> None:
        await self._scope.__aexit__(*body)
