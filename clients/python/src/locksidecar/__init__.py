"""Distributed locks from the locksidecar daemon on this host.

>>> client = locksidecar.Client()
>>> with client.lock("order:42") as held:
...     update(order, fence=held.fence)
"""

from ._base import ReadWriteLock
from ._client import Client
from ._election import Election, Term
from ._errors import (
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
from ._inspect import Holder, Inspection
from ._lock import Lock
from ._scope import AnyLock, Locks, Semaphore

__version__ = "0.1.0"

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
    "__version__",
]
