"""The client on an event loop: one connection to the daemon, made when it is needed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, NoReturn

from .. import _wire as w
from .._errors import OK, ConnectionLost, LockError, LostError, Unavailable, error
from .._handle import Owner
from .._hold import OWN, Hold, Note
from .._path import socket_path, unreachable
from .._table import Owners
from .._trace import Trace, current, nowhere
from ._campaign import Elected
from ._campaign import Lost as TermLost
from ._conn import Conn, after_fork
from ._election import Election
from ._lock import Lock
from ._locks import Locks
from ._semaphore import Semaphore

_log: Final = logging.getLogger("locksidecar")
_clients: Final[weakref.WeakSet[Client]] = weakref.WeakSet()


class Client:
    """A connection to the daemon on this host, for any number of tasks of one event loop.

    It connects when it is first needed, and again after the daemon has restarted. It belongs to
    the loop on which it is first used, until that is closed; on another one everything is a
    RuntimeError. All times are in seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        name: str | None = None,
        *,
        label: str = "",
        timeout: float = 5.0,
        trace: Trace | None = current,
    ) -> None:
        """Set the daemon's socket, and the name of this client in the daemon's lists. Needs no running loop.

        path: by default LOCKSIDECAR_SOCKET, or else the daemon's default path.
        name, label: names for people; by default the program's name.
        timeout: how long the daemon may take to answer, in addition to the wait of an acquire.
        trace: a function that returns the traceparent (W3C Trace Context) of an acquire, or None. The acquiring task
        calls it for each acquire. By default it returns OpenTelemetry's current span, if the program uses that. With
        trace=None no acquire has a traceparent.
        """
        if not timeout > 0:
            raise ValueError("timeout must be positive")
        w.check_unit(timeout, "timeout")
        self._path = socket_path(path)
        self._name = w.program(name)
        self._label = label
        self._timeout = timeout
        self._trace: Trace = trace or nowhere
        self._owners = itertools.count(OWN)
        # ends the connection when the client is garbage collected
        self._forgotten: weakref.finalize[[Conn], Client] | None = None
        self._reset()
        self._closed = False
        _clients.add(self)

    def _reset(self) -> None:
        """Start with nothing, also in a new process. Nothing of the old process is used, in particular no locks."""
        self._mu = threading.Lock()  # guards the first use
        self._loop: asyncio.AbstractEventLoop | None = None
        self._conn: Conn | None = None
        self._known = Owners()
        self._failed: tuple[float, LockError] = (-math.inf, Unavailable())
        if self._forgotten is not None:
            self._forgotten.detach()

    def lock(
        self,
        key: str,
        ttl: float | None = None,
        renew: bool = True,
        shared: bool = False,
        *,
        timeout: float = -1,
        owner: Owner = None,
        on_lost: Callable[[LostError], object] | None = None,
    ) -> Lock:
        """Return a handle for a lock. Nothing is acquired yet, and nothing is sent.

        ttl: the length of the lease; by default the daemon's.
        renew: the daemon keeps the lock until release or the end of this process. With False, the lock ends by itself
        after ttl, unless it is extended.
        shared: other shared holders may hold the lock at the same time.
        timeout: how long ``async with`` waits; -1 without bound.
        owner: by default the handle and the task together are the owner. "handle": the handle alone, for a lock that
        another task releases. A number below 2**32: all handles of the client with this number.
        on_lost: called with a LostError, on the loop, when the lock is lost. If it is a coroutine function, it runs as
        a task of the client.
        """
        return Lock(self, key, ttl, renew, shared, timeout, owner, on_lost)

    def lock_many(
        self,
        keys: Iterable[str],
        ttl: float | None = None,
        renew: bool = True,
        shared: bool = False,
        *,
        timeout: float = -1,
        owner: Owner = None,
        on_lost: Callable[[LostError], object] | None = None,
    ) -> Locks:
        """Return a handle for several locks, which are acquired together: all or none.

        keys: 1 to 1,024 different keys; Invalid otherwise. Their order does not matter: no two callers ever wait for
        each other.
        on_lost: called once, with the LostError of the first lock that is lost.

        The rest is as for lock.
        """
        return Locks(self, keys, ttl, renew, shared, timeout, owner, on_lost)

    def semaphore(
        self,
        key: str,
        permits: int,
        ttl: float | None = None,
        renew: bool = True,
        *,
        timeout: float = -1,
        owner: Owner = None,
        on_lost: Callable[[LostError], object] | None = None,
    ) -> Semaphore:
        """Return a handle for a semaphore with so many permits, which are counted over all hosts.

        permits: 1 to 10,000; Invalid otherwise. All users of the semaphore must give the same number.
        owner: "handle", or a number below 2**32, for permits that pass between tasks: every user of this handle can
        release the newest permit. By default each task has its own permits.
        on_lost: called for each permit that is lost. The client chooses the number of its owner.

        The rest is as for lock. A semaphore and a lock of the same key are independent. An acquire raises Unsupported
        if the store has no semaphores.
        """
        return Semaphore(self, key, permits, ttl, renew, False, timeout, owner, on_lost)

    def election(
        self,
        key: str,
        on_elected: Elected,
        on_lost: TermLost,
        *,
        ttl: float | None = None,
        cancel: bool = True,
    ) -> Election:
        """Return a candidate for leadership. Nothing is sent yet: start, run or ``async with`` begin its campaign.

        on_elected: called with each term that begins; see Election.
        on_lost: called once for each term when it is over, with the term and a reason.
        ttl: the length of the lease; by default the daemon's. It bounds the time without a leader after the leader's
        host has failed. If only the leader's process has ended, the lock is released at once.
        cancel: on_elected's task is cancelled when its term is over.
        """
        return Election(self, key, on_elected, on_lost, ttl, cancel)

    async def ping(self) -> float:
        """Ping the daemon, and return how long the answer took."""
        start = time.monotonic()
        await self._ask(w.PING)
        return time.monotonic() - start

    async def close(self) -> None:
        """End the connection: the daemon releases everything that is held on it. Idempotent.

        Waiting requests fail with ConnectionLost. The call's first step releases, and a cancellation does not undo
        that.
        """
        if self._loop is not None:
            self._here()
        self._closed = True
        if self._loop is None:
            return
        conn = self._conn
        if conn is not None:
            conn.die(ConnectionLost("the client is closed"), quiet=True)
            if not conn.ended.done():
                await asyncio.wait([conn.ended])  # not cancelled together with this task
        await self._notifier.stop()

    aclose = close

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Client cannot be copied or sent to another process: make one there")

    def _here(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, which must be the client's."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._move(loop)
        return loop

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._mu:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("this client belongs to another event loop; each loop needs a client of its own")
            self._orphaned()
            self._loop = loop
            self._notifier = _Notifier(loop)
            self._connecting = asyncio.Lock()
            self._failed = (-math.inf, Unavailable())

    async def _ask(self, op: int, *fields: object) -> w.Message:
        try:
            reply = await (await self._connect(time.monotonic())).call(op, *fields)
        except ConnectionLost:  # perhaps this task was the first to notice; nothing has changed, so ask again
            reply = await (await self._connect(time.monotonic())).call(op, *fields)
        if reply[0] != OK:
            raise error(reply[0], w.text(reply))
        return reply

    def _orphaned(self) -> None:
        """End the connection of a loop that was closed before it."""
        if self._conn is not None:
            self._conn.die(ConnectionLost("the event loop was closed"), quiet=True)

    def _live(self) -> Conn | None:
        conn = self._conn
        return conn if conn is not None and conn.ready and conn.dead is None else None

    async def _connect(self, until: float) -> Conn:
        """Return the connection, and make one if necessary. Attempts end at the time until of the monotonic clock.

        One task makes it while the others wait for their turn. So if any of them is cancelled, the others still have a
        working client, and no task is left behind.
        """
        self._here()
        if (conn := self._live()) is not None:
            return conn
        start = time.monotonic()
        async with self._connecting:
            pause = 0.01
            while True:
                if self._closed:
                    raise ConnectionLost("the client is closed")
                if (conn := self._live()) is not None:
                    return conn
                failed, why = self._failed
                if failed < start:
                    try:
                        return await self._dial()
                    except (OSError, LockError) as e:
                        why = unreachable(self._path, e)
                        self._failed = time.monotonic(), why
                        if self._closed:
                            continue
                if not isinstance(why, Unavailable) or time.monotonic() + pause >= until:
                    raise type(why)(*why.args)
                start = time.monotonic()
                await asyncio.sleep(pause * random.uniform(0.5, 1))
                pause = min(0.25, 2 * pause)

    async def _dial(self) -> Conn:
        conn = Conn(self._here(), self._timeout, self._notifier.lost, self._known, self._notifier.every)
        self._conn = conn
        if self._forgotten is not None:
            self._forgotten.detach()
        self._forgotten = weakref.finalize(self, _abandon, conn)
        self._forgotten.atexit = False
        await conn.connect(self._path, self._name, self._label)
        return conn


def _abandon(conn: Conn) -> None:
    """End the connection of a client that was garbage collected, in any thread."""
    try:
        conn.loop.call_soon_threadsafe(conn.abandon)
    except RuntimeError:  # the loop is closed
        conn.abandon()


class _Notifier:
    """Reports lost locks, on the loop. A report that is a coroutine runs as a task."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.needed = False  # there is a report to make for a loss

    def every(self) -> float:
        """Return after how many seconds a connection checks for holds whose validity has run out."""
        return 1.0 if self.needed else 10.0

    def lost(self, hold: Hold[Any], why: LostError, quiet: bool) -> None:
        """Record a loss; quiet if this client itself has ended the connection."""
        for tell in hold.tell:
            if isinstance(tell, Note):
                tell(why)
            elif not quiet:
                self._loop.call_soon(self._tell, tell, why)

    def _tell(self, tell: Callable[[LostError], object], why: LostError) -> None:
        try:
            told = tell(why)
            if isinstance(told, Coroutine):
                task = self._loop.create_task(self._run(told, why))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception:
            _log.exception("on_lost failed for lock %r", why.key)

    @staticmethod
    async def _run(told: Awaitable[object], why: LostError) -> None:
        try:
            await told
        except Exception:
            _log.exception("on_lost failed for lock %r", why.key)

    async def stop(self) -> None:
        """Cancel the tasks that still run, except the caller's own, and wait for them."""
        left = self._tasks - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


def _after_fork() -> None:
    """Forget, in a child process, everything that belongs to the parent."""
    after_fork()
    for client in list(_clients):
        client._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
