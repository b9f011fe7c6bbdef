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
        """Name the daemon's socket, and who we are in its lists. Needs no running loop.

        path: by default LOCKSIDECAR_SOCKET, else where the daemon listens by default.
        name, label: who connects, for people; by default the program's name.
        timeout: how long the daemon may take to answer, beyond any wait that was asked for.
        trace: returns the traceparent (W3C Trace Context) under which an acquire stands, or None; asked by whoever
            acquires, at each. By default that of OpenTelemetry's current span, if the program uses it; trace=None says
            nothing.
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
        self._forgotten: weakref.finalize[[Conn], Client] | None = None  # ends the connection when we are thrown away
        self._reset()
        self._closed = False
        _clients.add(self)

    def _reset(self) -> None:
        """Begin anew, in a new process too: nothing of the old is used, its locks least of all."""
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
        renew: the daemon keeps the lock until release or the end of this process; without, it ends
            by itself after ttl, unless it is extended.
        shared: together with other shared holders.
        timeout: how long ``async with`` waits; -1 without bound.
        owner: by default the handle and the task together are the owner. "handle": the handle alone, for a lock
            that another task releases. A number below 2**32: all handles of the client with this number.
        on_lost: called with a LostError, on the loop, when the lock is lost. May be a coroutine
            function; it then runs as a task of the client's.
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

        keys: 1 to 1,024, none twice; Invalid otherwise. In whichever order they are named, no two
            callers wait for each other for ever.
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
        """Return a handle for a semaphore, of which so many permits are held at a time, on all hosts together.

        permits: 1 to 10,000; Invalid otherwise. Everybody has to say the same number.
        owner: a number below 2**32 for permits that pass between tasks: whoever uses this handle gives back the
            newest. By default a task has its own.
        on_lost: called for each permit that is lost. Its owner is a number of the client's.

        The rest is as for lock. A semaphore and a lock of the same key have nothing to do with each
        other. Unsupported, when it is acquired, where the store has none.
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
        on_lost: called with the term and a reason once for each of them, when it is over.
        ttl: the length of the lease; by default the daemon's. It bounds for how long nobody leads after the leader's
            host has gone; that of a leader whose process has ended is given up at once.
        cancel: on_elected's task is cancelled when its term is over.
        """
        return Election(self, key, on_elected, on_lost, ttl, cancel)

    async def ping(self) -> float:
        """Ask the daemon for a sign of life and return how long it took."""
        start = time.monotonic()
        await self._ask(w.PING)
        return time.monotonic() - start

    async def close(self) -> None:
        """End the connection: the daemon releases everything that is held on it. Idempotent.

        What waits fails with ConnectionLost. The release is made by the call's first step, and not
        undone when it is cancelled.
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
                await asyncio.wait([conn.ended])  # not cancelled with us
        await self._notifier.stop()

    aclose = close

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Client cannot be copied or sent to another process: make one there")

    def _here(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, which has to be ours."""
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
        except ConnectionLost:  # we may have been the first to notice; it changes nothing, so ask again
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
        """Return the connection, made if need be; attempts go on until the monotonic clock says until.

        One task makes it while the others wait for their turn, so that cancelling any of them
        leaves the others a working client and no task behind.
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
    """End the connection of a client that was thrown away, in whatever thread that is noticed."""
    try:
        conn.loop.call_soon_threadsafe(conn.abandon)
    except RuntimeError:  # the loop is closed
        conn.abandon()


class _Notifier:
    """Tells of lost locks, on the loop; runs what of that is a coroutine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.needed = False  # somebody is to be told of losses

    def every(self) -> float:
        """Return after how many seconds a connection looks for holds that lapsed in silence."""
        return 1.0 if self.needed else 10.0

    def lost(self, hold: Hold[Any], why: LostError, quiet: bool) -> None:
        """Take note of a loss; quiet when it is our own end."""
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
        """Cancel what still runs, and wait for it; the caller's own task excepted."""
        left = self._tasks - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


def _after_fork() -> None:
    """Forget, in a child process, what belongs to its parent."""
    after_fork()
    for client in list(_clients):
        client._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
