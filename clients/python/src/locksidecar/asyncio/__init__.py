# Made from __init__.py by unasync.py: do not edit.
"""The same locks for asyncio: nothing here blocks the loop.

>>> async with locksidecar.asyncio.Client() as client:
...     async with client.lock("order:42") as held:
...         await update(order, fence=held.fence)
"""

from .._base import ReadWriteLock
from .._errors import (
    AlreadyHeld,
    Canceled,
    ConnectionLost,
    Denied,
    Draining,
    Invalid,
    Limit,
    LockError,
    LostError,
    NotAcquired,
    NotHeld,
    ProtocolError,
    Unavailable,
    Unconfirmed,
    Unsupported,
    Upgrade,
)
from .._inspect import Holder, Inspection
from ._client import Client
from ._election import Election, Term
from ._lock import Lock
from ._scope import AnyLock, Locks, Semaphore

__all__ = [
    "AlreadyHeld",
    "AnyLock",
    "Canceled",
    "Client",
    "ConnectionLost",
    "Denied",
    "Draining",
    "Election",
    "Holder",
    "Inspection",
    "Invalid",
    "Limit",
    "Lock",
    "LockError",
    "Locks",
    "LostError",
    "NotAcquired",
    "NotHeld",
    "ProtocolError",
    "ReadWriteLock",
    "Semaphore",
    "Term",
    "Unavailable",
    "Unconfirmed",
    "Unsupported",
    "Upgrade",
]
