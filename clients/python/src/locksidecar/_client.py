"""The client: one connection to the daemon, made when it is needed."""

from __future__ import annotations

import itertools
import logging
import math
import os
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from . import _wire as w
from ._campaign import Elected
from ._campaign import Lost as TermLost
from ._conn import Conn, after_fork
from ._election import Election
from ._errors import OK, ConnectionLost, LockError, LostError, Unavailable, error
from ._handle import Owner
from ._hold import OWN, Hold, Note
from ._lock import Lock
from ._locks import Locks
from ._path import socket_path, unreachable
from ._semaphore import Semaphore
from ._table import Owners
from ._trace import Trace, current, nowhere

_log: Final = logging.getLogger("locksidecar")
_clients: Final[weakref.WeakSet[Client]] = weakref.WeakSet()


class Client:
    """A connection to the daemon on this host, for any number of threads.

    It connects when it is first needed, and again after the daemon has restarted. All times are
    in seconds.
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
        """Set the daemon's socket, and the name of this client in the daemon's lists.

        path: by default LOCKSIDECAR_SOCKET, or else the daemon's default path.
        name, label: names for people; by default the program's name.
        timeout: how long the daemon may take to answer, in addition to the wait of an acquire.
        trace: a function that returns the traceparent (W3C Trace Context) of an acquire, or None. The acquiring thread
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
        # Ends the connection when the client is garbage collected without having been closed.
        self._thrown_away: weakref.finalize[[str], Client] | None = None
        self._reset()
        self._closed = False
        _clients.add(self)

    def _reset(self) -> None:
        """Start with nothing, also in a new process. Nothing of the old process is used, in particular no locks."""
        self._mu = threading.Lock()  # guards connecting, one attempt at a time
        self._conn: Conn | None = None
        self._known = Owners()
        self._failed: tuple[float, LockError] = (-math.inf, Unavailable())
        self._notifier = _Notifier()
        weakref.finalize(self, self._notifier.stop)  # its thread ends with the client
        if self._thrown_away is not None:
            self._thrown_away.detach()

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
        timeout: how long ``with`` waits; -1 without bound.
        owner: by default the handle and the thread together are the owner. "handle": the handle alone, for a lock that
        another thread releases. A number below 2**32: all handles of the client with this number.
        on_lost: called with a LostError, in a thread of its own, when the lock is lost.
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
        owner: "handle", or a number below 2**32, for permits that pass between threads: every user of this handle can
        release the newest permit. By default each thread has its own permits.
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

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Client cannot be copied or sent to another process: make one there")

    def _ask(self, op: int, *fields: object) -> w.Message:
        try:
            reply = self._connect(time.monotonic()).call(op, *fields)
        except ConnectionLost:  # perhaps this thread was the first to notice; nothing has changed, so ask again
            reply = self._connect(time.monotonic()).call(op, *fields)
        if reply[0] != OK:
            raise error(reply[0], w.text(reply))
        return reply

    def _live(self) -> Conn | None:
        conn = self._conn
        return conn if conn is not None and conn.dead is None else None

    def _connect(self, until: float) -> Conn:
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
                _log.exception("on_lost failed for lock %r", why.key)


def _after_fork() -> None:
    """Forget, in a child process, everything that belongs to the parent."""
    after_fork()
    for client in list(_clients):
        client._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
