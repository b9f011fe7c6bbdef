"""A handle for a semaphore, for tasks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from .. import _wire as w
from .._handle import SWEEP, anybody, sweep
from .._hold import Hold, Who
from ._conn import Asked, Conn
from ._lock import One

if TYPE_CHECKING:
    from ._client import Client


class Semaphore(One):
    """A handle for a semaphore, made by Client.semaphore.

    At most as many permits as it has are held at a time, on all hosts together.

    Any task of the client's loop may use it, and has permits of its own, unless an owner was named. Each acquire takes
    one more permit, also in a task that has one. A release releases the permit that this owner acquired last by this
    handle. fence, remaining, owned and extend are about the same permit. The task is the one that makes the call, even
    if another one awaits it.
    """

    _mode = w.PERMIT

    def __init__(self, client: Client, key: str, permits: int, *terms: Any) -> None:
        self._stacks: dict[Who, list[Hold[Conn]]] = {}  # by task, or by the named owner
        self._permits = w.check_permits(permits)
        super().__init__(client, key, *terms)

    @property
    def _name(self) -> str:
        return f"semaphore {self._key!r}"

    @property
    def permits(self) -> int:
        """The number of permits, which this handle sends with each acquire."""
        return self._permits

    def holders(self) -> Coroutine[Any, Any, int]:
        """Ask the daemon how many permits are held on this host. More may be held on others."""
        return self._holders()

    async def _holders(self) -> int:
        return int(w.numbers(await self._client._ask(w.INSPECT, self._key, w.PERMIT), 3)[2])

    def _request(self, conn: Conn, owner: int, who: Who) -> tuple[Asked, Hold[Conn]]:
        # A number of its own, because each permit of an owner is a separate hold.
        hold = Hold(conn, self._key, self._new_owner(), False, self._permits, fixed=self._fixed)
        return Asked(w.ACQUIRE, conn.loop.create_future(), hold), hold

    def _kept(self) -> Hold[Conn] | None:
        return None if self._owner is None else self._of(self._owner)

    # ---- owners ----

    def _all(self, which: Callable[[Who], bool] = anybody) -> Iterable[Hold[Conn]]:
        return [hold for who, stack in self._stacks.items() if which(who) for hold in stack]

    def _of(self, who: Who) -> Hold[Conn] | None:
        """Return the newest permit of an owner."""
        stack = self._stacks.get(who, [])
        while stack and stack[-1].over and not stack[-1].lost:  # of the parent process
            stack.pop()
        return stack[-1] if stack else None

    def _check(self, who: Who, waits: bool) -> None:
        """Allow every acquire: each takes another permit."""

    def _reenter(self, who: Who, hold: Hold[Conn]) -> bool:
        return False

    def _keep(self, who: Who, hold: Hold[Conn]) -> None:
        self._stacks.setdefault(who, []).append(hold)
        if len(self._stacks) >= self._sweep_at:
            self._sweep_at = max(SWEEP, 2 * sweep(self._stacks, lambda stack: all(hold.over for hold in stack)))

    def _forget(self, who: Who) -> None:
        if stack := self._stacks.get(who):
            stack.pop()
        if not stack:
            self._stacks.pop(who, None)

    def _depth(self) -> int:
        who = self._who()
        return 0 if self._of(who) is None else len(self._stacks[who])
