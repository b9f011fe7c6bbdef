"""The common part of both drop-ins: redis-py's arguments, tokens, and the handles that hold locks. No I/O."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar
from weakref import WeakValueDictionary

from .. import _wire as w
from .._base import Base
from .._errors import LockError as SidecarError
from .._errors import log
from .._handle import One
from .exceptions import LockError, LockNotOwnedError, translated

L = TypeVar("L", bound=One)

Token = str | bytes | memoryview


class Local(threading.local):
    """Each thread's token, None at first, and the handle of its last acquire."""

    token: bytes | None = None
    handle: Any = None


# The clients by loop, None for threads. Each change is one step: a lock could be left taken in a forked child.
_defaults: Final[dict[Any, Any]] = {}


def client_of(kind: type[Base], redis: Any) -> Any:
    """Return the client: the given one, its ``sidecar``, or the one of this process, or of the running loop."""
    for given in (redis, getattr(redis, "sidecar", None)):
        if isinstance(given, kind):
            return given
    loop = kind._running()
    for old in list(_defaults):
        if old is not None and old.is_closed() and (orphan := _defaults.pop(old, None)) is not None:
            orphan._end("the event loop was closed")
    return _defaults.get(loop) or _defaults.setdefault(loop, kind())


def handles_of(client: Any) -> WeakValueDictionary[tuple[str, bytes], Any]:
    """Return the handles that acquired in this process, by key and token.

    A hold keeps its handle alive. When it is over, the handle is found as long as it lives: before the release, the
    lock is not acquired again.
    """
    handles: Any = vars(client).setdefault("_redis_locks", WeakValueDictionary())  # one step
    return handles  # type: ignore[no-any-return]


class Common(Generic[L]):
    """redis-py's constructor, and what locks for threads and for tasks have in common."""

    _kind: type[Base]

    def __init__(
        self,
        redis: Any,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        """Take redis-py's arguments.

        redis: a Client of locksidecar. Anything else, such as a Redis, is kept and not used, and the locks belong to
        the daemon at the default socket.
        timeout: seconds after which the lock ends unless it is extended. None or 0: the daemon renews it until release
        or the end of this process.
        sleep: not used, because nothing polls.
        """
        self.redis = redis
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Local | SimpleNamespace = Local() if self.thread_local else SimpleNamespace(token=None, handle=None)
        self._key = text(name)
        with translated(self._key):
            w.check_key(self._key)

    def _wait(self, blocking: bool | None, blocking_timeout: float | None) -> int:
        """Return for how many milliseconds to wait; 0 is a try, -1 without bound."""
        if not (self.blocking if blocking is None else blocking):
            return 0
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        if blocking_timeout is None:
            return -1
        return w.to_wait(True, w.Seconds(max(0.0, w.number(blocking_timeout, "blocking_timeout"))))

    def _terms(self) -> tuple[float | None, bool]:
        """Return the TTL, and whether the daemon renews it."""
        if not self.timeout:
            return None, True
        ttl = w.Seconds(w.number(self.timeout, "timeout"))
        w.to_ttl(ttl, "timeout")  # refuses it under its name here
        return ttl, False

    def _refuse_lost(self, *locks: L | None) -> None:
        """Raise LostError if the hold of one of the handles was lost and has not been released."""
        for lock in filter(None, locks):
            if lock._owner is not None:
                lock._check(lock._owner, False)

    async def _take(self, token: bytes, wait: int) -> L | None:
        client = client_of(self._kind, self.redis)
        with translated(self._key):
            ttl, renew = self._terms()
            # the handles by which this lock may be held: the one of the token, and the one of its last acquire
            before = self._inner(self.local.token), None if self.local.token is None else self.local.handle
            self._refuse_lost(*before)
            inner: L = client.lock(self._key, ttl, renew, owner="handle")  # a new owner for each acquire
            try:
                if not await inner._acquire(inner._who(), wait):
                    return None
                self._refuse_lost(*before)  # the lock may have been lost while this waited
                handles_of(client)[self._key, token] = inner
                hold = inner._kept()
                if hold is not None:
                    hold.conn.sustain(hold, inner)
                return inner
            except BaseException:  # an interrupt just after the acquire
                give_up(inner)
                raise

    def _undo(self, token: bytes) -> None:
        """Release the lock after an interrupt of an acquire or a release. Does not wait for the answer."""
        give_up(self._inner(token))
        self._forget(token)

    def _inner(self, token: bytes | None) -> L | None:
        handles = handles_of(client_of(self._kind, self.redis))
        return None if token is None else handles.get((self._key, token))

    def _release(self, expected_token: Token) -> Coroutine[Any, Any, None]:
        """Release the lock that was acquired with this token. The result waits for the answer."""
        inner = self._inner(new_token(expected_token))
        if inner is None:
            raise self._not_owned("release")
        with translated(self._key):
            released = inner._start_release(inner._who(), inner._confirm)
        return self._confirmed(inner, *released)

    async def _confirmed(self, inner: L, *released: Any) -> None:
        with translated(self._key):
            await inner._finish_release(*released)

    async def _extend(self, seconds: float, replace: bool, what: str) -> Literal[True]:
        inner = self._inner(self.local.token)
        hold = None if inner is None else inner._kept()
        if inner is None or hold is None or not self.timeout:
            raise self._not_owned(what)
        left = 0.0 if replace else w.left(hold.end)
        with translated(self._key):
            await inner._changed(hold, w.RENEW, w.to_ttl(w.Seconds(left + w.number(seconds, "additional_time"))))
        return True

    def _must_end(self, what: str) -> None:
        """Raise LockError if the lock is not acquired, or has no timeout to extend."""
        if self.local.token is None:
            raise LockError(f"Cannot {what} an unlocked lock", self._key)
        if self.timeout is None:
            raise LockError(f"Cannot {what} a lock with no timeout", self._key)

    def _token(self) -> bytes:
        """Return the token for release."""
        token: bytes | None = self.local.token
        if token is None:
            raise LockError("Cannot release a lock that's not owned or is already unlocked.", self._key)
        return token

    def _forget(self, token: bytes) -> None:
        if self.local.token == token:  # otherwise another thread has acquired the lock meanwhile
            self.local.token = None

    def _not_owned(self, what: str) -> LockNotOwnedError:
        return LockNotOwnedError(f"Cannot {what} a lock that's no longer owned", self._key)

    def _exit_raises(self, e: SidecarError) -> bool:
        """Tell whether the end of a block raises e: a LockError only if the caller wants that."""
        if self.raise_on_release_error or not isinstance(e, LockError):
            return True
        log.warning("Lock was unlocked or no longer owned when exiting context manager.")
        return False


class Locks:
    """lock() as redis-py's clients have it, at the daemon."""

    sidecar: Any = None  # a Client of locksidecar; by default one of the daemon at the default socket
    _lock_class: Any

    def lock(
        self,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        lock_class: Any = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> Any:
        """Return a lock; nothing is acquired yet."""
        return (lock_class or self._lock_class)(
            self,
            name,
            timeout=timeout,
            sleep=sleep,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            thread_local=thread_local,
            raise_on_release_error=raise_on_release_error,
        )


class Absent:
    """Replaces a client of redis-py if redis-py is not installed: it accepts the same arguments, and can do nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    @classmethod
    def from_url(cls, url: str, **_: Any) -> Any:
        return cls()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: redis-py is not installed, so that there is nothing but lock()")


class AbsentSentinel(Absent):
    """Replaces redis-py's Sentinel."""

    def master_for(self, _: str, redis_class: Any, *__: Any, **___: Any) -> Any:
        return redis_class()

    slave_for = master_for


def give_up(inner: One | None) -> None:
    """Release a lock, if it is held. Does not wait for the answer."""
    if inner is not None:
        with contextlib.suppress(SidecarError):
            inner._start_release(inner._who(), False)


def text(name: str | bytes | memoryview) -> str:
    """Return a name as a key."""
    if isinstance(name, str):
        return name
    try:
        return bytes(name).decode()
    except UnicodeDecodeError:
        raise LockError(f"the name {bytes(name)!r} is not UTF-8") from None


def new_token(token: Token | None) -> bytes:
    """Return a token in bytes: the given one, or a new one."""
    if token is None:
        return os.urandom(16).hex().encode()
    return token.encode() if isinstance(token, str) else bytes(token)
