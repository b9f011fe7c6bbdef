"""What every handle for a lock has, whoever drives its connection. No I/O."""

from __future__ import annotations

import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from . import _wire as w
from ._errors import (
    NOT_HELD,
    OK,
    ConnectionLost,
    Draining,
    Invalid,
    LostError,
    NotAcquired,
    NotHeld,
    Unconfirmed,
    error,
)
from ._hold import Hold, Holds
from ._session import Session

OWN: Final = 1 << 32  # owners below are for users to name

_PATIENCE: Final = 2.0  # seconds for which an acquire waits for a daemon that is not there, or is going
_CUTS: Final = 3  # how often in a row a new connection may end at once


Grip = Hold[Any] | Holds[Any]


class Terms(ABC):
    """How something is to be held and by whom, and what the holder may know without asking anybody."""

    def __init__(
        self,
        ttl: float | None,
        renew: bool,
        shared: bool,
        timeout: float,
        owner: int | None,
        on_lost: Callable[[LostError], object] | None,
    ) -> None:
        self._ttl = to_ttl(ttl)
        self._flags = 0 if renew else w.FIXED
        self._shared = shared
        self._timeout = timeout
        to_wait(True, timeout)  # refused here rather than at the first with
        if owner is not None and not 0 <= owner < OWN:
            raise Invalid("an owner is a number from 0 to 2**32 - 1")
        self._owner = owner
        self._on_lost = on_lost

    @property
    @abstractmethod
    def _name(self) -> str:
        """What is held, for people."""

    @abstractmethod
    def _find(self) -> Grip | None:
        """Return what this owner holds, what was lost until its release included."""

    @abstractmethod
    def _mine(self) -> Grip:
        """Return what this owner holds; NotHeld when it holds nothing."""

    @property
    def remaining(self) -> float:
        """For how many seconds it is certainly held as things stand; 0 when it is not.

        With renew=True it rises again with each renewal.
        """
        hold = self._find()
        if hold is None or not sure(hold):
            return 0.0
        return max(0.0, (hold.valid - w.now()) / 1e9)

    def owned(self) -> bool:
        """Tell whether this owner holds it at this very moment. Asks nobody."""
        hold = self._find()
        return hold is not None and sure(hold)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lock cannot be copied or sent to another process: its holder could not be told")

    def _depth(self) -> int:
        hold = self._find()
        return 0 if hold is None or hold.over else hold.count

    def _not_held(self) -> NotHeld:
        return NotHeld(f"{self._name}: not held by this owner")

    def _not_acquired(self) -> NotAcquired:
        return NotAcquired(f"{self._name}: could not be had within {self._timeout:g} s")


class Handle(Terms):
    """A handle for one lock."""

    def __init__(self, key: str, *terms: Any) -> None:
        self._key = w.check_key(key)
        super().__init__(*terms)

    @property
    def _name(self) -> str:
        return f"lock {self._key!r}"

    @abstractmethod
    def _find(self) -> Hold[Any] | None: ...

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

    def _mine(self) -> Hold[Any]:
        hold = self._find()
        if hold is None:
            raise self._not_held()
        return hold


class HandleMany(Terms):
    """A handle for several locks that are held together."""

    def __init__(self, keys: Iterable[str], *terms: Any) -> None:
        self._keys = w.check_keys(keys)
        super().__init__(*terms)

    @property
    def _name(self) -> str:
        some = ", ".join(map(repr, self._keys[:3]))
        return f"locks {some}" + (f" and {len(self._keys) - 3} more" if len(self._keys) > 3 else "")

    @abstractmethod
    def _find(self) -> Holds[Any] | None: ...

    @property
    def keys(self) -> tuple[str, ...]:
        """The locks' names, in the order in which they were given."""
        return self._keys

    @property
    def fences(self) -> dict[str, int]:
        """The fencing token of each lock by its key, in the order of the keys. NotHeld when not held.

        They stay readable after a loss, until release: that is when they matter. 0 for a degraded
        grant, which has none.
        """
        return {hold.key: hold.fence for hold in self._mine().each}

    def _mine(self) -> Holds[Any]:
        holds = self._find()
        if holds is None:
            raise self._not_held()
        return holds


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

    def lapsed(self, hold: Grip) -> bool:
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


def missing(holds: Holds[Any]) -> str:
    """Return which of several its owner has released by another handle; none is empty."""
    return next((hold.key for hold in holds.each if hold.over and not hold.lost), "")


def check_all(holds: Holds[Any], answers: list[tuple[str, int]], absent: str) -> None:
    """Raise what came of the release of several, the worst first, unless that is success."""
    if holds.lost:
        raise holds.loss(holds.lost)
    if absent:
        raise NotHeld(f"lock {absent!r}: not held by this owner")
    bad = list(filter(lambda answer: answer[1] != OK, answers))
    gone = [key for key, _ in filter(lambda answer: answer[1] == NOT_HELD, bad)]
    if gone:
        raise {hold.key: hold for hold in holds.each}[gone[0]].loss("gone")
    found = [error(code, f"lock {key!r}") for key, code in bad]
    found.sort(key=lambda e: isinstance(e, Unconfirmed))
    if found:
        raise found[0]


def sure(hold: Grip) -> bool:
    """Tell whether a hold is valid, by all that has arrived."""
    if hold.owned():
        return True
    if not hold.over and hold.conn.dead is None:
        hold.conn.catch_up()
    return hold.owned()
