"""The client: one connection to the daemon, made when it is needed."""

from __future__ import annotations

import queue
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from . import _wire as w
from ._base import Base, log
from ._conn import Conn
from ._election import Elected, Election
from ._election import Lost as TermLost
from ._errors import ConnectionLost, LockError, LostError, Unavailable
from ._handle import run
from ._hold import Hold, Note
from ._layers import AnyLock, Locks, PairedLock, Semaphore
from ._lock import Lock
from ._path import unreachable


class Client(Base[Lock, Locks, Semaphore, AnyLock]):
    """A connection to the daemon on this host, for any number of threads.

    It connects when it is first needed, and again after the daemon has restarted. All times are
    in seconds.
    """

    _kinds = Lock, Locks, Semaphore, AnyLock, PairedLock

    def _reset(self) -> None:
        super()._reset()
        self._mu = threading.Lock()  # guards connecting, one attempt at a time
        self._notifier = _Notifier()
        weakref.finalize(self, self._notifier.stop)  # its thread ends with the client

    def election(
        self,
        key: str,
        on_elected: Elected,
        on_lost: TermLost,
        *,
        ttl: float | None = None,
    ) -> Election:
        """Return a candidate for leadership. Nothing is sent yet: start, run or ``with`` begin its campaign.

        on_elected: called with each term that begins; see Election.
        on_lost: called once for each term when it is over, with the term and a reason.
        ttl: the length of the lease; by default the daemon's. It bounds the time without a leader after the leader's
        host has failed. If only the leader's process has ended, the lock is released at once.
        """
        return Election(self, key, on_elected, on_lost, ttl)

    def ping(self) -> float:
        """Ping the daemon, and return how long the answer took."""
        start = time.monotonic()
        self._ask(w.PING)
        return time.monotonic() - start

    def release_detached(self, key: str, fence: int) -> None:
        """End a hold with ``keep`` that has outlived its release or its process, before its time.

        NotHeld if there is none with this fence on this host, Denied if it is another user's.
        """
        self._ask(w.RELEASE, w.check_key(key), 0, fence, w.DETACHED)

    def force_unlock(self, key: str, *, semaphore: bool = False, fence: int = 0) -> int:
        """End the holds of a lock, or of a semaphore, on this host, of any user. Return how many there were.

        Their holders are told at once (reason ``forced``). Denied unless this user is an operator of the daemon. fence:
        only the holds with this fence.
        """
        mode = w.PERMIT if semaphore else 0
        return int(w.numbers(self._ask(w.FORCE_UNLOCK, w.check_key(key), mode, fence), 1)[0])

    def close(self) -> None:
        """End the connection: the daemon releases everything that is held on it. Idempotent."""
        self._closed = True  # ends the attempts to connect, which hold mu
        with self._mu:
            if self._conn is not None:
                self._conn.die(ConnectionLost("the client is closed"), quiet=True)
            self._notifier.stop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, op: int, *fields: object) -> w.Message:
        return run(self._asked(op, *fields))

    def _live(self) -> Conn | None:
        conn = self._conn
        return conn if conn is not None and conn.dead is None else None

    async def _connect(self, until: float) -> Conn:
        return self._connected(until)

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def _connected(self, until: float) -> Conn:
        """Return the connection, and make one if necessary. Attempts end at the time until of the monotonic clock."""
        if (conn := self._live()) is not None:
            return conn
        start, pause = time.monotonic(), 0.01
        while True:
            with self._mu:  # not during the pause: a try must not wait for the attempts of other threads
                conn, why = self._attempt(start)
            if conn is not None:
                return conn
            if not isinstance(why, Unavailable) or time.monotonic() + pause >= until:
                raise type(why)(*why.args)
            start = time.monotonic()
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(0.25, 2 * pause)

    def _attempt(self, start: float) -> tuple[Conn | None, LockError]:
        """Return the connection, and make one if necessary; or return None and the error.

        If another thread has failed to connect since start, this returns its error and makes no attempt.
        """
        failed, why = self._failed
        if self._closed:
            raise ConnectionLost("the client is closed")
        if (conn := self._live()) is None and failed < start:
            try:
                conn = self._dial()
            except (OSError, LockError) as e:
                why = unreachable(self._path, e)
                self._failed = time.monotonic(), why
        return conn, why

    def _dial(self) -> Conn:
        conn = Conn(self._path, self._name, self._label, self._timeout, self._notifier.lost, self._known)
        self._conn = conn
        try:
            if self._thrown_away is not None:
                self._thrown_away.detach()
            self._thrown_away = weakref.finalize(self, conn.discard, self._path)
            self._thrown_away.atexit = False
            conn.keep(weakref.ref(self), self._notifier.every)
        except BaseException:
            conn.die(ConnectionLost("interrupted while connecting"))
            conn.shut()
            raise
        return conn


class _Notifier:
    """Reports lost locks, in a thread of its own that starts with the first report."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[LostError], object], LostError] | None] = queue.SimpleQueue()
        self._mu = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is not None:
            return
        with self._mu:
            if self._thread is None:
                thread = threading.Thread(target=self._run, args=(self._queue,), name="locksidecar-lost", daemon=True)
                try:
                    thread.start()
                except RuntimeError as e:  # no more threads, or the interpreter shuts down
                    raise Unavailable(f"cannot start the thread that calls on_lost: {e}") from None
                self._thread = thread

    def every(self) -> float:
        """Return after how many seconds a connection checks for holds whose validity has run out."""
        return 1.0 if self._thread is not None else 10.0

    def lost(self, hold: Hold[Any], why: LostError, quiet: bool) -> None:
        """Record a loss; quiet if this client itself has ended the connection."""
        for tell in hold.tell:
            if isinstance(tell, Note):
                tell(why)
            elif not quiet:
                self._queue.put((tell, why))

    def stop(self) -> None:
        self._queue.put(None)

    @staticmethod
    def _run(losses: queue.SimpleQueue[tuple[Callable[[LostError], object], LostError] | None]) -> None:
        while (item := losses.get()) is not None:
            tell, why = item
            try:
                tell(why)
            except Exception:
                log.exception("on_lost failed for lock %r", why.key)
