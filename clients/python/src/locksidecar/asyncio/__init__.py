"""The same locks for asyncio: nothing here blocks the loop.

>>> async with locksidecar.asyncio.Client() as client:
...     async with client.lock("order:42") as held:
...         await update(order, fence=held.fence)
"""

from .._errors import (
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
from ._client import Client
from ._lock import Lock

__all__ = [
    "Canceled",
    "Client",
    "ConnectionLost",
    "Denied",
    "Draining",
    "Invalid",
    "Limit",
    "Lock",
    "LockError",
    "LostError",
    "NotAcquired",
    "NotHeld",
    "ProtocolError",
    "Unavailable",
    "Unconfirmed",
    "Unsupported",
    "Upgrade",
]
