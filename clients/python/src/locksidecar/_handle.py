"""All handles: what to hold, by which owner, and what is done with it. With threads and with tasks; no I/O.

A request that has to wait is a coroutine here. On an event loop it waits as any other. With threads, what it awaits
blocks the thread instead and never waits for a loop: run takes it to its end at once.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Generic, Literal, NoReturn, TypedDict, TypeVar

from . import _wire as w
from ._base import Pauses
from ._errors import ConnectionLost, Draining, Invalid, NotHeld, Unavailable, Unconfirmed, Upgrade, error
from ._hold import OWN, Call, Hold, Holds, Origin, Who, asks, ended
from ._session import Session
from ._table import Before, Held, OnLost

Owner = int | Literal["handle"] | None
H = TypeVar("H", Hold, Holds)
R = TypeVar("R")

SWEEP: Final = 64  # owners of a handle before it first forgets those that have ended
_PATIENCE: Final = 2.0  # how many seconds an acquire waits for a daemon that is away or going away
_CUTS: Final = 3  # how often in a row a new connection may end at once


def run(steps: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine of the client for threads, which waits for no loop."""
    try:
        steps.send(None)
    except StopIteration as e:
        result: R = e.value
        return result
    raise RuntimeError("a coroutine of the client for threads waits for a loop")


class Terms(TypedDict, total=False):
    """The terms of a handle that are the same for all kinds; see Client.lock."""

    ttl: float | None
    renew: bool
    timeout: float
    owner: Owner
    on_lost: OnLost | None
    confirm: bool | None


def only(terms: dict[str, Any], *more: str) -> dict[str, Any]:
    """Return terms if all have an effect: terms of all kinds, and more; TypeError otherwise."""
    if unknown := terms.keys() - Terms.__annotations__ - set(more):
        raise TypeError(f"this kind of lock has no {min(unknown)}")
    return terms


class Handle(ABC, Generic[H]):
    """A handle of a client. H is the type of its holds: Hold or Holds."""

    _unit: str  # the default owner, for messages: "thread" or "task"
    _kind = "lock"  # for messages
    _one = False  # one of the keys is acquired
    _general = False  # the shortest path is not for it
    _keys: tuple[str, ...]
    # By thread, task or named owner, the newest last. __del__ finds this one if __init__ has failed.
    _held: dict[Who, list[H]] = {}  # noqa: RUF012

    def __init__(
        self,
        client: Any,
        ttl: float | None = None,
        renew: bool = True,
        shared: bool = False,
        timeout: float = -1,
        owner: Owner = None,
        on_lost: OnLost | None = None,
        confirm: bool | None = None,
        keep: float | None = None,
    ) -> None:
        self._client = client
        self._confirm = client._confirm if confirm is None else confirm
        self._hold_for = 0 if keep is None else w.to_ttl(keep, "keep")
        self._general = self._general or owner is not None or keep is not None
        self._held = {}
        self._sweep_at = SWEEP
        self._ttl = 0 if ttl is None else w.to_ttl(ttl)
        self._fixed = not renew
        self._flags = 0 if renew else w.FIXED
        self._shared = bool(shared)
        self._timeout = timeout
        w.to_wait(True, timeout)  # an error is raised here rather than at the first ``with``
        self._owner: int | None = next(client._owners) if owner == "handle" else owner
        if owner is not None and owner != "handle" and not (isinstance(owner, int) and 0 <= owner < OWN):
            raise Invalid('an owner is "handle", or a number from 0 to 2**32 - 1')
        mine: Any = () if on_lost is None or on_lost in client._on_lost else (w.check_callback(on_lost, "on_lost"),)
        self._on_lost: tuple[OnLost, ...] = (*mine, *client._on_lost)
        self._by = Origin(self, 4)

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

    # ---- what the kinds of locks, and the two clients, bring ----

    @abstractmethod
    def _who(self) -> Who:
        """Return the calling owner."""

    @abstractmethod
    def _request(self, conn: Any, owner: int, who: Who) -> H:
        """Make the hold to ask for."""

    @abstractmethod
    async def _finish_release(self, hold: H, calls: list[Call]) -> None:
        """Wait for the answers to a release, and raise the error that they report."""

    # ---- questions ----

    @property
    def _name(self) -> str:
        """What it is, for people."""
        some = ", ".join(map(repr, self._keys[:3]))
        return f"{self._kind} {some}" + (f" and {len(self._keys) - 3} more" if len(self._keys) > 3 else "")

    @property
    def remaining(self) -> float:
        """The number of seconds for which it is certainly held; 0 if it is not held.

        With renew=True it rises with each renewal.
        """
        hold = self._valid()
        return 0.0 if hold is None else w.left(hold.valid)

    @property
    def ends_in(self) -> float | None:
        """The seconds until it ends by itself; None if it does not, or is not held.

        It ends by itself with renew=False, and if the daemon limits how long a lock may be held.
        """
        hold = self._valid()
        end = 0 if hold is None else min((each.end for each in hold.each if each.end), default=0)
        return w.left(end) if end else None

    @property
    def held_count(self) -> int:
        """How often this owner has acquired it without having released it; 0 if it is not held."""
        return 0 if self._owner is None and not self._held else sum(hold.count for hold in self._owned() if still(hold))

    @property
    def mode(self) -> Literal["exclusive", "shared"] | None:
        """How this owner holds it; None if it is not held. A downgrade changes it."""
        hold = self._valid()
        return None if hold is None else "shared" if hold.shared else "exclusive"

    def check(self) -> None:
        """Raise LostError if the lock was lost, and NotHeld if this owner does not hold it. Sends nothing."""
        must(self._mine())

    def owned(self) -> bool:
        """Tell whether this owner holds it now. Sends nothing.

        If it is not held because its validity has run out, it is lost from then on.
        """
        return self._valid() is not None

    def __repr__(self) -> str:
        try:
            state = "owned" if self.owned() else "not owned"
        except RuntimeError:  # of tasks: on no loop, or on another one
            state = "not owned here"
        return f"<{type(self).__module__.rpartition('.')[0]}.{type(self).__name__} {self._name} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lock cannot be copied or sent to another process: its holder could not be told")

    def _of(self, who: Who) -> list[H]:
        """Return an owner's holds, the newest first. A lost hold counts until its release."""
        stack = self._held.get(who)
        return [hold for hold in stack[::-1] if hold.count > 0] if stack else []

    def _owned(self) -> list[H]:
        """Return the holds of this owner."""
        return self._of(self._who())

    def _valid(self) -> H | None:
        """Return the newest hold of this owner if it is valid."""
        mine = self._owned()
        return mine[0] if mine and still(mine[0]) else None

    def _mine(self, who: Who | None = None) -> H:
        """Return the newest hold of the given owner, else of the present one; NotHeld if there is none."""
        mine = self._owned() if who is None else self._of(who)
        if not mine:
            raise self._not_held()
        return mine[0]

    # ---- acquire ----

    async def _acquire(self, who: Who, wait: int, sent: tuple[Any, Call, H] | None = None) -> bool:
        """Acquire; false if it was not granted in time. sent: the first request, if it was sent already."""
        if sent is None:
            if (mine := self._of(who)) and self._reenter(who, mine[0]):
                return True
            self._check(who, wait != 0)
        client = self._client
        if self._on_lost:
            client._notifier.start()
        tries = Tries(wait)
        while True:
            if sent is None:
                conn = client._live() or await client._connect(tries.until())
                asked = self._request(conn, self._number(who), who)
                call: Call = conn.new_call(asked.op, asked)
            else:
                conn, call, asked = sent
            pause = 0.0
            try:
                limit = tries.limit(client._timeout)
                if sent is None:
                    await conn.settled(asked, limit)
                    conn.send(call, *asks(asked, tries.left, self._ttl, self._flags, client._trace()))
                sent = None
                await conn.answered(call, limit)
                hold = conn.granted(call)
                if hold is None:
                    return False
                if conn.adopt(hold, *self._on_lost):
                    for each in hold.each:
                        each.taken = True
                    conn.watch(hold)
                    self._keep(who, hold)
                    return True
                conn.give_up(hold)  # the hold was over before this thread or task ran
                if tries.lapsed(hold):
                    return False
            except (ConnectionLost, Draining) as e:
                # After either error nothing is held, so the request may be sent again.
                conn.withdraw(call)  # it may have been granted just before the end
                pause = tries.refused(e, conn, client._closed)
            except BaseException:  # no answer, cancelled, or an interrupt at any point above
                conn.withdraw(call)
                self._forget(who, asked)
                raise
            await client._pause(pause)
            tries.over()

    def _number(self, who: Who) -> int:
        """Return the owner's number: a new one, unless the owner has asked by this handle, too, and meanwhile."""
        if isinstance(who, int):
            return who
        known = self._client._known.number(self._keys[0], who, self._by)
        return int(next(self._client._owners)) if known is None else known

    def _reenter(self, who: Who, hold: H) -> bool:
        if hold.shared and not self._shared and sure(hold):
            raise Upgrade("held shared by this owner; an exclusive hold could never be granted")
        before = hold.count
        try:
            if sure(hold) and hold.conn.reenter(hold):
                self._keep(who, hold)
                hold.conn.adopt(hold, *self._on_lost)
                return True
        except BaseException:
            if self._owner is None:  # otherwise other threads count, too
                hold.count = before
            raise
        hold.conn.lapse(hold.each, w.now())
        self._check(who, False)
        self._forget(who, hold)
        hold.conn.give_up(hold)
        return False

    def _check(self, who: Who, waits: bool) -> None:
        """Raise if the owner must not acquire: it has lost one of the keys, or holds one by another handle."""
        for key in self._keys:
            for hold in self._client._known.holds(key, who):
                settle(hold)
        self._client._known.check(self._keys, who, self._by, waits, self._one)
        if waits and self._owner is None and any(leaks(hold) for hold in self._all(ended)):
            warnings.warn(
                f"{self._name}: held ({self._by}) by a {self._unit} that has ended without releasing it",
                ResourceWarning,
                stacklevel=w.outside()[1],
            )

    # ---- release and changes ----

    def _start_release(self, who: Who, wait: bool = True, now: bool = False) -> tuple[Any, ...]:
        """Release; now a lock with keep opens, too. Return the arguments for _finish_release."""
        hold, released = self._mine(who), True
        conn, count = hold.conn, hold.count
        settle(hold)
        before: Before = []
        calls: list[Call] = []
        if isinstance(hold, Hold):
            hold.opens = now and hold.keep > 0
        try:
            if count <= 1:
                self._forget(who, hold)
            released = conn.release(hold, before, calls, wait, w.NOW if now else 0)
        except Unavailable as e:
            self._unanswered(e, hold, calls, "the connection has ended")
        except BaseException:
            conn.finish(hold, count, before, calls)
            raise
        if not released:  # another thread of the same owner has done it meanwhile
            return Handle._start_release(self, who, wait, now)
        if hold.lost and not calls:
            raise hold.loss(hold.lost)
        return hold, calls if wait else []

    async def _answers(self, hold: H, calls: list[Call]) -> None:
        """Wait for the answers to a release."""
        limit = time.monotonic() + hold.conn.timeout
        try:
            for c in calls:
                await hold.conn.answered(c, limit)
        except Unavailable as e:
            self._unanswered(e, hold, calls, "the release has been sent")

    @staticmethod
    def _unanswered(e: Unavailable, hold: Held, calls: list[Call], state: str) -> None:
        """Handle missing answers to a release: Unconfirmed, unless the hold is lost anyway.

        The end of the connection is a release, too, unless the release was to end a keep.
        """
        calls.clear()
        if isinstance(e, ConnectionLost):
            if isinstance(hold, Hold) and hold.opens:
                raise Unconfirmed(f"{e}; the key may stay closed until its keep ends") from None
        elif not hold.lost:
            raise Unconfirmed(f"{e}; {state}") from None

    async def _changed(self, hold: H, op: int, *fields: int) -> None:
        must(hold)
        conn = hold.conn
        calls = [(each, conn.ask(op, each.key, each.owner, each.fence, *fields, hold=each)) for each in hold.each]
        limit = time.monotonic() + conn.timeout
        for each, c in calls:
            await conn.answered(c, limit)
            check(each, c.reply)
        must(hold)

    # ---- errors ----

    def _not_held(self) -> NotHeld:
        if self._owner is None and any(leaks(hold) for hold in self._all()):
            return NotHeld(
                f"{self._name}: held by another {self._unit}, which acquired it by this handle; "
                f'to pass it between {self._unit}s, make the handle with owner="handle"'
            )
        return NotHeld(f"{self._name}: not held by this owner")

    # ---- owners ----

    def _all(self, which: Callable[[Who], bool] | None = None) -> Iterable[H]:
        """Return the present and past holds of this handle, of the owners that which selects."""
        return [hold for who, stack in list(self._held.items()) if which is None or which(who) for hold in stack]

    def _keep(self, who: Who, hold: H) -> None:
        with self._client._known.mu:  # two threads of one owner may get the same hold
            stack = self._held.setdefault(who, [])
            if hold not in stack[-1:]:
                stack.append(hold)
        if len(self._held) >= self._sweep_at:
            for unit, left in list(self._held.items()):
                if not isinstance(unit, int) and unit() is None and all(each.over for each in left):
                    self._held.pop(unit, None)  # it has ended
            self._sweep_at = max(SWEEP, 2 * len(self._held))

    def _forget(self, who: Who, hold: H) -> None:
        with self._client._known.mu:
            stack = self._held.get(who, [])
            if hold in stack:  # otherwise another thread of the same owner has released it
                stack.remove(hold)
            if not stack:
                self._held.pop(who, None)


class One(Handle[Hold]):
    """A handle by which an owner has one hold at a time: of a lock, or of a permit."""

    def __init__(self, client: Any, key: str, *terms: Any, **more: Any) -> None:
        self._key = w.check_key(key)
        self._keys = (key,)
        super().__init__(client, *terms, **more)

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

    def _request(self, conn: Any, owner: int, who: Who) -> Hold:
        return Hold(conn, self._key, owner, self._shared, 0, self._fixed, who, self._by, self._hold_for)

    def _of(self, who: Who) -> list[Hold]:
        # A named owner may have acquired it by another handle.
        return super()._of(who) or (self._client._known.holds(self._key, who) if isinstance(who, int) else [])

    def _kept(self) -> Hold | None:
        """Return a named owner's hold as this handle knows it. Sends nothing, and may be called anywhere."""
        return None if self._owner is None else next(iter(Handle._of(self, self._owner)), None)

    async def _finish_release(self, hold: Hold, calls: list[Call]) -> None:
        await self._answers(hold, calls)
        if calls:
            check(hold, calls[-1].reply)


class Tries:
    """The time limits of one acquire: its wait, and a short time for a daemon that fails it."""

    def __init__(self, wait: int) -> None:
        self.left = wait  # milliseconds still to wait; -1 without bound
        self._wait = wait
        self._end = math.inf if wait < 0 else time.monotonic() + wait / 1000
        self._cuts = 0
        self._drained = math.inf
        self._pauses = Pauses()

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
        return self.over()

    def refused(self, e: ConnectionLost | Draining, conn: Session, closed: bool) -> float:
        """Return the pause before the next attempt to a daemon that has ended or is going. Or raise e."""
        now, pause = time.monotonic(), 0.0
        if isinstance(e, Draining):
            self._drained = min(self._drained, now + _PATIENCE)
            pause = self._pauses.next()
            over = now + pause >= min(self._end, self._drained)
        else:
            self._cuts = self._cuts + 1 if now - conn.since < 1 else 0
            over = self._cuts > _CUTS or (now >= self._end and (self._wait > 0 or self._cuts > 1))
        if closed or over:
            raise e
        return pause

    def over(self) -> bool:
        """Subtract the time that has passed; true if there is no time left."""
        left = self._end - time.monotonic()
        if self._wait > 0:
            self.left = max(0, math.ceil(left * 1000))
        return left <= 0


def leaks(hold: Held) -> bool:
    """Tell whether a hold is still held and does not end by itself."""
    return hold.count > 0 and hold.conn.dead is None and any(not each.over and not each.end for each in hold.each)


def check(hold: Hold, reply: w.Message) -> None:
    """Raise the error of a reply to a request about a hold, unless it is a success."""
    if reply[0] == w.NOT_HELD:
        raise hold.loss(hold.lost or "gone")
    if reply[0] != w.OK:
        raise error(reply[0], w.text(reply))


def sure(hold: Held) -> bool:
    """Tell whether a hold is valid, according to everything that has arrived."""
    if hold.owned():
        return True
    if not hold.over and hold.conn.dead is None:
        hold.conn.catch_up()
    return hold.owned()


def settle(hold: Held) -> bool:
    """Tell whether a hold is valid, as sure does. One that has run out is lost from now on."""
    if sure(hold):
        return True
    hold.conn.lapse(hold.each, w.now())
    return hold.owned()


def must(hold: Held) -> None:
    """Raise LostError if a hold is lost, or has run out. In the second case it is lost from now on."""
    if not settle(hold) and hold.lost:
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
