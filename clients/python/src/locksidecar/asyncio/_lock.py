"""A handle for one lock, for tasks: the class for users."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import Any

from .. import _wire as w
from .._errors import ConnectionLost
from .._handle import Handle, check, done, must, sure
from .._hold import Hold, Who
from .._inspect import Inspection, inspection
from ._conn import Asked, Conn
from ._scope import Scope


class One(Scope[Hold[Conn]], Handle):
    """A handle by which an owner has one hold at a time: of a lock, or of a permit."""

    def release(self) -> Coroutine[Any, Any, None]:
        """Release it, or one of several acquires of it.

        The call itself releases; its result can be awaited for the answer. So nothing that happens to the task leaves
        it held, in particular no cancellation.

        NotHeld if this owner does not hold it, LostError (a NotHeld) if it did and lost it. No other owner's hold is
        ever released. Unconfirmed if the store has not confirmed.
        """
        return self._released(*self._let_go())

    def _let_go(self) -> tuple[Hold[Conn], list[Asked]]:
        """Release, and return the requests that are still to be answered."""
        who, hold = self._who(), self._mine()
        if not hold.lost and not sure(hold):
            hold.conn.lapse([hold], w.now())
        if hold.lost:
            if hold.conn.let_go_lost(hold):
                self._forget(who)
                hold.conn.acknowledge([hold])
            raise hold.loss(hold.lost)
        if hold.count <= 1:
            self._forget(who)
        calls: list[Asked] = []
        with contextlib.suppress(ConnectionLost):  # the end of the connection also releases
            calls = hold.conn.release(hold)
        return hold, calls

    async def _released(self, hold: Hold[Conn], calls: list[Asked]) -> None:
        await self._answers(hold.conn, calls, False)
        if calls:
            check(hold, calls[-1].reply)

    def extend(self, ttl: float | None = None) -> Coroutine[Any, Any, None]:
        """Renew it now, to end no earlier than ttl from now; by default its own TTL. It is never shortened.

        Only a lock with renew=False needs this. NotHeld if it is not held. Unavailable if the store does not confirm;
        then the earlier validity still counts.
        """
        return self._change(w.RENEW, w.to_ttl(ttl))

    def inspect(self) -> Coroutine[Any, Any, Inspection]:
        """Ask the daemon for the state of the lock or semaphore, and for its holders on any host.

        The daemon may need several requests to the store. Limit if too many such requests of this client are not
        answered yet.
        """
        return self._inspected()

    async def _inspected(self) -> Inspection:
        return inspection(await self._client._ask(w.INSPECT, self._key, self._mode, w.NAMES))

    def _change(self, op: int, *fields: int) -> Coroutine[Any, Any, None]:
        self._who()
        return self._changed(self._mine(), op, *fields)

    async def _changed(self, hold: Hold[Conn], op: int, *fields: int) -> None:
        must(hold)
        check(hold, await hold.conn.call(op, hold.key, hold.owner, hold.fence, *fields, hold=hold))
        must(hold)


class Lock(One):
    """A handle for one lock, made by Client.lock.

    Any task of the client's loop may use it. The owner is the handle and the task together, unless an owner was named.
    So a second task waits. The same task may acquire again, and then has to release as often. The task is the one that
    makes the call, even if another one awaits it (asyncio.wait_for, gather, create_task).
    """

    def locked(self) -> Coroutine[Any, Any, bool]:
        """Ask the daemon whether the lock is held."""
        return self._locked()

    async def _locked(self) -> bool:
        return bool(w.numbers(await self._client._ask(w.INSPECT, self._key), 1)[0])

    def downgrade(self) -> Coroutine[Any, Any, None]:
        """Turn an exclusive hold into a shared one, without releasing the lock in between."""
        return self._change(w.DOWNGRADE)

    def _request(self, conn: Conn, owner: int, who: Who) -> tuple[Asked, Hold[Conn]]:
        hold = Hold(conn, self._key, owner, self._shared, fixed=self._fixed, who=who, by=self._by)
        return Asked(w.ACQUIRE, conn.loop.create_future(), hold), hold

    def _of(self, who: Who) -> Hold[Conn] | None:
        hold = self._held.get(who)
        if hold is not None and not done(hold):
            return hold
        # A named owner may have acquired it by another handle.
        return self._known.find(self._key, who) if isinstance(who, int) else None

    def _kept(self) -> Hold[Conn] | None:
        return None if self._owner is None else self._held.get(self._owner)
