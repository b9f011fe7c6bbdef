"""A handle for one lock, for threads: the class for users."""

from __future__ import annotations

from . import _wire as w
from ._conn import Conn
from ._errors import ConnectionLost, Unavailable, Unconfirmed
from ._handle import Handle, check, done, must, sure
from ._hold import Call, Hold, Who
from ._inspect import Inspection, inspection
from ._scope import Scope


class One(Scope[Hold[Conn]], Handle):
    """A handle by which an owner has one hold at a time: of a lock, or of a permit."""

    def release(self) -> None:
        """Release it, or one of several acquires of it.

        NotHeld if this owner does not hold it, LostError (a NotHeld) if it did and lost it. No other owner's hold is
        ever released. Unconfirmed if the store has not confirmed.
        """
        while not self._release(self._mine()):
            pass  # another thread of the same owner has released that hold meanwhile

    def _release(self, hold: Hold[Conn]) -> bool:
        """Release one count of a hold; false if none was left."""
        if not hold.lost and not sure(hold):
            hold.conn.lapse([hold], w.now())
        if hold.lost:
            last = hold.conn.let_go_lost(hold)
            if last is None:
                return False
            if last:
                self._forget(hold)
                hold.conn.acknowledge([hold])
            raise hold.loss(hold.lost)
        before = hold.count
        try:
            if before <= 1:
                self._forget(hold)
            reply = hold.conn.release(hold)
        except ConnectionLost:
            return True  # the end of the connection also releases
        except Unavailable as e:
            raise Unconfirmed(f"{e}; the release has been sent") from None
        except BaseException:
            if not hold.over:
                hold.conn.finish(hold, before, None)
            raise
        if reply:
            check(hold, reply)
        return reply is not None

    def extend(self, ttl: float | None = None) -> None:
        """Renew it now, to end no earlier than ttl from now; by default its own TTL. It is never shortened.

        Only a lock with renew=False needs this. NotHeld if it is not held. Unavailable if the store does not confirm;
        then the earlier validity still counts.
        """
        self._change(w.RENEW, w.to_ttl(ttl))

    def inspect(self) -> Inspection:
        """Ask the daemon for the state of the lock or semaphore, and for its holders on any host.

        The daemon may need several requests to the store. Limit if too many such requests of this client are not
        answered yet.
        """
        return inspection(self._client._ask(w.INSPECT, self._key, self._mode, w.NAMES))

    def _change(self, op: int, *fields: int) -> None:
        hold = self._mine()
        must(hold)
        check(hold, hold.conn.call(op, hold.key, hold.owner, hold.fence, *fields, hold=hold))
        must(hold)


class Lock(One):
    """A handle for one lock, made by Client.lock.

    Any thread may use it. The owner is the handle and the thread together, unless an owner was named. So a second
    thread waits. The same thread may acquire again, and then has to release as often.
    """

    def locked(self) -> bool:
        """Ask the daemon whether the lock is held."""
        return bool(w.numbers(self._client._ask(w.INSPECT, self._key), 1)[0])

    def downgrade(self) -> None:
        """Turn an exclusive hold into a shared one, without releasing the lock in between."""
        self._change(w.DOWNGRADE)

    def _request(self, conn: Conn, owner: int, who: Who) -> tuple[Call, Hold[Conn]]:
        hold = Hold(conn, self._key, owner, self._shared, fixed=self._fixed, who=who, by=self._by)
        return Call(w.ACQUIRE, hold), hold

    def _kept(self) -> Hold[Conn] | None:
        return None if self._owner is None else self._held.get(self._owner)

    def _find(self) -> Hold[Conn] | None:
        who = self._who()
        hold = self._held.get(who)
        if hold is not None and not done(hold):
            return hold
        # A named owner may have acquired it by another handle.
        return self._known.find(self._key, who) if isinstance(who, int) else None
