"""What leader election means, whoever drives it: a term, and what a campaign puts up with. No I/O.

A campaign is one loop: win a hold, lead as long as it lasts, release. All that happens to it is a
condition to be looked at (what was asked for, what has become of the hold), and a wake-up to look
again; so nothing can be missed, and it does not matter in which order things come.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

from . import _wire as w
from ._errors import Limit, LostError, Unavailable
from ._handle import sure
from ._hold import Hold

# What ends no campaign: it can mend itself.
MENDS: Final = (Unavailable, Limit)

STEP: Final = 1.0  # seconds after which a term is looked at, for timers do not count the time a machine sleeps
_LONGEST: Final = 2.0  # seconds between two attempts


class Pauses:
    """How long to wait between attempts that fail: longer each time, and not all alike."""

    def __init__(self) -> None:
        self._next = 0.05

    def next(self, tried: float) -> float:
        """Return the pause after an attempt that took so many seconds."""
        if tried > _LONGEST:  # it was no failure to speak of: the daemon restarted, say, after a long wait
            self.reset()
        pause, self._next = self._next, min(_LONGEST, 2 * self._next)
        return pause * random.uniform(0.5, 1)

    @property
    def first(self) -> bool:
        """Nothing has failed since the last success."""
        return self._next == 0.05

    def reset(self) -> None:
        self._next = 0.05


class BaseTerm:
    """One time of being the leader."""

    def __init__(self, hold: Hold[Any]) -> None:
        self._hold = hold
        self._end = ""  # why it is over, once that was noticed
        self._failure: BaseException | None = None  # what a callback raised

    @property
    def key(self) -> str:
        """What the election is for."""
        return self._hold.key

    @property
    def fence(self) -> int:
        """The fencing token: larger for each later leader. It stays readable when the term is over."""
        return self._hold.fence

    @property
    def remaining(self) -> float:
        """For how many seconds the term certainly lasts as things stand; 0 when it is over."""
        return 0.0 if self._over() else max(0.0, (self._hold.valid - w.now()) / 1e9)

    def check(self) -> None:
        """Raise LostError when the term is over: lost, or given up (reason ``resigned``). Asks nobody."""
        if self._over():
            raise self._hold.loss(self._end or self._hold.lost or "connection")

    def _over(self) -> bool:
        """Tell whether the term is over; once it is, it stays so."""
        hold = self._hold
        if self._end or not self._here():
            return bool(self._end) or not hold.owned()
        if sure(hold):
            return False
        hold.conn.lapse([hold], w.now())
        return not hold.owned()

    def _here(self) -> bool:
        """Tell whether what has arrived may be taken in here."""
        return True

    def _expected(self, e: BaseException | None) -> bool:
        """Tell whether a callback's error is only what check raises, or is raised from that."""
        while e is not None:
            if isinstance(e, LostError) and (e.key, e.fence) == (self.key, self.fence):
                return self._over()
            e = e.__cause__
        return False

    def __repr__(self) -> str:
        state = "over" if self._over() else "lasts"
        return f"<locksidecar.{type(self).__name__} {self.key!r} fence {self.fence} {state}>"


class BaseCampaign:
    """What is asked of a campaign, and what has come of it."""

    def __init__(self) -> None:
        self.pid = os.getpid()  # a forked child campaigns for itself
        self.stopping = False
        self.resigning: BaseTerm | None = None
        self.error: BaseException | None = None  # what ended it

    def lasts(self, term: BaseTerm) -> bool:
        """Tell whether a term goes on."""
        if self.stopping or self.resigning is term or term._failure is not None:
            return False
        return not term._over() or not term._hold.lost  # not lost: the connection is just ending; we shall hear
