"""A handle for one lock: what a user holds in the hand."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, NoReturn

from . import _wire as w
from ._conn import Conn
from ._errors import (
    NOT_HELD,
    OK,
    ConnectionLost,
    Draining,
    Invalid,
    LockError,
    LostError,
    NotAcquired,
    NotHeld,
    Unavailable,
    Unconfirmed,
    Upgrade,
    error,
)
from ._hold import Call, Hold

if TYPE_CHECKING:
    from ._client import Client

OWN: Final = 1 << 32  # owners below are for users to name

_log: Final = logging.getLogger("locksidecar")
_PATIENCE: Final = 2.0  # seconds for which an acquire waits for a daemon that is not there, or is going
_CUTS: Final = 3  # how often in a row a new connection may end at once


class _Tries:
    """How long one acquire goes on: to its end, and no more than a little with a daemon that fails it."""

    def __init__(self, wait: int) -> None:
        self.left = wait  # milliseconds still to wait; -1 without bound
        self._wait = wait
        self._end = math.inf if wait < 0 else time.monotonic() + wait / 1000
        self._cuts = 0
        self._drained = math.inf
        self._pause = 0.01

    def until(self) -> float:
        """Return until when to try to connect."""
        return min(self._end, time.monotonic() + _PATIENCE)

    def limit(self, timeout: float) -> float | None:
        """Return until when to wait for the daemon's answer."""
        return None if self._wait < 0 else time.monotonic() + self.left / 1000 + timeout

    def lapsed(self, hold: Hold) -> bool:
        """Go on after a grant that came too late; true when there is no time left."""
        self._cuts += 1
        if self._cuts > _CUTS:
            raise hold.loss(hold.lost)
        return self._over()

    def refused(self, e: ConnectionLost | Draining, conn: Conn, closed: bool) -> None:
        """Go on after the end of the connection, or wait a little for the daemon to go; or raise e."""
        now, pause = time.monotonic(), 0.0
        if isinstance(e, Draining):
            self._drained = min(self._drained, now + _PATIENCE)
            pause = self._pause * random.uniform(0.5, 1)
            self._pause = min(0.25, 2 * self._pause)
            over = now + pause >= min(self._end, self._drained)
        else:
            self._cuts = self._cuts + 1 if now - conn.since < 1 else 0
            over = self._cuts > _CUTS or (now >= self._end and (self._wait > 0 or self._cuts > 1))
        if closed or over:
            raise e
        time.sleep(pause)
        self._over()

    def _over(self) -> bool:
        left = self._end - time.monotonic()
        if self._wait > 0:
            self.left = max(0, math.ceil(left * 1000))
        return left <= 0


class Lock:
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
        self._client = client
        self._key = w.check_key(key)
        self._ttl = _ttl(ttl)
        self._flags = 0 if renew else w.FIXED
        self._shared = shared
        self._timeout = timeout
        _wait(True, timeout)  # refused here rather than at the first with
        if owner is not None and not 0 <= owner < OWN:
            raise Invalid("an owner is a number from 0 to 2**32 - 1")
        self._owner = owner
        self._on_lost = on_lost
        # By thread (0 for a named owner): who it is, for idents are reused, and its hold.
        self._held: dict[int, tuple[threading.Thread | None, Hold]] = {}

    @property
    def key(self) -> str:
        """The lock's name."""
        return self._key

    @property
    def fence(self) -> int:
        """The fencing token: larger for each later holder. NotHeld when not held.

        It stays readable after the lock was lost, until release: that is when it matters. 0 for a
        degraded grant, which has none.
        """
        return self._mine().fence

    @property
    def remaining(self) -> float:
        """For how many seconds the lock is certainly held as things stand; 0 when it is not.

        With renew=True it rises again with each renewal.
        """
        hold = self._find()
        if hold is None or not _sure(hold):
            return 0.0
        return max(0.0, (hold.valid - w.now()) / 1e9)

    def owned(self) -> bool:
        """Tell whether this owner holds the lock at this very moment. Asks nobody."""
        hold = self._find()
        return hold is not None and _sure(hold)

    def locked(self) -> bool:
        """Ask the daemon whether anybody holds the lock."""
        return bool(w.numbers(self._client._ask(w.INSPECT, self._key), 1)[0])

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        """Acquire the lock; false when it cannot be had in time.

        blocking=False tries; timeout bounds the wait, -1 or None does not. An exception leaves
        nothing acquired.
        """
        wait = _wait(blocking, timeout)
        hold = self._find()
        return (hold is not None and self._reenter(hold)) or self._acquire(wait)

    def _reenter(self, hold: Hold) -> bool:
        if hold.shared and not self._shared and _sure(hold):
            raise Upgrade("held shared by this owner; an exclusive hold could never be granted")
        before = hold.count
        try:
            if _sure(hold) and hold.conn.reenter(hold):
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
        tries = _Tries(wait)
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
                tries.refused(e, conn, client._closed)
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
        if not hold.lost and not _sure(hold):
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
            _check(hold, reply)

    def extend(self, ttl: float | None = None) -> None:
        """Renew the lock now, to end ttl from now; by default its own TTL.

        Only a lock with renew=False needs that. NotHeld when it is not held, Unavailable when the
        store does not confirm: then what was known before still stands.
        """
        self._change(w.RENEW, _ttl(ttl))

    def downgrade(self) -> None:
        """Turn an exclusive hold into a shared one, without letting go in between."""
        self._change(w.DOWNGRADE)

    def _change(self, op: int, *fields: int) -> None:
        hold = self._mine()
        if hold.lost:
            raise hold.loss(hold.lost)
        _check(hold, hold.conn.call(op, hold.key, hold.owner, hold.fence, *fields, hold=hold))

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

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Lock cannot be copied or sent to another process: its holder could not be told")

    def __repr__(self) -> str:
        return f"<locksidecar.Lock {self._key!r} {'owned' if self.owned() else 'not owned'}>"

    def _slot(self) -> int:
        return 0 if self._owner is not None else threading.get_ident()

    def _find(self) -> Hold | None:
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

    def _depth(self) -> int:
        hold = self._find()
        return 0 if hold is None or hold.over else hold.count

    def _mine(self) -> Hold:
        hold = self._find()
        if hold is None:
            raise NotHeld(f"lock {self._key!r} is not held by this owner")
        return hold

    def _keep(self, hold: Hold) -> None:
        thread = None if self._owner is not None else threading.current_thread()
        self._held[self._slot()] = thread, hold

    def _forget(self) -> None:
        self._held.pop(self._slot(), None)


def _ttl(ttl: float | None) -> int:
    if ttl is None:
        return 0
    if not 0 < ttl < math.inf:
        raise Invalid("a TTL is a positive number of seconds")
    return max(1, round(ttl * 1000))


def _wait(blocking: bool, timeout: float | None) -> int:
    """Return the wait in milliseconds, with the manners of threading.Lock."""
    if timeout is None or timeout == -1:
        return -1 if blocking else 0
    if not blocking:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if not timeout >= 0:
        raise ValueError("timeout must be a non-negative number")
    return min(w.MAX_WAIT, math.ceil(timeout * 1000)) if timeout < math.inf else -1


def _check(hold: Hold, reply: w.Message) -> None:
    """Raise what a reply to a request about a hold says, unless that is success."""
    if reply[0] == NOT_HELD:
        raise hold.loss(hold.lost or "gone")
    if reply[0] != OK:
        raise error(reply[0], w.text(reply))


def _sure(hold: Hold) -> bool:
    """Tell whether a hold is valid, by all that has arrived."""
    if hold.owned():
        return True
    if not hold.over and hold.conn.dead is None:
        hold.conn.catch_up()
    return hold.owned()
