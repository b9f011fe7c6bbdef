"""The holds of one connection, and for how long they are valid. No I/O.

A hold ends in one of four ways: its owner releases it, it is reported lost, its stated validity ends, or the connection
ends. All of them are here. The session sends what follows from them.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from . import _wire as w
from ._errors import AlreadyHeld, LockError, LostError, ProtocolError
from ._hold import OWN, Call, Entries, Hold, Holds, Origin, Who, ended, lost

T = TypeVar("T")

OnLost = Callable[[LostError], object]
Held = Hold | Holds
Before = list[tuple[Hold, int]]  # holds, and how often their owner had acquired them
Entry = Hold | Call  # of an owner: a hold, perhaps lost, or a waiting acquire

_SWEEP: Final = 128  # owners' entries before the first sweep


class Owners:
    """The waits, the holds, and the lost holds that are not released, of each owner in a client, by key.

    All connections of the client share it, one after the other. A thread or task may have several entries of a key:
    each of its handles can hold it shared. A named owner has one hold of a key, besides lost ones. The waits of named
    owners are not in it: another request of the owner may be granted first, and then the wait becomes a re-entry.
    """

    def __init__(self) -> None:
        self.mu = threading.Lock()  # guards this and the state of every connection; never held during a wait
        # In the order of their requests. A tuple is replaced, never changed: reading one takes no lock.
        self._entries: dict[tuple[str, Who | None], tuple[Entry, ...]] = {}
        self._sweep_at = _SWEEP

    def holds(self, key: str, who: Who) -> list[Hold]:
        """Return the owner's holds of a key, also lost ones that are not released. Takes no lock."""
        entries = self._entries.get((key, who), ())
        return [entry for entry in entries if isinstance(entry, Hold) and not stale(entry)]

    def number(self, key: str, who: Who, by: Origin) -> int | None:
        """Return the number under which a handle has a hold for the owner, or asks for one. Takes no lock."""
        for entry in self._entries.get((key, who), ()):
            hold = entry if isinstance(entry, Hold) else entry.hold and entry.hold.each[0]
            if hold and hold.by is by and not stale(entry) and not lost(hold):
                return hold.owner
        return None

    def check(self, keys: Sequence[str], who: Who, by: Origin | None, waits: bool, one: bool = False) -> None:
        """Raise if the owner must not request the keys: it has lost one, or would wait for itself. Takes no lock.

        one: it requests only one of them, so that it waits for itself if it has them all.
        """
        mine = [e for key in keys if (key, who) in self._entries and (e := self._conflict(key, who, by, waits))]
        if mine and (not one or len(mine) == len(keys)):
            raise mine[0]

    def _conflict(self, key: str, who: Who, by: Origin | None, waits: bool) -> AlreadyHeld | None:
        """Return the error if the owner has the key by another handle, or waits for it. Raise if it has lost it."""
        for entry in self._entries.get((key, who), ()):
            if stale(entry):
                continue
            if isinstance(entry, Hold) and (reason := lost(entry)):
                raise entry.loss(reason)
            first = entry if isinstance(entry, Hold) else entry.hold and entry.hold.each[0]
            if not waits or isinstance(who, int) or not first or first.by is None or first.by is by:
                continue
            if first.end and first.by.handle() is None:
                continue  # a fixed hold of a discarded handle, which ends by itself
            state = "held" if first is entry else "waited for"
            unit = "thread" if isinstance(who(), threading.Thread) else "task"
            return AlreadyHeld(
                f"key {key!r} is already {state} in this {unit} by another handle ({first.by}); "
                "use that handle, or pass owner= to share"
            )
        return None

    def recheck(self, hold: Hold) -> None:
        """Raise LostError if the owner has lost another hold of the key while it waited for this one.

        This hold would be a critical section inside a lost one. Takes no lock.
        """
        if hold.who is None or len(self._entries.get((hold.key, hold.who), ())) < 2:
            return
        for other in self.holds(hold.key, hold.who):
            if other is hold:
                continue
            if not other.owned():
                other.conn.lapse([other], w.now())
            if reason := lost(other):
                raise other.loss(reason)

    def ask(self, c: Call, waits: bool) -> None:
        """Check and record an acquire that is about to be sent. The caller has mu."""
        assert c.hold is not None
        who, by = c.hold.each[0].who, c.hold.each[0].by
        if who is None:
            return
        one = c.op == w.ACQUIRE_ANY
        self.check([hold.key for hold in c.hold.each], who, by, waits, one)
        if not isinstance(who, int) and not one:
            for hold in c.hold.each:
                self._add((hold.key, who), c)

    def enter(self, hold: Hold, c: Call | None = None) -> None:
        """Record a hold that was granted, in place of its request c. The caller has mu."""
        if hold.who is not None:
            self._add((hold.key, hold.who), hold, c)

    def _add(self, at: tuple[str, Who], entry: Entry, instead: Call | None = None) -> None:
        before = self._entries.get(at)
        if before is None or (before[0] is instead and len(before) == 1):
            self._entries[at] = (entry,)
        else:
            self._entries[at] = (*(e for e in before if e is not instead and not stale(e)), entry)
        if len(self._entries) >= self._sweep_at:
            self._entries = {at: e for at, e in self._entries.items() if not all(map(stale, e))}
            self._sweep_at = max(_SWEEP, 2 * len(self._entries))

    def lend(self, hold: Hold, who: Who) -> None:
        """Record the hold of an election's term, even a lost one, for the thread or task that works under it."""
        with self.mu:
            if not released(hold):
                hold.who = who
                self.enter(hold)

    def leave(self, hold: Hold) -> None:
        """Forget a hold. The caller has mu."""
        at = hold.key, hold.who
        before = self._entries.get(at, ())
        if hold not in before:
            return
        left = () if len(before) == 1 else tuple(e for e in before if e is not hold and not stale(e))
        if left:
            self._entries[at] = left
        else:
            del self._entries[at]


def released(hold: Hold) -> bool:
    """Tell whether the owner has released a hold, or its own client has ended it."""
    return hold.over and (not hold.lost or hold.count <= 0 or hold.lost in ("closed", "fork"))


def stale(entry: Entry) -> bool:
    """Tell whether an entry can be forgotten."""
    if isinstance(entry, Call):
        return entry.done or entry.abandoned or entry.hold is None or entry.hold.conn.dead is not None
    return entry.over and (released(entry) or unreleasable(entry))


def unreleasable(hold: Hold) -> bool:
    """Tell whether a hold can no longer be released: its handle is gone, or its thread or task has ended."""
    if isinstance(hold.who, int) and hold.who < OWN:
        return False  # another handle may name the same owner
    return hold.by is None or hold.by.handle() is None or (hold.who is not None and ended(hold.who))


def without(some: tuple[T, ...], one: object) -> tuple[T, ...]:
    """Return a tuple without one of its members."""
    return some and tuple(each for each in some if each != one)


def what(held: Held) -> Before:
    """Return the holds that are held or lost, with their counts."""
    return [(hold, hold.count) for hold in held.each if not hold.over or hold.lost]


class Notifier(ABC):
    """Reports lost locks."""

    needed = False  # there is a report to make for a loss

    def every(self) -> float:
        """Return after how many seconds a connection checks for holds whose validity has run out."""
        return 1.0 if self.needed else 10.0

    def lost(self, hold: Hold, why: LostError) -> None:
        """Report a loss. Several locks that are held together report only the first one, however often acquired."""
        first = [holds for holds in hold.groups if not holds.reported]
        for holds in first:
            holds.reported = True
        reports: list[OnLost] = []
        for on_lost in itertools.chain(hold.on_lost, *(holds.on_lost for holds in first)):
            if on_lost not in reports:
                reports.append(on_lost)
                self._report(on_lost, why)

    @abstractmethod
    def _report(self, on_lost: OnLost, why: LostError) -> None:
        """Make a report later."""


class Table:
    """The holds of a connection, by key and owner."""

    def __init__(self, notifier: Notifier, owners: Owners) -> None:
        self.dead: LockError | None = None
        self._notifier = notifier
        self.owners = owners
        self._mu = owners.mu  # guards everything below
        self._holds: dict[tuple[str, int], Hold] = {}
        self._losses = 0
        self._shift = 0  # nanoseconds to add to the daemon's times
        # Grants that nobody waits for, to be released; None for a ping.
        self._late: deque[Held | None] = deque()

    # ---- what is granted ----

    def _grant(self, c: Call, held: Held, m: w.Message) -> None:
        """Record the grants that answer c. The caller has mu."""
        # all are checked before one is recorded
        rows = w.grants(m, len(held.each)) if isinstance(held, Holds) else [w.numbers(m, 6)]
        if isinstance(held, Hold) and held.keys:
            index = w.numbers(m[6:], 1)[0] if len(m) > 8 else len(held.keys)
            if index >= len(held.keys):
                raise ProtocolError("the position of the granted key is missing")
            held.key, held.keys = held.keys[index], ()
        if c.op in w.ACQUIRES:
            if isinstance(held, Holds):
                held.each = tuple(self._fresh(c, hold, row[0]) for hold, row in zip(held.each, rows, strict=True))
                held.count = 1
            else:
                c.hold = held = self._fresh(c, held, rows[0][0])
            if c.abandoned:
                self._late.append(held)
        elif held.over:
            return
        for hold, row in zip(held.each, rows, strict=True):
            self._state(hold, row)

    def _fresh(self, c: Call, hold: Hold, fence: int) -> Hold:
        """Record a hold that was granted by c. Return it, or another one of the same owner that came first."""
        same = self._holds.get((hold.key, hold.owner))
        if same is not None and same.fence == fence:  # another thread asked as the same owner
            hold = same
        elif not c.abandoned:
            if same is not None:  # it was lost, otherwise there would be no other fence
                self._lose(same, "gone")
            self._holds[hold.key, hold.owner] = hold
            self.owners.enter(hold, c)
        hold.fence = fence
        hold.grants += 1
        hold.count += 1
        return hold

    def _state(self, hold: Hold, fields: w.Message) -> None:
        _, _, deadline, _, end, _ = fields
        if end:  # the end never moves back, in whatever order replies come
            hold.end = max(hold.end, end * w.MS + self._shift)
        hold.state(deadline * w.MS + self._shift)

    def watch(self, hold: Held) -> None:
        """Check the hold's validity from now on. A driver that checks all holds anyway has nothing to do."""

    # ---- what its owner does with it ----

    def adopt(self, hold: Held, *on_lost: OnLost) -> bool:
        """Begin to report the hold's loss, as its owner has it now; false if it is not valid."""
        if not on_lost:
            return hold.owned()
        with self._mu:
            if not hold.owned():
                return False
            hold.on_lost = (*hold.on_lost, *filter(lambda each: each not in hold.on_lost, on_lost))
            if isinstance(hold, Holds):
                for each in hold.each:
                    each.groups = (*without(each.groups, hold), hold)
            return True

    def disown(self, hold: Held, on_lost: OnLost) -> None:
        """Report the hold's loss no more."""
        with self._mu:
            hold.on_lost = without(hold.on_lost, on_lost)

    def sustain(self, hold: Hold, what: object) -> None:
        """Keep something alive until the hold is over."""
        with self._mu:
            hold.keeps = None if hold.over else what

    def reenter(self, hold: Held) -> bool:
        """Count a re-entry of a valid hold; false if it is not valid."""
        with self._mu:
            if not hold.owned():
                return False
            hold.count += 1
            return True

    def count_down(self, held: Held, before: Before) -> Entries | None:
        """Release one count; for the last one return the keys and fences of all grants, which the daemon must be told.

        None if no count is left: another thread of the same owner has released it. This stores the holds and their
        counts in before, so that it can be repeated if it was interrupted.
        """
        with self._mu:
            if held.count <= 0:
                return None
            if held.count > 1:
                held.count -= 1
                return []
            before.extend(what(held))
            return self._end(held, before)

    def _end(self, held: Held, before: Before) -> Entries:
        """End all counts. The caller has mu."""
        held.count = 0
        for hold in held.each:
            hold.groups = without(hold.groups, held)
        gone: list[tuple[str, int]] = []
        for hold, count in before:
            if count > 1:  # the owner also holds it by another handle
                hold.count = count - 1
            elif hold.lost:
                hold.count = 0
                self.owners.leave(hold)
            else:
                hold.count = 0
                self._drop(hold)
                gone.extend([(hold.key, hold.fence)] * max(1, hold.grants))
        return gone

    def _drop(self, hold: Hold) -> None:
        """Take a hold out of the table. The caller has mu."""
        hold.over, hold.keeps = True, None
        if self._holds.get((hold.key, hold.owner)) is hold:
            del self._holds[hold.key, hold.owner]
        if released(hold):
            self.owners.leave(hold)

    # ---- loss ----

    def _lose(self, hold: Hold, reason: str, quiet: bool = False) -> None:
        """End a hold that was not released. The caller has mu."""
        self._losses = hold.nth = self._losses + 1
        hold.lost = "closed" if quiet else reason
        self._drop(hold)
        if hold.wake is not None:
            hold.wake()
        if not quiet and (hold.on_lost or hold.groups):
            self._notifier.lost(hold, hold.loss(hold.lost))

    def soonest(self, most: float) -> float:
        """Return the seconds until the first hold's stated validity ends, limited to most."""
        with self._mu:
            first = min((0 if h.out else h.valid for h in self._holds.values()), default=None)
        return most if first is None else min(most, (first - w.now()) / 1e9 + 0.001)

    def stale(self, now: int) -> list[Hold]:
        """Return the holds whose validity has run out, according to everything that was read."""
        with self._mu:
            return list(filter(lambda h: not h.lasts(now), self._holds.values()))

    def _lapse(self, hold: Hold, now: int) -> int:
        """End a hold if it is past its validity, and return its grants. The caller has mu."""
        if hold.over or hold.lasts(now):
            return 0
        self._lose(hold, hold.reason_at(now))
        return hold.grants
