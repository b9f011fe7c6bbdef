"""A handle for one lock, for tasks: what a user holds in the hand."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from .. import _wire as w
from .._errors import (
    ConnectionLost,
    Draining,
    LockError,
    LostError,
    NotAcquired,
    Unavailable,
    Unconfirmed,
    Upgrade,
)
from .._handle import Handle, Tries, check, sure, to_ttl, to_wait
from .._hold import Hold
from ._conn import Asked, Conn
from ._guard import Guard

if TYPE_CHECKING:
    from ._client import Client

P = ParamSpec("P")
R = TypeVar("R")
Task = asyncio.Task[Any]

_log: Final = logging.getLogger("locksidecar")


class Lock(Handle):
    """A handle for one lock, made by Client.lock.

    Any task of the client's loop may use it. Who acquires is the handle and the task together,
    unless an owner was named: a second task waits, and the same one may acquire again and then has
    to release as often. The task is the one that makes the call, also where another one awaits
    it (asyncio.wait_for, gather, create_task).
    """

    def __init__(
        self,
        client: Client,
        key: str,
        ttl: float | None,
        renew: bool,
        shared: bool,
        timeout: float,
        owner: int | None,
        on_lost: Callable[[LostError], object] | None,
    ) -> None:
        super().__init__(key, ttl, renew, shared, timeout, owner, on_lost)
        self._client = client
        self._held: WeakKeyDictionary[Task, Hold[Conn]] = WeakKeyDictionary()
        self._named: Hold[Conn] | None = None  # of the named owner
        self._asking: dict[Task, tuple[int, int]] = {}  # the owner number of requests in flight, and how many

    def locked(self) -> Coroutine[Any, Any, bool]:
        """Ask the daemon whether anybody holds the lock."""
        return self._locked()

    async def _locked(self) -> bool:
        return bool(w.numbers(await self._client._ask(w.INSPECT, self._key), 1)[0])

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> Coroutine[Any, Any, bool]:
        """Acquire the lock; false when it cannot be had in time.

        blocking=False tries; timeout bounds the wait, -1 or None does not. An exception leaves
        nothing acquired, cancellation included: the wait is withdrawn, and a grant that crosses
        that is given back.
        """
        return self._acquire(self._who(), to_wait(blocking, timeout))

    async def _acquire(self, who: Task | None, wait: int) -> bool:
        hold = self._of(who)
        if hold is not None and self._reenter(who, hold):
            return True
        client = self._client
        if self._on_lost is not None:
            client._notifier.needed = True
        tries = Tries(wait)
        while True:
            conn = client._live() or await client._connect(tries.until())
            asked = Hold(conn, self._key, self._number(who), self._shared)
            call = Asked(w.ACQUIRE, client._here().create_future(), asked)
            try:
                hold = await conn.acquire(call, asked, tries.left, self._ttl, self._flags, tries.limit(client._timeout))
                if hold is None:
                    return False
                if conn.adopt(hold, self._on_lost):
                    conn.watch(hold)
                    self._keep(who, hold)
                    return True
                conn.lapse([hold], w.now())  # it was over before we came to it
                if tries.lapsed(hold):
                    return False
                continue
            except (ConnectionLost, Draining) as e:
                # Neither leaves anything held, so we may ask again.
                pause = tries.refused(e, conn, client._closed)
            except BaseException:  # no answer, or cancelled
                conn.withdraw(call)
                if self._of(who) is asked:
                    self._forget(who)
                raise
            finally:
                self._answered(who)
            await asyncio.sleep(pause)
            tries.paused()

    def _reenter(self, who: Task | None, hold: Hold[Conn]) -> bool:
        if hold.shared and not self._shared and sure(hold):
            raise Upgrade("held shared by this owner; an exclusive hold could never be granted")
        if sure(hold) and hold.conn.reenter(hold):
            self._keep(who, hold)
            hold.conn.adopt(hold, self._on_lost)
            return True
        self._forget(who)
        hold.conn.lapse([hold], w.now())
        return False

    def release(self) -> Coroutine[Any, Any, None]:
        """Release the lock, or one of several acquires of it.

        The call releases; what it returns is awaited for the answer. So nothing that happens to
        the task, cancellation least of all, leaves the lock held.

        NotHeld when this owner does not hold it, LostError (a NotHeld) when it did and lost it:
        nobody else's hold is ever released. Unconfirmed when the store has not confirmed.
        """
        return self._released(*self._let_go())

    def _let_go(self) -> tuple[Hold[Conn], list[Asked]]:
        """Release, and return what is still to be answered."""
        who, hold = self._holder()
        if not hold.lost and not sure(hold):
            hold.conn.lapse([hold], w.now())
        if hold.lost:
            hold.count -= 1
            if hold.count <= 0:
                self._forget(who)
            raise hold.loss(hold.lost)
        if hold.count <= 1:
            self._forget(who)
        calls: list[Asked] = []
        with contextlib.suppress(ConnectionLost):  # that is release, too
            calls = hold.conn.release(hold)
        return hold, calls

    async def _released(self, hold: Hold[Conn], calls: list[Asked]) -> None:
        reply: w.Message = ()
        try:
            for c in calls:
                reply = await hold.conn.answer(c)
        except ConnectionLost:
            return
        except Unavailable as e:
            raise Unconfirmed(f"{e}; the release has been sent") from None
        if reply:
            check(hold, reply)

    def extend(self, ttl: float | None = None) -> Coroutine[Any, Any, None]:
        """Renew the lock now, to end ttl from now; by default its own TTL.

        Only a lock with renew=False needs that. NotHeld when it is not held, Unavailable when the
        store does not confirm: then what was known before still stands.
        """
        return self._change(self._holder()[1], w.RENEW, to_ttl(ttl))

    def downgrade(self) -> Coroutine[Any, Any, None]:
        """Turn an exclusive hold into a shared one, without letting go in between."""
        return self._change(self._holder()[1], w.DOWNGRADE)

    async def _change(self, hold: Hold[Conn], op: int, *fields: int) -> None:
        if hold.lost:
            raise hold.loss(hold.lost)
        check(hold, await hold.conn.call(op, hold.key, hold.owner, hold.fence, *fields, hold=hold))

    def guard(self) -> Guard:
        """Return what acquires as the lock itself does, and cancels the body when the lock is lost.

        The body's task gets a CancelledError where it waits, as by asyncio.timeout, and the end of the
        block turns it into LostError. A cancellation from elsewhere stays what it is. Python 3.11
        or later.
        """
        if sys.version_info < (3, 11):
            raise RuntimeError("guard needs Python 3.11: before, two cancellations cannot be told apart")
        return Guard(self)

    async def __aenter__(self) -> Lock:
        before = self._depth()
        try:
            if not await self.acquire(timeout=self._timeout):
                raise NotAcquired(f"lock {self._key!r} could not be had within {self._timeout:g} s")
            return self
        except BaseException:  # an interrupt just behind the acquire: nobody else would release
            if self._owner is None and self._depth() > before:
                with contextlib.suppress(LockError):
                    self._let_go()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except Unconfirmed as e:
            _log.info("lock %r: %s", self._key, e)  # the body ran under the lock
        except LockError as e:
            if kind is None:
                raise
            _log.info("lock %r, whose body failed: %s", self._key, e)

    def __call__(self, f: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
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
        except RuntimeError:  # on no loop, or another one
            state = "not owned here"
        return f"<locksidecar.asyncio.Lock {self._key!r} {state}>"

    # ---- who holds ----

    def _who(self) -> Task | None:
        """Return the task that calls; None for a named owner."""
        self._client._here()
        if self._owner is not None:
            return None
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no task is running: locks belong to tasks, or to an owner that is named")
        return task

    def _of(self, who: Task | None) -> Hold[Conn] | None:
        hold = self._named if who is None else self._held.get(who)
        if hold is not None and (not hold.over or hold.lost):
            return hold
        # A named owner may have acquired it by another handle.
        conn = None if self._owner is None else self._client._live()
        return None if conn is None or self._owner is None else conn.find(self._key, self._owner)

    def _kept(self) -> Hold[Conn] | None:
        return self._named

    def _find(self) -> Hold[Conn] | None:
        self._client._here()
        who = None if self._owner is not None else asyncio.current_task()
        return None if who is None and self._owner is None else self._of(who)

    def _holder(self) -> tuple[Task | None, Hold[Conn]]:
        return self._who(), self._mine()

    def _keep(self, who: Task | None, hold: Hold[Conn]) -> None:
        if who is None:
            self._named = hold
        else:
            self._held[who] = hold

    def _forget(self, who: Task | None) -> None:
        if who is None:
            self._named = None
        else:
            self._held.pop(who, None)

    def _number(self, who: Task | None) -> int:
        """Return the owner's number: a new one, unless a request of the same task is in flight."""
        if who is None:
            assert self._owner is not None
            return self._owner
        number, count = self._asking.get(who) or (next(self._client._owners), 0)
        self._asking[who] = number, count + 1
        return number

    def _answered(self, who: Task | None) -> None:
        if who is not None:
            number, count = self._asking[who]
            if count > 1:
                self._asking[who] = number, count - 1
            else:
                del self._asking[who]
