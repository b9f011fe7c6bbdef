"""A handle for several locks that are held together, for tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine
from typing import Any

from .. import _wire as w
from .._errors import OK, ConnectionLost, error
from .._handle import HandleMany, check, check_all, missing, must, sure
from .._hold import Holds, Who
from ._conn import Asked, Conn
from ._scope import Scope


class Locks(Scope[Holds[Conn]], HandleMany):
    """A handle for several locks that are acquired together, all or none; made by Client.lock_many.

    It is used as a Lock is, and owned by the handle and the task together, unless an owner was named.
    It is good only while each of the locks is: when one is lost, it is lost. on_lost is called once
    then, with the LostError of that one. The others stay held until the release, so that nobody else comes
    in while the work that needs them all is still being ended.
    """

    def release(self) -> Coroutine[Any, Any, None]:
        """Release all the locks, or one of several acquires of them.

        The call releases; what it returns is awaited for the answer. So nothing that happens to
        the task, cancellation least of all, leaves the locks held.

        NotHeld when this owner does not hold them, LostError (a NotHeld) when one was lost; the others
        are released all the same. Unconfirmed when the store has not confirmed all.
        """
        absent = missing(self._mine())
        return self._released(*self._let_go(), absent)

    def _let_go(self) -> tuple[Holds[Conn], list[Asked]]:
        """Release, and return what is still to be answered."""
        who, holds = self._who(), self._mine()
        if not holds.lost and not sure(holds):
            holds.conn.lapse(holds.each, w.now())
        if holds.count <= 1:
            self._forget(who)
        calls: list[Asked] = []
        with contextlib.suppress(ConnectionLost):  # that is release, too
            calls = holds.conn.release_many(holds)
        holds.conn.acknowledge(holds.each)
        return holds, calls

    async def _released(self, holds: Holds[Conn], calls: list[Asked], absent: str) -> None:
        await self._answers(holds.conn, calls, bool(holds.lost))
        answers: list[tuple[str, int]] = []
        for c in calls:
            if c.reply[0] != OK:
                raise error(c.reply[0], w.text(c.reply))
            answers.extend((key, code) for (key, _), code in zip(c.what, c.reply[2], strict=True))
        check_all(holds, answers, absent)

    def extend(self, ttl: float | None = None) -> Coroutine[Any, Any, None]:
        """Renew all the locks now, to end no earlier than ttl from now; by default each its own TTL.

        Only locks with renew=False need this. NotHeld if they are not held, LostError if one is lost,
        Unavailable if the store does not confirm: then the validity known before still counts.
        """
        return self._change(w.RENEW, w.to_ttl(ttl))

    def downgrade(self) -> Coroutine[Any, Any, None]:
        """Turn the exclusive holds into shared ones, without letting go in between."""
        return self._change(w.DOWNGRADE)

    def _change(self, op: int, *fields: int) -> Coroutine[Any, Any, None]:
        self._who()
        return self._changed(self._mine(), op, *fields)

    async def _changed(self, holds: Holds[Conn], op: int, *fields: int) -> None:
        must(holds)
        conn = holds.conn
        calls = [(h, conn.ask(op, h.key, h.owner, h.fence, *fields, hold=h)) for h in holds.each]
        for hold, c in calls:
            check(hold, await conn.answer(c))
        must(holds)

    def _request(self, conn: Conn, owner: int, who: Who) -> tuple[Asked, Holds[Conn]]:
        holds = Holds(conn, self._keys, owner, self._shared, fixed=self._fixed, who=who, by=self._by)
        return Asked(w.ACQUIRE_MANY, conn.loop.create_future(), holds), holds

    def _join(self, who: Who, holds: Holds[Conn]) -> Holds[Conn]:
        kept = self._held.get(who)
        return kept if kept is not None and kept is not holds and holds.conn.merge(kept, holds) else holds

    def _of(self, who: Who) -> Holds[Conn] | None:
        holds = self._held.get(who)
        return holds if holds is not None and holds.count else None
