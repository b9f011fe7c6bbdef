"""One connection to the daemon on an event loop.

The transport reads, and every read is handled completely before another task runs. So no request is ever half sent or
half answered when a task is cancelled. A cancelled wait leaves a request of which the connection knows everything, so
that it can be withdrawn.

Each connection has one alarm for everything that depends on time: missing answers, and holds whose validity runs out.
It rarely rings, because a request costs a comparison and not a timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import time
import warnings
import weakref
from typing import Any, Final, cast

from msgpack import unpackb

from .. import _wire as w
from .._errors import ConnectionLost, LockError, Unavailable
from .._hold import Call, Entries, Hold, Holds
from .._session import Session, _open
from .._table import Notifier, Owners

_NOTHING: Final = asyncio.Protocol()
_parents: Final[list[Conn]] = []  # in a forked child; never closed, because the parent also uses the loop


class Asked(Call):
    """A request whose reply a task waits for."""

    future: asyncio.Future[None]
    limit = math.inf  # until when to wait, by the monotonic clock

    def wake(self) -> None:
        """Wake the task, if it still waits."""
        try:
            if not self.future.done():
                self.future.set_result(None)
        except RuntimeError:  # the loop was closed while the task waited
            pass


class Quick(Asked):
    """A request of the shortest path of Lock: an acquire with its hold, or a release without one."""

    def answer(self, m: w.Message, conn: Conn) -> bool:
        """Record the success that answers it; false if that takes more than is done here."""
        if self.op == w.ACQUIRE:
            hold, entries = self.hold, conn.owners._entries
            assert isinstance(hold, Hold)
            at = hold.key, hold.who
            mine = entries.get(at, ())
            if len(m) != 8 or len(mine) != 1 or mine[0] is not self:
                return False
            _, _, fence, _, valid, _, end, _ = m
            valid = valid * w.MS + conn._shift
            if end:
                hold.end = end * w.MS + conn._shift
                valid = min(valid, hold.end)
            hold.fence, hold.valid, hold.count, hold.grants = fence, valid, 1, 1
            conn._holds[hold.key, hold.owner] = hold
            entries[at] = (hold,)
        del conn._pending[self.id]
        conn.heard = time.monotonic()
        self.reply, self.done = m, True
        self.future.set_result(None)
        return True


class Receiver:
    """What the loop and its transport call. It does not keep the connection alive, which only the client does."""

    def __init__(self, conn: Conn) -> None:
        self._conn, self._loop, self._sock = weakref.ref(conn), conn.loop, conn._sock
        self.transport: asyncio.Transport | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn() or _NOTHING, name)

    def data_received(self, data: bytes) -> None:
        conn = self._conn()
        if conn is None:
            return
        # The common case is one answer to one request of a Lock.
        if conn.fast and not conn._rest and (w.GRANT(data) or w.RELEASED(data)) and len(data) == data[3] + 4:
            m = unpackb(data[4:])
            c = conn._pending.get(m[1])
            if isinstance(c, Quick) and not c.future.done() and c.answer(m, conn):
                return
        try:
            if not conn._welcome.done():
                if not conn.welcome(data):
                    return
                conn._welcome.set_result(None)
                data = b""
            conn.feed(data)
        except LockError as e:
            conn.die(e)
        except BaseException as e:
            conn.interrupted(e)
            raise
        conn.send_due()

    def ring(self) -> None:
        if (conn := self._conn()) is not None:
            conn._ring()

    def abandon(self) -> None:
        """End the connection of a client that was garbage collected, in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._abandon)
            return
        self._abandon()

    def _abandon(self) -> None:
        if self._sock.fileno() >= 0:
            warnings.warn("unclosed locksidecar.asyncio.Client", ResourceWarning, stacklevel=2)
        if (conn := self._conn()) is not None:
            conn.die(ConnectionLost("the client is gone"))
        elif self.transport is not None and not self._loop.is_closed():
            self.transport.abort()
        else:
            self._sock.close()


class Conn(Session):
    """A connected session, used on its loop alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float, notifier: Notifier, owners: Owners) -> None:
        super().__init__(timeout, notifier, owners)
        self.ended: asyncio.Future[None] = loop.create_future()  # the descriptor is closed
        self.loop = loop
        self.ready = False
        self._welcome: asyncio.Future[None] = loop.create_future()
        self._opening = False  # the transport is being made
        self._transport: Any = None  # an asyncio.Transport
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._stuck: asyncio.TimerHandle | None = None
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self.receiver = Receiver(self)
        _open.add(self)

    async def connect(self, path: str, name: str, label: str) -> None:
        """Connect and say hello; OSError or LockError when that fails."""
        alarm = self.loop.call_later(self.timeout, self.die, Unavailable(f"no welcome for {self.timeout:g} s"))
        try:
            while self.dead is None:
                try:
                    self._sock.connect(path)  # immediate on a Unix socket
                    break
                except BlockingIOError:  # the daemon's backlog is full
                    await asyncio.sleep(0.01)
            if self.dead is not None:
                raise self.gone()
            self._opening = True
            await self.loop.create_unix_connection(lambda: cast(asyncio.Protocol, self.receiver), sock=self._sock)
            self._opening = False
            if self.dead is not None:
                raise self.gone()
            self._write(self.hello(name, label))
            await self._welcome
        except BaseException as e:
            self._opening = False
            self.die(ConnectionLost(f"not connected: {type(e).__name__}"))
            self._sock.close()  # a transport of uvloop that was cancelled while it was made reports no end
            self._closed()
            if self._welcome.done() and not self._welcome.cancelled():
                self._welcome.exception()  # marks the exception as retrieved
            raise
        finally:
            alarm.cancel()
        self.ready, self.fast = True, self.dead is None

    # ---- requests ----

    def new_call(self, op: int, hold: Hold | Holds | None = None, what: Entries = ()) -> Asked:
        c = Asked(op, hold, what)
        c.future = self.loop.create_future()
        return c

    def send(self, c: Call, *fields: object) -> None:
        """Send a request. The rest that the kernel does not accept at once is sent later."""
        self._write(self.enter(c, fields))
        c.sent = True

    async def answered(self, c: Call, limit: float | None) -> None:
        assert isinstance(c, Asked)
        if not c.done:
            c.limit = math.inf if limit is None else limit
            self._arm(min(c.limit, time.monotonic() + self.timeout / 4))
            await c.future
        if c.error is not None:
            raise c.error
        if not c.done:
            raise self.silent()

    def expect(self, c: Asked, within: float | None) -> None:
        """Begin to wait for the reply; without bound, or for so many seconds."""
        at = time.monotonic()
        c.limit = math.inf if within is None else at + within
        soon = at + self.timeout / 4
        if soon < self._alarm_at:
            self._arm(soon)

    async def settled(self, hold: Hold | Holds, limit: float | None) -> None:
        while (cancel := self.unsettled(hold)) is not None:
            assert isinstance(cancel, Asked)
            await asyncio.wait([cancel.future], timeout=None if limit is None else max(0.0, limit - time.monotonic()))
            if not cancel.done:
                raise self.silent()

    def watch(self, hold: Hold | Holds) -> None:
        """Check the hold's validity from now on."""
        self._arm(time.monotonic() + min(self._notifier.every(), max(0.0, (hold.valid - w.now()) / 1e9) + 0.001))

    # ---- the transport ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # a transport of uvloop is one only by its methods
        self._transport = self.receiver.transport = cast(asyncio.Transport, transport)

    def eof_received(self) -> None:
        self.die(ConnectionLost("the daemon closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.die(ConnectionLost(f"the connection has ended: {exc}" if exc else "the connection has ended"))
        self._closed()

    def pause_writing(self) -> None:
        """Bound the time for which data is kept for a daemon that does not read."""
        self._stuck = self.loop.call_later(
            self.timeout, self.die, ConnectionLost("cannot write to the daemon: it does not read")
        )

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _write(self, data: bytes) -> None:
        self._transport.write(data)

    def catch_up(self) -> None:
        """Handle the data that has arrived while the loop was busy. Does not block."""
        if self.dead is not None or self._transport is None:
            return
        try:
            data = self._sock.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as e:
            self.die(ConnectionLost(f"cannot read from the daemon: {e}"))
            return
        if data:
            self.receiver.data_received(data)
        else:
            self.eof_received()

    # ---- the alarm ----

    def _arm(self, at: float) -> None:
        """Set the alarm to a time, unless it is set to an earlier one."""
        if at >= self._alarm_at or self.dead is not None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self.loop.call_later(max(0.0, at - time.monotonic()), self.receiver.ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        now = w.now()
        if self.stale(now):
            self.catch_up()  # data that has arrived counts
            self.lapse(self.stale(now), now)
        at, soonest = time.monotonic(), math.inf
        with self._mu:
            calls = list(self._pending.values())
        for c in calls:
            if isinstance(c, Asked):
                if c.limit <= at:
                    c.limit = math.inf
                    c.wake()
                if not c.future.done():
                    soonest = min(soonest, c.limit, at + self.step)
        if soonest < math.inf and self._stuck is None:  # a ping after data that the daemon has not read shows nothing
            self.listen(self.catch_up)
        if self._holds:
            soonest = min(soonest, at + max(0.0, self.soonest(self._notifier.every())))
        if soonest < math.inf:
            self._arm(soonest)

    # ---- the end ----

    def cut(self) -> None:
        """End the connection now, because the loop may not run for a long time."""
        if self._alarm is not None:
            self._alarm.cancel()
        self.resume_writing()
        closed = self.loop.is_closed()
        if not self._welcome.done() and not closed:
            self._welcome.set_exception(self.gone())
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._opening:  # connect closes it: an earlier abort on uvloop leaves the closed descriptor in _sock
            return
        if self._transport is not None and not closed:
            self._transport.abort()
        else:
            self._sock.close()
            self._closed()

    def _closed(self) -> None:
        _open.discard(self)
        if not self.ended.done() and not self.loop.is_closed():
            self.ended.set_result(None)

    def forked(self) -> None:
        """Detach a child process from the parent's connection. The loop, which both have, is left alone."""
        self.forget()
        fd = self._sock.detach()  # close would leave it open while uvloop counts on it
        if fd >= 0:
            os.close(fd)
        _parents.append(self)
