"""A handle for a semaphore, for threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import _wire as w
from ._conn import Conn
from ._handle import SWEEP, anybody, done, sweep
from ._hold import Call, Hold, Who
from ._lock import One

if TYPE_CHECKING:
    from ._client import Client


class Semaphore(One):
    """A handle for a semaphore, made by Client.semaphore.

    At most as many permits as it has are held at a time, on all hosts together.

    Any thread may use it, and has permits of its own, unless an owner was named. Each acquire takes one more permit,
    also in a thread that has one. A release releases the permit that this owner acquired last by this handle. fence,
    remaining, owned and extend are about the same permit.
    """

    _mode = w.PERMIT

    def __init__(self, client: Client, key: str, permits: int, *terms: Any) -> None:
        self._stacks: dict[Who, list[Hold[Conn]]] = {}  # by thread, or by the named owner
        self._permits = w.check_permits(permits)
        super().__init__(client, key, *terms)

    @property
    def _name(self) -> str:
        return f"semaphore {self._key!r}"

    @property
    def permits(self) -> int:
        """The number of permits, which this handle sends with each acquire."""
        return self._permits

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        """Acquire a permit; false if none was granted in time.

        blocking=False tries; timeout bounds the wait, and -1 or None does not. After an exception nothing is acquired.
        """
        return self._acquire(w.to_wait(blocking, timeout))

    def holders(self) -> int:
        """Ask the daemon how many permits are held on this host. More may be held on others."""
        return int(w.numbers(self._client._ask(w.INSPECT, self._key, w.PERMIT), 3)[2])

    def _request(self, conn: Conn, owner: int, who: Who) -> tuple[Call, Hold[Conn]]:
        # A number of its own, because each permit of an owner is a separate hold.
        hold = Hold(conn, self._key, self._new_owner(), False, self._permits, fixed=self._fixed)
        return Call(w.ACQUIRE, hold), hold

    def _kept(self) -> Hold[Conn] | None:
        return None if self._owner is None else self._find()

    # ---- owners ----

    def _all(self, which: Callable[[Who], bool] = anybody) -> Iterable[Hold[Conn]]:
        return [hold for who, stack in list(self._stacks.items()) if which(who) for hold in stack]

    def _find(self) -> Hold[Conn] | None:
        """Return the newest permit of this owner."""
        return next((hold for hold in self._newest() if not done(hold)), None)

    def _newest(self) -> list[Hold[Conn]]:
        """Return the owner's permits, newest first. Another thread may just have released some of them."""
        return self._stacks.get(self._who(), [])[::-1]

    def _keep(self, hold: Hold[Conn]) -> None:
        self._stacks.setdefault(self._who(), []).append(hold)
        if len(self._stacks) >= self._sweep_at:
            self._sweep_at = max(SWEEP, 2 * sweep(self._stacks, lambda stack: all(hold.over for hold in stack)))

    def _forget(self, hold: Hold[Conn]) -> None:
        who = self._who()
        stack = self._stacks.get(who, [])
        with contextlib.suppress(ValueError):  # another thread of the same owner has released it
            stack.remove(hold)
        if not stack and self._owner is None:
            self._stacks.pop(who, None)

    def _depth(self) -> int:
        return sum(not done(hold) for hold in self._newest())
