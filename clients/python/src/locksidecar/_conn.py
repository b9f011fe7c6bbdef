"""One connection to the daemon: requests, replies, pushes, and what is held on it.

Who reads. There is no dedicated reader: a thread that waits for its reply takes the *role* and reads
for everybody until it has it, then passes the role on. So a single caller sends and receives in
its own thread, without a switch to another one, which would cost more than the round trip. When
nobody waits, the keeper, a thread of the connection's own, notices that there is something to
read (beats, lost) and reads it. While callers keep reading, it only looks by every 10 ms.

Interrupts. A signal handler may raise between any two steps of the main thread. So what has to happen
together happens in one step of the interpreter (extend of a list from a map), or is undone or redone
by whoever sees the exception pass; where that cannot be known the connection ends, and with it
every hold: what is not known is not held.

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
from ._errors import BUSY, OK, REASONS, TIMEOUT, ConnectionLost, LockError, LostError, ProtocolError, Unavailable, error

_TICK: Final = 0.01  # seconds between the keeper's looks while callers read
_STEP: Final = 1  # seconds after which a blocked read looks at its limit
_READ: Final = (65536,)  # arguments for map
_NOW: Final = (False,)


class Hold:
    """One owner's grip on one key. Its fields are guarded by the connection's mu."""

    # fmt: off
    __slots__ = (
        "conn", "count", "end", "fence", "grants", "key", "lost", "on_lost", "over", "owner", "shared", "valid",
    )
    # fmt: on

    def __init__(
        self, conn: Conn, key: str, owner: int, shared: bool, on_lost: Callable[[LostError], object] | None
    ) -> None:
        self.conn = conn
        self.key = key
        self.owner = owner
        self.shared = shared
        self.on_lost = on_lost
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

    def owned(self) -> bool:
        """Tell whether the hold is valid at this very moment."""
        return not self.over and w.now() < self.valid


class Call:
    """One request in flight."""

    __slots__ = ("abandoned", "done", "error", "hold", "id", "op", "reply", "sent", "target", "waiter")

    def __init__(self, op: int, hold: Hold | None = None, target: int = 0) -> None:
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

    def wake(self) -> None:
        """Wake the caller, should it be asleep."""
        if (waiter := self.waiter) is not None:
            with contextlib.suppress(RuntimeError):  # it is awake already
                waiter.release()


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
            self._hello(path, name, label)
        except BaseException:
            self._sock.close()
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
        self.send(c, *fields)
        if not self.wait(c, time.monotonic() + self.timeout):
            raise self.silent()
        return c.reply

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
        with self._mu:
            c.abandoned = True
            granted = c.done and c.error is None and c.reply[0] == OK
        hold = c.hold
        if hold is None or self.dead is not None:
            return
        with contextlib.suppress(LockError):
            if granted:
                self.give_back(hold)
            elif not c.done and c.id:
                self.send(Call(w.CANCEL, target=c.id), c.id, hold.key)

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
            for n in range(hold.grants):  # more than one only if two threads asked as one owner at once
                c = Call(w.RELEASE) if n else c
                self.send(c, hold.key, hold.owner, hold.fence, 0)
                if not self.wait(c, time.monotonic() + self.timeout):
                    raise self.silent()
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
            inbox, recv = self._inbox, self._sock.recv
            while not c.done and self.dead is None:
                try:
                    if not inbox:
                        inbox.extend(map(recv, _READ))
                except BlockingIOError:
                    if limit is not None and time.monotonic() >= limit:
                        break
                    continue
                except OSError as e:
                    if e.errno is None:  # TimeoutError, say, of a signal handler
                        raise
                    self.die(ConnectionLost(f"cannot read from the daemon: {e}"))
                    break
                self._take_in()
            return True
        finally:
            if role and role[0]:
                self._role.release()
                if self._pending or self._late:
                    self._pass_on()

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
            self.die(ConnectionLost(f"interrupted while reading: {type(e).__name__}"))
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

    def _lose(self, hold: Hold, reason: str) -> None:
        """End a hold that was not released; mu is held."""
        hold.lost = reason
        self._drop(hold)
        self._lost(hold, LostError(hold.key, hold.fence, hold.owner, reason))

    def _pass_on(self) -> None:
        """Give the role to somebody who waits, and release what was granted to nobody."""
        with contextlib.suppress(LockError):
            while self._late:
                hold = self._late.popleft()
                if hold.over:
                    continue
                self.give_back(hold)
        with self._mu:
            for c in self._pending.values():
                if c.waiter is not None and not c.done and not c.abandoned:
                    c.wake()
                    return

    # ---- the keeper ----

    def _keep(self, client: weakref.ref[object], every: Callable[[], float]) -> None:
        poll = select.poll()
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
            elif self._role.acquire(blocking=False):
                self._read_some()
            else:
                time.sleep(_TICK)
        if self.dead is not None:
            self.die(self.dead)  # once more, should the first have been interrupted
        self._shut()

    def _soonest(self, most: float) -> float:
        """Return the seconds until the first hold's stated validity is over, at most most."""
        with self._mu:
            first = min((h.valid for h in self._holds.values()), default=None)
        return most if first is None else min(most, (first - w.now()) / 1e9 + 0.001)

    def _hush(self, poll: select.poll) -> None:
        """End the holds whose stated validity is over, if the daemon has said nothing since."""
        now = w.now()
        with self._mu:
            silent = [h for h in self._holds.values() if now >= h.valid]
        if silent and not self._inbox and not poll.poll(0):
            self.lapse(silent, now)

    def lapse(self, holds: list[Hold], now: int) -> None:
        """End those of the holds that are past their validity, and release them."""
        grants: list[tuple[Hold, int]] = []
        with self._mu:
            for hold in holds:
                if not hold.over and now >= hold.valid:
                    grants.append((hold, hold.grants))
                    self._lose(hold, "silence")
        with contextlib.suppress(LockError):
            for hold, count in grants:
                for _ in range(count):
                    self.send(Call(w.RELEASE), hold.key, hold.owner, hold.fence, w.ASYNC)

    def _read_some(self) -> None:
        """Read what is there, having the role, then pass the role on."""
        try:
            self._inbox.append(self._sock.recv(65536, socket.MSG_DONTWAIT))
            self._take_in()
        except BlockingIOError:
            pass
        except OSError as e:
            self.die(ConnectionLost(f"cannot read from the daemon: {e}"))
        finally:
            self._role.release()
            self._pass_on()

    def _shut(self) -> None:
        """Close the descriptor once nobody uses it: its number may be another's then."""
        with self._role, self._wlock:
            self._sock.close()

    # ---- the end ----

    def die(self, why: LockError, *, quiet: bool = False) -> None:
        """End the connection: every call fails, every hold is lost. Idempotent; does not block."""
        if self.dead is None:
            self.dead = why
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._mu:
            holds = list(self._holds.values())
            for hold in holds:
                if quiet:
                    hold.lost = "closed"
                    self._drop(hold)
                else:
                    self._lose(hold, "connection")
            calls = list(self._pending.values())
            self._pending.clear()
            for c in calls:
                if not c.done:
                    c.error = self._gone()
                    c.done = True
        for c in calls:
            c.wake()

    def _gone(self) -> LockError:
        """Make an error of our own from what the connection died of."""
        why = self.dead
        cls = type(why) if isinstance(why, (ProtocolError, Unavailable)) else ConnectionLost
        return cls(str(why))

    def forked(self) -> None:
        """Forget everything in a child process: nothing here is its own. Takes no lock."""
        self.dead = ConnectionLost("the connection belongs to the parent process")
        for hold in list(self._holds.values()):
            hold.lost, hold.over = "fork", True
        self._sock.close()
