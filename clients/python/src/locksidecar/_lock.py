"""A handle for one lock, for threads: what a user holds in the hand."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from . import _wire as w
from ._conn import Conn
from ._errors import (
    ConnectionLost,
    Draining,
    LockError,
    LostError,
    NotAcquired,
    Unavailable,
    Unconfirmed,
    Upgrade,
)
from ._handle import Handle, Tries, check, sure, to_ttl, to_wait
from ._hold import Call, Hold

if TYPE_CHECKING:
    from ._client import Client

P = ParamSpec("P")
R = TypeVar("R")

_log: Final = logging.getLogger("locksidecar")


class Lock(Handle):
    """A handle for one lock, made by Client.lock.

    Any thread may use it. Who acquires is the handle and the thread together, unless an owner was
    named: a second thread waits, and the same one may acquire again and then has to release as
    often.
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
        # By thread (0 for a named owner): who it is, for idents are reused, and its hold.
        self._held: dict[int, tuple[threading.Thread | None, Hold[Conn]]] = {}

    def locked(self) -> bool:
        """Ask the daemon whether anybody holds the lock."""
        return bool(w.numbers(self._client._ask(w.INSPECT, self._key), 1)[0])

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        """Acquire the lock; false when it cannot be had in time.

        blocking=False tries; timeout bounds the wait, -1 or None does not. An exception leaves
        nothing acquired.
        """
        wait = to_wait(blocking, timeout)
        hold = self._find()
        return (hold is not None and self._reenter(hold)) or self._acquire(wait)

    def _reenter(self, hold: Hold[Conn]) -> bool:
        if hold.shared and not self._shared and sure(hold):
            raise Upgrade("held shared by this owner; an exclusive hold could never be granted")
        before = hold.count
        try:
            if sure(hold) and hold.conn.reenter(hold):
                self._keep(hold)
                hold.conn.adopt(hold, self._on_lost)
                return True
        except BaseException:
            if self._owner is None:  # only then nobody else counts
                hold.count = before
            raise
        self._forget()
        hold.conn.lapse([hold], w.now())
        return False

    def _acquire(self, wait: int) -> bool:
        client = self._client
        if self._on_lost is not None:
            client._notifier.start()
        tries = Tries(wait)
        while True:
            conn = client._live() or client._connect(tries.until())
            owner = self._owner if self._owner is not None else next(client._owners)
            asked = Hold(conn, self._key, owner, self._shared)
            call = Call(w.ACQUIRE, asked)
            try:
                hold = conn.acquire(call, asked, tries.left, self._ttl, self._flags, tries.limit(client._timeout))
                if hold is None:
                    return False
                if conn.adopt(hold, self._on_lost):
                    self._keep(hold)
                    return True
                conn.lapse([hold], w.now())  # it was over before we came to it
                if tries.lapsed(hold):
                    return False
            except (ConnectionLost, Draining) as e:
                # Neither leaves anything held, so we may ask again.
                time.sleep(tries.refused(e, conn, client._closed))
                tries.paused()
            except BaseException:  # no answer, or an interrupt anywhere above
                conn.withdraw(call)
                if (mine := self._held.get(self._slot())) is not None and mine[1] is asked:
                    self._forget()
                raise

    def release(self) -> None:
        """Release the lock, or one of several acquires of it.

        NotHeld when this owner does not hold it, LostError (a NotHeld) when it did and lost it:
        nobody else's hold is ever released. Unconfirmed when the store has not confirmed.
        """
        hold = self._mine()
        if not hold.lost and not sure(hold):
            hold.conn.lapse([hold], w.now())
        if hold.lost:
            hold.count -= 1
            if hold.count <= 0:
                self._forget()
            raise hold.loss(hold.lost)
        before = hold.count
        try:
            if before <= 1:
                self._forget()
            reply = hold.conn.release(hold)
        except ConnectionLost:
            return  # that is release, too
        except Unavailable as e:
            raise Unconfirmed(f"{e}; the release has been sent") from None
        except BaseException:
            if not hold.over:
                hold.conn.finish(hold, before, None)
            raise
        if reply:
            check(hold, reply)

    def extend(self, ttl: float | None = None) -> None:
        """Renew the lock now, to end ttl from now; by default its own TTL.

        Only a lock with renew=False needs that. NotHeld when it is not held, Unavailable when the
        store does not confirm: then what was known before still stands.
        """
        self._change(w.RENEW, to_ttl(ttl))

    def downgrade(self) -> None:
        """Turn an exclusive hold into a shared one, without letting go in between."""
        self._change(w.DOWNGRADE)

    def _change(self, op: int, *fields: int) -> None:
        hold = self._mine()
        if hold.lost:
            raise hold.loss(hold.lost)
        check(hold, hold.conn.call(op, hold.key, hold.owner, hold.fence, *fields, hold=hold))

    def __enter__(self) -> Lock:
        before = self._depth()
        try:
            if not self.acquire(timeout=self._timeout):
                raise NotAcquired(f"lock {self._key!r} could not be had within {self._timeout:g} s")
            return self
        except BaseException:  # an interrupt just behind the acquire: nobody else would release
            if self._owner is None and self._depth() > before:
                with contextlib.suppress(LockError):
                    self.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except Unconfirmed as e:
            _log.info("lock %r: %s", self._key, e)  # the body ran under the lock
        except LockError as e:
            if kind is None:
                raise
            _log.info("lock %r, whose body failed: %s", self._key, e)

    def __repr__(self) -> str:
        return f"<locksidecar.Lock {self._key!r} {'owned' if self.owned() else 'not owned'}>"

    def __call__(self, f: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: each call of it runs under the lock, as by ``with``."""
        if inspect.iscoroutinefunction(f) or inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f):
            raise TypeError(f"{f!r} only begins when it is called: use with inside of it, or locksidecar.asyncio")

        @functools.wraps(f)
        def under_lock(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return f(*args, **kwargs)

        return under_lock

    def _kept(self) -> Hold[Conn] | None:
        kept = self._held.get(0)
        return None if kept is None else kept[1]

    def _slot(self) -> int:
        return 0 if self._owner is not None else threading.get_ident()

    def _find(self) -> Hold[Conn] | None:
        held = self._held.get(self._slot())
        if held is not None:
            thread, hold = held
            if thread is not None and thread is not threading.current_thread():
                return None  # a thread that has ended without releasing; the number is ours now
            if not hold.over or hold.lost:
                return hold
        # A named owner may have acquired it by another handle.
        conn = None if self._owner is None else self._client._live()
        return None if conn is None or self._owner is None else conn.find(self._key, self._owner)

    def _keep(self, hold: Hold[Conn]) -> None:
        thread = None if self._owner is not None else threading.current_thread()
        self._held[self._slot()] = thread, hold

    def _forget(self) -> None:
        self._held.pop(self._slot(), None)
