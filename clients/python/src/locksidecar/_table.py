"""What is held on one connection, and how long it may be believed. No I/O.

A hold ends in four ways: its owner lets go of it, it is called lost, its stated validity passes, the
connection ends. All of them are here; what is to be sent then is the session's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from . import _wire as w
from ._errors import LockError, LostError
from ._hold import Call, Hold, Holds, Once

Lost = Callable[[Hold[Any], LostError, bool], None]
Tell = Callable[[LostError], object]
Before = list[tuple[Hold[Any], int]]  # holds, and how often their owner had acquired them
Entries = Sequence[tuple[str, int]]  # of a release-many: keys and fences


class Table:
    """The holds of a connection, by key and owner."""

    def __init__(self, lost: Lost) -> None:
        self.dead: LockError | None = None
        self._lost = lost  # takes note only; with whether the client itself has ended it
        self._mu = threading.Lock()  # guards everything below; nothing is waited for under it
        self._holds: dict[tuple[str, int], Hold[Any]] = {}
        self._losses = 0
        self._shift = 0  # nanoseconds from the daemon's clock to ours
        # Granted to nobody: to be released; None for a sign of life.
        self._late: deque[Hold[Any] | Holds[Any] | None] = deque()

    def find(self, key: str, owner: int) -> Hold[Any] | None:
        """Return the owner's hold, however it was acquired."""
        return self._holds.get((key, owner))

    # ---- what is granted ----

    def _grant(self, c: Call, hold: Hold[Any], m: w.Message) -> None:
        """Take in the grant that answers c; mu is held."""
        fields = w.numbers(m, 6)
        if c.op == w.ACQUIRE:
            c.hold = hold = self._fresh(hold, fields[0], c.abandoned)
            if c.abandoned:
                self._late.append(hold)
        elif hold.over:
            return
        if c.op == w.DOWNGRADE:
            hold.shared = True
        self._state(hold, fields)

    def _grant_many(self, c: Call, holds: Holds[Any], m: w.Message) -> None:
        """Take in the grants that answer c; mu is held."""
        rows = w.grants(m, len(holds.each))  # all are looked at before one is taken in
        holds.each = tuple(self._fresh(hold, row[0], c.abandoned) for hold, row in zip(holds.each, rows, strict=True))
        holds.count = 1
        if c.abandoned:
            self._late.append(holds)
        for hold, row in zip(holds.each, rows, strict=True):
            self._state(hold, row)

    def _fresh(self, hold: Hold[Any], fence: int, abandoned: bool) -> Hold[Any]:
        """Enter a hold that was granted, and return it, or another one of the same owner that came first."""
        same = self._holds.get((hold.key, hold.owner))
        if same is not None and same.fence == fence:  # another thread asked as the same owner
            hold = same
        elif not abandoned:
            if same is not None:  # it was lost, or there would be no other fence
                self._lose(same, "gone")
            self._holds[hold.key, hold.owner] = hold
        hold.fence = fence
        hold.grants += 1
        hold.count += 1
        return hold

    def _state(self, hold: Hold[Any], fields: w.Message) -> None:
        _, _, deadline, _, end, _ = fields
        hold.end = end * w.MS + self._shift if end else 0
        hold.state(deadline * w.MS + self._shift)

    # ---- what its owner does with it ----

    def adopt(self, hold: Hold[Any] | Holds[Any], tell: Tell | None) -> bool:
        """Begin to tell of the hold's loss, as it is its owner's now; false when it is not valid."""
        if tell is None:
            return hold.owned()
        with self._mu:
            if not hold.owned():
                return False
            if isinstance(hold, Holds):
                if all(once.tell != tell for once in hold.tell):
                    once = Once(tell)
                    hold.tell = (*hold.tell, once)
                    for each in hold.each:
                        each.tell = (*each.tell, once)
            elif tell not in hold.tell:
                hold.tell = (*hold.tell, tell)
            return True

    def disown(self, hold: Hold[Any] | Holds[Any], tell: Tell) -> None:
        """Tell of the hold's loss no more."""
        with self._mu:
            if isinstance(hold, Holds):
                self._mute(hold, tuple(once for once in hold.tell if once.tell == tell))
            else:
                hold.tell = tuple(t for t in hold.tell if t != tell)

    def _mute(self, holds: Holds[Any], which: tuple[Once, ...]) -> None:
        """Let tellers of holds fall silent; mu is held."""
        for once in which:
            once.told = True
        holds.tell = tuple(once for once in holds.tell if once not in which)
        for hold in holds.each if which else ():
            hold.tell = tuple(tell for tell in hold.tell if tell not in which)

    def reenter(self, hold: Hold[Any] | Holds[Any]) -> bool:
        """Deepen a hold that is valid; false when it is not."""
        with self._mu:
            if not hold.owned():
                return False
            hold.count += 1
            return True

    def merge(self, kept: Holds[Any], holds: Holds[Any]) -> bool:
        """Count a second grant of the same to the same owner with the first; false when that is not valid."""
        with self._mu:
            if kept.conn is not self or not kept.owned():
                return False
            kept.count += 1
            holds.count = 0
            for hold in holds.each:  # the same as kept has
                hold.count -= 1
            return True

    def let_go(self, hold: Hold[Any]) -> bool:
        """Give up one count; true when it was the last, so that the daemon has to hear of it."""
        with self._mu:
            if hold.count > 1:
                hold.count -= 1
                return False
            hold.count = 0
            self._drop(hold)
        return True

    def let_go_all(self, holds: Holds[Any], before: Before) -> Entries:
        """Give up one count of the whole; return of which keys and fences the daemon has to hear.

        before: what it has, with the counts. So it can be done twice, should the first have been interrupted.
        """
        with self._mu:
            if holds.count > 1:
                holds.count -= 1
                return []
            return self._end_all(holds, before)

    def _end_all(self, holds: Holds[Any], before: Before) -> Entries:
        """Give up the whole; mu is held."""
        holds.count = 0
        self._mute(holds, holds.tell)
        gone: list[tuple[str, int]] = []
        for hold, count in before:
            if count > 1:  # the owner has it by another handle too
                hold.count = count - 1
            elif not hold.lost:
                hold.count = 0
                self._drop(hold)
                gone.extend([(hold.key, hold.fence)] * hold.grants)
        return gone

    def _drop(self, hold: Hold[Any]) -> None:
        """Take a hold out of the table; mu is held."""
        hold.over = True
        if self._holds.get((hold.key, hold.owner)) is hold:
            del self._holds[hold.key, hold.owner]

    # ---- loss ----

    def _lose(self, hold: Hold[Any], reason: str, quiet: bool = False) -> None:
        """End a hold that was not released; mu is held."""
        self._losses = hold.nth = self._losses + 1
        hold.lost = "closed" if quiet else reason
        self._drop(hold)
        if hold.tell:
            self._lost(hold, hold.loss(hold.lost), quiet)

    def _beat(self, until: int) -> None:
        """Take in that everything is valid until then."""
        with self._mu:
            for hold in self._holds.values():
                hold.state(until)

    def soonest(self, most: float) -> float:
        """Return the seconds until the first hold's stated validity is over, at most most."""
        with self._mu:
            first = min((h.valid for h in self._holds.values()), default=None)
        return most if first is None else min(most, (first - w.now()) / 1e9 + 0.001)

    def stale(self, now: int) -> list[Hold[Any]]:
        """Return the holds of which the daemon has said nothing for too long, by what has been read."""
        with self._mu:
            return list(filter(lambda h: now >= h.valid, self._holds.values()))

    def _lapse(self, hold: Hold[Any], now: int) -> int:
        """End a hold if it is past its validity, and return its grants; mu is held."""
        if hold.over or now < hold.valid:
            return 0
        self._lose(hold, "silence")
        return hold.grants

    def _forget_holds(self) -> None:
        """Forget everything in a child process: nothing here is its own. Takes no lock."""
        self._mu = threading.Lock()
        for hold in list(self._holds.values()):
            hold.lost, hold.over = "fork", True
        self._holds.clear()
        self._late.clear()
