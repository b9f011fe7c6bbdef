"""Handles that are layers on those for one lock. No I/O.

Several locks that are held together, permits, one of several locks, and the two handles of a readers-writer lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import _wire as w
from ._errors import LockError, LostError, NotHeld, Unconfirmed, error
from ._handle import Handle, One, only, sure
from ._hold import Call, Hold, Holds, Who


class Several(Handle[Holds]):
    """A handle for several locks that are held together."""

    _kind = "locks"

    def __init__(self, client: Any, keys: Iterable[str], **terms: Any) -> None:
        self._keys = w.check_keys(keys)
        super().__init__(client, **only(terms, "shared"))

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

    def _request(self, conn: Any, owner: int, who: Who) -> Holds:
        terms = self._shared, 0, self._fixed, who, self._by
        return Holds(conn, owner, tuple(Hold(conn, key, owner, *terms) for key in self._keys))

    def _start_release(self, who: Who, wait: bool = True, now: bool = False) -> tuple[Any, ...]:
        # a key that the owner has released by another handle
        absent = next((hold.key for hold in self._mine(who).each if hold.over and not hold.lost), "")
        return *super()._start_release(who, wait, now), absent

    async def _finish_release(self, holds: Holds, calls: list[Call], absent: str = "") -> None:
        await self._answers(holds, calls)
        bad: list[LockError] = []
        for c in calls:
            if c.reply[0] != w.OK:
                raise error(c.reply[0], w.text(c.reply))
            for (key, fence), code in zip(c.what, c.reply[2], strict=True):
                if code == w.NOT_HELD:
                    bad.append(LostError(key, fence, holds.owner, "gone"))
                elif code != w.OK:
                    bad.append(error(code, f"lock {key!r}"))
        if holds.lost:
            raise holds.loss(holds.lost)
        if absent:
            raise NotHeld(f"lock {absent!r}: not held by this owner")
        if bad:
            raise min(bad, key=lambda e: (not isinstance(e, LostError), isinstance(e, Unconfirmed)))


class Permits(One):
    """A handle for a semaphore: each acquire takes another permit."""

    _kind = "semaphore"
    _of = Handle._of  # another handle has other permits

    def __init__(self, client: Any, key: str, permits: int, **terms: Any) -> None:
        self._permits = w.check_int(permits, "the number of permits", 1, w.MAX_PERMITS)
        super().__init__(client, key, **only(terms))

    @property
    def permits(self) -> int:
        """The number of permits, which this handle sends with each acquire."""
        return self._permits

    def _request(self, conn: Any, owner: int, who: Who) -> Hold:
        return Hold(conn, self._key, owner, False, self._permits, fixed=self._fixed)

    def _number(self, who: Who) -> int:
        return int(next(self._client._owners))  # because each permit of an owner is a separate hold

    def _check(self, who: Who, waits: bool) -> None:
        """Allow every acquire: each takes another permit."""

    def _reenter(self, who: Who, hold: Hold) -> bool:
        return False


class OneOf(One):
    """A handle for one of several locks."""

    _kind = "one of the locks"
    _one = True
    _of = Handle._of

    def __init__(self, client: Any, keys: Iterable[str], **terms: Any) -> None:
        checked = w.check_keys(keys, w.MAX_CHOICE)
        super().__init__(client, checked[0], **only(terms, "shared"))
        self._keys = checked

    @property
    def keys(self) -> tuple[str, ...]:
        """The locks' names, in the order in which they were given."""
        return self._keys

    @property
    def key(self) -> str:
        """The name of the lock that is held. NotHeld if none is."""
        return self._mine().key

    def _request(self, conn: Any, owner: int, who: Who) -> Hold:
        hold = super()._request(conn, owner, who)
        hold.keys, hold.op = self._keys, w.ACQUIRE_ANY
        return hold


class Side(One):
    """One of the two handles of a readers-writer lock, which have one owner, and count their acquires apart."""

    _general = True

    def join(self, other: Side) -> None:
        """Share the owner of the other side."""
        self._held, self._owner, self._by, self._shares = other._held, other._owner, other._by, other

    def __del__(self) -> None:
        """Do not warn: the other side may still have the hold."""

    def _keep(self, who: Who, hold: Hold) -> None:
        super()._keep(who, hold)
        hold.sides = hold.sides or [0, 0]  # another handle of a named owner may have acquired it
        hold.sides[self._shared] += 1

    def _start_release(self, who: Who, wait: bool = True, now: bool = False) -> tuple[Any, ...]:
        hold, before = self._mine(who), 0
        sides = hold.sides or [0, 0]
        mine, others = sides[self._shared], sides[not self._shared]
        if not hold.lost and sure(hold):
            # An interrupt may have left the two counts too low or too high; hold.count decides.
            if not mine and others >= hold.count:
                raise NotHeld(
                    f"{self._name}: held by this owner, but not for {'reading' if self._shared else 'writing'}"
                )
            if not self._shared and others and mine == 1 and hold.count > 1 and not hold.shared:
                before = hold.count
        sides[self._shared] = max(0, mine - 1)
        if not before:
            return super()._start_release(who, wait, now)
        try:  # what is left is for reading
            call = hold.conn.ask(w.DOWNGRADE, hold.key, hold.owner, hold.fence, hold=hold)
            hold.conn.count_down(hold, [])
        except BaseException:
            hold.conn.finish(hold, before, [], ())
            raise
        return hold, [call]
