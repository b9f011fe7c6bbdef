"""Leader election for tasks, on an exclusive lock.

The campaign is one task (that runs run, or that start made): it acquires the lock, ends on_elected, calls on_lost, and
releases. A cancellation of the task is a stop. It is recorded, the campaign ends in order, and then the cancellation is
raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal

from .._errors import log
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
Lost = Callable[[Term, "str | None"], object]


class Campaign(BaseCampaign):
    """One campaign, from start to stop."""

    _cancellations = (asyncio.CancelledError,)
    _terms = Term

    def __init__(self, election: Election) -> None:
        super().__init__(election)
        self._woken = asyncio.Event()
        self._callbacks: set[asyncio.Task[None]] = set()
        self.loop: asyncio.AbstractEventLoop = self._client._here()
        self.task: asyncio.Task[Any] | None = None
        self.ended = asyncio.Event()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._woken.set()

    def busy(self) -> bool:
        return self.loop is self._client._here() and self.begun and not self.ended.is_set()

    @property
    def inside(self) -> set[asyncio.Task[Any] | None]:
        """The tasks that would have to be waited for."""
        return {self.task, *self._callbacks}

    async def _rest(self, most: float) -> None:
        timer = self.loop.call_later(max(0.0, most), self.wake)
        try:
            await self._woken.wait()
        except asyncio.CancelledError as e:
            self._cancelled(e)
        timer.cancel()
        self._woken.clear()

    async def run(self) -> None:
        """Campaign to the end. Keeps the error that ended it, also a cancellation; raises only what ends the loop."""
        self._election._claim(self, True)
        try:
            await self._course()
        except BaseException as e:
            self.error = e
            self._end_loop(e)
        finally:
            self.ended.set()

    @staticmethod
    def _unit() -> object:
        return asyncio.current_task()

    def _begin(self, term: Term) -> None:
        self._elected = self._task(self._elect(term))

    async def _finish(self, term: Term, reason: str | None) -> None:
        begun = not term._begin()
        if self._election._cancel or not begun:
            self._elected.cancel()
        if begun:
            self._task(self._lose(term, reason))
        while self._callbacks:
            try:
                await asyncio.wait(self._callbacks)
            except asyncio.CancelledError as e:  # the lock has to be kept until the callbacks have ended
                self._cancelled(e)

    def _task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(coroutine)
        self._callbacks.add(task)
        task.add_done_callback(self._callbacks.discard)
        return task


class Election(BaseElection[Term]):
    """One candidate for leadership, made by Client.election.

    on_elected(term) is called when a term begins, in a task of its own. It is a coroutine function, or one that does
    not block. The term does not end when it returns, but when the lock is lost, or resign or stop is called. Then its
    task is cancelled. With cancel=False it has to check term.lost instead.
    on_lost(term, reason), of either kind, is called exactly once for each on_elected that has begun, at once when the
    term is over, even if on_elected is still ending. reason is the reason of the LostError (``expired``,
    ``connection``, ``silence``, …), or None if this candidate has ended the term.
    """

    _campaigns = Campaign

    def start(self) -> None:
        """Campaign in a task of its own, until stop. RuntimeError if a campaign is in progress."""
        campaign = self._new()
        self._claim(campaign, True)
        campaign.task = task = self._client._here().create_task(campaign.run())
        _running.add(task)
        task.add_done_callback(_running.discard)
        task.add_done_callback(lambda _: campaign.ended.set())  # it may have been cancelled before its first step

    def run(self) -> Coroutine[Any, Any, None]:
        """Campaign until stop is called. Raises the error that ended it.

        AlreadyHeld if the task holds the key by a lock: it would wait for itself.

        A cancellation stops the campaign, too. It is raised after the term has ended, its callbacks have ended, and the
        lock is released.
        """
        return self._run(self._new())  # so that stop applies to it, although it may not have begun

    async def _run(self, campaign: Campaign) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._client._known.check([self._key], weakref.ref(task), self._by, True)
        campaign.task = task
        await campaign.run()
        if campaign.cancelled is not None:
            raise campaign.cancelled
        if campaign.error is not None:
            raise campaign.error

    def stop(self) -> Coroutine[Any, Any, None]:
        """End the campaign: the term is over, and the lock is released when its callbacks have ended.

        The call itself asks for the end. Its result can be awaited: it waits for the end, and raises the error that
        ended the campaign, if there was one. In a callback of the election it does not wait. Idempotent. The election
        may be started again afterwards.
        """
        self._client._here()
        campaign = self._ours()
        if campaign is not None:
            campaign.stop()
        return self._stopped(campaign)

    async def _stopped(self, campaign: Campaign | None) -> None:
        if campaign is None or not campaign.begun or asyncio.current_task() in campaign.inside:
            return
        await campaign.ended.wait()
        if campaign.error is not None:
            raise campaign.error

    async def __aenter__(self) -> Election:
        self.start()
        return self

    async def __aexit__(self, kind: object, body: BaseException | None, trace: object) -> None:
        try:
            await self.stop()
        except Exception:
            if body is None:
                raise
            log.exception("election %r, whose body failed", self._key)
