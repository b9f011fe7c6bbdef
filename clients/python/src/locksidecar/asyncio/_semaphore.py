"""A handle for a semaphore, for tasks."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .. import _wire as w
from .._hold import Hold
from ._conn import Asked, Conn
from ._lock import One
from ._scope import Task

if TYPE_CHECKING:
    from ._client import Client


class Semaphore(One):
    """A handle for a semaphore, made by Client.semaphore.

    So many permits as it has are held at a time, on all hosts together.

    Any task of the client's loop may use it, and has permits of its own, unless an owner was named: each acquire takes
    one more, also in a task that has one. A release gives back the one that this owner acquired last by this handle;
    fence, remaining, owned and extend are of that one. The task is the one that makes the call, also where
    another one awaits it.
    """

    def __init__(self, client: Client, key: str, permits: int, *terms: Any) -> None:
        self._permits = w.check_permits(permits)
        super().__init__(client, key, *terms)
        self._stacks: WeakKeyDictionary[Task, list[Hold[Conn]]] = WeakKeyDictionary()
        self._shared_stack: list[Hold[Conn]] = []  # of the named owner

    @property
    def _name(self) -> str:
        return f"semaphore {self._key!r}"

    @property
    def permits(self) -> int:
        """How many permits there are, as this handle says with each acquire."""
        return self._permits

    def holders(self) -> Coroutine[Any, Any, int]:
        """Ask the daemon how many permits are held on this host; on others there may be more."""
        return self._holders()

    async def _holders(self) -> int:
        return int(w.numbers(await self._client._ask(w.INSPECT, self._key, w.PERMIT), 3)[2])

    def _request(self, conn: Conn, owner: int) -> tuple[Asked, Hold[Conn]]:
        # A number of its own: an owner's permits are apart.
        hold = Hold(conn, self._key, next(self._client._owners), False, self._permits)
        return Asked(w.ACQUIRE, conn.loop.create_future(), hold), hold

    def _kept(self) -> Hold[Conn] | None:
        return None if self._owner is None else self._of(None)

    # ---- who holds ----

    def _stack(self, who: Task | None) -> list[Hold[Conn]]:
        """Return what this owner holds, the newest last."""
        return self._shared_stack if who is None else self._stacks.setdefault(who, [])

    def _of(self, who: Task | None) -> Hold[Conn] | None:
        stack = self._stack(who)
        while stack and stack[-1].over and not stack[-1].lost:  # the parent process's
            stack.pop()
        return stack[-1] if stack else None

    def _reenter(self, who: Task | None, hold: Hold[Conn]) -> bool:
        return False  # each acquire takes a permit

    def _keep(self, who: Task | None, hold: Hold[Conn]) -> None:
        self._stack(who).append(hold)

    def _forget(self, who: Task | None) -> None:
        if stack := self._stack(who):
            stack.pop()

    def _depth(self) -> int:
        who = self._who()
        return 0 if self._of(who) is None else len(self._stack(who))
