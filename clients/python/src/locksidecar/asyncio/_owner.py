"""The owner of a task's locks, and what only tasks have: a block that ends when its lock is lost."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from .._errors import LockError, LostError
from .._handle import H, Handle
from .._hold import Hold, Holds, Who
from ._conn import Conn

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
        return Guard(self)

    def _who(self) -> Who:
        """Return the calling owner."""
        self._client._here()
        if self._owner is not None:
            return self._owner
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no task is running: locks belong to tasks, or to an owner that is named")
        return weakref.ref(task)

    def _find(self) -> H | None:
        self._client._here()
        return None if self._owner is None and asyncio.current_task() is None else self._of(self._who())

    @staticmethod
    def _must_run(f: Callable[..., Any]) -> None:
        """Raise TypeError if a function cannot run under a lock."""
        if not inspect.iscoroutinefunction(f):
            raise TypeError(f"only coroutine functions can be decorated with an asyncio lock, not {f!r}")


class Guard(Generic[S]):
    """``async with lock.guard() as held:``, made by Lock.guard. It is used once.

    Cancellations are counted, as asyncio.timeout does it. This takes back its own cancellation, and raises LostError
    instead, but only if nothing else has cancelled the task.
    """

    def __init__(self, lock: S) -> None:
        self._lock: Any = lock
        self._task: asyncio.Task[Any] | None = None  # while the body runs
        self._before = 0  # number of cancellations that were requested before
        self._why: LostError | None = None  # the reason for the cancellation by this guard
        self._used = False
        self._hold: Hold[Conn] | Holds[Conn]

    async def __aenter__(self) -> S:
        if self._used:
            raise RuntimeError("a guard is used once; make another one")
        self._used = True
        task = asyncio.current_task()
        lock = self._lock
        if task is None:
            raise RuntimeError("a guard needs a task")
        lock._client._here()
        lock._client._notifier.start()
        await lock.__aenter__()
        self._hold = lock._mine()
        if sys.version_info >= (3, 11):
            self._before = task.cancelling()
        self._task = task
        if not self._hold.conn.adopt(self._hold, self._lost):
            self._task = None
            with contextlib.suppress(LockError):
                await lock.release()
            raise self._hold.loss(self._hold.lost or "silence")
        self._hold.conn.watch(self._hold)
        return self._lock  # type: ignore[no-any-return]

    def _lost(self, why: LostError) -> None:
        if self._task is not None and self._why is None:
            self._why = why
            self._task.cancel(str(why))

    async def __aexit__(self, kind: object, body: BaseException | None, trace: object) -> None:
        task, self._task = self._task, None  # from here on nothing is cancelled
        hold = self._hold
        hold.conn.disown(hold, self._lost)
        ours = False
        if sys.version_info >= (3, 11) and self._why is not None and task is not None:
            ours = task.uncancel() <= self._before and isinstance(body, asyncio.CancelledError)
        if not ours:
            await self._lock.__aexit__(kind, body, trace)
            return
        with contextlib.suppress(LockError):  # the loss is raised below instead
            await self._lock.release()
        assert self._why is not None
        raise self._why from body
