"""The state of one connection: its requests in flight, and (in _table) its holds. No I/O, and no waiting.

It has two drivers: _conn.Conn for threads, and asyncio._conn.Conn for a loop. A driver passes in the data that it has
read (feed), sends requests (send), and afterwards sends what is due (send_due). Everything else is decided here,
so that both report a lock as held in exactly the same cases.

Interrupts. With threads a signal handler may raise between any two steps. If the code that sees the exception cannot
undo or repeat a step, the connection ends, and with it every hold.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from . import _wire as w
from ._errors import REASONS, ConnectionLost, Invalid, LockError, LostError, ProtocolError, Unavailable, error, log
from ._hold import Call, Entries, Hold, Holds
from ._table import Before, Held, Notifier, Owners, Table, what

_MAX_QUIET: Final = 1024  # quiet releases whose failure can be reported to on_lost
_open: Final[weakref.WeakSet[Session]] = weakref.WeakSet()  # connections that have a descriptor


class Session(Table, ABC):
    """The state of one connection. It is never used for another one."""

    def __init__(self, timeout: float, notifier: Notifier, owners: Owners) -> None:
        super().__init__(notifier, owners)
        self.since = self.heard = time.monotonic()  # heard: time of the last read
        self._pinged = -math.inf  # time of the last ping that was sent because nothing was read
        self.max_frame = w.MAX_FRAME
        self.timeout = timeout
        self._pending: dict[int, Call] = {}  # guarded by mu
        self._quiet_releases: dict[tuple[str, int, int], Hold] = {}  # guarded by mu; to report a failed quiet release
        self._cancels: dict[tuple[str, int], Call] = {}  # guarded by mu; unanswered cancels of named owners
        self._ids = 0
        self._rest = b""  # the beginning of a message
        self._pack = w.packer()
        self.fast = False  # the shortest path of Lock may be used
        self.ready = True  # the daemon has answered hello
        self.quiet = False  # the client itself has ended the connection

    # ---- what a driver brings ----

    @abstractmethod
    def send(self, c: Call, *fields: object) -> None:
        """Send a request, without waiting except for space; LockError if the connection has ended."""

    @abstractmethod
    async def answered(self, c: Call, limit: float | None) -> None:
        """Wait until the reply has come; Unavailable if the monotonic clock has reached limit.

        Raises the error that has ended the connection.
        """

    @abstractmethod
    async def settled(self, hold: Held, limit: float | None) -> None:
        """Wait until the owner may request hold: see unsettled."""

    @abstractmethod
    def catch_up(self) -> None:
        """Handle the data that has arrived, unless another thread is about to. Does not block."""

    @abstractmethod
    def cut(self) -> None:
        """End the connection. Idempotent; does not block."""

    @abstractmethod
    def forked(self) -> None:
        """Detach a child process from the parent's connection. Takes no lock."""

    # ---- hello ----

    def hello(self, name: str, label: str) -> bytes:
        """Return the first frame."""
        self._t0 = w.now() // w.MS
        return w.frame(w.HELLO, 1, w.VERSION, w.VERSION, w.clip(name), w.clip(label))

    def welcome(self, data: bytes) -> bool:
        """Handle the next data from the daemon; false if the welcome is not complete yet."""
        self._rest += data
        found = filter(lambda cut: cut[0][1] != 0 or cut[0][0] == w.FATAL, w.cut(self._rest, self.max_frame))
        message, after = next(found, ((), 0))  # the daemon may first announce that it is going away
        if not message:
            return False
        self._rest = self._rest[after:]
        t1 = w.now() // w.MS
        if message[0] == w.FATAL and message[1] == 0:
            raise error(w.numbers(message, 1)[0], w.text(message, 3))
        if message[1] != 1:
            raise ProtocolError("the first message is not the welcome")
        if message[0] != w.OK:
            raise error(message[0], w.text(message))
        version, self.session, clock, self.max_frame = w.numbers(message, 4)
        if version != w.VERSION:
            raise ProtocolError(f"the daemon speaks version {version}")
        self._shift = w.shift(self._t0, clock, t1) * w.MS
        self._ids = 1
        return True

    # ---- requests ----

    def enter(self, c: Call, fields: tuple[object, ...]) -> bytes:
        """Number a request, expect its reply, and return its frame. One caller at a time."""
        quiet = c.op == w.RELEASE and bool(int(str(fields[3])) & w.QUIET)
        number = w.MAX_INT if quiet else self._ids + 1
        data = w.frame(c.op, number, *fields, pack=self._pack)
        if len(data) > self.max_frame + w.HEADER:
            raise Invalid(f"the request has {len(data)} bytes; the daemon allows {self.max_frame}")
        with self._mu:
            if self.dead is not None:
                raise self.gone()
            if quiet:
                return data
            if c.op in w.ACQUIRES:
                self.owners.ask(c, waits=fields[3] != 0)
            elif c.op == w.DOWNGRADE and isinstance(c.hold, Hold):
                # at once, because the daemon admits readers before its answer comes
                c.shares, c.hold.shared = not c.hold.shared, True
            self._ids = c.id = number
            self._pending[number] = c
        return data

    # ---- a daemon that hangs ----

    @property
    def step(self) -> float:
        """The seconds after which a wait without an answer calls listen."""
        return min(1.0, self.timeout / 8)

    def listen(self, read: Callable[[], None]) -> None:
        """End the connection if the daemon hangs. A wait for a reply calls this again and again.

        If nothing was read for a quarter of the timeout, this sends a ping. If nothing is read in the rest of the
        timeout, the connection ends. read reads the data that has arrived, without blocking.
        """
        now = time.monotonic()
        if self.dead is not None or now - self.heard < self.timeout / 4:
            return
        if self._pinged <= self.heard:
            self._pinged = now
            with contextlib.suppress(LockError):
                self.send(Call(w.PING))
        elif now - self._pinged >= 0.75 * self.timeout:
            read()  # an answer may have arrived while this process was stopped
            if self._pinged > self.heard:
                self.die(self.silent())

    def silent(self) -> Unavailable:
        """Make the error for a missing answer."""
        return Unavailable(f"the daemon has not answered for {self.timeout:g} s")

    def new_call(self, op: int, hold: Held | None = None, what: Entries = ()) -> Call:
        """Make a request whose answer is waited for."""
        return Call(op, hold, what)

    def ask(self, op: int, *fields: object, hold: Hold | None = None) -> Call:
        """Send a request whose answer is waited for."""
        c = self.new_call(op, hold)
        try:
            self.send(c, *fields)
        except BaseException:
            self._expect_no_more([c])
            raise
        return c

    async def call(self, op: int, *fields: object) -> w.Message:
        """Send one request and return its reply; an error if there is none in time."""
        c = self.ask(op, *fields)
        await self.answered(c, time.monotonic() + self.timeout)
        return c.reply

    def release(self, held: Held, before: Before, calls: list[Call], wait: bool = True, flags: int = 0) -> bool:
        """Release one count. For the last one tell the daemon, and add the requests that it has to answer to calls.

        False if no count was left; before is as in count_down. Without wait there is no answer.
        """
        gone = self.count_down(held, before)
        if gone is None:
            return False
        if gone and not wait:
            flags, fences = flags | w.QUIET, dict(gone)
            with self._mu:
                if isinstance(held, Holds):
                    held.reported = False  # a loss that was reported does not hide a failure of the release
                for hold in list(filter(lambda hold: fences.get(hold.key) == hold.fence, held.each)):
                    # several report the first failure
                    hold.groups = (held,) if isinstance(held, Holds) and held.on_lost else ()
                    self.note_quiet(hold)
        self._send_releases(held, gone, flags, calls, self.new_call if wait else Call)
        if held.lost:
            self.acknowledge(held)
        return True

    def _send_releases(
        self, held: Held, gone: Entries, flags: int, calls: list[Call], make: Callable[..., Call] = Call
    ) -> None:
        """Send the requests that release grants, and add each to calls before.

        A request for one key releases one grant, never all: another thread of the owner may just have been granted one
        more. A release-many cannot be quiet.
        """
        if isinstance(held, Hold) or flags & w.QUIET:
            for key, fence in gone:
                calls.append(make(w.RELEASE, None, [(key, fence)]))
                self.send(calls[-1], key, held.owner, fence, flags)
        else:
            for entries in w.batches(gone, self.max_frame):
                calls.append(make(w.RELEASE_MANY, None, entries))
                self.send(calls[-1], entries, held.owner, flags)

    def note_quiet(self, hold: Hold) -> None:
        """Remember the hold of a quiet release, to report its failure. The caller has mu.

        Only the last ones are remembered.
        """
        if hold.on_lost or hold.groups:
            self._quiet_releases[hold.key, hold.owner, hold.fence] = hold
            if len(self._quiet_releases) > _MAX_QUIET:
                self._quiet_releases.pop(next(iter(self._quiet_releases)), None)

    def granted(self, c: Call) -> Any:
        """Return the result of an acquire: a hold, perhaps one of the same owner that came first; or Holds.

        None if another owner holds it; anything else is an error. LostError: the owner has lost the key meanwhile, and
        the caller must give the grant back.
        """
        code: int = c.reply[0]
        if code in (w.BUSY, w.TIMEOUT):
            return None
        if code != w.OK:
            raise error(code, w.text(c.reply))
        for hold in c.hold.each if c.hold is not None else ():
            self.owners.recheck(hold)
        return c.hold

    def withdraw(self, c: Call) -> None:
        """Withdraw an acquire at any point. If its grant crosses this, the grant is released."""
        if c.hold is None:
            return
        with self:
            with self._mu:
                c.abandoned = True
                granted = c.done and c.error is None and c.reply[0] == w.OK
            if self.dead is not None:
                for hold in c.hold.each:  # an interrupt may have cut the grant
                    self.count_down(hold, [])
            elif granted:
                self.give_back(c.hold)
            elif not c.done and c.id:
                self.send(self._cancel(c, c.hold), c.id, c.hold.each[0].key)

    def _cancel(self, c: Call, hold: Held) -> Call:
        cancel = self.new_call(w.CANCEL)
        cancel.target = c.id
        if isinstance(hold.each[0].who, int):  # other owners have a number of their own for each acquire
            with self._mu:
                self._cancels.update(((each.key, each.owner), cancel) for each in hold.each)
        return cancel

    def unsettled(self, hold: Held) -> Call | None:
        """Return an unanswered cancel of an acquire that hold's owner gave up, or None.

        The owner must not send another acquire before the answer: the first may still be granted, and would be
        re-entered.
        """
        if not self._cancels:
            return None
        with self._mu:
            found = [self._cancels.get((each.key, each.owner)) for each in hold.each]
        return next(filter(None, found), None)

    def give_back(self, held: Held) -> None:
        """Release one count without waiting for the answer."""
        self._send_back(held, self.count_down(held, []) or ())
        self.acknowledge(held)

    def _send_back(self, held: Held, gone: Entries) -> None:
        """Release grants without waiting for the answer. A lock with keep that its owner never got opens at once."""
        unwanted = w.NOW if isinstance(held, Hold) and held.keep and not held.taken else 0
        self._send_releases(held, gone, w.ASYNC | unwanted, [])

    def give_up(self, held: Held) -> None:
        """Release, without waiting for the answer, what is not valid, and what is left of several holds."""
        self.lapse(held.each, w.now())
        with self:
            self.give_back(held)

    def acknowledge(self, held: Held) -> None:
        """Report to the daemon each hold that was unlocked by force and that its owner has released completely.

        Until then the daemon keeps the key closed to others. It answers not_held, and no thread waits for that.
        """
        forced = list(filter(lambda hold: hold.lost == "forced" and hold.count <= 0, held.each))
        with contextlib.suppress(LockError):
            for hold in forced:
                self.send(Call(w.RELEASE), hold.key, hold.owner, hold.fence, w.ASYNC | w.ALL)

    def finish(self, held: Held, count: int, before: Before, calls: Sequence[Call]) -> None:
        """Finish a release that an interrupt has left at an unknown point, after it has sent some of calls."""
        with self._mu:
            if count > 1:
                held.count = count - 1
                return
            left = Counter(self._end(held, before or what(held)))
        self._expect_no_more(calls)
        for c in filter(lambda c: c.sent, calls):
            left.subtract(c.what or [(held.each[0].key, held.each[0].fence)])
        with contextlib.suppress(LockError):
            self._send_back(held, list(left.elements()))

    def _expect_no_more(self, calls: Sequence[Call]) -> None:
        """Forget the calls that an interrupt has left unsent: they are never answered."""
        unsent = [c.id for c in filter(lambda c: not c.sent, calls)]
        with self._mu:
            for number in unsent:
                self._pending.pop(number, None)

    # ---- replies and pushes ----

    def feed(self, data: bytes) -> None:
        """Handle every complete message of the data that was read. An error ends the connection."""
        self.heard = time.monotonic()
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
            if m[0] != w.OK:
                w.text(m)
                if m[0] == w.NOT_HELD and isinstance(c.hold, Hold) and not c.hold.over:
                    self._lose(c.hold, "gone")
                elif isinstance(c.hold, Hold) and c.shares:
                    c.hold.shared = False  # it was refused
            elif c.hold is not None:
                self._grant(c, c.hold, m)
            elif c.op == w.RELEASE_MANY:
                w.codes(m, len(c.what))
            else:
                w.numbers(m, 1)  # every other success that this client asks for begins with a number
            c.reply = m
            c.done = True
            c.wake()
            if c.target:  # a cancel: its target was answered before, or never arrived
                self._pending.pop(c.target, None)
                for entry in list(filter(lambda entry: entry[1] is c, self._cancels.items())):
                    del self._cancels[entry[0]]  # its owner may ask again
            self._pending.pop(m[1], None)  # last: until here c would end with the connection

    def _push(self, m: w.Message) -> None:
        if m[0] == w.KEEPALIVE:
            until = w.numbers(m, 2)[0] * w.MS + self._shift
            with self._mu:
                for hold in self._holds.values():
                    hold.state(until)
            if not self._late or self._late[-1] is not None:  # one ping answers all that were read together
                self._late.append(None)  # whatever the welcome said: a reload may require a heartbeat later
        elif m[0] == w.LOST:
            key = w.text(m)
            owner, fence, reason = w.numbers((0, 0, *m[3:6]), 3)
            with self._mu:
                found = self._holds.get((key, owner))
                if found is not None and found.fence == fence:
                    self._lose(found, REASONS.get(reason, f"reason {reason}"))
        elif m[0] == w.RELEASE_FAILED:
            key = w.text(m)
            owner, fence, code = w.numbers((0, 0, *m[3:6]), 3)
            why = LostError(key, fence, owner, "unconfirmed" if code == w.UNKNOWN else "gone")
            with self._mu:
                gone = self._quiet_releases.pop((key, owner, fence), None)
            if gone is None:
                log.warning("%s: a release that was not waited for has failed", why)
            else:
                self._notifier.lost(gone, why)
        elif m[0] == w.FATAL:
            raise ConnectionLost(str(error(w.numbers(m, 1)[0], w.text(m, 3))))

    def send_due(self) -> None:
        """Send everything that is due: the releases of unwanted grants, and pings."""
        while self._late:
            with self, contextlib.suppress(IndexError):  # another thread was quicker
                hold = self._late.popleft()
                if hold is None:
                    self.send(Call(w.PING))
                else:
                    self.give_back(hold)

    # ---- loss ----

    def lapse(self, holds: Iterable[Hold], now: int) -> None:
        """End the holds that are past their validity, and release them."""
        with self:
            with self._mu:
                lapsed = [(hold, self._lapse(hold, now)) for hold in holds]
            for hold, count in lapsed:  # otherwise the daemon would continue to renew them
                self._send_back(hold, [(hold.key, hold.fence)] * count)

    # ---- the end ----

    def die(self, why: LockError, *, quiet: bool = False) -> None:
        """End the connection: every call fails, every hold is lost. Idempotent; does not block."""
        self.fast = False
        if self.dead is None:
            self.quiet = quiet  # set by the first of several threads
            self.dead = why  # from here on nothing is owned, so that others may get the locks
        self.cut()
        with self._mu:
            for hold in list(self._holds.values()):
                self._lose(hold, "connection", self.quiet)
            calls = list(self._pending.values())
            self._pending.clear()
            self._cancels.clear()
            for c in calls:
                c.fail(self.gone())
                c.wake()

    # ``with`` is for steps that belong together: an interrupt of them ends the connection. A LockError ends only them.
    __enter__ = object.__hash__  # anything in C: no signal is handled in it

    def __exit__(self, _: object, e: BaseException | None, __: object) -> bool:
        if e is not None and not isinstance(e, LockError):
            self.interrupted(e)
        return isinstance(e, LockError)

    def interrupted(self, e: BaseException) -> None:
        """End the connection, because it is not known what is held on it."""
        self.die(ConnectionLost(f"interrupted by {type(e).__name__}"))

    def gone(self) -> LockError:
        """Make an error from the one that has ended the connection."""
        why = self.dead
        cls = type(why) if isinstance(why, (ProtocolError, Unavailable)) else ConnectionLost
        return cls(str(why))

    def forget(self) -> None:
        """Forget everything in a child process, which owns nothing here. Takes no lock."""
        self.fast = False
        self.dead = ConnectionLost("the connection belongs to the parent process")
        self._mu, self.owners = threading.Lock(), Owners()
        for hold in list(self._holds.values()):
            hold.lost, hold.over = "fork", True
        self._holds.clear()
        self._late.clear()
        self._pending.clear()
        self._cancels.clear()
