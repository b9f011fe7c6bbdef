"""redis-py's errors for locks.

If redis-py is installed, these are subclasses of its errors, so that ``except redis.exceptions.LockError`` continues to
work. They are also locksidecar's errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import _errors as e

try:
    from redis import exceptions as _redis
except ImportError:
    if not TYPE_CHECKING:

        class _redis:
            class RedisError(Exception): ...

            class ConnectionError(RedisError): ...

            class TimeoutError(RedisError): ...

            class LockError(RedisError, ValueError): ...

            class LockNotOwnedError(LockError): ...


RedisError = _redis.RedisError


class LockError(_redis.LockError, e.LockError):
    """Errors of acquiring or releasing a lock."""

    def __init__(self, message: str | None = None, lock_name: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.lock_name = lock_name


class LockNotOwnedError(_redis.LockNotOwnedError, LockError):
    """Extend or release of a lock that is not owned, or no longer owned."""


class ConnectionError(_redis.ConnectionError, e.Unavailable):
    """The daemon or its store does not answer."""


class TimeoutError(_redis.TimeoutError, e.Unconfirmed):
    """The lock was released here, but the store has not confirmed; the daemon keeps trying."""


@contextlib.contextmanager
def translated(name: str) -> Iterator[None]:
    """Raise redis-py's errors for errors of locksidecar."""
    try:
        yield
    except e.NotHeld as why:
        raise LockNotOwnedError(str(why), name) from why
    except e.Unconfirmed as why:
        raise TimeoutError(str(why)) from why
    except e.Unavailable as why:
        raise ConnectionError(str(why)) from why
    except e.LockError as why:
        raise LockError(str(why), name) from why


def __getattr__(name: str) -> Any:
    return getattr(_redis, name)
