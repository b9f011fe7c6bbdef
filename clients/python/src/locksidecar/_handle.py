"""The common part of all handles for locks, with threads and with tasks. No I/O."""

from __future__ import annotations

import logging
import math
import random
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NoReturn

from . import _wire as w
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
    Unconfirmed,
    error,
)
from ._hold import OWN, Hold, Holds, Origin, Who, ended, lost
from ._session import Session
from ._table import Owners

Owner = int | Literal["handle"] | None

_log: Final = logging.getLogger("locksidecar")
SWEEP: Final = 64  # owners of a handle before it first forgets those that have ended
_PATIENCE: Final = 2.0  # how many seconds an acquire waits for a daemon that is away or going away
_CUTS: Final = 3  # how often in a row a new connection may end at once


Held = Hold[Any] | Holds[Any]


def anybody(who: Who) -> bool:
    """Return true: the filter that selects every owner."""
    return True


class Terms(ABC):
    """What to hold, how and by which owner, with the questions that need no request."""

    _unit: str  # the default owner, for messages: "thread" or "task"

    def __init__(
        self,
        ttl: float | None,
        renew: bool,
        shared: bool,
        timeout: float,
        owner: Owner,
        on_lost: Callable[[LostError], object] | None,
    ) -> None:
        self._ttl = w.to_ttl(ttl)
        self._fixed = not renew
        self._flags = 0 if renew else w.FIXED
        self._shared = shared
        self._timeout = timeout
        w.to_wait(True, timeout)  # an error is raised here rather than at the first ``with``
        if owner == "handle":
            owner = self._new_owner()
        elif owner is not None and not (isinstance(owner, int) and 0 <= owner < OWN):
            raise Invalid('an owner is "handle", or a number from 0 to 2**32 - 1')
        self._owner = owner
        self._on_lost = on_lost
        self._tell = () if on_lost is None else (on_lost,)
        self._by = Origin(self, 6)

    def __del__(self) -> None:
        for hold in self._all():
            if leaks(hold) and (self._owner is None or self._owner >= OWN) and not sys.is_finalizing():
                warnings.warn(
                    f"{self._name}: thrown away while it is held ({self._by}); "
                    "it stays held and renewed until the client is closed",
                    ResourceWarning,
                    stacklevel=2,
                    source=self,
                )

    @abstractmethod
    def _new_owner(self) -> int:
        """Return an owner number that was not used before."""

    @abstractmethod
    def _all(self, which: Callable[[Who], bool] = anybody) -> Iterable[Held]:
        """Return the present and past holds of this handle, of the owners that which selects."""

    @property
    @abstractmethod
    def _name(self) -> str:
        """The names, for people."""

    @property
    @abstractmethod
    def _known(self) -> Owners:
        """The table of holds of the client's owners."""

    @property
    @abstractmethod
    def _names(self) -> tuple[str, ...]:
        """The keys."""

    @abstractmethod
    def _find(self) -> Held | None:
        """Return the hold of this owner. A lost hold counts until its release."""

    @abstractmethod
    def _mine(self) -> Held:
        """Return the hold of this owner; NotHeld if there is none."""

    @property
    def remaining(self) -> float:
        """For how many seconds it is certainly held as things stand; 0 if it is not held.

        With renew=True the value rises with each renewal.
        """
        hold = self._find()
        if hold is None or not still(hold):
            return 0.0
        return max(0.0, (hold.valid - w.now()) / 1e9)

    @property
    def ends_in(self) -> float | None:
        """The seconds until it ends by itself; None if it does not, or is not held.

        It ends by itself with renew=False, and if the daemon limits how long a lock may be held.
        """
        hold = self._find()
        end = min((each.end for each in hold.each if each.end), default=0) if hold is not None and still(hold) else 0
        return max(0.0, (end - w.now()) / 1e9) if end else None

    def owned(self) -> bool:
        """Tell whether this owner holds it now. Sends nothing.

        If it is not held because its validity has run out, it is lost from then on.
        """
        hold = self._find()
        return hold is not None and still(hold)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lock cannot be copied or sent to another process: its holder could not be told")

    def _depth(self) -> int:
        hold = self._find()
        return 0 if hold is None or hold.over else hold.count

    def _not_held(self) -> NotHeld:
        if self._owner is None and any(leaks(hold) for hold in self._all()):
            return NotHeld(
                f"{self._name}: held by another {self._unit}, which acquired it by this handle; "
                f'to pass it between {self._unit}s, make the handle with owner="handle"'
            )
        return NotHeld(f"{self._name}: not held by this owner")

    def _refuse_lost(self, hold: Held) -> None:
        """Raise LostError if the hold was lost and its owner has not released it."""
        reason = lost(hold)
        ended_here = hold.conn.quiet or hold.conn.owners is not self._known  # by close, or by a fork
        if reason and not ended_here:
            raise hold.loss(reason)

    def _check(self, who: Who, waits: bool) -> None:
        """Raise if the owner must not acquire: it has lost one of the keys, or holds one by another handle."""
        for key in self._names:
            for hold in self._known.holds(key, who):
                if not sure(hold):
                    hold.conn.lapse([hold], w.now())
            self._known.check(key, who, self._by, waits)
        if waits and self._owner is None and any(leaks(hold) for hold in self._all(ended)):
            warnings.warn(
                f"{self._name}: held ({self._by}) by a {self._unit} that has ended without releasing it",
                ResourceWarning,
                stacklevel=w.outside()[1],
            )

    def _exit_failed(self, e: LockError, body: BaseException | None) -> None:
        """Report e, an error at the end of a scope whose body has failed, too. e may be the cause."""
        if isinstance(e, LostError) and isinstance(body, LostError) and (e.key, e.fence) == (body.key, body.fence):
            return
        _log.warning("%s, whose body failed: %s", self._name, e)
        note(body, f"{self._name}: {e}")

    def _not_acquired(self) -> NotAcquired:
        return NotAcquired(f"{self._name}: not acquired within {self._timeout:g} s")


class Handle(Terms):
    """A handle for one lock."""

    _mode = 0  # of an inspect: the lock, not the semaphore

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
        """Return a named owner's hold as this handle knows it. Sends nothing, and may be called anywhere."""

    @property
    def _names(self) -> tuple[str, ...]:
        return (self._key,)

    @property
    def key(self) -> str:
        """The lock's name."""
        return self._key

    @property
    def fence(self) -> int:
        """The fencing token, which is larger for each later holder. NotHeld if not held.

        It stays readable after the lock was lost, until release, because that is when it matters. 0 for a degraded
        grant, which has none.
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
    def _names(self) -> tuple[str, ...]:
        return self._keys

    @property
    def keys(self) -> tuple[str, ...]:
        """The locks' names, in the order in which they were given."""
        return self._keys

    @property
    def fences(self) -> dict[str, int]:
        """The fencing token of each lock by its key, in the order of the keys. NotHeld if not held.

        They stay readable after a loss, until release, because that is when they matter. 0 for a degraded grant, which
        has none.
        """
        return {hold.key: hold.fence for hold in self._mine().each}

    def _mine(self) -> Holds[Any]:
        holds = self._find()
        if holds is None:
            raise self._not_held()
        return holds


class Tries:
    """The time limits of one acquire: its wait, and a short time for a daemon that fails it."""

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

    def lapsed(self, hold: Held) -> bool:
        """Continue after a grant that came too late; true if there is no time left."""
        self._cuts += 1
        if self._cuts > _CUTS:
            raise hold.loss(hold.lost)
        return self._over()

    def refused(self, e: ConnectionLost | Draining, conn: Session, closed: bool) -> float:
        """Return the pause before the next attempt to a daemon that has ended or is going. Or raise e."""
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
        """Subtract the time of the pause."""
        self._over()

    def _over(self) -> bool:
        left = self._end - time.monotonic()
        if self._wait > 0:
            self.left = max(0, math.ceil(left * 1000))
        return left <= 0


def note(e: BaseException | None, text: str) -> None:
    """Add a note to an exception, where Python has notes (3.11)."""
    if e is not None and hasattr(e, "add_note"):
        e.add_note(text)


def done(hold: Held) -> bool:
    """Tell whether the owner has released a hold, also after a loss."""
    return hold.count <= 0 or (hold.over and not hold.lost)


def sweep(held: dict[Who, Any], over: Callable[[Any], bool]) -> int:
    """Forget the entries of threads and tasks that have ended, if they are over. Return how many are left."""
    for who, what in list(held.items()):
        if not isinstance(who, int) and who() is None and over(what):
            held.pop(who, None)
    return len(held)


def leaks(hold: Held) -> bool:
    """Tell whether a hold is still held and does not end by itself."""
    return hold.count > 0 and hold.conn.dead is None and any(not each.over and not each.end for each in hold.each)


def check(hold: Hold[Any], reply: w.Message) -> None:
    """Raise the error of a reply to a request about a hold, unless it is a success."""
    if reply[0] == NOT_HELD:
        raise hold.loss(hold.lost or "gone")
    if reply[0] != OK:
        raise error(reply[0], w.text(reply))


def missing(holds: Holds[Any]) -> str:
    """Return which of several holds its owner has released by another handle; none is empty."""
    return next((hold.key for hold in holds.each if hold.over and not hold.lost), "")


def check_all(holds: Holds[Any], answers: list[tuple[str, int]], absent: str) -> None:
    """Raise the worst error of a release of several, unless all are successes."""
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


def sure(hold: Held) -> bool:
    """Tell whether a hold is valid, according to everything that has arrived."""
    if hold.owned():
        return True
    if not hold.over and hold.conn.dead is None:
        hold.conn.catch_up()
    return hold.owned()


def must(hold: Held) -> None:
    """Raise LostError if a hold is lost, or has run out. In the second case it is lost from now on."""
    if not hold.lost and not sure(hold):
        hold.conn.lapse(hold.each, w.now())
    if hold.lost:
        raise hold.loss(hold.lost)


def still(hold: Held) -> bool:
    """Tell whether a hold is valid, according to everything that has arrived.

    A hold that has run out is never valid again. Takes no lock.
    """
    if sure(hold):
        return True
    now = w.now()
    for each in hold.each:
        each.out = each.out or now >= each.valid
    return hold.owned()
