"""The handles for tasks: what is called on them. See also _lock, which has the shortest path for one lock."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from .. import _wire as w
from .._errors import LockError, NotAcquired, raises
from .._handle import H, One
from .._hold import Hold, Holds
from .._inspect import Inspection, inspection
from .._many import OneOf, Permits, Several
from ._tasks import Later, Owned

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Scope[Any]")


class Scope(Owned[H]):
    """What all handles have: acquire, release, and the scopes around them."""

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> Later[bool]:
        """Acquire; false if it was not granted in time.

        blocking=False tries; timeout bounds the wait, and -1 or None does not. After an exception or a cancellation
        nothing is acquired: the wait is withdrawn, and a grant that crosses that is released.
        """
        return self._acquire(self._who(), w.to_wait(blocking, timeout))

    def release(self, wait: bool | None = None) -> Later[None]:
        """Release one acquire. The last one releases the lock.

        wait: whether to wait until the store has confirmed; by default as ``confirm`` says. With False, on_lost reports
        a failure.

        The call itself releases; its result can be awaited for the answer. So nothing that happens to the task leaves
        it held, in particular no cancellation.

        Raises NotHeld if this owner does not hold it, LostError (a NotHeld) if it lost it, and Unconfirmed if the store
        has not confirmed. If one of several locks is lost, the others are released. No other owner's hold is ever
        released.
        """
        return self._finish_release(*self._start_release(self._who(), self._confirm if wait is None else wait))

    def extend(self, ttl: float | None = None) -> Later[None]:
        """Renew it now, to end no earlier than ttl from now; by default its own TTL. It is never shortened.

        Only a lock with renew=False needs this. Raises NotHeld if it is not held, and Unavailable if the store does not
        confirm; then the earlier validity still counts.
        """
        return self._changed(self._mine(), w.RENEW, w.to_ttl(ttl))

    async def __aenter__(self: S) -> S:
        before = self.held_count
        try:
            if not await self.acquire(timeout=self._timeout):
                raise NotAcquired(f"{self._name}: not acquired within {float(self._timeout):g} s")
            return self
        except BaseException:  # an interrupt just after the acquire: nothing else would release
            if self._owner is None and self.held_count > before:
                with contextlib.suppress(LockError):
                    self._start_release(self._who())
            raise

    async def __aexit__(self, kind: object, body: BaseException | None, trace: object) -> None:
        try:
            await self.release()
        except LockError as e:
            if raises(e, self._name, body):
                raise

    def __call__(self, f: Callable[P, Later[R]]) -> Callable[P, Later[R]]:
        """Decorate a coroutine function: each call of it runs under the lock, as by ``async with``."""
        self._must_run(f)

        @functools.wraps(f)
        async def under_lock(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self:
                return await f(*args, **kwargs)

        return under_lock


class OneLock(Scope[Hold], One):
    """A handle for one lock."""

    def downgrade(self) -> Later[None]:
        """Turn an exclusive hold into a shared one, without releasing the lock in between."""
        return self._changed(self._mine(), w.DOWNGRADE)

    async def locked(self) -> bool:
        """Ask the daemon whether the lock is held."""
        return bool(w.numbers(await self._client._asked(w.INSPECT, self._key), 1)[0])

    async def inspect(self) -> Inspection:
        """Ask the daemon for the state of the lock, and for its holders on any host.

        The daemon may need several requests to the store. Limit if too many such requests of this client are not
        answered yet.
        """
        return inspection(await self._client._asked(w.INSPECT, self._key, 0, w.NAMES))


class Locks(Scope[Holds], Several):
    """A handle for several locks that are acquired together, all or none; made by Client.lock_many.

    It is used like a Lock. Its owner is the handle and the task together, unless an owner was named. If one of the
    locks is lost, the handle is lost, and on_lost is called once with the LostError of that lock. The others stay held
    until the release, so that no other client gets them before the work that needs all of them has ended.
    """

    def downgrade(self) -> Later[None]:
        """Turn the exclusive holds into shared ones, without releasing the locks in between."""
        return self._changed(self._mine(), w.DOWNGRADE)


class Semaphore(Scope[Hold], Permits):
    """A handle for a semaphore, made by Client.semaphore.

    At most its number of permits are held at a time, on all hosts together.

    Any task of the client's loop may use it, and has permits of its own, unless an owner was named. Each acquire takes
    one more permit, also in a task that has one. A release releases the permit that this owner acquired last by this
    handle. fence, remaining, owned and extend are about the same permit. The task is the one that makes the call, even
    if another one awaits it.
    """

    async def holders(self) -> int:
        """Ask the daemon how many permits are held on this host. More may be held on others."""
        return int(w.numbers(await self._client._asked(w.INSPECT, self._key, w.PERMIT), 3)[2])

    async def inspect(self) -> Inspection:
        """Ask the daemon for the state of the semaphore, and for its holders on any host; see Lock.inspect."""
        return inspection(await self._client._asked(w.INSPECT, self._key, w.PERMIT, w.NAMES))


class AnyLock(Scope[Hold], OneOf):
    """A handle for one of several locks, the one that is free first; made by Client.lock_any.

    It is used like a Lock, and ``key`` names the lock that is held. It waits its turn in the queue of each lock, and
    holds none of the others. If this owner already holds one by this handle, another acquire counts for that one.
    """
