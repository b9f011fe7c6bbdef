"""The client and its locks: what a user sees."""

from __future__ import annotations

import itertools
import logging
import math
import os
import queue
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Final

from . import _wire as w
from ._conn import Call, Conn, Hold
from ._errors import (
    NOT_HELD,
    OK,
    ConnectionLost,
    Invalid,
    LockError,
    LostError,
    NotAcquired,
    NotHeld,
    Unavailable,
    Unconfirmed,
    Upgrade,
    error,
)

_log: Final = logging.getLogger("locksidecar")
_PATIENCE: Final = 2.0  # seconds for which an acquire waits for a daemon that is not there
_own: Final = 1 << 32  # owners below are for users to name
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
    ) -> None:
        """Name the daemon's socket, and who we are in its lists.

        path: by default LOCKSIDECAR_SOCKET, else where the daemon listens by default.
        name, label: who connects, for people; by default the program's name.
        timeout: how long the daemon may take to answer, beyond any wait that was asked for.
        """
        if not timeout > 0:
            raise ValueError("timeout must be positive")
        self._path = w.socket_path(path)
        self._name = name if name is not None else os.path.basename(sys.argv[0] if sys.argv else "") or "python"
        self._label = label
        self._timeout = timeout
        self._owners = itertools.count(_own)
        self._reset()
        self._closed = False
        _clients.add(self)

    def _reset(self) -> None:
        """Begin anew, in a new process too: nothing of the old is used, its locks least of all."""
        self._mu = threading.Lock()  # guards connecting
        self._conn: Conn | None = None
        self._failed: tuple[float, LockError] = (-math.inf, Unavailable())
        self._notifier = _Notifier()

    def lock(
        self,
        key: str,
        ttl: float | None = None,
        renew: bool = True,
        shared: bool = False,
        *,
        timeout: float = -1,
        owner: int | None = None,
        on_lost: Callable[[LostError], object] | None = None,
    ) -> Lock:
        """Return a handle for a lock. Nothing is acquired yet, and nothing is sent.

        ttl: the length of the lease; by default the daemon's.
        renew: the daemon keeps the lock until release or the end of this process; without, it ends
            by itself after ttl, unless it is extended.
        shared: together with other shared holders.
        timeout: how long ``with`` waits; -1 without bound.
        owner: a number below 2**32 that names who holds, for locks that pass between threads. By
            default the handle and the thread together are the owner.
        on_lost: called with a LostError, in a thread of its own, when the lock is lost.
        """
        return Lock(self, key, ttl, renew, shared, timeout, owner, on_lost)

    def ping(self) -> float:
        """Ask the daemon for a sign of life and return how long it took."""
        start = time.monotonic()
        self._ask(w.PING)
        return time.monotonic() - start

    def close(self) -> None:
        """End the connection: the daemon releases everything that is held on it. Idempotent."""
        with self._mu:
            self._closed = True
            if self._conn is not None:
                self._conn.die(ConnectionLost("the client is closed"), quiet=True)
            self._notifier.stop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, op: int, *fields: object) -> w.Message:
        try:
            reply = self._connect(time.monotonic()).call(op, *fields)
        except ConnectionLost:  # we may have been the first to notice; it changes nothing, so ask again
            reply = self._connect(time.monotonic()).call(op, *fields)
        if reply[0] != OK:
            raise error(reply[0], w.text(reply))
        return reply

    def _live(self) -> Conn | None:
        conn = self._conn
        return conn if conn is not None and conn.dead is None else None

    def _connect(self, until: float) -> Conn:
        """Return the connection, made if need be; attempts go on until the monotonic clock says until."""
        if (conn := self._live()) is not None:
            return conn
        start = time.monotonic()
        with self._mu:
            pause = 0.01
            while True:
                if self._closed:
                    raise ConnectionLost("the client is closed")
                if (conn := self._live()) is not None:
                    return conn
                failed, why = self._failed
                if failed < start:
                    try:
                        return self._dial()
                    except (OSError, LockError) as e:
                        why = e if isinstance(e, LockError) else Unavailable(f"no daemon at {self._path}: {e}")
                        self._failed = time.monotonic(), why
                if not isinstance(why, Unavailable) or time.monotonic() + pause >= until:
                    raise type(why)(*why.args)
                start = time.monotonic()
                time.sleep(pause * random.uniform(0.5, 1))
                pause = min(0.25, 2 * pause)

    def _dial(self) -> Conn:
        conn = Conn(self._path, self._name, self._label, self._timeout, self._notifier.lost)
        self._conn = conn
        try:
            conn.keep(weakref.ref(self), self._notifier.every)
        except BaseException:
            conn.die(ConnectionLost("interrupted while connecting"))
            raise
        return conn


class _Notifier:
    """Tells of lost locks, in a thread of its own that is started with the first one to tell of."""

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
                thread.start()
                self._thread = thread

    def every(self) -> float:
        """Return after how many seconds a connection looks for holds that lapsed in silence."""
        return 1.0 if self._thread is not None else 10.0

    def lost(self, hold: Hold, why: LostError) -> None:
        if hold.on_lost is not None:
            self._queue.put((hold.on_lost, why))

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


class Lock:
    """A handle for one lock, made by Client.lock.

    Any thread may use it. Who acquires is the handle and the thread together, unless an owner was
    named: a second thread waits, and the same one may acquire again and then has to release as
    often.
    """

    def __init__(
        self,
        client: Client,
        key: str,
        ttl: float | None,
        renew: bool,
        shared: bool,
        timeout: float,
        owner: int | None,
        on_lost: Callable[[LostError], object] | None,
    ) -> None:
        self._client = client
        self._key = w.check_key(key)
        self._ttl = _ttl(ttl)
        self._flags = 0 if renew else w.FIXED
        self._shared = shared
        self._timeout = timeout
        _wait(True, timeout)  # refused here rather than at the first with
        if owner is not None and not 0 <= owner < _own:
            raise Invalid("an owner is a number from 0 to 2**32 - 1")
        self._owner = owner
        self._on_lost = on_lost
        # By thread (0 for a named owner): who it is, for idents are reused, and its hold.
        self._held: dict[int, tuple[threading.Thread | None, Hold]] = {}

    @property
    def key(self) -> str:
        """The lock's name."""
        return self._key

    @property
    def fence(self) -> int:
        """The fencing token: larger for each later holder. NotHeld when not held.

        It stays readable after the lock was lost, until release: that is when it matters. 0 for a
        degraded grant, which has none.
        """
        return self._mine().fence

    @property
    def remaining(self) -> float:
        """For how many seconds the lock is certainly held as things stand; 0 when it is not.

        With renew=True it rises again with each renewal.
        """
        hold = self._find()
        if hold is None or hold.over:
            return 0.0
        return max(0.0, (hold.valid - w.now()) / 1e9)

    def owned(self) -> bool:
        """Tell whether this owner holds the lock at this very moment. Asks nobody."""
        hold = self._find()
        return hold is not None and hold.owned()

    def locked(self) -> bool:
        """Ask the daemon whether anybody holds the lock."""
        return bool(w.numbers(self._client._ask(w.INSPECT, self._key), 1)[0])

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        """Acquire the lock; false when it cannot be had in time.

        blocking=False tries; timeout bounds the wait, -1 or None does not. An exception leaves
        nothing acquired.
        """
        wait = _wait(blocking, timeout)
        hold = self._find()
        if hold is None and self._owner is not None:
            hold = self._elsewhere()
        return (hold is not None and self._reenter(hold)) or self._acquire(wait)

    def _reenter(self, hold: Hold) -> bool:
        if hold.shared and not self._shared and hold.owned():
            raise Upgrade("held shared by this owner; an exclusive hold could never be granted")
        before = hold.count
        try:
            if hold.conn.reenter(hold):
                self._keep(hold)
                return True
        except BaseException:
            if self._owner is None:  # only then nobody else counts
                hold.count = before
            raise
        self._forget()
        hold.conn.lapse([hold], w.now())
        return False

    def _acquire(self, wait: int) -> bool:
        client = self._client
        if self._on_lost is not None:
            client._notifier.start()
        end = math.inf if wait < 0 else time.monotonic() + wait / 1000
        left, quick = wait, 0
        while True:
            conn = client._live() or client._connect(min(end, time.monotonic() + _PATIENCE))
            owner = self._owner if self._owner is not None else next(client._owners)
            asked = Hold(conn, self._key, owner, self._shared, self._on_lost)
            limit = None if wait < 0 else time.monotonic() + left / 1000 + client._timeout
            call = Call(w.ACQUIRE, asked)
            try:
                hold = conn.acquire(call, asked, left, self._ttl, self._flags, limit)
                if hold is None:
                    return False
                if hold.owned():
                    self._keep(hold)
                    return True
                conn.lapse([hold], w.now())  # it was over before we came to it
                quick += 1
                if quick > 3:
                    raise LostError(hold.key, hold.fence, hold.owner, hold.lost)
                if time.monotonic() >= end:
                    return False
            except ConnectionLost:
                # Nothing is held on a connection that has ended, so we may ask on a new one. Not for
                # ever, if the daemon cuts us off each time.
                quick = quick + 1 if time.monotonic() - conn.since < 1 else 0
                if client._closed or quick > 3 or (time.monotonic() >= end and (wait > 0 or quick > 1)):
                    raise
            except BaseException:  # no answer, or an interrupt anywhere above
                conn.withdraw(call)
                if (mine := self._held.get(self._slot())) is not None and mine[1] is asked:
                    self._forget()
                raise
            if wait > 0:
                left = max(0, math.ceil((end - time.monotonic()) * 1000))

    def release(self) -> None:
        """Release the lock, or one of several acquires of it.

        NotHeld when this owner does not hold it, LostError (a NotHeld) when it did and lost it:
        nobody else's hold is ever released. Unconfirmed when the store has not confirmed.
        """
        hold = self._mine()
        if not hold.lost and not hold.owned():
            hold.conn.lapse([hold], w.now())
        if hold.lost:
            hold.count -= 1
            if hold.count <= 0:
                self._forget()
            raise LostError(hold.key, hold.fence, hold.owner, hold.lost)
        before = hold.count
        try:
            if before <= 1:
                self._forget()
            reply = hold.conn.release(hold)
        except ConnectionLost:
            return  # that is release, too
        except Unavailable as e:
            raise Unconfirmed(f"{e}; the release has been sent") from None
        except BaseException:
            if not hold.over:
                hold.conn.finish(hold, before, None)
            raise
        if not reply or reply[0] == OK:
            return
        if reply[0] == NOT_HELD:
            raise LostError(hold.key, hold.fence, hold.owner, hold.lost or "gone")
        raise error(reply[0], w.text(reply))

    def extend(self, ttl: float | None = None) -> None:
        """Renew the lock now, to end ttl from now; by default its own TTL.

        Only a lock with renew=False needs that. NotHeld when it is not held, Unavailable when the
        store does not confirm: then what was known before still stands.
        """
        self._change(w.RENEW, _ttl(ttl))

    def downgrade(self) -> None:
        """Turn an exclusive hold into a shared one, without letting go in between."""
        self._change(w.DOWNGRADE)

    def _change(self, op: int, *fields: int) -> None:
        hold = self._mine()
        if hold.lost:
            raise LostError(hold.key, hold.fence, hold.owner, hold.lost)
        reply = hold.conn.call(op, hold.key, hold.owner, hold.fence, *fields, hold=hold)
        if reply[0] == NOT_HELD:
            raise LostError(hold.key, hold.fence, hold.owner, hold.lost or "gone")
        if reply[0] != OK:
            raise error(reply[0], w.text(reply))

    def __enter__(self) -> Lock:
        if not self.acquire(timeout=self._timeout):
            raise NotAcquired(f"lock {self._key!r} could not be had within {self._timeout:g} s")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except Unconfirmed as e:
            _log.info("lock %r: %s", self._key, e)  # the body ran under the lock
        except LockError as e:
            if kind is None:
                raise
            _log.info("lock %r, whose body failed: %s", self._key, e)

    def __repr__(self) -> str:
        return f"<locksidecar.Lock {self._key!r} {'owned' if self.owned() else 'not owned'}>"

    def _slot(self) -> int:
        return 0 if self._owner is not None else threading.get_ident()

    def _find(self) -> Hold | None:
        held = self._held.get(self._slot())
        if held is None:
            return None
        thread, hold = held
        if thread is not None and thread is not threading.current_thread():
            return None  # a thread that has ended without releasing; the number is ours now
        return None if hold.over and not hold.lost else hold

    def _elsewhere(self) -> Hold | None:
        """Return the named owner's hold that another handle acquired."""
        conn = self._client._live()
        return None if conn is None or self._owner is None else conn.find(self._key, self._owner)

    def _mine(self) -> Hold:
        hold = self._find()
        if hold is None:
            raise NotHeld(f"lock {self._key!r} is not held by this owner")
        return hold

    def _keep(self, hold: Hold) -> None:
        thread = None if self._owner is not None else threading.current_thread()
        self._held[self._slot()] = thread, hold

    def _forget(self) -> None:
        self._held.pop(self._slot(), None)


def _ttl(ttl: float | None) -> int:
    if ttl is None:
        return 0
    if not 0 < ttl < math.inf:
        raise Invalid("a TTL is a positive number of seconds")
    return max(1, round(ttl * 1000))


def _wait(blocking: bool, timeout: float | None) -> int:
    """Return the wait in milliseconds, with the manners of threading.Lock."""
    if timeout is None or timeout == -1:
        return -1 if blocking else 0
    if not blocking:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if not timeout >= 0:
        raise ValueError("timeout must be a non-negative number")
    return min(w.MAX_WAIT, math.ceil(timeout * 1000)) if timeout < math.inf else -1


def _after_fork() -> None:
    """Forget, in a child process, what belongs to its parent."""
    for client in list(_clients):
        conn = client._conn
        client._reset()
        if conn is not None:
            conn.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
