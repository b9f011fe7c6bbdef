"""Leader election for tasks, on an exclusive lock.

The campaign is one task (that runs run, or that start made): it acquires the lock, ends on_elected, calls on_lost, and
releases. A cancellation of the task is a stop. It is recorded, the campaign ends in order, and then the cancellation is
raised.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal

from .._term import BaseCampaign, BaseElection, BaseOver, BaseTerm

_running: Final[set[asyncio.Task[None]]] = set()  # a loop alone does not keep a task alive


class Over(BaseOver, asyncio.Event):
    """Set when the term is over, and true then."""

    async def wait(self) -> Literal[True]:
        """Wait until the term is over."""
        return True if self.is_set() else await super().wait()


class Term(BaseTerm):
    """One time of being the leader, which on_elected and on_lost get. Other threads may use it, too.

    lost: an event that is set when the term is over, because the lock was lost or is being released.
    """

    lost: Over
    _event = Over

    def _here(self) -> bool:
        return asyncio._get_running_loop() is self._hold.conn.loop


Elected = Callable[[Term], object]
TermLost = Callable[[Term, "str | None"], object]


class Campaign(BaseCampaign):
    """One campaign, from start to stop."""

    _cancellations = (asyncio.CancelledError,)
    _terms = Term

    def __init__(self, election: Election) -> None:
        super().__init__(election)
        self._woken = asyncio.Event()
        self._callbacks: set[asyncio.Task[None]] = set()
        self.task: asyncio.Task[Any] | None = None
        self.ended = asyncio.Event()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._woken.set()

    def inside(self) -> bool:
        return asyncio.current_task() in {self.task, *self._callbacks}

    async def _rest(self, most: float) -> None:
        timer = self.loop.call_later(max(0.0, most), self.wake)
        try:
            await self._woken.wait()
        except asyncio.CancelledError as e:
            self._cancelled(e)
        timer.cancel()
        self._woken.clear()

    def start(self) -> None:
        self._election._claim(self, True)
        self.task = task = self._task(self.run(), _running)
        task.add_done_callback(lambda _: self._end())  # it may have been cancelled before its first step

    async def run(self) -> None:
        self.task = asyncio.current_task()
        self._election._claim(self, True)
        await self._course()

    async def join(self) -> None:
        await self.ended.wait()

    def _end(self) -> None:
        self.finished = True
        self.ended.set()

    def _begin(self, term: Term) -> None:
        self._elected = self._task(self._elect(term), self._callbacks)

    async def _finish(self, term: Term, reason: str | None) -> None:
        begun = not term._begin()
        if self._election._cancel or not begun:
            self._elected.cancel()
        if begun:
            self._task(self._lose(term, reason), self._callbacks)
        while self._callbacks:
            try:
                await asyncio.wait(self._callbacks)
            except asyncio.CancelledError as e:  # the lock has to be kept until the callbacks have ended
                self._cancelled(e)

    def _task(self, coroutine: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task


class Election(BaseElection[Term]):
    """One candidate for leadership, made by Client.election, which documents what holds for all candidates.

    on_elected(term) is called when a term begins, in a task of its own. It is a coroutine function, or one that does
    not block. The term does not end when it returns, but when the lock is lost, or resign or stop is called. Then its
    task is cancelled. With cancel=False it has to check term.lost instead.
    on_lost(term, reason), of either kind, is called exactly once for each on_elected that has begun, at once when the
    term is over, even if on_elected is still ending. reason is the reason of the LostError (``expired``,
    ``connection``, ``silence``, …), or None if this candidate has ended the term.
    """

    _campaigns = Campaign

    def run(self) -> Coroutine[Any, Any, None]:
        """Campaign until stop is called. Raises the error that ended it.

        AlreadyHeld if the task holds the key by a lock: it would wait for itself.

        A cancellation stops the campaign, too. It is raised after the term has ended, its callbacks have ended, and the
        lock is released.
        """
        return self._run(self._new())  # so that stop applies to it, although it may not have begun

    def stop(self) -> Coroutine[Any, Any, None]:
        """End the campaign: the term is over, and the lock is released when its callbacks have ended.

        The call itself asks for the end. Its result can be awaited: it waits for the end, and raises the error that
        ended the campaign, if there was one. In a callback of the election it does not wait. Idempotent. The election
        may be started again afterwards.
        """
        return self._stopped(self._stop())

    async def __aenter__(self) -> Election:
        self.start()
        return self

    async def __aexit__(self, kind: object, body: BaseException | None, trace: object) -> None:
        await self._left(body)
