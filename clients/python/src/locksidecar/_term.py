"""The rules of leader election for all drivers: a term, and the failures that a campaign survives. No I/O.

A campaign is one loop: acquire a hold, lead as long as it lasts, release. Everything that happens to it is a condition
to check (a request, the state of the hold), and a wake-up to check again. So nothing can be missed, and the order of
events does not matter.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

from . import _wire as w
from ._errors import Limit, LostError, Unavailable
from ._handle import sure
from ._hold import Hold

# These errors end no campaign, because they may pass.
MENDS: Final = (Unavailable, Limit)

STEP: Final = 1.0  # seconds after which a term is checked, because timers do not count the time that a machine sleeps
_LONGEST: Final = 2.0  # seconds between two attempts


class Pauses:
    """The pauses between failed attempts, which grow and are random."""

    def __init__(self) -> None:
        self._next = 0.05

    def next(self, tried: float) -> float:
        """Return the pause after an attempt that took so many seconds."""
        # the attempt was long, so it counts as a success: for example, the daemon restarted after a long wait
        if tried > _LONGEST:
            self.reset()
        pause, self._next = self._next, min(_LONGEST, 2 * self._next)
        return pause * random.uniform(0.5, 1)

    @property
    def first(self) -> bool:
        """Reset the pause after a success."""
        return self._next == 0.05

    def reset(self) -> None:
        self._next = 0.05


class BaseTerm:
    """One time of being the leader."""

    def __init__(self, hold: Hold[Any]) -> None:
        self._hold = hold
        self._end = ""  # the reason, once the end was noticed
        self._failure: BaseException | None = None  # the error of a callback

    @property
    def key(self) -> str:
        """What the election is for."""
        return self._hold.key

    @property
    def fence(self) -> int:
        """The fencing token, which is larger for each later leader. It stays readable when the term is over."""
        return self._hold.fence

    @property
    def remaining(self) -> float:
        """For how many seconds the term certainly lasts as things stand; 0 if it is over."""
        return 0.0 if self._over() else max(0.0, (self._hold.valid - w.now()) / 1e9)

    def check(self) -> None:
        """Raise LostError if the term is over: lost, or given up (reason ``resigned``). Sends nothing."""
        if self._over():
            raise self._hold.loss(self._end or self._hold.lost or "connection")

    def _over(self) -> bool:
        """Tell whether the term is over. Once it is, it stays over."""
        hold = self._hold
        if self._end or not self._here():
            return bool(self._end) or not hold.owned()
        if sure(hold):
            return False
        hold.conn.lapse([hold], w.now())
        return not hold.owned()

    def _here(self) -> bool:
        """Tell whether data that has arrived may be handled here."""
        return True

    def _expected(self, e: BaseException | None) -> bool:
        """Tell whether a callback's error is one that check raised, or is raised from that."""
        while e is not None:
            if isinstance(e, LostError) and (e.key, e.fence) == (self.key, self.fence):
                return self._over()
            e = e.__cause__
        return False

    def __repr__(self) -> str:
        state = "over" if self._over() else "lasts"
        return f"<locksidecar.{type(self).__name__} {self.key!r} fence {self.fence} {state}>"


class BaseCampaign:
    """The requests to a campaign, and its result."""

    def __init__(self) -> None:
        self.pid = os.getpid()  # a forked child has campaigns of its own
        self.stopping = False
        self.resigning: BaseTerm | None = None
        self.error: BaseException | None = None  # the error that ended it

    def lasts(self, term: BaseTerm) -> bool:
        """Tell whether a term continues."""
        if self.stopping or self.resigning is term or term._failure is not None:
            return False
        # not lost: the connection is just ending, and the loss will be reported
        return not term._over() or not term._hold.lost
