"""redis-py's ``redis.asyncio.lock.Lock``, with the daemon behind it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

from ... import _errors as errors
from ...asyncio._client import Client
from ...asyncio._lock import Lock as SidecarLock
from .._common import Common, HandleTable, Token, bound, log, new_token
from ..exceptions import LockError, TimeoutError, translated

__all__ = ["Lock"]

_mu: Final = threading.Lock()
_tables: Final[WeakKeyDictionary[Client, HandleTable[SidecarLock]]] = WeakKeyDictionary()
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

    async def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: Token | None = None,
    ) -> bool:
        """Acquire the lock; false if it was not granted in time."""
        value = new_token(token)
        handle = await self._take(value, self._wait(blocking, blocking_timeout))
        if handle is None:
            return False
        self.local.handle, self.local.token = handle, value
        return True

    async def do_acquire(self, token: Token) -> bool:
        """Try to acquire the lock with this token."""
        return await self._take(new_token(token), 0) is not None

    async def _take(self, token: bytes, wait: float) -> SidecarLock | None:
        client, (ttl, renew) = client_of(self.redis), self._terms()
        with translated(self._key):
            before = self._before(self._inner(self.local.token))
            self._refuse_lost(*before)
            inner = client.lock(self._key, ttl, renew, owner="handle")  # a new owner for each acquire
            try:
                if not await inner.acquire(timeout=bound(wait)):
                    return None
                self._refuse_lost(*before)  # the lock may have been lost while this waited
                self._held_by(client).put(self._key, token, inner)
                return inner
            except BaseException:  # an interrupt just after the acquire
                if inner._kept() is not None:
                    with contextlib.suppress(errors.LockError):
                        inner._let_go(inner._who())
                raise

    def _held_by(self, client: Client) -> HandleTable[SidecarLock]:
        with _mu:
            return _tables.setdefault(client, HandleTable())

    def _inner(self, token: bytes | None, *, pop: bool = False) -> SidecarLock | None:
        return self._held_by(client_of(self.redis)).get(self._key, token, pop=pop)

    async def locked(self) -> bool:
        """Ask the daemon whether the lock is held."""
        with translated(self._key):
            return await client_of(self.redis).lock(self._key).locked()

    async def owned(self) -> bool:
        """Tell whether this lock, with its token, is held now. Sends nothing."""
        inner = self._inner(self.local.token)
        return inner is not None and inner.owned()

    def release(self) -> Coroutine[Any, Any, None]:
        """Release the lock; LockError if it is not locked, LockNotOwnedError if it was lost.

        The call itself releases; its result can be awaited for the answer. So a cancelled release has released.
        """
        return self.do_release(self._released())

    def do_release(self, expected_token: Token) -> Coroutine[Any, Any, None]:
        """Release the lock that was acquired with this token."""
        inner = self._inner(new_token(expected_token), pop=True)
        if inner is None:
            raise self._not_owned("release")
        with translated(self._key):
            released = inner._let_go(inner._who())
        return self._confirmed(inner, *released)

    async def _confirmed(self, inner: SidecarLock, *released: Any) -> None:
        with translated(self._key):
            await inner._released(*released)

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

    async def _extend(self, seconds: float, replace: bool, what: str) -> Literal[True]:
        inner, ttl = self._longer(self._inner(self.local.token), seconds, replace, what)
        with translated(self._key):
            await inner.extend(ttl)
        return True

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
