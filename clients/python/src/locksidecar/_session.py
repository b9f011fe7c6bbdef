"""What one connection knows: its requests in flight, and what is held on it. No I/O, and no waiting.

Two drive it: _conn.Conn for threads, asyncio._conn.Conn for a loop. A driver hands in what it has read
(feed), carries requests out (send), and afterwards sends what is due (give_back_late); everything
else is decided here, so that both say "held" in exactly the same cases.

Interrupts. With threads a signal handler may raise between any two steps. What cannot be undone or
redone by whoever sees the exception pass ends the connection, and with it every hold.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from . import _wire as w
from ._errors import (
    BUSY,
    NOT_HELD,
    OK,
    REASONS,
    TIMEOUT,
    ConnectionLost,
    LockError,
    LostError,
    ProtocolError,
    Unavailable,
    error,
)
from ._hold import Call, Hold


class Session(ABC):
    """The state of a connection. It lives once: after its end a new one is made."""

    def __init__(self, timeout: float, lost: Callable[[Hold[Any], LostError], None]) -> None:
        self.dead: LockError | None = None
        self.since = time.monotonic()
        self.max_frame = w.MAX_FRAME
        self.timeout = timeout
        self._lost = lost  # takes note only
        self._mu = threading.Lock()  # guards everything below; nothing is waited for under it
        self._pending: dict[int, Call] = {}
        self._holds: dict[tuple[str, int], Hold[Any]] = {}
        self._late: deque[Hold[Any] | None] = deque()  # granted to nobody: to be released; None for a sign of life
        self._ids = 0
        self._rest = b""  # a message's beginning
        self._heartbeat = False

    # ---- what a driver brings ----

    @abstractmethod
    def send(self, c: Call, *fields: object) -> None:
        """Send a request, without waiting for more than room; LockError when the connection has ended."""

    @abstractmethod
    def catch_up(self) -> None:
        """Take in what has arrived, unless somebody is about to; does not block."""

    @abstractmethod
    def cut(self) -> None:
        """End the connection on the wire. Idempotent; does not block."""

    # ---- hello ----

    def hello(self, name: str, label: str) -> bytes:
        """Return the first frame."""
        self._t0 = w.now() // w.MS
        return w.frame(w.HELLO, 1, w.VERSION, w.VERSION, w.clip(name), w.clip(label))

    def welcome(self, data: bytes) -> bool:
        """Take in the beginning of what the daemon says; false when the welcome is not whole yet."""
        message, after = next(w.cut(data, self.max_frame), ((), 0))
        if not message:
            return False
        self._rest = data[after:]
        t1 = w.now() // w.MS
        if message[0] == w.FATAL and message[1] == 0:
            raise error(w.numbers(message, 1)[0], w.text(message, 3))
        if message[1] != 1:
            raise ProtocolError("the first message is not the welcome")
        if message[0] != OK:
            raise error(message[0], w.text(message))
        version, self.session, clock, self.max_frame = w.numbers(message, 4)
        if version != w.VERSION:
            raise ProtocolError(f"the daemon speaks version {version}")
        self._shift = w.shift(self._t0, clock, t1) * w.MS
        self._heartbeat = w.heartbeat(message)
        self._ids = 1
        return True

    # ---- requests ----

    def enter(self, c: Call, fields: tuple[object, ...]) -> bytes:
        """Number a request, expect its reply, and return its frame. One caller at a time."""
        if self.dead is not None:
            raise self.gone()
        self._ids = c.id = self._ids + 1
        self._pending[c.id] = c
        return w.frame(c.op, c.id, *fields)

    def silent(self) -> Unavailable:
        """Make the error for an answer that did not come."""
        return Unavailable(f"the daemon has not answered for {self.timeout:g} s")

    def granted(self, c: Call) -> Hold[Any] | None:
        """Return what an acquire's reply gave: a hold, perhaps one of the same owner that came first.

        None when it is held by somebody else; any other end is an error.
        """
        code: int = c.reply[0]
        if code in (BUSY, TIMEOUT):
            return None
        if code != OK:
            raise error(code, w.text(c.reply))
        return c.hold

    def withdraw(self, c: Call) -> None:
        """Take back an acquire, however far it came; its grant is given back, should it cross this."""
        try:
            with self._mu:
                c.abandoned = True
                granted = c.done and c.error is None and c.reply[0] == OK
            if c.hold is None or self.dead is not None:
                return
            if granted:
                self.give_back(c.hold)
            elif not c.done and c.id:
                self.send(Call(w.CANCEL, target=c.id), c.id, c.hold.key)
        except LockError:
            pass
        except BaseException as e:
            self.interrupted(e)
            raise

    def adopt(self, hold: Hold[Any], tell: Callable[[LostError], object] | None) -> bool:
        """Begin to tell of the hold's loss, as it is its owner's now; false when it is not valid."""
        if tell is None:
            return hold.owned()
        with self._mu:
            if not hold.owned():
                return False
            if tell not in hold.tell:
                hold.tell = (*hold.tell, tell)
            return True

    def reenter(self, hold: Hold[Any]) -> bool:
        """Deepen a hold that is valid; false when it is not."""
        with self._mu:
            if not hold.owned():
                return False
            hold.count += 1
            return True

    def find(self, key: str, owner: int) -> Hold[Any] | None:
        """Return the owner's hold, however it was acquired."""
        return self._holds.get((key, owner))

    def give_back(self, hold: Hold[Any]) -> None:
        """Release one grant of a hold without waiting for the answer."""
        with self._mu:
            if hold.over:
                return
            hold.grants -= 1
            hold.count = max(0, hold.count - 1)
            if hold.grants <= 0:
                self._drop(hold)
        self.send(Call(w.RELEASE), hold.key, hold.owner, hold.fence, w.ASYNC)

    def let_go(self, hold: Hold[Any]) -> bool:
        """Give up one count; true when it was the last, so that the daemon has to hear of it."""
        with self._mu:
            if hold.count > 1:
                hold.count -= 1
                return False
            hold.count = 0
            self._drop(hold)
        return True

    def finish(self, hold: Hold[Any], before: int, c: Call | None) -> None:
        """Finish a release of which an interrupt left nobody knows what undone."""
        with self._mu:
            if before > 1:
                hold.count = before - 1
                return
            hold.count = 0
            lost = bool(hold.lost)
            self._drop(hold)
        with contextlib.suppress(LockError):
            if not lost and (c is None or not c.sent):  # a second one would be for a hold that is gone
                self.send(Call(w.RELEASE), hold.key, hold.owner, hold.fence, w.ASYNC)

    def _drop(self, hold: Hold[Any]) -> None:
        """Take a hold out of the table; mu is held."""
        hold.over = True
        if self._holds.get((hold.key, hold.owner)) is hold:
            del self._holds[hold.key, hold.owner]

    # ---- replies and pushes ----

    def feed(self, data: bytes) -> None:
        """Take in what was read: every whole message of it. An error ends the connection."""
        if self._rest:
            data = self._rest + data
        at = 0
        for message, after in w.cut(data, self.max_frame):
            self._apply(message)
            at = after
        self._rest = data[at:]

    def _apply(self, m: w.Message) -> None:
        if m[1] == 0:
            self._push(m)
            return
        with self._mu:
            c = self._pending.get(m[1])
            if c is None:
                return
            if m[0] != OK:
                w.text(m)
                if m[0] == NOT_HELD and c.hold is not None and not c.hold.over:
                    self._lose(c.hold, "gone")
            elif c.hold is not None:
                self._grant(c, c.hold, m)
            else:
                w.numbers(m, 1)  # every other success that we ask for begins with one
            c.reply = m
            c.done = True
        c.wake()
        if c.target:  # a cancel: its target was answered before, or never arrived
            self._pending.pop(c.target, None)
        self._pending.pop(m[1], None)  # last: until here c would end with the connection

    def _grant(self, c: Call, hold: Hold[Any], m: w.Message) -> None:
        """Take in the grant that answers c; mu is held."""
        fence, _, deadline, _, end, _ = w.numbers(m, 6)
        if c.op == w.ACQUIRE:
            same = self._holds.get((hold.key, hold.owner))
            if same is not None and same.fence == fence:  # another thread asked as the same owner
                c.hold = hold = same
            elif not c.abandoned:
                if same is not None:  # it was lost, or there would be no other fence
                    self._lose(same, "gone")
                self._holds[hold.key, hold.owner] = hold
            hold.fence = fence
            hold.grants += 1
            hold.count += 1
            if c.abandoned:
                self._late.append(hold)
        elif hold.over:
            return
        if c.op == w.DOWNGRADE:
            hold.shared = True
        hold.end = end * w.MS + self._shift if end else 0
        hold.state(deadline * w.MS + self._shift)

    def _push(self, m: w.Message) -> None:
        if m[0] == w.BEAT:
            until = w.numbers(m, 2)[0] * w.MS + self._shift
            with self._mu:
                for hold in self._holds.values():
                    hold.state(until)
            if self._heartbeat:
                self._late.append(None)
        elif m[0] == w.LOST:
            key = w.text(m)
            owner, fence, reason = w.numbers((0, 0, *m[3:6]), 3)
            with self._mu:
                found = self._holds.get((key, owner))
                if found is None or found.fence != fence:
                    return
                self._lose(found, REASONS.get(reason, f"reason {reason}"))
        elif m[0] == w.FATAL:
            raise ConnectionLost(str(error(w.numbers(m, 1)[0], w.text(m, 3))))

    def give_back_late(self) -> None:
        """Send one thing that is due: the release of what was granted to nobody, or a sign of life."""
        try:
            hold = self._late.popleft()
            if hold is None:
                self.send(Call(w.PING))
            else:
                self.give_back(hold)
        except (LockError, IndexError):  # IndexError: somebody else was quicker
            pass
        except BaseException as e:
            self.interrupted(e)
            raise

    # ---- loss ----

    def _lose(self, hold: Hold[Any], reason: str, quiet: bool = False) -> None:
        """End a hold that was not released; mu is held."""
        hold.lost = "closed" if quiet else reason
        self._drop(hold)
        if hold.tell and not quiet:
            self._lost(hold, hold.loss(reason))

    def soonest(self, most: float) -> float:
        """Return the seconds until the first hold's stated validity is over, at most most."""
        with self._mu:
            first = min((h.valid for h in self._holds.values()), default=None)
        return most if first is None else min(most, (first - w.now()) / 1e9 + 0.001)

    def stale(self, now: int) -> list[Hold[Any]]:
        """Return the holds of which the daemon has said nothing for too long, by what has been read."""
        with self._mu:
            return list(filter(lambda h: now >= h.valid, self._holds.values()))

    def lapse(self, holds: list[Hold[Any]], now: int) -> None:
        """End those of the holds that are past their validity, and release them."""
        try:
            with self._mu:
                grants = [self._lapse(hold, now) for hold in holds]
            for hold, count in zip(holds, grants, strict=True):
                for _ in range(count):  # or the daemon would go on renewing it for nobody
                    self.send(Call(w.RELEASE), hold.key, hold.owner, hold.fence, w.ASYNC)
        except LockError:
            pass
        except BaseException as e:
            self.interrupted(e)
            raise

    def _lapse(self, hold: Hold[Any], now: int) -> int:
        """End a hold if it is past its validity, and return its grants; mu is held."""
        if hold.over or now < hold.valid:
            return 0
        self._lose(hold, "silence")
        return hold.grants

    # ---- the end ----

    def die(self, why: LockError, *, quiet: bool = False) -> None:
        """End the connection: every call fails, every hold is lost. Idempotent; does not block."""
        if self.dead is None:
            self.dead = why  # from here on nothing is owned, so that others may be let in
        self.cut()
        with self._mu:
            for hold in list(self._holds.values()):
                self._lose(hold, "connection", quiet)
            calls = list(self._pending.values())
            self._pending.clear()
            for c in calls:
                c.fail(self.gone())
        for c in calls:
            c.wake()

    def interrupted(self, e: BaseException) -> None:
        """End the connection, since nobody can know what is held on it."""
        self.die(ConnectionLost(f"interrupted by {type(e).__name__}"))

    def gone(self) -> LockError:
        """Make an error of our own from what the connection died of."""
        why = self.dead
        cls = type(why) if isinstance(why, (ProtocolError, Unavailable)) else ConnectionLost
        return cls(str(why))

    def forget(self) -> None:
        """Forget everything in a child process: nothing here is its own. Takes no lock."""
        self.dead = ConnectionLost("the connection belongs to the parent process")
        self._mu = threading.Lock()
        for hold in list(self._holds.values()):
            hold.lost, hold.over = "fork", True
        self._holds.clear()
        self._pending.clear()
        self._late.clear()
