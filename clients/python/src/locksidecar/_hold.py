"""The records of a connection: its holds and its requests. No I/O."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from . import _wire as w
from ._errors import LockError, LostError

# An owner of locks: a thread, a task, or a number. A weakref does not keep a thread or task alive. Unlike an id, it
# is not reused.
Who = weakref.ref[Any] | int

Entries = Sequence[tuple[str, int]]  # keys and fences

# users name owners with numbers below it; the numbers from it on belong to one handle or one request
OWN: Final = 1 << 32


def ended(who: Who) -> bool:
    """Tell whether an owner is a thread or a task that has ended."""
    if isinstance(who, int):
        return False
    unit = who()
    return unit is None or bool(unit.done() if hasattr(unit, "done") else not unit.is_alive())


class Origin:
    """The handle by which a hold was acquired, as a weak reference, and the place where it was created."""

    __slots__ = ("at", "code", "handle")

    def __init__(self, handle: object, depth: int) -> None:
        self.handle = weakref.ref(handle)
        frame = sys._getframe(depth)
        if frame.f_globals.get("__name__", "").startswith(w.PACKAGE):
            frame, _ = w.outside(depth + 1)
        self.code, self.at = frame.f_code, frame.f_lasti  # the line is looked up when it is needed

    def __str__(self) -> str:
        line = next((line for start, end, line in self.code.co_lines() if start <= self.at < end), None)
        return f"created at {self.code.co_filename}:{line or '?'}"


@dataclass(eq=False, repr=False)
class Hold:
    """One owner's possession of one key. Its fields are written under the session's mu.

    What a new hold has is in the class, so that the common case need not run __init__.
    """

    conn: Any
    key: str
    owner: int
    shared: bool = False
    permits: int = 0  # number of permits of the semaphore; 0 for a lock
    fixed: bool = False  # acquired with renew=False; a re-entry does not change that
    who: Who | None = None  # None if it is not in Owners (a permit, or a term of an election)
    by: Origin | None = None
    keep: int = 0  # for how many milliseconds after its grant the daemon keeps the key closed anyway
    keys: tuple[str, ...] = ()  # until its grant says which one of several it is of; before, it is not in Owners
    wake: Callable[[], object] | None = None  # called at once with the answer to its acquire, and when it is lost
    on_lost: tuple[Callable[[LostError], object], ...] = ()  # called when it is lost
    groups: tuple[Holds, ...] = ()  # that it belongs to, and that are told, too
    keeps: object = None  # kept alive as long as the hold is in the table
    sides: Any = None  # of a readers-writer pair: how often each of the two handles has acquired it
    op = w.ACQUIRE
    opens = False  # its release is to end the keep, too
    fence = 0
    count = 0  # how often its owner has acquired it; only this counts re-entries
    grants = 0  # how often the daemon has granted it
    valid = 0  # stated validity and end, in nanoseconds of this process's clock
    end = 0  # when it ends, whatever a keepalive states; 0 for never
    out = False  # its validity has run out, and a caller was told so; set without mu
    lost = ""  # the reason, once it was lost
    nth = 0  # the number of this loss on the connection
    over = False  # released or lost: no longer in the table
    taken = False  # its owner has got it

    @property
    def each(self) -> tuple[Hold, ...]:
        """This hold alone, as Holds has one of each key; or those that it may become."""
        if not self.keys:
            return (self,)
        return tuple(Hold(self.conn, key, self.owner, who=self.who, by=self.by) for key in self.keys)

    def state(self, until: int) -> None:
        """Record that the hold is valid until then. Earlier statements stay true."""
        until = max(until, self.valid)
        self.valid = min(until, self.end) if self.end else until

    def loss(self, reason: str) -> LostError:
        """Return the error that reports the hold's loss."""
        return LostError(self.key, self.fence, self.owner, reason)

    def reason_at(self, now: int) -> str:
        """Return the reason for the loss of a hold whose validity has run out."""
        if not self.end or now < self.end:
            return "silence"
        return "fixed_end" if self.fixed else "too_long"

    def owned(self) -> bool:
        """Tell whether the hold is valid now."""
        return not self.over and self.conn.dead is None and self.lasts(w.now())

    def lasts(self, now: int) -> bool:
        """Tell whether the stated validity lasts. Nothing extends it once a caller was told that it has run out."""
        return now < self.valid and not self.out


@dataclass(eq=False, repr=False)
class Holds:
    """The result of one acquire-many: a hold of each key, valid only while all of them are.

    It has one count of each hold, and its own count of how often its owner has acquired all of them.
    """

    conn: Any
    owner: int
    each: tuple[Hold, ...]  # in the order of the request
    count: int = 0
    on_lost: tuple[Callable[[LostError], object], ...] = ()  # called when the first one is lost
    reported: bool = False
    op = w.ACQUIRE_MANY

    @property
    def shared(self) -> bool:
        return any(hold.shared for hold in self.each)

    @property
    def valid(self) -> int:
        """The time until which all are valid."""
        return min(hold.valid for hold in self.each)

    @property
    def over(self) -> bool:
        """Whether one of them was released or lost."""
        return any(hold.over for hold in self.each)

    @property
    def lost(self) -> str:
        """The reason for the first loss, if there was one."""
        return self._first().lost

    def _first(self) -> Hold:
        """Return the hold that was lost first, or any if none is lost."""
        return min(self.each, key=lambda hold: (not hold.lost, hold.nth))

    def loss(self, reason: str) -> LostError:
        """Return the error that reports the loss, with the key that was lost first."""
        return self._first().loss(reason)

    def owned(self) -> bool:
        """Tell whether all are valid now."""
        now = w.now()
        return self.conn.dead is None and all(not hold.over and hold.lasts(now) for hold in self.each)


def asks(held: Hold | Holds, wait: int, ttl: int, flags: int, trace: str | None) -> tuple[object, ...]:
    """Return the fields of an acquire."""
    keys: object = [hold.key for hold in held.each]
    mode, more = int(held.shared), cast("tuple[object, ...]", (trace,))
    if isinstance(held, Hold) and held.op == w.ACQUIRE:
        keys, more = held.key, (held.permits, trace or "", held.keep)
        mode = w.PERMIT if held.permits else mode
    while more and not more[-1]:
        more = more[:-1]
    return keys, held.owner, mode, wait, ttl, flags, *more


def lost(hold: Hold | Holds) -> str:
    """Return the reason of a hold's loss, also while its connection is ending; empty if it is not lost."""
    return hold.lost or ("connection" if hold.conn.dead is not None and not hold.over else "")


@dataclass(eq=False, repr=False)
class Call:
    """One request in flight. What a new one has is in the class, as with Hold."""

    op: int
    hold: Hold | Holds | None = None
    what: Entries = ()  # of a release: what it releases
    reply: w.Message = ()
    error: LockError | None = None
    waiter: threading.Lock | None = None  # locked; its release wakes the caller
    id = 0
    target = 0  # of a cancel: the acquire
    sent = False
    shares = False  # a downgrade that has made its hold shared
    done = False  # there is a reply or an error; set last
    abandoned = False  # no thread waits any more

    def asleep(self) -> bool:
        """Tell whether a caller waits, or is about to, and may read for all threads."""
        return self.waiter is not None and not self.done and not self.abandoned

    def fail(self, why: LockError) -> None:
        """End the call without a reply, unless it has one."""
        if not self.done:
            self.error = why
            self.done = True

    def wake(self) -> None:
        """Wake the caller, if it sleeps."""
        if (waiter := self.waiter) is not None:
            with contextlib.suppress(RuntimeError):  # it is awake already
                waiter.release()
        elif isinstance(self.hold, Hold) and self.hold.wake is not None:
            self.hold.wake()
