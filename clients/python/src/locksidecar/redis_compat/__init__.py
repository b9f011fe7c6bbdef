"""A drop-in for redis-py's locks: names, arguments and errors are redis-py's, the locks the daemon's.

>>> from locksidecar.redis_compat import Redis
>>> with Redis(host="cache").lock("order:42", timeout=10, blocking_timeout=5):
...     charge()

With redis-py installed Redis is its Redis in all but ``lock``, and every other name here is redis-py's
own; without it, there is nothing but locks.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

from . import exceptions, lock
from ._common import Locks
from .exceptions import ConnectionError, LockError, LockNotOwnedError, RedisError, TimeoutError
from .lock import Lock

try:
    import redis as _redis
    from redis import Redis as _Redis
    from redis.cluster import RedisCluster as _RedisCluster
    from redis.sentinel import Sentinel as _Sentinel
except ImportError:
    if not TYPE_CHECKING:
        from ._common import Absent as _Redis
        from ._common import Absent as _RedisCluster
        from ._common import AbsentSentinel as _Sentinel

        _redis = None

__all__ = [
    "ConnectionError",
    "Lock",
    "LockError",
    "LockNotOwnedError",
    "Redis",
    "RedisCluster",
    "RedisError",
    "Sentinel",
    "StrictRedis",
    "TimeoutError",
    "exceptions",
    "from_url",
    "lock",
]


class Redis(Locks, _Redis):
    """redis-py's Redis, except for its locks."""

    _lock_class = Lock


class RedisCluster(Locks, _RedisCluster):
    """redis-py's RedisCluster, except for its locks."""

    _lock_class = Lock


class Sentinel(_Sentinel):
    """redis-py's Sentinel. The clients that it makes have the daemon's locks."""

    def master_for(self, service_name: str, redis_class: Any = Redis, *args: Any, **kwargs: Any) -> Any:
        return cast(Any, super()).master_for(service_name, redis_class, *args, **kwargs)

    def slave_for(self, service_name: str, redis_class: Any = Redis, *args: Any, **kwargs: Any) -> Any:
        return cast(Any, super()).slave_for(service_name, redis_class, *args, **kwargs)


StrictRedis = Redis


def from_url(url: str, **kwargs: Any) -> Redis:
    """Return a Redis, as redis.from_url does."""
    return cast(Redis, Redis.from_url(url, **kwargs))


def __getattr__(name: str) -> Any:
    if name == "asyncio":
        return importlib.import_module(f"{__name__}.asyncio")
    if _redis is None or (name.startswith("__") and name != "__version__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_redis, name)
