"""The handles for tasks."""

from __future__ import annotations

import time
from asyncio import current_task, get_running_loop
from sys import modules
from typing import Any, Final
from weakref import ref

from .. import _wire as w
from .._base import OPENTELEMETRY, current, nowhere
from .._hold import Hold, Who
from .._many import Side
from ._conn import Conn, Quick
from ._scope import OneLock
from ._tasks import Later

_clock: Final = time.clock_gettime_ns
_new_call: Final = Quick.__new__
_new_hold: Final = Hold.__new__


class Lock(OneLock):
    """A handle for one lock, made by Client.lock.

    Any task of the client's loop may use it. The owner is the handle and the task together, unless an owner was named.
    So a second task waits. The same task may acquire again, and then has to release as often. The task is the one that
    makes the call, even if another one awaits it (asyncio.wait_for, gather, create_task).
    """

    # acquire and release have the common case here: this task does nothing else with the key. They do what the general
    # path does, and continue there with everything else, even after the request was sent.

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> Later[bool]:
        """Acquire; false if it was not granted in time.

        blocking=False tries; timeout bounds the wait, and -1 or None does not. After an exception or a cancellation
        nothing is acquired: the wait is withdrawn, and a grant that crosses that is released.
        """
        client = self._client
        if timeout == -1 and not self._general and get_running_loop() is client._loop:
            task = current_task()
            conn = client._conn
            if task is not None and conn is not None and conn.fast:
                return self._quick(conn, ref(task), -1 if blocking else 0)
        return super().acquire(blocking, timeout)

    async def _quick(self, conn: Conn, who: Who, wait: int) -> bool:
        client, at = self._client, (self._key, who)
        known = client._known
        if (
            not conn.fast
            or at in known._entries
            or len(known._entries) >= known._sweep_at
            or len(self._held) >= self._sweep_at
        ):
            return await self._acquire(who, wait)
        traced = client._trace
        more: tuple[Any, ...] = ()
        if traced is not nowhere and (traced is not current or OPENTELEMETRY in modules):
            more = (0, traced() or "")
        c, hold = _new_call(Quick), _new_hold(Hold)
        hold.conn, hold.key, hold.owner = conn, self._key, next(client._owners)
        hold.shared, hold.fixed = self._shared, self._fixed
        hold.who, hold.by = who, self._by
        c.op, c.hold, c.future = 2, hold, conn.loop.create_future()
        n = conn._ids + 1
        data = conn._pack((2, n, self._key, hold.owner, +self._shared, wait, self._ttl, self._flags, *more))
        known._entries[at] = (c,)
        conn._ids = c.id = n
        conn._pending[n] = c
        try:
            conn._write(len(data).to_bytes(4, "big") + data)
            c.sent = True
            conn.expect(c, None if wait else client._timeout)
            await c.future
            left = hold.valid - _clock(w.CLOCK)
            if left > 0 and conn.dead is None and not hold.over:
                self._held[who] = [hold]
                if self._on_lost:
                    hold.on_lost = self._on_lost
                    client._notifier.start()
                    conn.watch(hold)
                elif left < 10_000_000_000:
                    conn.watch(hold)
                return True
        except BaseException:  # no answer, or cancelled
            conn.withdraw(c)
            self._forget(who, hold)
            raise
        return await self._acquire(who, wait, (conn, c, hold))

    def release(self, wait: bool | None = None, *, now: bool = False) -> Later[None]:
        """Release one acquire. The last one releases the lock.

        The call itself releases; its result can be awaited for the answer. So nothing that happens to the task leaves
        it held, in particular no cancellation.

        wait: whether to wait until the store has confirmed; by default as ``confirm`` says. With False, on_lost reports
        a failure.
        now: free a lock with ``keep`` at once.

        Raises NotHeld if this owner does not hold it, LostError (a NotHeld) if it lost it, and Unconfirmed if the store
        has not confirmed. No other owner's hold is ever released.
        """
        if wait is None:
            wait = self._confirm
        task = current_task() if not self._general and get_running_loop() is self._client._loop else None
        stack = None if task is None or not wait else self._held.get(ref(task))
        if (
            not stack
            or (hold := stack[-1]).count != 1
            or hold.grants != 1
            or hold.over
            or hold.out
            or not (conn := hold.conn).fast
            or _clock(w.CLOCK) >= hold.valid
        ):
            return self._finish_release(*self._start_release(self._who(), wait, now))
        at: tuple[str, Any] = hold.key, hold.who
        entries = conn.owners._entries
        if entries.get(at) != (hold,):
            return super().release(wait)
        c = _new_call(Quick)
        c.op, c.future = 3, conn.loop.create_future()
        n = conn._ids + 1
        data = conn._pack((3, n, hold.key, hold.owner, hold.fence, 0))
        del self._held[at[1]], entries[at], conn._holds[hold.key, hold.owner]
        hold.count, hold.over = 0, True
        conn._ids = c.id = n
        conn._pending[n] = c
        conn._write(len(data).to_bytes(4, "big") + data)
        c.sent = True
        return self._quickly(hold, c)

    async def _quickly(self, hold: Hold, c: Quick) -> None:
        if not c.done:
            hold.conn.expect(c, hold.conn.timeout)
            await c.future
        if not c.done or c.error is not None or c.reply[0] != w.OK:
            await self._finish_release(hold, [c])


class PairedLock(Side, Lock):
    """A handle of a ReadWriteLock."""
