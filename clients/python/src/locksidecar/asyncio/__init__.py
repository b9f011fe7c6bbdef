"""The same locks for asyncio: nothing here blocks the loop.

>>> async with locksidecar.asyncio.Client() as client:
...     async with client.lock("order:42") as held:
...         await update(order, fence=held.fence)
"""

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
from ._campaign import Term
from ._client import Client
from ._election import Election
from ._lock import Lock
from ._locks import Locks
from ._semaphore import Semaphore

__all__ = [
    "AlreadyHeld",
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
    "Semaphore",
    "Term",
    "Unavailable",
    "Unconfirmed",
    "Unsupported",
    "Upgrade",
]
