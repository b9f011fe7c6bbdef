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

    It is used like a Lock. Its owner is the handle and the task together, unless an owner was named. If one of the
    locks is lost, the whole is lost, and on_lost is called once with the LostError of that lock. The others stay held
    until the release, so that no other client gets them while the work that needs all of them is still being ended.
    """

    def release(self) -> Coroutine[Any, Any, None]:
        """Release all the locks, or one of several acquires of them.

        The call itself releases; its result can be awaited for the answer. So nothing that happens to the task leaves
        the locks held, in particular no cancellation.

        NotHeld if this owner does not hold them, LostError (a NotHeld) if one was lost. In the second case, the others
        are released. Unconfirmed if the store has not confirmed all.
        """
        absent = missing(self._mine())
        return self._released(*self._let_go(), absent)

    def _let_go(self) -> tuple[Holds[Conn], list[Asked]]:
        """Release, and return the requests that are still to be answered."""
        who, holds = self._who(), self._mine()
        if not holds.lost and not sure(holds):
            holds.conn.lapse(holds.each, w.now())
        if holds.count <= 1:
            self._forget(who)
        calls: list[Asked] = []
        with contextlib.suppress(ConnectionLost):  # the end of the connection also releases
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

        Only locks with renew=False need this. NotHeld if they are not held, and LostError if one is lost. Unavailable
        if the store does not confirm; then the earlier validity still counts.
        """
        return self._change(w.RENEW, w.to_ttl(ttl))

    def downgrade(self) -> Coroutine[Any, Any, None]:
        """Turn the exclusive holds into shared ones, without releasing the locks in between."""
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
