"""What every handle for a lock has, whoever drives its connection. No I/O."""

from __future__ import annotations

import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, NoReturn

from . import _wire as w
from ._errors import NOT_HELD, OK, ConnectionLost, Draining, Invalid, LostError, NotHeld, error
from ._hold import Hold
from ._session import Session

OWN: Final = 1 << 32  # owners below are for users to name

_PATIENCE: Final = 2.0  # seconds for which an acquire waits for a daemon that is not there, or is going
_CUTS: Final = 3  # how often in a row a new connection may end at once


class Handle(ABC):
    """What is asked for, by whom, and what the holder may know without asking anybody."""

    def __init__(
        self,
        key: str,
        ttl: float | None,
        renew: bool,
        shared: bool,
        timeout: float,
        owner: int | None,
        on_lost: Callable[[LostError], object] | None,
    ) -> None:
        self._key = w.check_key(key)
        self._ttl = to_ttl(ttl)
        self._flags = 0 if renew else w.FIXED
        self._shared = shared
        self._timeout = timeout
        to_wait(True, timeout)  # refused here rather than at the first with
        if owner is not None and not 0 <= owner < OWN:
            raise Invalid("an owner is a number from 0 to 2**32 - 1")
        self._owner = owner
        self._on_lost = on_lost

    @abstractmethod
    def _find(self) -> Hold[Any] | None:
        """Return this owner's hold, a lost one until its release included."""

    @abstractmethod
    def _kept(self) -> Hold[Any] | None:
        """Return a named owner's hold as this handle knows it. Asks nothing, and runs anywhere."""

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
        if hold is None or not sure(hold):
            return 0.0
        return max(0.0, (hold.valid - w.now()) / 1e9)

    def owned(self) -> bool:
        """Tell whether this owner holds the lock at this very moment. Asks nobody."""
        hold = self._find()
        return hold is not None and sure(hold)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Lock cannot be copied or sent to another process: its holder could not be told")

    def _depth(self) -> int:
        hold = self._find()
        return 0 if hold is None or hold.over else hold.count

    def _mine(self) -> Hold[Any]:
        hold = self._find()
        if hold is None:
            raise NotHeld(f"lock {self._key!r} is not held by this owner")
        return hold


class Tries:
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

    def lapsed(self, hold: Hold[Any]) -> bool:
        """Go on after a grant that came too late; true when there is no time left."""
        self._cuts += 1
        if self._cuts > _CUTS:
            raise hold.loss(hold.lost)
        return self._over()

    def refused(self, e: ConnectionLost | Draining, conn: Session, closed: bool) -> float:
        """Return after what pause to go on: the connection has ended, or the daemon is going; or raise e."""
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
        return pause

    def paused(self) -> None:
        """Count what the pause has taken."""
        self._over()

    def _over(self) -> bool:
        left = self._end - time.monotonic()
        if self._wait > 0:
            self.left = max(0, math.ceil(left * 1000))
        return left <= 0


def to_ttl(ttl: float | None) -> int:
    """Return a TTL in milliseconds, 0 for the daemon's own."""
    if ttl is None:
        return 0
    if not 0 < ttl < math.inf:
        raise Invalid("a TTL is a positive number of seconds")
    return max(1, round(ttl * 1000))


def to_wait(blocking: bool, timeout: float | None) -> int:
    """Return the wait in milliseconds, with the manners of threading.Lock."""
    if timeout is None or timeout == -1:
        return -1 if blocking else 0
    if not blocking:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if not timeout >= 0:
        raise ValueError("timeout must be a non-negative number")
    return min(w.MAX_WAIT, math.ceil(timeout * 1000)) if timeout < math.inf else -1


def check(hold: Hold[Any], reply: w.Message) -> None:
    """Raise what a reply to a request about a hold says, unless that is success."""
    if reply[0] == NOT_HELD:
        raise hold.loss(hold.lost or "gone")
    if reply[0] != OK:
        raise error(reply[0], w.text(reply))


def sure(hold: Hold[Any]) -> bool:
    """Tell whether a hold is valid, by all that has arrived."""
    if hold.owned():
        return True
    if not hold.over and hold.conn.dead is None:
        hold.conn.catch_up()
    return hold.owned()
