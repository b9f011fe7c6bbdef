"""The requests that a thread sends to the daemon and waits for, on top of send and wait."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Final, TypeVar

from . import _wire as w
from ._errors import OK, LockError, error
from ._hold import Call, Hold, Holds
from ._session import Session
from ._table import Before, Entries

if TYPE_CHECKING:
    from ._conn import Conn

H = TypeVar("H", "Hold[Conn]", "Holds[Conn]")

_LOOK: Final = 0.02  # seconds between checks for an answer that may have woken another thread


class Requests(Session):
    """The requests of a connection for threads."""

    @abstractmethod
    def wait(self, c: Call, limit: float | None) -> bool:
        """Wait until the reply has come; false if the monotonic clock has reached limit.

        Raises the error that has ended the connection.
        """

    @abstractmethod
    def give_back_all(self) -> None:
        """Send all releases and pings that are due."""

    def call(self, op: int, *fields: object, hold: Hold[Conn] | None = None) -> w.Message:
        """Send one request and return its reply; an error if there is none in time."""
        c = Call(op, hold)
        self.ask(c, *fields)
        return c.reply

    def ask(self, c: Call, *fields: object) -> None:
        """Send a request and wait for its reply."""
        self.send(c, *fields)
        if not self.wait(c, time.monotonic() + self.timeout):
            raise self.silent()

    def request(
        self, c: Call, hold: H, wait: int, ttl: int, flags: int, limit: float | None, trace: str | None
    ) -> None:
        """Request a hold, or several, with c."""
        self._settle(hold, limit)
        self.send(c, hold.named, hold.owner, hold.mode, wait, ttl, flags, *hold.beyond(trace))

    def grant_of(self, c: Call, hold: H, limit: float | None) -> H | None:
        """Wait for the answer to c, which has requested hold. Return it, or another hold of its owner that came first.

        None if another owner holds it; anything else is an error. After an exception that is not an answer, the caller
        has to withdraw c.
        """
        if not self.wait(c, limit):
            raise self.silent()
        granted: H | None = self.granted(c)
        return granted

    def _settle(self, hold: H, limit: float | None) -> None:
        """Wait until the owner may request hold: see unsettled."""
        while (cancel := self.unsettled(hold)) is not None:
            if limit is not None and time.monotonic() >= limit:
                raise self.silent()
            self.wait(cancel, time.monotonic() + _LOOK)  # not longer: an answer wakes only one of its waiters
        self.give_back_all()

    def release(self, hold: Hold[Conn]) -> w.Message | None:
        """Release one count. For the last one return the daemon's answer, otherwise (). None: no count was left."""
        before, c = hold.count, Call(w.RELEASE)
        try:
            last = self.let_go(hold)
            if not last:
                return None if last is None else ()
            self.ask(c, hold.key, hold.owner, hold.fence, 0)
            for _ in range(hold.grants - 1):  # more than one only if two threads asked as one owner at once
                c = Call(w.RELEASE)
                self.ask(c, hold.key, hold.owner, hold.fence, 0)
            return c.reply
        except LockError:
            raise
        except BaseException:
            self.finish(hold, before, c)
            raise

    def release_many(self, holds: Holds[Conn]) -> list[tuple[str, int]] | None:
        """Release one count of all. For the last one return each key with the code of its release.

        None: no count was left.
        """
        count, before, calls = holds.count, Before(), list[tuple[Call, Entries]]()
        try:
            gone = self.let_go_all(holds, before)
            if gone is None:
                return None
            for batch in w.batches(gone, self.max_frame):
                calls.append((Call(w.RELEASE_MANY, entries=len(batch)), batch))
            for c, entries in calls:
                self.send(c, entries, holds.owner, 0)
            return [answer for c, entries in calls for answer in self._codes(c, entries)]
        except LockError:
            raise
        except BaseException:
            self.finish_all(holds, count, before, calls)
            raise

    def call_each(self, op: int, holds: Holds[Conn], *fields: int) -> list[tuple[Hold[Conn], w.Message]]:
        """Send the same request for each of several holds, all at once, and return the replies."""
        calls = [(hold, Call(op, hold)) for hold in holds.each]
        for hold, c in calls:
            self.send(c, hold.key, hold.owner, hold.fence, *fields)
        limit = time.monotonic() + self.timeout
        for _, c in calls:
            if not self.wait(c, limit):
                raise self.silent()
        return [(hold, c.reply) for hold, c in calls]

    def _codes(self, c: Call, entries: Entries) -> list[tuple[str, int]]:
        if not self.wait(c, time.monotonic() + self.timeout):
            raise self.silent()
        if c.reply[0] != OK:
            raise error(c.reply[0], w.text(c.reply))
        return [(key, code) for (key, _), code in zip(entries, c.reply[2], strict=True)]
