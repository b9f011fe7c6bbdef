"""redis-py's ``redis.asyncio.lock.Lock``, with the daemon behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Literal

from ...asyncio._client import Client
from ...asyncio._lock import Lock as SidecarLock
from .._common import Common, Token, log, new_token
from ..exceptions import LockError, TimeoutError

__all__ = ["Lock"]

_mu: Final = threading.Lock()
_defaults: Final[dict[int, tuple[asyncio.AbstractEventLoop, Client]]] = {}


def client_of(redis: Any) -> Client:
    """Return the client: the given one, its ``sidecar``, or the client of the running loop."""
    for given in (redis, getattr(redis, "sidecar", None)):
        if isinstance(given, Client):
            return given
    loop = asyncio.get_running_loop()
    with _mu:
        found = _defaults.get(id(loop))
        if found is not None and found[0] is loop:
            return found[1]
        closed = [number for number, (old, _) in _defaults.items() if old.is_closed()]
        orphans = [_defaults.pop(number)[1] for number in closed]
        made = Client()
        _defaults[id(loop)] = loop, made
    for client in orphans:
        client._orphaned()
    return made


class Lock(Common[SidecarLock]):
    """A lock with redis-py's names, arguments and errors. Not re-entrant, as redis-py's is not."""

    _client_of = staticmethod(client_of)

    async def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: Token | None = None,
    ) -> bool:
        """Acquire the lock; false if it was not granted in time."""
        return await self._acquired(blocking, blocking_timeout, token)

    async def do_acquire(self, token: Token) -> bool:
        """Try to acquire the lock with this token."""
        return await self._take(new_token(token), 0) is not None

    async def locked(self) -> bool:
        """Ask the daemon whether the lock is held."""
        return await self._locked()

    async def owned(self) -> bool:
        """Tell whether this lock, with its token, is held now. Sends nothing."""
        return self._owned()

    def release(self) -> Coroutine[Any, Any, None]:
        """Release the lock; LockError if it is not locked, LockNotOwnedError if it was lost.

        The call itself releases; its result can be awaited for the answer. So a cancelled release has released.
        """
        return self.do_release(self._released())

    def do_release(self, expected_token: Token) -> Coroutine[Any, Any, None]:
        """Release the lock that was acquired with this token."""
        return self._let_go(expected_token)

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Coroutine[Any, Any, Literal[True]]:
        """Add so many seconds to the remaining time, or make so many remain from now on."""
        self._mine("extend")
        return self.do_extend(additional_time, replace_ttl)

    async def do_extend(self, additional_time: float, replace_ttl: bool) -> Literal[True]:
        return await self._extend(additional_time, replace_ttl, "extend")

    def reacquire(self) -> Coroutine[Any, Any, Literal[True]]:
        """Make the whole timeout remain from now on."""
        self._mine("reacquire")
        return self.do_reacquire()

    async def do_reacquire(self) -> Literal[True]:
        return await self._extend(self.timeout or 0, True, "reacquire")

    async def __aenter__(self) -> Lock:
        if await self.acquire():
            return self
        raise self._unavailable()

    async def __aexit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except TimeoutError as e:
            log.info("lock %r: %s", self._key, e)  # the body ran under the lock
        except LockError as e:
            if self._exit_failed(e, body):
                raise
