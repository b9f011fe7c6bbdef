"""redis-py's ``redis.asyncio.lock.Lock``, with the daemon behind it."""

from __future__ import annotations

from typing import Literal

from ..._errors import LockError as SidecarError
from ..._errors import raises
from ...asyncio._client import Client
from ...asyncio._lock import Lock as SidecarLock
from ...asyncio._tasks import Later
from .._common import Common, Token, client_of, new_token
from ..exceptions import LockError, translated

__all__ = ["Lock"]


class Lock(Common[SidecarLock]):
    """A lock with redis-py's names, arguments and errors. Not re-entrant, as redis-py's is not."""

    _kind = Client

    async def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: Token | None = None,
    ) -> bool:
        """Acquire the lock; false if it was not granted in time."""
        value = new_token(token)
        try:
            handle = await self._take(value, self._wait(blocking, blocking_timeout))
            if handle is None:
                return False
            self.local.handle, self.local.token = handle, value
            return True
        except BaseException:
            self._undo(value)
            raise

    async def do_acquire(self, token: Token) -> bool:
        """Try to acquire the lock with this token."""
        return await self._take(new_token(token), 0) is not None

    async def locked(self) -> bool:
        """Ask the daemon whether the lock is held."""
        client = client_of(self._kind, self.redis)
        with translated(self._key):
            return bool(await client.lock(self._key).locked())

    async def owned(self) -> bool:
        """Tell whether this lock, with its token, is held now. Sends nothing."""
        inner = self._inner(self.local.token)
        return inner is not None and inner.owned()

    def release(self) -> Later[None]:
        """Release the lock; LockError if it is not locked, LockNotOwnedError if it was lost.

        The call itself releases; its result can be awaited for the answer. So a cancelled release has released.
        """
        token = self._token()
        try:
            return self.do_release(token)
        except BaseException:
            self._undo(token)
            raise
        finally:
            self._forget(token)

    def do_release(self, expected_token: Token) -> Later[None]:
        """Release the lock that was acquired with this token."""
        return self._release(expected_token)

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Later[Literal[True]]:
        """Add so many seconds to the remaining time, or make so many remain from now on."""
        self._must_end("extend")
        return self.do_extend(additional_time, replace_ttl)

    async def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        return await self._extend(additional_time, replace_ttl, "extend")

    def reacquire(self) -> Later[Literal[True]]:
        """Make the whole timeout remain from now on."""
        self._must_end("reacquire")
        return self.do_reacquire()

    async def do_reacquire(self) -> Literal[True]:
        return await self._extend(self.timeout or 0, True, "reacquire")

    async def __aenter__(self) -> Lock:
        token = new_token(None)
        try:
            if await self.acquire(token=token):
                return self
        except BaseException:
            self._undo(token)
            raise
        raise LockError("Unable to acquire lock within the time specified", self._key)

    async def __aexit__(self, kind: object, body: BaseException | None, trace: object) -> None:
        try:
            await self.release()
        except SidecarError as e:
            if raises(e, f"lock {self._key!r}", body) and self._exit_raises(e):
                raise
