"""A handle for several locks that are held together, for threads."""

from __future__ import annotations

from . import _wire as w
from ._conn import Conn
from ._errors import ConnectionLost, Unavailable, Unconfirmed
from ._handle import HandleMany, check, check_all, missing, must, sure
from ._hold import Call, Holds, Who
from ._scope import Scope


class Locks(Scope[Holds[Conn]], HandleMany):
    """A handle for several locks that are acquired together, all or none; made by Client.lock_many.

    It is used like a Lock. Its owner is the handle and the thread together, unless an owner was named. If one of the
    locks is lost, the whole is lost, and on_lost is called once with the LostError of that lock. The others stay held
    until the release, so that no other client gets them while the work that needs all of them is still being ended.
    """

    def release(self) -> None:
        """Release all the locks, or one of several acquires of them.

        NotHeld if this owner does not hold them, LostError (a NotHeld) if one was lost. In the second case, the others
        are released. Unconfirmed if the store has not confirmed all.
        """
        holds = self._mine()
        conn, count, absent = holds.conn, holds.count, missing(holds)
        if not holds.lost and not sure(holds):
            conn.lapse(holds.each, w.now())
        answers: list[tuple[str, int]] | None = []
        try:
            if count <= 1:
                self._forget(holds)
            answers = conn.release_many(holds)
        except ConnectionLost:
            pass  # the end of the connection also releases
        except Unavailable as e:
            if not holds.lost:
                raise Unconfirmed(f"{e}; the release has been sent") from None
        except BaseException:
            if holds.count == count:
                conn.finish_all(holds, count, [], [])
            raise
        if answers is None:  # another thread of the same owner has released them
            raise self._not_held()
        conn.acknowledge(holds.each)
        check_all(holds, answers, absent)

    def extend(self, ttl: float | None = None) -> None:
        """Renew all the locks now, to end no earlier than ttl from now; by default each its own TTL.

        Only locks with renew=False need this. NotHeld if they are not held, and LostError if one is lost. Unavailable
        if the store does not confirm; then the earlier validity still counts.
        """
        self._change(w.RENEW, w.to_ttl(ttl))

    def downgrade(self) -> None:
        """Turn the exclusive holds into shared ones, without releasing the locks in between."""
        self._change(w.DOWNGRADE)

    def _change(self, op: int, *fields: int) -> None:
        holds = self._mine()
        must(holds)
        for hold, reply in holds.conn.call_each(op, holds, *fields):
            check(hold, reply)
        must(holds)

    def _request(self, conn: Conn, owner: int, who: Who) -> tuple[Call, Holds[Conn]]:
        holds = Holds(conn, self._keys, owner, self._shared, fixed=self._fixed, who=who, by=self._by)
        return Call(w.ACQUIRE_MANY, holds), holds

    def _join(self, holds: Holds[Conn]) -> Holds[Conn]:
        if self._owner is None:
            return holds
        kept = self._held.setdefault(self._owner, holds)  # one step: if there are two threads, one is first
        return kept if kept is not holds and holds.conn.merge(kept, holds) else holds

    def _find(self) -> Holds[Conn] | None:
        holds = self._held.get(self._who())
        return holds if holds is not None and holds.count else None
