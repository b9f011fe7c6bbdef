"""A handle for one lock, for threads."""

from __future__ import annotations

import time
from sys import modules
from typing import Any, Final

from msgpack import unpackb

from . import _wire as w
from ._base import OPENTELEMETRY, current, nowhere
from ._conn import READ
from ._errors import ConnectionLost, LockError
from ._handle import run
from ._hold import Call, Hold
from ._many import Side
from ._scope import OneLock
from ._threads import here

_clock: Final = time.clock_gettime_ns
_monotonic: Final = time.monotonic
_new_call: Final = Call.__new__
_new_hold: Final = Hold.__new__
_OK: Final = (0,)  # a reply that was a success
# Names of the module take one look-up each. A request with the number _QUIET has no answer.
_CLOCK, _GRANT, _RELEASED, _QUIET = w.CLOCK, w.GRANT, w.RELEASED, w.MAX_INT


class Lock(OneLock):
    """A handle for one lock, made by Client.lock.

    Any thread may use it. The owner is the handle and the thread together, unless an owner was named. So a second
    thread waits. The same thread may acquire again, and then has to release as often.
    """

    # acquire and release have the common case in one stack frame: this thread does nothing else with the key, and can
    # send and read at once. They do what the general path does, and continue there with everything else, even after
    # the request was sent.

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        """Acquire; false if it was not granted in time.

        blocking=False tries; timeout bounds the wait, and -1 or None does not. After an exception nothing is acquired.
        """
        client = self._client
        conn = client._conn
        if (
            conn is None
            or not conn.fast
            or timeout != -1
            or self._general
            or (self._on_lost and not client._notifier.needed)
        ):
            return super().acquire(blocking, timeout)
        traced = client._trace
        more: tuple[Any, ...] = ()
        if traced is not nowhere and (traced is not current or OPENTELEMETRY in modules):
            more = (0, traced() or "")
        key, who, wait = self._key, here.who, -1 if blocking else 0
        at, known, inbox, role = (key, who), client._known, conn._inbox, conn._role
        c, hold = _new_call(Call), _new_hold(Hold)
        mine, applying, granted = (c,), False, False
        try:
            try:
                if (
                    at not in known._entries
                    and len(known._entries) < known._sweep_at
                    and len(self._held) < self._sweep_at
                    and role.setdefault(0, c) is c
                    and not inbox
                    and not conn._rest
                ):
                    conn._turns += 1
                    owner = next(client._owners)
                    hold.conn, hold.key, hold.owner = conn, key, owner
                    hold.shared, hold.fixed = self._shared, self._fixed
                    hold.who, hold.by = who, self._by
                    c.op, c.hold = 2, hold
                    with conn._wlock:
                        n = conn._ids + 1
                        data = conn._pack((2, n, key, owner, +self._shared, wait, self._ttl, self._flags, *more))
                        data = len(data).to_bytes(4, "big") + data
                        with conn._mu:
                            if conn.fast:
                                known._entries[at] = mine
                                conn._ids = c.id = n
                                conn._pending[n] = c
                        if c.id:
                            c.sent = conn._sock.send(data) == len(data)
                            if not c.sent:
                                conn.die(ConnectionLost("cannot write to the daemon: a frame was cut"))
                    if c.sent:
                        inbox.extend(map(conn._sock.recv, READ))
                        data = inbox[0]
                        if _GRANT(data) and len(data) == data[3] + 4:
                            _, number, fence, _, until, _, end, _ = unpackb(data[4:])
                            if number == n and known._entries.get(at) is mine:
                                applying = True
                                conn.heard = _monotonic()
                                with conn._mu:
                                    if conn.dead is None:
                                        until = until * 1_000_000 + conn._shift
                                        if end:
                                            hold.end = end * 1_000_000 + conn._shift
                                            until = min(until, hold.end)
                                        hold.fence, hold.valid, hold.count, hold.grants = fence, until, 1, 1
                                        conn._holds[key, owner] = hold
                                        known._entries[at] = (hold,)
                                        c.reply, c.done = _OK, True
                                        del conn._pending[n]
                                        if _clock(_CLOCK) < until:
                                            hold.on_lost, granted = self._on_lost, True
                                inbox.clear()
                                if granted:  # from here on, a loss is reported
                                    self._held[who] = [hold]
                                    return True
                        if inbox:
                            conn._take_in()
                            conn._read_until(c, None if wait else _monotonic() + client._timeout)
            except OSError as e:
                conn.failed(e, c)
            finally:
                # Nothing is called before the role is given up: an interrupt would leave it taken.
                if role[0] is c:
                    del role[0]
                    if conn._pending or conn._late:
                        conn._pass_on()
            if c.id:
                return run(self._acquire(who, wait, (conn, c, hold)))
        except BaseException as e:
            if applying and inbox:
                conn.interrupted(e)
            if not c.abandoned:
                conn.withdraw(c)
                self._forget(who, hold)
            raise
        return super().acquire(blocking, timeout)

    def release(self, wait: bool | None = None, *, now: bool = False) -> None:
        """Release one acquire. The last one releases the lock.

        wait: whether to wait until the store has confirmed; by default as ``confirm`` says. With False, on_lost reports
        a failure.
        now: free a lock with ``keep`` at once.

        Raises NotHeld if this owner does not hold it, LostError (a NotHeld) if it lost it, and Unconfirmed if the store
        has not confirmed. No other owner's hold is ever released.
        """
        if wait is None:
            wait = self._confirm
        stack = self._held.get(here.who)
        if (
            not stack
            or self._general
            or (hold := stack[-1]).count != 1
            or hold.grants != 1
            or hold.over
            or hold.out
            or not (conn := hold.conn).fast
            or _clock(_CLOCK) >= hold.valid
        ):
            return run(self._finish_release(*self._start_release(self._who(), wait, now)))
        c = _new_call(Call)
        at: tuple[str, Any] = hold.key, hold.who
        c.op, inbox, role, applying = 3, conn._inbox, conn._role, False
        try:
            try:
                if not wait or (role.setdefault(0, c) is c and not inbox and not conn._rest):
                    if wait:
                        conn._turns += 1
                    with conn._wlock:
                        n = conn._ids + 1 if wait else _QUIET
                        data = conn._pack((3, n, hold.key, hold.owner, hold.fence, 0 if wait else 4))
                        data = len(data).to_bytes(4, "big") + data
                        with conn._mu:
                            entries = conn.owners._entries
                            if conn.fast and not hold.over and entries.get(at) == (hold,):
                                hold.count, hold.over = 0, True
                                del conn._holds[hold.key, hold.owner]
                                del entries[at]
                                if wait:
                                    conn._ids = c.id = n
                                    conn._pending[n] = c
                                else:
                                    c.id = n
                                    if hold.on_lost:
                                        conn.note_quiet(hold)
                        if c.id:
                            c.sent = conn._sock.send(data) == len(data)
                            if not c.sent:
                                conn.die(ConnectionLost("cannot write to the daemon: a frame was cut"))
                    if c.sent:
                        self._held.pop(at[1], None)
                        if not wait:
                            return None
                        inbox.extend(map(conn._sock.recv, READ))
                        data = inbox[0]
                        if _RELEASED(data) and len(data) == data[3] + 4 and unpackb(data[4:])[1] == n:
                            applying = True
                            conn.heard = _monotonic()
                            with conn._mu:
                                conn._pending.pop(n, None)
                            inbox.clear()
                            return None
                        conn._take_in()
                        conn._read_until(c, _monotonic() + conn.timeout)
            except OSError as e:
                conn.failed(e, c)
            finally:
                # Nothing is called before the role is given up: an interrupt would leave it taken.
                if wait and role[0] is c:
                    del role[0]
                    if conn._pending or conn._late:
                        conn._pass_on()
            if c.id:
                self._forget(at[1], hold)
                return run(self._finish_release(hold, [c] if wait else []))
        except LockError:
            raise
        except BaseException as e:
            if applying and inbox:
                conn.interrupted(e)
            self._forget(at[1], hold)
            conn.finish(hold, 1, [(hold, 1)], [c])
            raise
        return super().release(wait)

    @property
    def fence(self) -> int:
        """The fencing token, which is larger for each later holder. NotHeld if not held.

        It stays readable after the lock was lost, until release, because that is when it matters. 0 for a degraded
        grant, which has none.
        """
        stack = self._held.get(here.who)
        if not stack or (hold := stack[-1]).over or not hold.conn.fast:
            hold = self._mine()
        return hold.fence


class PairedLock(Side, Lock):
    """A handle of a ReadWriteLock."""
