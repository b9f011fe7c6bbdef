"""Handles for threads that are layers on the one for a lock."""

from __future__ import annotations

from typing import Any

from . import _wire as w
from ._handle import run
from ._hold import Hold, Holds
from ._inspect import Inspection, inspection
from ._lock import Lock
from ._many import OneOf, Permits, Several, Side
from ._scope import Scope


class Locks(Scope[Holds[Any]], Several):
    """A handle for several locks that are acquired together, all or none; made by Client.lock_many.

    It is used like a Lock. Its owner is the handle and the thread together, unless an owner was named. If one of the
    locks is lost, the whole is lost, and on_lost is called once with the LostError of that lock. The others stay held
    until the release, so that no other client gets them while the work that needs all of them is still being ended.
    """

    def downgrade(self) -> None:
        """Turn the exclusive holds into shared ones, without releasing the locks in between."""
        run(self._change(w.DOWNGRADE))


class Semaphore(Scope[Hold[Any]], Permits):
    """A handle for a semaphore, made by Client.semaphore.

    At most as many permits as it has are held at a time, on all hosts together.

    Any thread may use it, and has permits of its own, unless an owner was named. Each acquire takes one more permit,
    also in a thread that has one. A release releases the permit that this owner acquired last by this handle. fence,
    remaining, owned and extend are about the same permit.
    """

    def holders(self) -> int:
        """Ask the daemon how many permits are held on this host. More may be held on others."""
        return int(w.numbers(self._client._ask(w.INSPECT, self._key, w.PERMIT), 3)[2])

    def inspect(self) -> Inspection:
        """Ask the daemon for the state of the semaphore, and for its holders on any host; see Lock.inspect."""
        return inspection(self._client._ask(w.INSPECT, self._key, w.PERMIT, w.NAMES))


class AnyLock(Scope[Hold[Any]], OneOf):
    """A handle for one of several locks, whichever is free first; made by Client.lock_any.

    It is used like a Lock, and key is the name of the one that is held. It is fair to each lock's queue, and holds
    nothing of the others. If this owner already holds one of them by this handle, an acquire counts that one again.
    """


class PairedLock(Side, Lock):
    """A handle of a ReadWriteLock."""
