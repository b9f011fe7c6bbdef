"""A campaign of an election for tasks, from start to stop.

The campaign is one task (that runs run, or that start made): it acquires the lock, ends on_elected, calls on_lost, and
releases. A cancellation of the task is a stop. It is recorded, the campaign ends in order, and then the cancellation is
raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Literal

from .. import _wire as w
from .._errors import OK, LockError
from .._hold import Hold, Note, Origin, Told
from .._term import MENDS, STEP, BaseCampaign, BaseTerm, Pauses
from ._conn import Conn

if TYPE_CHECKING:
    from ._client import Client

_log: Final = logging.getLogger("locksidecar")


class Over(asyncio.Event):
    """Set when the term is over, and true then."""

    def __init__(self, over: Callable[[], bool]) -> None:
        super().__init__()
        self._over = over

    def is_set(self) -> bool:
        """Tell whether the term is over now."""
        return super().is_set() or self._over()

    async def wait(self) -> Literal[True]:
        """Wait until the term is over."""
        return True if self.is_set() else await super().wait()

    __bool__ = is_set


class Term(BaseTerm):
    """One time of being the leader, which on_elected and on_lost get. Other threads may use it, too."""

    def __init__(self, hold: Hold[Conn]) -> None:
        super().__init__(hold)
        self._loop = hold.conn.loop
        self._begun = False
        self.lost: Final = Over(self._over)
        """An event that is set when the term is over, because the lock was lost or is being released."""

    def _here(self) -> bool:
        return asyncio._get_running_loop() is self._loop


Elected = Callable[[Term], object]
Lost = Callable[[Term, "str | None"], object]


class Campaign(BaseCampaign):
    """One campaign, from start to stop."""

    def __init__(
        self, client: Client, key: str, ttl: int, on_elected: Elected, on_lost: Lost, cancel: bool, by: Origin
    ) -> None:
        super().__init__()
        self._client = client
        self._key = key
        self._ttl = ttl
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._cancel = cancel
        self._by = by
        self._election = by.handle()  # kept alive: its terms must not look like terms of a discarded handle
        self._woken = asyncio.Event()
        self._callbacks: set[asyncio.Task[None]] = set()
        self.loop = client._here()
        self.term: Term | None = None
        self.task: asyncio.Task[Any] | None = None
        self.begun = False
        self.ended = asyncio.Event()
        self.cancelled: asyncio.CancelledError | None = None

    def wake(self) -> None:
        """Make the campaign check again."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._woken.set()

    def stop(self) -> None:
        """Ask for the end."""
        self.stopping = True
        self.wake()

    @property
    def inside(self) -> set[asyncio.Task[Any] | None]:
        """The tasks that would have to be waited for."""
        return {self.task, *self._callbacks}

    def _interrupted(self, e: asyncio.CancelledError) -> None:
        """Record a cancellation."""
        self.cancelled = self.cancelled or e
        self.stopping = True

    async def _rest(self, most: float) -> None:
        timer = self.loop.call_later(max(0.0, most), self.wake)
        try:
            await self._woken.wait()
        except asyncio.CancelledError as e:
            self._interrupted(e)
        timer.cancel()
        self._woken.clear()

    async def run(self) -> None:
        """Campaign to the end. Keeps the error that ended it, also a cancellation; raises only what ends the loop."""
        self.begun = True
        try:
            self._client._notifier.needed = True  # so that silence is noticed soon
            pauses = Pauses()
            while not self.stopping:
                hold = await self._win(pauses)
                if hold is not None:
                    await self._lead(hold)
        except Exception as e:
            self.error = e
        except BaseException as e:
            self.error = e
            raise
        finally:
            self.ended.set()

    async def _win(self, pauses: Pauses) -> Hold[Conn] | None:
        """Make one attempt, which may wait without bound. After a failure, pause for a short time."""
        client, began = self._client, time.monotonic()
        hold = None
        try:
            hold = await self._ask(client._live() or await client._connect(began))
        except asyncio.CancelledError as e:
            self._interrupted(e)
        except MENDS as e:
            if client._closed and not self.stopping:
                raise
            _log.log(logging.WARNING if pauses.first else logging.INFO, "election %r goes on: %s", self._key, e)
        if hold is not None:
            pauses.reset()
            return hold
        until = time.monotonic() + pauses.next(time.monotonic() - began)
        while not self.stopping and time.monotonic() < until:
            await self._rest(until - time.monotonic())
        return None

    async def _ask(self, conn: Conn) -> Hold[Conn] | None:
        """Ask for the lock, and wait for it without bound, or until stop."""
        hold = Hold(conn, self._key, next(self._client._owners), False, by=self._by)
        call = Told(w.ACQUIRE, self.wake, hold)
        try:
            conn.send(call, hold.key, hold.owner, 0, -1, self._ttl, 0)
            while not call.done and not self.stopping:
                await self._rest(conn.step)
                conn.listen(conn.catch_up)
            if self.stopping:
                conn.withdraw(call)
                return None
            if call.error is not None:
                raise call.error
            if conn.granted(call) is None:  # the longest wait that the daemon allows is over
                return None
            if conn.adopt(hold, Note(self.wake)):
                conn.watch(hold)
                return hold
            conn.give_up(hold)  # the hold was over before this task ran
            return None
        except BaseException:
            conn.withdraw(call)
            raise

    async def _lead(self, hold: Hold[Conn]) -> None:
        """Lead until the term is over. Raises the error of a callback."""
        self.term = term = Term(hold)
        elected = self._task(self._elect(term))
        while self.lasts(term):
            await self._rest(min(STEP, term.remaining + 0.001))
        reason = hold.lost or None
        term._end = reason or "resigned"
        term.lost.set()
        if self._cancel or not term._begun:
            elected.cancel()
        if term._begun:
            self._task(self._lose(term, reason))
        while self._callbacks:
            try:
                await asyncio.wait(self._callbacks)
            except asyncio.CancelledError as e:  # the lock has to be kept until the callbacks have ended
                self._interrupted(e)
        self.term = None
        await self._release(hold)
        if term._failure is not None:
            raise term._failure

    def _task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(coroutine)
        self._callbacks.add(task)
        task.add_done_callback(self._callbacks.discard)
        return task

    async def _elect(self, term: Term) -> None:
        term._begun = True
        self._client._known.lend(term._hold, asyncio.current_task())
        try:
            done = self._on_elected(term)
            if inspect.isawaitable(done):
                await done
        except asyncio.CancelledError as e:
            if not term._end:
                term._failure = RuntimeError("on_elected was cancelled by somebody else")
                term._failure.__cause__ = e
        except Exception as e:
            if not term._expected(e):
                term._failure = e
        except BaseException as e:  # such as SystemExit, which also ends the loop
            term._failure = e
            raise
        finally:
            self.wake()

    async def _lose(self, term: Term, reason: str | None) -> None:
        try:
            done = self._on_lost(term, reason)
            if inspect.isawaitable(done):
                await done
        except Exception as e:
            if term._failure is not None:
                _log.exception("election %r: on_lost failed, as on_elected had", self._key)
            else:
                term._failure = e

    async def _release(self, hold: Hold[Conn]) -> None:
        if hold.over:
            hold.conn.give_up(hold)
            return
        try:
            for c in hold.conn.release(hold):  # this has released; the rest only waits
                reply = await hold.conn.answer(c)
                if reply[0] != OK:
                    _log.info("election %r: the release was answered %s", self._key, w.text(reply))
        except asyncio.CancelledError as e:
            self._interrupted(e)
        except LockError as e:  # the release has been sent, or the connection has ended, which also releases
            _log.info("election %r: %s", self._key, e)
