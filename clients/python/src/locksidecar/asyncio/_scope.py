"""The common part of all handles for tasks: acquire, its owner, and the scopes around it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import sys
import weakref
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from .. import _wire as w
from .._errors import ConnectionLost, Draining, LockError, Unavailable, Unconfirmed, Upgrade
from .._handle import SWEEP, Terms, Tries, anybody, sure, sweep
from .._hold import Who
from .._table import Owners
from ._conn import Asked, Conn, H
from ._guard import Guard

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._client import Client

P = ParamSpec("P")
R = TypeVar("R")

_log: Final = logging.getLogger("locksidecar")


class Scope(Terms, Generic[H]):
    """A handle of a client for tasks. H is the type of its holds: Hold or Holds."""

    _unit = "task"

    def __init__(self, client: Client, *terms: Any) -> None:
        self._client = client
        self._held: dict[Who, H] = {}  # by task, or by the named owner
        self._sweep_at = SWEEP
        self._asking: dict[Who, tuple[int, int]] = {}  # the owner number of requests in flight, and how many there are
        super().__init__(*terms)

    @abstractmethod
    def _request(self, conn: Conn, owner: int, who: Who) -> tuple[Asked, H]:
        """Make the acquire request of this handle."""

    @abstractmethod
    def _of(self, who: Who) -> H | None:
        """Return an owner's hold, also a lost one that is not released."""

    @abstractmethod
    def _let_go(self) -> tuple[H, list[Asked]]:
        """Release, and return the requests that are still to be answered."""

    @abstractmethod
    def release(self) -> Coroutine[Any, Any, None]: ...

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> Coroutine[Any, Any, bool]:
        """Acquire; false if it was not granted in time.

        blocking=False tries; timeout bounds the wait, and -1 or None does not. After an exception, even a cancellation,
        nothing is acquired: the wait is withdrawn, and a grant that crosses that is released.
        """
        return self._acquire(self._who(), w.to_wait(blocking, timeout))

    async def _acquire(self, who: Who, wait: int) -> bool:
        hold = self._of(who)
        if hold is not None and self._reenter(who, hold):
            return True
        self._check(who, wait != 0)
        client = self._client
        if self._on_lost is not None:
            client._notifier.needed = True
        tries, trace = Tries(wait), client._trace()
        while True:
            conn = client._live() or await client._connect(tries.until())
            call, asked = self._request(conn, self._number(who), who)
            try:
                hold = await conn.acquire(
                    call, asked, tries.left, self._ttl, self._flags, tries.limit(client._timeout), trace
                )
                if hold is None:
                    return False
                hold = self._join(who, hold)
                if conn.adopt(hold, self._on_lost):
                    conn.watch(hold)
                    self._keep(who, hold)
                    return True
                conn.give_up(hold)  # the hold was over before this task ran
                if tries.lapsed(hold):
                    return False
                continue
            except (ConnectionLost, Draining) as e:
                # After either error nothing is held, so the request may be sent again.
                pause = tries.refused(e, conn, client._closed)
            except BaseException:  # no answer, or cancelled
                conn.withdraw(call)
                if self._held.get(who) is asked:
                    self._forget(who)
                raise
            finally:
                self._answered(who)
            await asyncio.sleep(pause)
            tries.paused()

    def _join(self, who: Who, hold: H) -> H:
        """Return the hold that a grant counts for: itself, or one that the owner was granted at the same time."""
        return hold

    def _reenter(self, who: Who, hold: H) -> bool:
        if hold.shared and not self._shared and sure(hold):
            raise Upgrade("held shared by this owner; an exclusive hold could never be granted")
        if sure(hold) and hold.conn.reenter(hold):
            self._keep(who, hold)
            hold.conn.adopt(hold, self._on_lost)
            return True
        hold.conn.lapse(hold.each, w.now())
        self._refuse_lost(hold)
        self._forget(who)
        hold.conn.give_up(hold)
        return False

    async def _answers(self, conn: Conn, calls: list[Asked], lost: bool) -> None:
        """Wait for the answer to a release; Unconfirmed if it does not come, unless the hold is lost anyway."""
        try:
            for c in calls:
                await conn.answer(c)
        except ConnectionLost:
            calls.clear()  # the end of the connection also releases
        except Unavailable as e:
            calls.clear()
            if not lost:
                raise Unconfirmed(f"{e}; the release has been sent") from None

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
                    self._let_go()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except Unconfirmed as e:
            _log.info("%s: %s", self._name, e)  # the body ran under the lock
        except LockError as e:
            if kind is None:
                raise
            self._exit_failed(e, body)

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
        except RuntimeError:  # on no loop, or on another one
            state = "not owned here"
        return f"<locksidecar.asyncio.{type(self).__name__} {self._name} {state}>"

    # ---- owners ----

    @property
    def _known(self) -> Owners:
        return self._client._known

    def _new_owner(self) -> int:
        return next(self._client._owners)

    def _who(self) -> Who:
        """Return the calling owner."""
        self._client._here()
        if self._owner is not None:
            return self._owner
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no task is running: locks belong to tasks, or to an owner that is named")
        return weakref.ref(task)

    def _all(self, which: Callable[[Who], bool] = anybody) -> Iterable[H]:
        return [hold for who, hold in list(self._held.items()) if which(who)] if self._held else ()

    def _find(self) -> H | None:
        self._client._here()
        task = asyncio.current_task()
        who = self._owner if self._owner is not None else None if task is None else weakref.ref(task)
        return None if who is None else self._of(who)

    def _keep(self, who: Who, hold: H) -> None:
        self._held[who] = hold
        if len(self._held) >= self._sweep_at:
            self._sweep_at = max(SWEEP, 2 * sweep(self._held, lambda hold: hold.over))

    def _forget(self, who: Who) -> None:
        self._held.pop(who, None)

    def _number(self, who: Who) -> int:
        """Return the owner's number: a new one, unless a request of the same task is in flight."""
        if isinstance(who, int):
            return who
        number, count = self._asking.get(who) or (self._new_owner(), 0)
        self._asking[who] = number, count + 1
        return number

    def _answered(self, who: Who) -> None:
        if not isinstance(who, int):
            number, count = self._asking[who]
            if count > 1:
                self._asking[who] = number, count - 1
            else:
                del self._asking[who]
