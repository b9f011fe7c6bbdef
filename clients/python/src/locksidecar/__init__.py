"""Distributed locks from the locksidecar daemon on this host.

>>> client = locksidecar.Client()
>>> with client.lock("order:42") as held:
...     update(order, fence=held.fence)
"""

from ._client import Client
from ._errors import (
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
from ._lock import Lock

__version__ = "0.1.0"

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
    "__version__",
]
