"""The client on an event loop: one connection to the daemon, made when it is needed."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from .. import _wire as w
from .._base import Base, log
from .._errors import ConnectionLost, LockError, LostError, Unavailable
from .._hold import Hold, Note
from .._path import unreachable
from ._conn import Conn
from ._election import Elected, Election
from ._election import Lost as TermLost
from ._lock import AnyLock, Lock, Locks, PairedLock, Semaphore


class Client(Base[Lock, Locks, Semaphore, AnyLock]):
    """A connection to the daemon on this host, for any number of tasks of one event loop.

    It connects when it is first needed, and again after the daemon has restarted. It belongs to
    the loop on which it is first used, until that is closed; on another one everything is a
    RuntimeError. All times are in seconds.
    """

    _kinds = Lock, Locks, Semaphore, AnyLock, PairedLock

    def _reset(self) -> None:
        super()._reset()
        self._mu = threading.Lock()  # guards the first use
        self._loop: asyncio.AbstractEventLoop | None = None

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

    async def release_detached(self, key: str, fence: int) -> None:
        """End a hold with ``keep`` that has outlived its release or its process, before its time.

        NotHeld if there is none with this fence on this host, Denied if it is another user's.
        """
        await self._ask(w.RELEASE, w.check_key(key), 0, fence, w.DETACHED)

    async def force_unlock(self, key: str, *, semaphore: bool = False, fence: int = 0) -> int:
        """End the holds of a lock, or of a semaphore, on this host, of any user. Return how many there were.

        Their holders are told at once (reason ``forced``). Denied unless this user is an operator of the daemon. fence:
        only the holds with this fence.
        """
        mode = w.PERMIT if semaphore else 0
        return int(w.numbers(await self._ask(w.FORCE_UNLOCK, w.check_key(key), mode, fence), 1)[0])

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

    _ask = Base._asked

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

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
        if self._thrown_away is not None:
            self._thrown_away.detach()
        self._thrown_away = weakref.finalize(self, _abandon, conn)
        self._thrown_away.atexit = False
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

    def start(self) -> None:
        """Notice losses soon."""
        self.needed = True

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
            log.exception("on_lost failed for lock %r", why.key)

    @staticmethod
    async def _run(told: Awaitable[object], why: LostError) -> None:
        try:
            await told
        except Exception:
            log.exception("on_lost failed for lock %r", why.key)

    async def stop(self) -> None:
        """Cancel the tasks that still run, except the caller's own, and wait for them."""
        left = self._tasks - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
