"""What is held, and what is asked: the records of a connection. No I/O."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import _wire as w
from ._errors import LockError, LostError

if TYPE_CHECKING:
    from ._session import Session

C = TypeVar("C", bound="Session")


class Hold(Generic[C]):
    """One owner's grip on one key. Its fields are guarded by the session's mu."""

    # fmt: off
    __slots__ = (
        "conn", "count", "end", "fence", "grants", "key", "lost", "over", "owner", "shared", "tell", "valid",
    )
    # fmt: on

    def __init__(self, conn: C, key: str, owner: int, shared: bool) -> None:
        self.conn = conn
        self.key = key
        self.owner = owner
        self.shared = shared
        self.tell: tuple[Callable[[LostError], object], ...] = ()  # to be called when it is lost
        self.fence = 0
        self.count = 0  # how often its owner acquired it; re-entry is counted here alone
        self.grants = 0  # … and how often the daemon granted it
        self.valid = 0  # nanoseconds of our clock: stated validity, end included
        self.end = 0  # the own end of a fixed hold; 0 for none
        self.lost = ""  # why, once it was
        self.over = False  # released or lost: no longer in the table

    def state(self, until: int) -> None:
        """Take in that the hold is valid until then; what was stated before stays true."""
        until = max(until, self.valid)
        self.valid = min(until, self.end) if self.end else until

    def loss(self, reason: str) -> LostError:
        """Return what tells of the hold's loss."""
        return LostError(self.key, self.fence, self.owner, reason)

    def owned(self) -> bool:
        """Tell whether the hold is valid at this very moment."""
        return not self.over and self.conn.dead is None and w.now() < self.valid


class Call:
    """One request in flight."""

    __slots__ = ("abandoned", "done", "error", "hold", "id", "op", "reply", "sent", "target", "waiter")

    def __init__(self, op: int, hold: Hold[Any] | None = None, target: int = 0) -> None:
        self.op = op
        self.id = 0
        self.hold = hold
        self.target = target  # of a cancel
        self.sent = False
        self.done = False  # reply or error is there; set last
        self.reply: w.Message = ()
        self.error: LockError | None = None
        self.abandoned = False  # nobody waits any more
        self.waiter: threading.Lock | None = None  # locked; its release wakes the caller

    def asleep(self) -> bool:
        """Tell whether a caller waits, or is about to, and may read for everybody."""
        return self.waiter is not None and not self.done and not self.abandoned

    def fail(self, why: LockError) -> None:
        """End the call without a reply, unless it has one."""
        if not self.done:
            self.error = why
            self.done = True

    def wake(self) -> None:
        """Wake the caller, should it be asleep."""
        if (waiter := self.waiter) is not None:
            with contextlib.suppress(RuntimeError):  # it is awake already
                waiter.release()
