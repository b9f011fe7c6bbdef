"""What the clients for threads and for event loops have in common. No I/O."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import math
import os
import re
import string
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NoReturn, TypeVar, cast

from . import _wire as w
from ._errors import OK, ConnectionLost, LockError, LostError, Unavailable, error
from ._handle import Owner
from ._hold import OWN
from ._path import socket_path
from ._table import Owners
from ._trace import Trace, current, nowhere

L = TypeVar("L")
M = TypeVar("M")
S = TypeVar("S")
A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])
OnLost = Callable[[LostError], object]

log: Final = logging.getLogger("locksidecar")

_clients: Final[weakref.WeakSet[Base[Any, Any, Any, Any]]] = weakref.WeakSet()


class ReadWriteLock(Generic[L]):
    """A lock for reading and one for writing, with one owner; made by Client.read_write.

    A writer may also acquire ``read``. When it has released ``write``, it continues as a reader. A reader that acquires
    ``write`` gets an Upgrade error, because it would wait for itself.
    """

    def __init__(self, read: L, write: L) -> None:
        self.read = read
        self.write = write


class Base(Generic[L, M, S, A]):
    """A client whose handles are of the classes L (a lock), M (many), S (a semaphore) and A (any of several)."""

    _kinds: tuple[type[L], type[M], type[S], type[A], type[L]]
    _conn: Any

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        name: str | None = None,
        *,
        label: str = "",
        timeout: float = 5.0,
        trace: Trace | None = current,
        confirm: bool = True,
        on_lost: OnLost | None = None,
    ) -> None:
        """Set the daemon's socket, and the name of this client in the daemon's lists. Connects to nothing yet.

        path: by default LOCKSIDECAR_SOCKET, or else the daemon's default path.
        name, label: names for people; by default the program's name.
        timeout: how long the daemon may take to answer, in addition to the wait of an acquire.
        trace: a function that returns the traceparent (W3C Trace Context) of an acquire, or None. The acquiring thread
        or task calls it for each acquire. By default it returns OpenTelemetry's current span, if the program uses that.
        With trace=None no acquire has a traceparent.
        confirm: whether a release waits until the store has confirmed it; a handle may differ.
        on_lost: called for each lock that is lost, also if the handle has an on_lost of its own; see lock.
        """
        if not timeout > 0:
            raise ValueError("timeout must be positive")
        w.check_unit(timeout, "timeout")
        self._path = socket_path(path)
        self._name = w.program(name)
        self._label = label
        self._timeout = timeout
        self._trace: Trace = trace or nowhere
        self._confirm = confirm
        self._tell = () if on_lost is None else (on_lost,)
        self._owners = itertools.count(OWN)
        # Ends the connection when the client is garbage collected without having been closed.
        self._thrown_away: weakref.finalize[[Any], Any] | None = None
        self._reset()
        self._closed = False
        _clients.add(self)

    def _reset(self) -> None:
        """Start with nothing, also in a new process. Nothing of the old process is used, in particular no locks."""
        self._conn = None
        self._known = Owners()
        self._failed: tuple[float, LockError] = (-math.inf, Unavailable())
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
        on_lost: OnLost | None = None,
        confirm: bool | None = None,
        keep: float | None = None,
    ) -> L:
        """Return a handle for a lock. Nothing is acquired yet, and nothing is sent.

        ttl: the length of the lease; by default the daemon's.
        renew: the daemon keeps the lock until release or the end of this process. With False, the lock ends by itself
        after ttl, unless it is extended.
        shared: other shared holders may hold the lock at the same time.
        timeout: how long ``with`` waits; -1 without bound.
        owner: by default the handle and the thread (or task) together are the owner. "handle": the handle alone, for a
        lock that another thread releases. A number below 2**32: all handles of the client with this number.
        on_lost: called with a LostError when the lock is lost, in a thread of its own, or on the loop. There it may be
        a coroutine function, which runs as a task of the client.
        confirm: a release waits until the store has confirmed it; by default as the client. With False it only sends,
        and nothing is lost but this: right afterwards a try on another host may still find the lock held, and a release
        that fails is reported to on_lost, as ``unconfirmed`` or ``gone``.
        keep: for so many seconds after the grant the lock stays closed to others, even if it is released earlier or
        this process ends. So a job that several hosts start at the same time runs once.
        """
        return self._kinds[0](self, key, ttl, renew, shared, timeout, owner, on_lost, confirm, keep)  # type: ignore[call-arg]

    def lock_many(
        self,
        keys: Iterable[str],
        ttl: float | None = None,
        renew: bool = True,
        shared: bool = False,
        *,
        timeout: float = -1,
        owner: Owner = None,
        on_lost: OnLost | None = None,
        confirm: bool | None = None,
    ) -> M:
        """Return a handle for several locks, which are acquired together: all or none.

        keys: 1 to 1,024 different keys; Invalid otherwise. Their order does not matter: no two callers ever wait for
        each other.
        on_lost: called once, with the LostError of the first lock that is lost.

        The rest is as for lock.
        """
        return self._kinds[1](self, keys, ttl, renew, shared, timeout, owner, on_lost, confirm)  # type: ignore[call-arg]

    def semaphore(
        self,
        key: str,
        permits: int,
        ttl: float | None = None,
        renew: bool = True,
        *,
        timeout: float = -1,
        owner: Owner = None,
        on_lost: OnLost | None = None,
        confirm: bool | None = None,
    ) -> S:
        """Return a handle for a semaphore with so many permits, which are counted over all hosts.

        permits: 1 to 10,000; Invalid otherwise. All users of the semaphore must give the same number.
        owner: "handle", or a number below 2**32, for permits that pass between threads (or tasks): every user of this
        handle can release the newest permit. By default each thread has its own permits.
        on_lost: called for each permit that is lost. The client chooses the number of its owner.

        The rest is as for lock. A semaphore and a lock of the same key are independent. An acquire raises Unsupported
        if the store has no semaphores.
        """
        return self._kinds[2](self, key, permits, ttl, renew, False, timeout, owner, on_lost, confirm)  # type: ignore[call-arg]

    def lock_any(
        self,
        keys: Iterable[str],
        ttl: float | None = None,
        renew: bool = True,
        shared: bool = False,
        *,
        timeout: float = -1,
        owner: Owner = None,
        on_lost: OnLost | None = None,
        confirm: bool | None = None,
    ) -> A:
        """Return a handle for one of several locks, whichever is free first.

        keys: 1 to 64 different keys; Invalid otherwise. The rest is as for lock.
        """
        return self._kinds[3](self, keys, ttl, renew, shared, timeout, owner, on_lost, confirm)  # type: ignore[call-arg]

    def read_write(
        self,
        key: str,
        ttl: float | None = None,
        renew: bool = True,
        *,
        timeout: float = -1,
        owner: Owner = None,
        on_lost: OnLost | None = None,
        confirm: bool | None = None,
    ) -> ReadWriteLock[L]:
        """Return a pair of handles for one lock, for reading (shared) and for writing. The rest is as for lock."""
        make: Callable[..., Any] = self._kinds[4]
        read = make(self, key, ttl, renew, True, timeout, owner, on_lost, confirm)
        write = make(self, key, ttl, renew, False, timeout, owner, on_lost, confirm)
        write.join(read)
        return ReadWriteLock(read, write)

    def locked(self, key: str, **terms: Any) -> Callable[[F], F]:
        """Return a decorator: each call of the function runs under the lock of a key that depends on its arguments.

        key: a format string with the names of parameters, such as ``"order:{id}"``. TypeError if there is no such
        parameter.
        terms: as for lock.
        """

        def decorate(f: F) -> F:
            handle: Any = self.lock("x")
            handle(f)  # a TypeError if this client cannot run it under a lock
            signature = inspect.signature(f)
            names = {re.split(r"[.\[]", name)[0] for _, name, _, _ in string.Formatter().parse(key) if name is not None}
            if unknown := names - set(signature.parameters):
                raise TypeError(f"{key!r}: {f.__qualname__} has no parameter {min(unknown)!r}")

            def lock(args: Any, kwargs: Any) -> Any:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                return self.lock(key.format(**bound.arguments), **terms)

            def under_lock(*args: Any, **kwargs: Any) -> Any:
                with lock(args, kwargs):
                    return f(*args, **kwargs)

            async def under_lock_later(*args: Any, **kwargs: Any) -> Any:
                async with lock(args, kwargs):
                    return await f(*args, **kwargs)

            run: Any = under_lock_later if inspect.iscoroutinefunction(f) else under_lock
            functools.update_wrapper(run, f)
            return cast(F, run)

        return decorate

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Client cannot be copied or sent to another process: make one there")

    async def _connect(self, until: float) -> Any:
        """Return the connection, and make one if necessary. Attempts end at the time until of the monotonic clock."""
        raise NotImplementedError

    async def _asked(self, op: int, *fields: object) -> w.Message:
        """Send a request, once more if that changes nothing. Return its reply, which is a success."""
        try:
            reply: w.Message = await (await self._connect(0)).call(op, *fields)
        except ConnectionLost:  # perhaps this thread or task was the first to notice
            if op in (w.RELEASE, w.FORCE_UNLOCK):  # the second one would get another answer, or end another hold
                raise
            reply = await (await self._connect(0)).call(op, *fields)
        if reply[0] != OK:
            raise error(reply[0], w.text(reply))
        return reply


def _after_fork() -> None:
    """Forget, in a child process, everything that belongs to the parent."""
    for client in list(_clients):
        client._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
