"""What all handles for tasks have: acquire, its owner, and the scopes around it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .. import _wire as w
from .._errors import LockError
from .._handle import H, Handle
from .._hold import Who
from ._guard import Guard

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")
Later = Coroutine[Any, Any, R]


class Scope(Handle[H]):
    """A handle of a client for tasks. Who makes a call is the owner, even if another task awaits its result."""

    _unit = "task"

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> Later[bool]:
        """Acquire; false if it was not granted in time.

        blocking=False tries; timeout bounds the wait, and -1 or None does not. After an exception or a cancellation
        nothing is acquired: the wait is withdrawn, and a grant that crosses that is released.
        """
        return self._acquire(self._who(), w.to_wait(blocking, timeout))

    def release(self, wait: bool | None = None) -> Later[None]:
        """Release it, or one of several acquires of it.

        wait: until the store has confirmed; by default as ``confirm`` says. Without it, a failure goes to on_lost.

        The call itself releases; its result can be awaited for the answer. So nothing that happens to the task leaves
        it held, in particular no cancellation.

        NotHeld if this owner does not hold it, LostError (a NotHeld) if it did and lost it; of several locks, the
        others are released then. No other owner's hold is ever released. Unconfirmed if the store has not confirmed.
        """
        return self._released(*self._let_go(self._who(), self._confirm if wait is None else wait))

    def extend(self, ttl: float | None = None) -> Later[None]:
        """Renew it now, to end no earlier than ttl from now; by default its own TTL. It is never shortened.

        Only a lock with renew=False needs this. NotHeld if it is not held. Unavailable if the store does not confirm;
        then the earlier validity still counts.
        """
        return self._change(w.RENEW, w.to_ttl(ttl))

    def guard(self) -> Guard[Self]:
        """Return a scope that acquires like the handle itself, and cancels the body when the lock is lost.

        The body's task gets a CancelledError where it waits, as by asyncio.timeout, and the end of the block turns it
        into LostError. A cancellation from elsewhere is not changed. Needs Python 3.11 or later.
        """
        if sys.version_info < (3, 11):
            raise RuntimeError("guard needs Python 3.11: before, two cancellations cannot be told apart")
        return Guard(self)

    async def __aenter__(self) -> Self:
        before = self._depth()
        try:
            if not await self.acquire(timeout=self._timeout):
                raise self._not_acquired()
            return self
        except BaseException:  # an interrupt just after the acquire: nothing else would release
            if self._owner is None and self._depth() > before:
                with contextlib.suppress(LockError):
                    self._let_go(self._who())
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except LockError as e:
            if self._raises(e, body):
                raise

    def __call__(self, f: Callable[P, Later[R]]) -> Callable[P, Later[R]]:
        """Decorate a coroutine function: each call of it runs under the lock, as by ``async with``."""
        if not inspect.iscoroutinefunction(f):
            raise TypeError(f"only coroutine functions can be decorated with an asyncio lock, not {f!r}")

        @functools.wraps(f)
        async def under_lock(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await f(*args, **kwargs)

        return under_lock

    def __repr__(self) -> str:
        try:
            state = "owned" if self.owned() else "not owned"
        except RuntimeError:  # on no loop, or on another one
            state = "not owned here"
        return f"<locksidecar.asyncio.{type(self).__name__} {self._name} {state}>"

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
