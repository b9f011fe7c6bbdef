"""Leader election for threads, on an exclusive lock.

Each campaign has one thread, the campaigner: it acquires the lock, calls on_lost, and releases. It does not read the
socket while it waits, so that it notices everything at once: the answer, a loss, stop. on_elected runs in a thread of
its own, one for each term, which ends before the lock is released.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from ._handle import run
from ._term import STEP, BaseCampaign, BaseElection, BaseOver, BaseTerm


class Over(BaseOver, threading.Event):
    """Set when the term is over, and true then."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the term is over; false if that takes longer than so many seconds."""
        return self.is_set() or super().wait(timeout) or self.is_set()


class Term(BaseTerm):
    """One time of being the leader, which on_elected and on_lost get. Any thread may use it.

    lost: an event that is set when the term is over, because the lock was lost or is being released.
    """

    lost: Over
    _event = Over


Elected = Callable[[Term], object]
TermLost = Callable[[Term, "str | None"], object]


class Campaign(BaseCampaign):
    """One campaign, from start to stop."""

    _terms = Term

    def __init__(self, election: Election) -> None:
        super().__init__(election)
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put may be called anywhere
        self._elected: threading.Thread | None = None
        self.runner: threading.Thread | None = None  # the thread in run that waits
        self.thread = threading.Thread(target=lambda: run(self._course()), name="locksidecar-election", daemon=True)
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wake(self) -> None:
        self._wakes.put(None)

    def start(self) -> None:
        """Start the campaigner."""
        try:
            self._election._claim(self, True)
            self.thread.start()
        except BaseException:
            self.stop()  # an interrupt, perhaps: the campaigner may have started nevertheless
            if self.thread.ident is None:
                self.finished = True
            raise

    async def run(self) -> None:
        self.runner = threading.current_thread()
        try:
            self.start()
            await self.join()
        except BaseException:
            self.stop()
            if self.thread.ident is not None:  # an interrupt may come before start
                await self.join()
            raise
        finally:
            self.runner = None

    async def join(self) -> None:
        """Wait for the end.

        Thread.join would not do: if it is interrupted, it treats the thread as ended (3.10 to 3.12).
        """
        while not self.finished:
            with contextlib.suppress(queue.Empty):
                self._done.get(timeout=STEP)
        self._done.put(None)  # for other waiting threads

    def inside(self) -> bool:
        return threading.current_thread() in (self.thread, self._elected, self.runner)

    async def _rest(self, most: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._wakes.get(timeout=max(0.0, most))

    def _end(self) -> None:
        self.finished = True
        self._done.put(None)

    def _begin(self, term: Term) -> None:
        what = self._elect(term)
        self._elected = threading.Thread(target=run, args=(what,), name="locksidecar-elected", daemon=True)
        self._elected.start()

    async def _finish(self, term: Term, reason: str | None) -> None:
        if not term._begin():  # on_elected has begun
            await self._lose(term, reason)
        if self._elected is not None and self._elected.ident is not None:
            self._elected.join()
        self._elected = None


class Election(BaseElection[Term]):
    """One candidate for leadership, made by Client.election, which documents what holds for all candidates.

    on_elected(term) is called when a term begins, in a thread of its own. The term does not end when it returns, but
    when the lock is lost, or resign or stop is called. It should return soon when term.lost is set.
    on_lost(term, reason) is called exactly once for each on_elected that has begun, at once when the term is over, even
    if on_elected is still running. reason is the reason of the LostError (``expired``, ``connection``, ``silence``, …),
    or None if this candidate has ended the term.

    A campaign that is not stopped ends with the process, because its threads are daemon threads.
    """

    _campaigns = Campaign

    def run(self) -> None:
        """Campaign until another thread, a callback or a signal handler calls stop. Raises the error that ended it.

        AlreadyHeld if this thread holds the key by a lock: it would wait for itself.

        An exception such as Ctrl-C stops the campaign, too. The exception is raised after the term has ended, its
        callbacks have returned, and the lock is released. A second exception does not wait for that.
        """
        run(self._run(self._new()))

    def stop(self, wait: bool = True) -> None:
        """End the campaign: the term is over at once, and the lock is released when its callbacks have returned.

        wait: block until then, and raise the error that ended the campaign, if there was one. A callback never waits,
        and neither does a signal handler in the thread that runs the campaign. Another signal handler should use
        wait=False, because it may have interrupted the thread that it would wait for.

        Idempotent. The election may be started again afterwards.
        """
        campaign = self._stop()
        if wait:
            run(self._stopped(campaign))

    def __enter__(self) -> Election:
        try:
            self.start()
        except BaseException:  # an interrupt: nothing else would stop the campaign
            self.stop(wait=False)
            raise
        return self

    def __exit__(self, kind: object, body: BaseException | None, trace: object) -> None:
        run(self._left(body))
