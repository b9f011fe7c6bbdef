"""The errors, the one table from the protocol's codes to them, and the log."""

from __future__ import annotations

import logging
from typing import Final

log: Final = logging.getLogger("locksidecar")


class LockError(Exception):
    """The base of all errors that this package raises itself."""


class NotAcquired(LockError):
    """``with`` did not get the lock: it is held, or the wait has ended."""


class Canceled(NotAcquired):
    """The wait was withdrawn."""


class Upgrade(NotAcquired):
    """This owner holds it shared and asked for it exclusively, which could never be granted."""


class AlreadyHeld(LockError, RuntimeError):
    """Another handle of this thread or task has the lock, or waits for it: waiting here would never end."""


class NotHeld(LockError):
    """This owner does not hold the lock."""


class LostError(NotHeld):
    """This owner held the lock and lost it.

    ``reason`` is one of these:

    * ``expired``, ``gone``, ``fixed_end``, ``forced``, ``session``, ``shutdown``, ``too_long``, ``silent``: the daemon
      said so. This process may notice ``fixed_end`` and ``too_long`` first.
    * ``silence``: the validity that the daemon had stated is over.
    * ``connection``: the connection has ended.
    * ``closed``: the client was closed.
    * ``fork``: this is a forked child, and its parent has the hold.
    * ``unconfirmed``, ``gone``: a release that did not wait has failed.
    * ``resigned``: from Term.check, for a term that is being given up.

    Until the owner has released the lost lock, or its ``with`` has ended, an acquire of the same lock raises this, too.
    """

    def __init__(self, key: str, fence: int, owner: int, reason: str) -> None:
        super().__init__(f"lock {key!r} was lost: {reason}")
        self.key = key
        self.fence = fence
        self.owner = owner
        self.reason = reason

    def __reduce__(self) -> tuple[type[LostError], tuple[str, int, int, str]]:
        return type(self), (self.key, self.fence, self.owner, self.reason)


class Unconfirmed(LockError):
    """The lock was released here, but the store has not confirmed that yet.

    The caller need not do anything: the daemon keeps trying. Until the store confirms, the lock may look held.
    """


class Unavailable(LockError):
    """The store, or the daemon itself, does not answer."""


class ConnectionLost(Unavailable):
    """The connection to the daemon has ended, and with it every hold."""


class Draining(Unavailable):
    """The daemon is going away and grants no new locks."""


class Limit(LockError):
    """A limit of the daemon is reached."""


class Invalid(LockError, ValueError):
    """A request is invalid: a key, a TTL or a wait is out of range."""


class Unsupported(LockError):
    """The daemon, or its store, cannot do this."""


class Denied(LockError):
    """This process may not use this lock."""


class ProtocolError(LockError):
    """The daemon or this client has broken the protocol. The connection has ended."""


for _error in (LockError, *LockError.__subclasses__(), Canceled, Upgrade, LostError, ConnectionLost, Draining):
    _error.__module__ = "locksidecar"  # the name by which users know them

# PROTOCOL.md, section 5: the code, its name, its class here.
CODES: Final[dict[int, tuple[str, type[LockError]]]] = {
    1: ("busy", NotAcquired),
    2: ("timeout", NotAcquired),
    3: ("not_held", NotHeld),
    4: ("canceled", Canceled),
    5: ("upgrade", Upgrade),
    6: ("unavailable", Unavailable),
    7: ("unknown", Unconfirmed),
    8: ("limit", Limit),
    9: ("invalid", Invalid),
    10: ("unsupported", Unsupported),
    11: ("draining", Draining),
    12: ("denied", Denied),
    13: ("bad_frame", ProtocolError),
    14: ("bad_version", ProtocolError),
    15: ("too_slow", ConnectionLost),
    16: ("overlong", Limit),
}

REASONS: Final[dict[int, str]] = {
    1: "expired",
    2: "gone",
    3: "fixed_end",
    4: "forced",
    5: "session",
    6: "shutdown",
    7: "too_long",
    8: "silent",
}


def error(code: int, text: object) -> LockError:
    """Return the exception for a failed reply. A code of a later version becomes a plain LockError."""
    name, cls = CODES.get(code, (f"code {code}", LockError))
    return cls(f"{name}: {text}" if text else name)


def raises(e: LockError, name: str, body: BaseException | None) -> bool:
    """Tell whether the end of a scope raises e, its error. If the body has failed, too, the body's error counts."""
    if isinstance(e, Unconfirmed):
        log.info("%s: %s", name, e)  # the body ran under the lock
        return False
    if body is None:
        return True
    if isinstance(e, LostError) and isinstance(body, LostError) and (e.key, e.fence) == (body.key, body.fence):
        return False  # e may be the cause
    log.warning("%s, whose body failed: %s", name, e)
    if hasattr(body, "add_note"):  # Python 3.11
        body.add_note(f"{name}: {e}")
    return False
