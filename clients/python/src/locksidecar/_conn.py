"""One connection to the daemon: requests, replies, pushes, and what is held on it.

Who reads. There is no dedicated reader: a thread that waits for its reply takes the *role* and reads
for everybody until it has it, then passes the role on. So a single caller sends and receives in
its own thread, without a switch to another one, which would cost more than the round trip. When
nobody waits, the keeper, a thread of the connection's own, notices that there is something to
read (beats, lost) and reads it. While callers keep reading, it only looks by every 10 ms.

Interrupts. A signal handler may raise between any two steps of the main thread. So what has to happen
together happens in one step of the interpreter (extend of a list from a map), or is undone or redone
by whoever sees the exception pass; where that cannot be known the connection ends, and with it
every hold: what is not known is not held. And no loop inside a ``with`` or ``try`` that guards something
ends in a condition: CPython 3.12 and 3.13 take signals at the jump back, which a conditional one
makes outside of the protection, so that the lock would stay taken (tests/test_interrupts.py looks).

Locks, in the order in which they may be taken: role, wlock, mu. None is held while something of the
user's runs; mu is not held during I/O.
"""

from __future__ import annotations

import _thread
import contextlib
import select
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

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

_TICK: Final = 0.01  # seconds between the keeper's looks while callers read
_STEP: Final = 1  # seconds after which a blocked read looks at its limit
_READ: Final = (65536,)  # arguments for map
_AT_ONCE: Final = (socket.MSG_DONTWAIT,)
_NOW: Final = (False,)


_open: Final[set[Conn]] = set()  # those that have a descriptor


class Conn:
    """A connected session. It lives once: after its end a new one is made."""

    def __init__(
        self, path: str, name: str, label: str, timeout: float, lost: Callable[[Hold, LostError], None]
    ) -> None:
        """Connect and say hello; OSError or LockError when that fails."""
        self.dead: LockError | None = None
        self.since = time.monotonic()
        self.max_frame = w.MAX_FRAME
        self.timeout = timeout
        self._lost = lost
        self._role = threading.Lock()
        self._wlock = threading.Lock()
        self._mu = threading.Lock()
        self._pending: dict[int, Call] = {}
        self._holds: dict[tuple[str, int], Hold] = {}
        self._late: deque[Hold] = deque()  # granted to nobody: to be released
        self._ids = 0
        self._turns = 0  # how often a caller has read
        self._inbox: list[bytes] = []  # read and not yet taken in
        self._rest = b""  # a message's beginning
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _open.add(self)
            self._hello(path, name, label)
        except BaseException:
            self._sock.close()
            _open.discard(self)
            raise

    def _hello(self, path: str, name: str, label: str) -> None:
        sock = self._sock
        limit = time.monotonic() + self.timeout
        sock.settimeout(self.timeout)
        sock.connect(path)
        t0 = w.now() // w.MS
        sock.sendall(w.frame(w.HELLO, 1, w.VERSION, w.VERSION, w.clip(name), w.clip(label)))
        data, message = b"", w.Message()
        while not message:
            sock.settimeout(max(0.001, limit - time.monotonic()))
            more = sock.recv(65536)
            if not more:
                raise ConnectionLost("the daemon closed the connection")
            data += more
            message, after = next(w.cut(data, self.max_frame), ((), 0))
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
        self._shift = w.shift(t0, clock, t1) * w.MS
        self._heartbeat = w.heartbeat(message)
        self._ids = 1
        sock.settimeout(None)
        seconds = struct.pack("ll", _STEP, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(1, int(self.timeout)), 0))

    def keep(self, client: weakref.ref[object], every: Callable[[], float]) -> None:
        """Start the keeper; every says after how many seconds it looks by at the latest."""
        _thread.start_new_thread(self._keep, (client, every))  # one step; Thread.start is many

    # ---- requests ----

    def call(self, op: int, *fields: object, hold: Hold | None = None) -> w.Message:
        """Send one request and return its reply; an error when there is none in time."""
        c = Call(op, hold)
        self.ask(c, *fields)
        return c.reply

    def ask(self, c: Call, *fields: object) -> None:
        """Send a request and wait for its reply."""
        self.send(c, *fields)
        if not self.wait(c, time.monotonic() + self.timeout):
            raise self.silent()

    def silent(self) -> Unavailable:
        """Make the error for an answer that did not come."""
        return Unavailable(f"the daemon has not answered for {self.timeout:g} s")

    def send(self, c: Call, *fields: object) -> None:
        """Send a request. Its frame is small, so that the kernel takes it whole or not at all."""
        with self._wlock:
            if self.dead is not None:
                raise self._gone()
            self._ids = c.id = self._ids + 1
            self._pending[c.id] = c
            data = w.frame(c.op, c.id, *fields)
            try:
                n = self._sock.send(data)
            except OSError as e:  # BlockingIOError too: the daemon does not read
                if e.errno is None:  # TimeoutError, say, of a signal handler
                    raise
                self.die(ConnectionLost(f"cannot write to the daemon: {e}"))
                raise self._gone() from None
            if n != len(data):
                self.die(ConnectionLost("cannot write to the daemon: a frame was cut"))
                raise self._gone()
            c.sent = True

    def wait(self, c: Call, limit: float | None) -> bool:
        """Wait until the reply is there; false when the monotonic clock has reached limit.

        Raises what the connection died of.
        """
        while not c.done:
            if self.dead is not None:
                raise self._gone()
            if limit is not None and time.monotonic() >= limit:
                return False
            if self._read_for(c, limit):
                continue
            if c.waiter is None:
                waiter = threading.Lock()
                waiter.acquire()
                c.waiter = waiter  # from here on whoever reads sees that we wait
            else:
                c.waiter.acquire(timeout=-1 if limit is None else max(0.0, limit - time.monotonic()))
        if c.error is not None:
            raise c.error
        return True

    def acquire(self, c: Call, hold: Hold, wait: int, ttl: int, flags: int, limit: float | None) -> Hold | None:
        """Ask with c for a hold and return it, or another one of the same owner that came first.

        None when it is held by somebody else; any other end is an error. An exception other than an
        answer leaves c to be withdrawn.
        """
        self.send(c, hold.key, hold.owner, 1 if hold.shared else 0, wait, ttl, flags)
        if not self.wait(c, limit):
            raise self.silent()
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
            self._interrupted(e)
            raise

    def adopt(self, hold: Hold, tell: Callable[[LostError], object] | None) -> bool:
        """Begin to tell of the hold's loss, as it is its owner's now; false when it is not valid."""
        if tell is None:
            return hold.owned()
        with self._mu:
            if not hold.owned():
                return False
            if tell not in hold.tell:
                hold.tell = (*hold.tell, tell)
            return True

    def reenter(self, hold: Hold) -> bool:
        """Deepen a hold that is valid; false when it is not."""
        with self._mu:
            if not hold.owned():
                return False
            hold.count += 1
            return True

    def find(self, key: str, owner: int) -> Hold | None:
        """Return the owner's hold, however it was acquired."""
        return self._holds.get((key, owner))

    def give_back(self, hold: Hold) -> None:
        """Release one grant of a hold without waiting for the answer."""
        with self._mu:
            if hold.over:
                return
            hold.grants -= 1
            hold.count = max(0, hold.count - 1)
            if hold.grants <= 0:
                self._drop(hold)
        self.send(Call(w.RELEASE), hold.key, hold.owner, hold.fence, w.ASYNC)

    def release(self, hold: Hold) -> w.Message:
        """Give up one count; for the last one return the daemon's answer, else nothing."""
        before, c = hold.count, Call(w.RELEASE)
        try:
            with self._mu:
                if hold.count > 1:
                    hold.count -= 1
                    return ()
                hold.count = 0
                self._drop(hold)
            self.ask(c, hold.key, hold.owner, hold.fence, 0)
            for _ in range(hold.grants - 1):  # any only if two threads asked as one owner at once
                c = Call(w.RELEASE)
                self.ask(c, hold.key, hold.owner, hold.fence, 0)
            return c.reply
        except LockError:
            raise
        except BaseException:
            self.finish(hold, before, c)
            raise

    def finish(self, hold: Hold, before: int, c: Call | None) -> None:
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

    def _drop(self, hold: Hold) -> None:
        """Take a hold out of the table; mu is held."""
        hold.over = True
        if self._holds.get((hold.key, hold.owner)) is hold:
            del self._holds[hold.key, hold.owner]

    # ---- reading ----

    def _read_for(self, c: Call, limit: float | None) -> bool:
        """Read until c is done, and then pass the role on; false when somebody else has it."""
        role: list[bool] = []
        try:
            role.extend(map(self._role.acquire, _NOW))
            if not role[0]:
                return False
            self._turns += 1
            self._read_until(c, limit)
            return True
        finally:
            if role and role[0]:
                self._role.release()
                if self._pending or self._late:
                    self._pass_on()

    def _read_until(self, c: Call, limit: float | None) -> None:
        """Read until c is done, or the monotonic clock has reached limit; the role is held."""
        inbox, recv = self._inbox, self._sock.recv
        while not c.done and self.dead is None:
            try:
                if not inbox:
                    inbox.extend(map(recv, _READ))
            except BlockingIOError:
                pass
            except OSError as e:
                if e.errno is None:  # TimeoutError, say, of a signal handler
                    raise
                self.die(ConnectionLost(f"cannot read from the daemon: {e}"))
            else:
                self._take_in()
            if limit is not None and time.monotonic() >= limit:
                return

    def catch_up(self) -> None:
        """Take in what has arrived, unless somebody is about to; does not block."""
        role: list[bool] = []
        try:
            role.extend(map(self._role.acquire, _NOW))
            if role[0]:
                self._read_some()
        finally:
            if role and role[0]:
                self._role.release()
                self._pass_on()

    def _read_some(self) -> None:
        """Read what is there; the role is held."""
        try:
            if not self._inbox:
                self._inbox.extend(map(self._sock.recv, _READ, _AT_ONCE))
        except BlockingIOError:
            return
        except OSError as e:
            if e.errno is None:
                raise
            self.die(ConnectionLost(f"cannot read from the daemon: {e}"))
        else:
            self._take_in()

    def _take_in(self) -> None:
        """Take in what was read; the role is held."""
        try:
            data = self._rest + b"".join(self._inbox) if self._rest or len(self._inbox) > 1 else self._inbox[0]
            closed = not self._inbox[-1]
            at = 0
            for message, after in w.cut(data, self.max_frame):
                self._apply(message)
                at = after
            self._rest = data[at:]
            self._inbox.clear()
            if closed:
                self.die(ConnectionLost("the daemon closed the connection"))
        except LockError as e:
            self.die(e)
        except BaseException as e:
            self._interrupted(e)
            raise

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

    def _grant(self, c: Call, hold: Hold, m: w.Message) -> None:
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
                with contextlib.suppress(LockError):  # whoever reads next sees it
                    self.send(Call(w.PING, None))
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

    def _lose(self, hold: Hold, reason: str, quiet: bool = False) -> None:
        """End a hold that was not released; mu is held."""
        hold.lost = "closed" if quiet else reason
        self._drop(hold)
        if hold.tell and not quiet:
            self._lost(hold, hold.loss(reason))

    def _pass_on(self) -> None:
        """Give the role to somebody who waits, and release what was granted to nobody."""
        while self._late:
            self._give_back_late()
        with self._mu:
            c = next(filter(Call.asleep, self._pending.values()), None)
            if c is not None:
                c.wake()

    def _give_back_late(self) -> None:
        try:
            self.give_back(self._late.popleft())
        except (LockError, IndexError):  # IndexError: somebody else was quicker
            pass
        except BaseException as e:
            self._interrupted(e)
            raise

    # ---- the keeper ----

    def _keep(self, client: weakref.ref[object], every: Callable[[], float]) -> None:
        poll = select.poll()
        with contextlib.suppress(ValueError):  # closed already
            poll.register(self._sock.fileno(), select.POLLIN)
        turns = -1
        while self.dead is None:
            if turns != self._turns:
                turns = self._turns
                time.sleep(_TICK)
                self._hush(poll)
                continue
            ready = poll.poll(max(0, self._soonest(every())) * 1000)
            if self.dead is not None:
                break
            if client() is None:
                self.die(ConnectionLost("the client is gone"))
            elif not ready:
                self._hush(poll)
            elif self._role.locked():
                time.sleep(_TICK)
            else:
                self.catch_up()
        if self.dead is not None:
            self.die(self.dead)  # once more, should the first have been interrupted
        self.shut()

    def _soonest(self, most: float) -> float:
        """Return the seconds until the first hold's stated validity is over, at most most."""
        with self._mu:
            first = min((h.valid for h in self._holds.values()), default=None)
        return most if first is None else min(most, (first - w.now()) / 1e9 + 0.001)

    def _hush(self, poll: select.poll) -> None:
        """End the holds whose stated validity is over, if the daemon has said nothing since."""
        now = w.now()
        with self._mu:
            silent = list(filter(lambda h: now >= h.valid, self._holds.values()))
        if silent and not self._inbox and not poll.poll(0):
            self.lapse(silent, now)

    def lapse(self, holds: list[Hold], now: int) -> None:
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
            self._interrupted(e)
            raise

    def _lapse(self, hold: Hold, now: int) -> int:
        """End a hold if it is past its validity, and return its grants; mu is held."""
        if hold.over or now < hold.valid:
            return 0
        self._lose(hold, "silence")
        return hold.grants

    def shut(self) -> None:
        """Close the descriptor once nobody uses it: its number may be another's then."""
        with self._role, self._wlock:
            self._sock.close()
        _open.discard(self)

    # ---- the end ----

    def die(self, why: LockError, *, quiet: bool = False) -> None:
        """End the connection: every call fails, every hold is lost. Idempotent; does not block."""
        if self.dead is None:
            self.dead = why  # from here on nothing is owned, so that others may be let in
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._mu:
            for hold in list(self._holds.values()):
                self._lose(hold, "connection", quiet)
            calls = list(self._pending.values())
            self._pending.clear()
            for c in calls:
                c.fail(self._gone())
        for c in calls:
            c.wake()

    def _interrupted(self, e: BaseException) -> None:
        """End the connection, since nobody can know what is held on it."""
        self.die(ConnectionLost(f"interrupted by {type(e).__name__}"))

    def _gone(self) -> LockError:
        """Make an error of our own from what the connection died of."""
        why = self.dead
        cls = type(why) if isinstance(why, (ProtocolError, Unavailable)) else ConnectionLost
        return cls(str(why))

    def forked(self) -> None:
        """Forget everything in a child process: nothing here is its own. Takes no lock."""
        self.dead = ConnectionLost("the connection belongs to the parent process")
        self._role, self._wlock, self._mu = threading.Lock(), threading.Lock(), threading.Lock()
        for hold in list(self._holds.values()):
            hold.lost, hold.over = "fork", True
        self._holds.clear()
        self._pending.clear()
        self._late.clear()
        self._sock.close()


def after_fork() -> None:
    """Part a child process from every connection of its parent, those still being made included."""
    for conn in list(_open):
        conn.forked()
    _open.clear()
