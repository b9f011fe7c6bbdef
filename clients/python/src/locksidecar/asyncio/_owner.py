"""The owner of a task's locks, and what only tasks have: a block that ends when its lock is lost."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from .._errors import LostError
from .._handle import H, Handle
from .._hold import Who

R = TypeVar("R")
S = TypeVar("S", bound="Owned[Any]")
Later = Coroutine[Any, Any, R]


class Owned(Handle[H]):
    """A handle of a client for tasks. Who makes a call is the owner, even if another task awaits its result."""

    _unit = "task"

    def guard(self: S) -> Guard[S]:
        """Return a scope that acquires like the handle itself, and cancels the body when the lock is lost.

        The body's task gets a CancelledError where it waits, as by asyncio.timeout, and the end of the block turns it
        into LostError. A cancellation from elsewhere is not changed. Needs Python 3.11 or later.
        """
        if sys.version_info < (3, 11):
            raise RuntimeError("guard needs Python 3.11: before, two cancellations cannot be told apart")
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

    def _mines(self) -> list[H]:
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
