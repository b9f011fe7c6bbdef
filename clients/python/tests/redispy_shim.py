"""A conftest for redis-py's own test_lock.py, which test_redispy.py runs if it finds that.

The locks belong to the daemon, on a real Redis. The tests still read keys in that Redis, with two differences. The shim
replaces the daemon's own token in a key by the lock's token. A lock without a timeout, whose TTL the daemon renews, has
no TTL here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.lock
import redis.lock

import locksidecar
import locksidecar.asyncio
from locksidecar import redis_compat
from locksidecar.redis_compat import asyncio as redis_compat_asyncio

redis.lock = redis_compat.lock
sys.modules["redis.lock"] = redis_compat.lock
redis.asyncio.lock = redis_compat_asyncio.lock
sys.modules["redis.asyncio.lock"] = redis_compat_asyncio.lock

URL, SOCKET = os.environ.get("SHIM_REDIS", ""), os.environ.get("SHIM_SOCKET", "")
PREFIX = "lock:"


def held_here(lock_module: Any, sidecar: Any, name: str) -> Any:
    """Return the token and the handle of the holder of a name in this process."""
    found = [(token, handle) for (key, token), handle in vars(sidecar).get("_redis_locks", {}).items() if key == name]
    return found[-1] if found else None


def mine(found: Any, ttl: int) -> int:
    hold = None if found is None else found[1]._kept()
    return -1 if ttl > 0 and hold is not None and not hold.over and not hold.end else ttl


class Shim(redis_compat.Redis):
    def __init__(self, **more: Any) -> None:
        kwargs = redis.connection.parse_url(URL)  # type: ignore[no-untyped-call, unused-ignore]
        super().__init__(**{**kwargs, **more})
        self.sidecar = locksidecar.Client(SOCKET)

    def get(self, name: Any) -> Any:
        value = super().get(PREFIX + name)
        found = held_here(redis_compat.lock, self.sidecar, name)
        return found[0] if value is not None and found is not None and len(value) > 8 else value

    def set(self, name: Any, *args: Any, **kwargs: Any) -> Any:
        return super().set(PREFIX + name, *args, **kwargs)

    def ttl(self, name: Any) -> Any:
        return mine(held_here(redis_compat.lock, self.sidecar, name), super().ttl(PREFIX + name))

    def pttl(self, name: Any) -> Any:
        return mine(held_here(redis_compat.lock, self.sidecar, name), super().pttl(PREFIX + name))

    def pexpire(self, name: Any, *args: Any, **kwargs: Any) -> Any:
        return super().pexpire(PREFIX + name, *args, **kwargs)


class AsyncShim(redis_compat_asyncio.Redis):
    def __init__(self, **more: Any) -> None:
        kwargs = redis.asyncio.connection.parse_url(URL)
        super().__init__(**{**kwargs, **more})
        self.sidecar = locksidecar.asyncio.Client(SOCKET)

    async def get(self, name: Any) -> Any:
        value = await super().get(PREFIX + name)
        found = held_here(redis_compat_asyncio.lock, self.sidecar, name)
        return found[0] if value is not None and found is not None and len(value) > 8 else value

    async def set(self, name: Any, *args: Any, **kwargs: Any) -> Any:
        return await super().set(PREFIX + name, *args, **kwargs)

    async def ttl(self, name: Any) -> Any:
        return mine(held_here(redis_compat_asyncio.lock, self.sidecar, name), await super().ttl(PREFIX + name))

    async def pttl(self, name: Any) -> Any:
        return mine(held_here(redis_compat_asyncio.lock, self.sidecar, name), await super().pttl(PREFIX + name))

    async def pexpire(self, name: Any, *args: Any, **kwargs: Any) -> Any:
        return await super().pexpire(PREFIX + name, *args, **kwargs)


def _get_client(cls: Any, request: pytest.FixtureRequest | None = None, **kwargs: Any) -> Shim:
    made = Shim(**kwargs)
    if request is not None:
        request.addfinalizer(lambda: end(made))
    return made


def end(made: Shim) -> None:
    made.sidecar.close()
    made.flushdb()
    made.close()


@pytest.fixture
def r(request: pytest.FixtureRequest) -> Any:
    if request.node.get_closest_marker("asyncio") is not None:
        return request.getfixturevalue("ar")
    return request.getfixturevalue("sr")


@pytest.fixture
def sr(request: pytest.FixtureRequest) -> Shim:
    return _get_client(None, request)


try:
    import pytest_asyncio
except ImportError:
    collect_ignore_glob = ["test_asyncio*"]
else:

    @pytest_asyncio.fixture
    async def create_redis() -> AsyncIterator[Callable[..., Any]]:
        made: list[AsyncShim] = []

        async def create(**kwargs: Any) -> AsyncShim:
            made.append(AsyncShim(**kwargs))
            return made[-1]

        yield create
        for shim in made:
            await shim.sidecar.close()
            await shim.flushdb()
            await shim.aclose()

    @pytest_asyncio.fixture
    async def ar(create_redis: Callable[..., Any]) -> AsyncIterator[AsyncShim]:
        yield await create_redis()
