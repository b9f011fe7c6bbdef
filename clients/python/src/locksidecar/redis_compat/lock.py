# Made from redis_compat/asyncio/lock.py by unasync.py: do not edit.
"""redis-py's ``redis.lock.Lock``, with the daemon behind it."""

from __future__ import annotations

from typing import Literal

from .._client import Client
from .._errors import LockError as SidecarError
from .._errors import raises
from .._handle import run
from .._lock import Lock as SidecarLock
from ._common import Common, Token, client_of, new_token
from .exceptions import LockError, translated

__all__ = ["Lock"]


class Lock(Common[SidecarLock]):
    """A lock with redis-py's names, arguments and errors. Not re-entrant, as redis-py's is not."""

    _kind = Client

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: Token | None = None,
    ) -> bool:
        """Acquire the lock; false if it was not granted in time."""
        value = new_token(token)
        try:
            handle = run(self._take(value, self._wait(blocking, blocking_timeout)))
            if handle is None:
                return False
            self.local.handle, self.local.token = handle, value
            return True
        except BaseException:
            self._undo(value)
            raise

    def do_acquire(self, token: Token) -> bool:
        """Try to acquire the lock with this token."""
        return run(self._take(new_token(token), 0)) is not None

    def locked(self) -> bool:
        """Ask the daemon whether the lock is held."""
        client = client_of(self._kind, self.redis)
        with translated(self._key):
            return bool(client.lock(self._key).locked())

    def owned(self) -> bool:
        """Tell whether this lock, with its token, is held now. Sends nothing."""
        inner = self._inner(self.local.token)
        return inner is not None and inner.owned()

    def release(self) -> None:
        """Release the lock; LockError if it is not locked, LockNotOwnedError if it was lost."""
        token = self._token()
        try:
            return self.do_release(token)
        except BaseException:
            self._undo(token)
            raise
        finally:
            self._forget(token)

    def do_release(self, expected_token: Token) -> None:
        """Release the lock that was acquired with this token."""
        return run(self._release(expected_token))

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Add so many seconds to the remaining time, or make so many remain from now on."""
        self._must_end("extend")
        return self.do_extend(additional_time, replace_ttl)

    def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        return run(self._extend(additional_time, replace_ttl, "extend"))

    def reacquire(self) -> Literal[True]:
        """Make the whole timeout remain from now on."""
        self._must_end("reacquire")
        return self.do_reacquire()

    def do_reacquire(self) -> Literal[True]:
        return run(self._extend(self.timeout or 0, True, "reacquire"))

    def __enter__(self) -> Lock:
        token = new_token(None)
        try:
            if self.acquire(token=token):
                return self
        except BaseException:
            self._undo(token)
            raise
        raise LockError("Unable to acquire lock within the time specified", self._key)

    def __exit__(self, kind: object, body: BaseException | None, trace: object) -> None:
        try:
            self.release()
        except SidecarError as e:
            if raises(e, f"lock {self._key!r}", body) and self._exit_raises(e):
                raise
