"""One connection to the daemon for threads: writing, reading, and the checks for silence.

Reading. There is no dedicated reader. A thread that waits for its reply takes the *role* and reads for all threads
until it has its reply, and then passes the role on. So a single caller sends and receives in its own thread, because a
switch to another thread would cost more than the round trip. If no thread waits, the keeper, a thread of the
connection, notices that there is something to read (keepalives, lost) and reads it. While callers keep reading, the
keeper only checks every 10 ms.

Cooperative sockets. Under gevent or eventlet a socket that would block runs other greenlets instead, and the kernel's
timeouts have no effect. There the client waits with select, which these libraries replace, too.

Interrupts. A signal handler may raise between any two steps of the main thread. So steps that belong together are one
step of the interpreter (extend of a list from a map), or the code that sees the exception undoes or repeats them. If it
cannot know what was done, the connection ends, and with it every hold: an unknown hold is not held. Also, no loop
inside a ``with`` or ``try`` that guards something ends in a condition. CPython 3.12 and 3.13 handle signals at the jump
back. With a condition, that jump is outside of the protection, and the lock would stay held (see
tests/test_interrupts.py).

One gap is left: an interrupt at the very start of __exit__, before its try, leaves the lock held until it is released
again. Python handles signals when a function begins, and no try of the function covers that step. Nothing else sees the
exception, because ``with`` calls __exit__ once. Only an __exit__ in C has no such step. A record of each scope, which
later calls could repair, would make every ``with`` slower.

Locks, in the order in which they may be taken: role, wlock, mu. None is held while code of the user runs. mu is not
held during I/O.
"""

from __future__ import annotations

import _socket
import _thread
import contextlib
import select
import socket
import struct
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Final

from . import _wire as w
from ._errors import ConnectionLost, LockError, Unavailable, Unsupported
from ._hold import Call, Hold, Holds
from ._session import Session, _open
from ._table import Notifier, Owners

_TICK: Final = 0.01  # seconds between two checks of what nothing wakes a thread for
READ: Final = (65536,)  # arguments for map
_AT_ONCE: Final = (socket.MSG_DONTWAIT,)
_WHOLE: Final = 16384  # bytes of a frame that the kernel takes whole or not at all


class Role(dict[int, object]):
    """The role of the thread that reads. The only entry is a mark of the request for which it reads.

    setdefault takes the role if it is free. Unlike the acquire of a lock, it leaves a trace of its taker, so an
    interrupt just afterwards does no harm. It is given up without a call, because that is where an interrupt may come;
    only a thread that has not taken it calls __missing__.
    """

    def __enter__(self) -> None:
        me = object()
        while self.setdefault(0, me) is not me:
            time.sleep(_TICK)

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __missing__(self, _: int) -> None:
        """Return None while the role is free."""


class Conn(Session):
    """A connected session."""

    def __init__(self, timeout: float, notifier: Notifier, owners: Owners) -> None:
        super().__init__(timeout, notifier, owners)
        self._cooperative = socket.socket.recv is not _socket.socket.recv
        if self._cooperative and not hasattr(select, "poll"):
            raise Unsupported("eventlet is not supported; of cooperative sockets, only gevent's are")
        self._role = Role()
        self._wlock = threading.Lock()
        self._turns = 0  # how often a caller has read
        self._inbox: list[bytes] = []  # data that was read and is not handled yet
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _open.add(self)

    def connect(self, path: str, name: str, label: str) -> None:
        """Connect and say hello; OSError or LockError when that fails."""
        sock = self._sock
        limit = time.monotonic() + self.timeout
        sock.settimeout(self.timeout)
        sock.connect(path)
        sock.sendall(self.hello(name, label))
        data = b""
        while not self.welcome(data):
            sock.settimeout(max(0.001, limit - time.monotonic()))
            data = sock.recv(65536)
            if not data:
                raise ConnectionLost("the daemon closed the connection")
        if self._cooperative:
            sock.settimeout(self.timeout)  # for writes: reads wait in _readable
            return
        self.fast = True
        sock.settimeout(None)
        step = struct.pack("ll", int(self.step), max(1, int(self.step % 1 * 1e6)))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, step)  # after it a blocked read checks its limit
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(1, int(self.timeout)), 0))

    def keep(self) -> None:
        """Start the keeper."""
        try:
            # one step; Thread.start is many
            _thread.start_new_thread(self._keep, (weakref.ref(self), self._sock, self._notifier.every))
        except RuntimeError as e:  # no more threads, or the interpreter shuts down
            raise Unavailable(f"cannot start the thread that watches the connection: {e}") from None

    # ---- requests ----

    def send(self, c: Call, *fields: object) -> None:
        """Send a request."""
        with self._wlock:
            data = self.enter(c, fields)
            try:
                n = self._sock.send(data) if len(data) <= _WHOLE else self._send_parts(data)
            except OSError as e:
                self.failed(e, c)
                raise self.gone() from None
            if n != len(data):
                self.die(ConnectionLost("cannot write to the daemon: a frame was cut"))
                raise self.gone()
            c.sent = True

    def failed(self, e: OSError, c: Call | None = None) -> None:
        """End the connection after an error of the socket, while c was sent, or something was read.

        Raises e if it is not an error of the socket. If there was nothing to read yet, the connection lasts.
        """
        if e.errno is None and not self._cooperative:  # TimeoutError, say, of a signal handler
            raise e
        if c is not None and not c.sent:  # BlockingIOError too: the daemon does not read
            self.die(ConnectionLost(f"cannot write to the daemon: {e}"))
        elif not isinstance(e, BlockingIOError):
            self.die(ConnectionLost(f"cannot read from the daemon: {e}"))

    def _send_parts(self, data: bytes) -> int:
        """Send a frame that the kernel may accept in parts. An exception in between ends the connection."""
        try:
            self._sock.sendall(data)
        except BaseException as e:
            self.die(ConnectionLost(f"cannot write to the daemon: {e or type(e).__name__}"))
            raise
        return len(data)

    async def answered(self, c: Call, limit: float | None) -> None:
        while not c.done:
            if self.dead is not None:
                raise self.gone()
            if limit is not None and time.monotonic() >= limit:
                raise self.silent()
            if self._read_as(c, self._read_until, c, limit):
                continue
            if c.waiter is None:
                waiter = threading.Lock()
                waiter.acquire()
                c.waiter = waiter  # from here on, the thread that reads knows of this one
            else:
                c.waiter.acquire(timeout=-1 if limit is None else max(0.0, limit - time.monotonic()))
        if c.error is not None:
            raise c.error

    async def settled(self, hold: Hold | Holds, limit: float | None) -> None:
        while self.dead is None and (cancel := self.unsettled(hold)) is not None:
            if limit is not None and time.monotonic() >= limit:
                raise self.silent()
            with contextlib.suppress(Unavailable):
                # not longer: an answer wakes only one of its waiters
                await self.answered(cancel, time.monotonic() + _TICK)
        self.send_due()

    # ---- reading ----

    def _read_as(self, me: object, read: Callable[..., None], *more: Any) -> bool:
        """Take the role, read, and then pass the role on; false if another thread has the role."""
        role = self._role
        try:
            if role.setdefault(0, me) is not me:
                return False
            read(*more)
            return True
        finally:
            if role[0] is me:
                del role[0]
                if self._pending or self._late:
                    self._pass_on()

    def _read_until(self, c: Call, limit: float | None) -> None:
        """Read until c is done, or the monotonic clock has reached limit. The caller has the role."""
        self._turns += 1
        inbox, recv = self._inbox, self._sock.recv
        while not c.done and self.dead is None:
            try:
                if not inbox and (not self._cooperative or self._readable(self._patience(limit))):
                    inbox.extend(map(recv, READ))
            except OSError as e:
                self.failed(e)
            if inbox:
                self._take_in()
            else:
                self.listen(self._read_some)
            if limit is not None and time.monotonic() >= limit:
                return
            if self._late:
                self.send_due()

    def _patience(self, limit: float | None) -> float:
        """Return the seconds to wait for something to read before limit is checked again."""
        return self.step if limit is None else max(0.0, min(self.step, limit - time.monotonic()))

    def _readable(self, seconds: float) -> bool:
        """Wait until there is something to read. Other greenlets can run meanwhile."""
        if self.dead is not None:
            return False
        poll = select.poll()
        with contextlib.suppress(ValueError):  # closed already
            poll.register(self._sock.fileno(), select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def catch_up(self) -> None:
        """Handle the data that has arrived, unless another thread is about to. Does not block."""
        self._read_as(object(), self._read_some)

    def _read_some(self) -> None:
        """Read the data that has arrived. The caller has the role."""
        try:
            if not self._inbox:
                if self._cooperative and not self._readable(0):
                    return
                self._inbox.extend(map(self._sock.recv, READ, _AT_ONCE))
        except OSError as e:
            self.failed(e)
        else:
            self._take_in()

    def _take_in(self) -> None:
        """Handle the data that was read. The caller has the role."""
        try:
            data = b"".join(self._inbox) if len(self._inbox) > 1 else self._inbox[0]
            closed = not self._inbox[-1]
            self.feed(data)
            self._inbox.clear()
            if closed:
                self.die(ConnectionLost("the daemon closed the connection"))
        except LockError as e:
            self.die(e)
        except BaseException as e:
            self.interrupted(e)
            raise

    def _pass_on(self) -> None:
        """Pass the role to a waiting thread, and send what is due."""
        self.send_due()
        with self._mu:
            c = next(filter(Call.asleep, self._pending.values()), None)
            if c is not None:
                c.wake()

    # ---- the keeper ----

    @staticmethod
    def _keep(this: weakref.ref[Conn], sock: socket.socket, every: Callable[[], float]) -> None:
        poll = select.poll()
        with contextlib.suppress(ValueError):  # closed already
            poll.register(sock.fileno(), select.POLLIN)
        turns = -1
        while (conn := this()) is not None and conn.dead is None:
            if turns != conn._turns:
                turns = conn._turns
                time.sleep(_TICK)
                conn._end_silent(poll)
                continue
            pause = max(0, conn.soonest(every())) * 1000
            conn = None  # only the client keeps it alive
            ready = poll.poll(pause)
            if (conn := this()) is None or conn.dead is not None:
                break
            if not ready:
                conn._end_silent(poll)
            elif conn._role:
                time.sleep(_TICK)
            else:
                conn.catch_up()
        if conn is None:
            sock.close()
            return
        if conn.dead is not None:
            conn.die(conn.dead)  # once more, in case the first call was interrupted
        conn.shut()

    def _end_silent(self, poll: select.poll) -> None:
        """End the holds whose stated validity is over, if the daemon has said nothing since."""
        now = w.now()
        silent = self.stale(now)
        if silent and not self._inbox and not poll.poll(0):
            self.lapse(silent, now)

    # ---- the end ----

    @staticmethod
    def discard(sock: socket.socket, path: str) -> None:
        """End the connection of a client that was garbage collected.

        This may run at any point of any thread, so it takes no lock: it only wakes the keeper.
        """
        if sock.fileno() >= 0:
            warnings.warn(f"unclosed locksidecar.Client of {path}", ResourceWarning, stacklevel=2)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End the connection, also for threads that read or write."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def shut(self) -> None:
        """Close the descriptor once no thread uses it. Before that, its number could be reused."""
        with self._role, self._wlock:
            self._sock.close()
        _open.discard(self)

    def forked(self) -> None:
        self._role, self._wlock = Role(), threading.Lock()
        self.forget()
        self._sock.close()
