"""A campaign of an election for threads, from start to stop.

Each campaign has one thread, the campaigner: it acquires the lock, calls on_lost, and releases. It does not read the
socket while it waits, so that it notices everything at once: the answer, a loss, stop. on_elected runs in a thread of
its own, one for each term, which ends before the lock is released.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from . import _wire as w
from ._conn import Conn
from ._errors import OK, LockError
from ._hold import Hold, Note, Origin, Told
from ._term import MENDS, STEP, BaseCampaign, BaseTerm, Pauses

if TYPE_CHECKING:
    from ._client import Client

_log: Final = logging.getLogger("locksidecar")


class Over(threading.Event):
    """Set when the term is over, and true then."""

    def __init__(self, over: Callable[[], bool]) -> None:
        super().__init__()
        self._over = over

    def is_set(self) -> bool:
        """Tell whether the term is over now."""
        return super().is_set() or self._over()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the term is over; false if that takes longer than so many seconds."""
        return self.is_set() or super().wait(timeout) or self.is_set()

    __bool__ = is_set


class Term(BaseTerm):
    """One time of being the leader, which on_elected and on_lost get. Any thread may use it."""

    def __init__(self, hold: Hold[Conn]) -> None:
        super().__init__(hold)
        self.lost: Final = Over(self._over)
        """An event that is set when the term is over, because the lock was lost or is being released."""
        self._first = threading.Lock()  # taken by on_elected when it begins, or by the thread that cancels it

    def _begin(self) -> bool:
        return self._first.acquire(blocking=False)

    def _finish(self, end: str) -> bool:
        """End the term, and tell whether on_elected has begun."""
        self._end = end
        self.lost.set()
        return not self._begin()


Elected = Callable[[Term], object]
Lost = Callable[[Term, "str | None"], object]


class Campaign(BaseCampaign):
    """One campaign, from start to stop."""

    def __init__(self, client: Client, key: str, ttl: int, on_elected: Elected, on_lost: Lost, by: Origin) -> None:
        super().__init__()
        self._by = by
        self._election = by.handle()  # kept alive: its terms must not look like terms of a discarded handle
        self._client = client
        self._key = key
        self._ttl = ttl
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put may be called anywhere
        self._elected: threading.Thread | None = None
        self.term: Term | None = None
        self.runner: threading.Thread | None = None  # the thread in run that waits
        self.thread = threading.Thread(target=self._run, name="locksidecar-election", daemon=True)
        self.finished = False
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wake(self) -> None:
        """Make the campaigner check again."""
        self._wakes.put(None)

    def stop(self) -> None:
        """Ask for the end. Takes no lock, so that it may be called anywhere."""
        self.stopping = True
        self.wake()

    def begin(self) -> None:
        """Start the campaigner."""
        try:
            self.thread.start()
        except BaseException:
            self.stop()  # an interrupt, perhaps: the campaigner may have started nevertheless
            self.finished = self.thread.ident is None
            raise

    def join(self) -> None:
        """Wait for the end.

        Thread.join would not do: if it is interrupted, it treats the thread as ended (3.10 to 3.12).
        """
        while not self.finished:
            with contextlib.suppress(queue.Empty):
                self._done.get(timeout=STEP)
        self._done.put(None)  # for other waiting threads

    def inside(self) -> bool:
        """Tell whether the caller is the thread that would be waited for."""
        return threading.current_thread() in (self.thread, self._elected, self.runner)

    def _rest(self, most: float) -> None:
        with contextlib.suppress(queue.Empty):
            self._wakes.get(timeout=max(0.0, most))

    def _run(self) -> None:
        try:
            self._client._notifier.start()  # so that silence is noticed soon
            self._terms(Pauses())
        except BaseException as e:
            self.error = e
        self.finished = True
        self._done.put(None)

    def _terms(self, pauses: Pauses) -> None:
        while not self.stopping:
            hold = self._win(pauses)
            if hold is not None:
                self._lead(hold)

    def _win(self, pauses: Pauses) -> Hold[Conn] | None:
        """Make one attempt, which may wait without bound. After a failure, pause for a short time."""
        client, began = self._client, time.monotonic()
        try:
            hold = self._ask(client._live() or client._connect(began))
        except MENDS as e:
            if client._closed and not self.stopping:
                raise
            _log.log(logging.WARNING if pauses.first else logging.INFO, "election %r goes on: %s", self._key, e)
            hold = None
        if hold is not None:
            pauses.reset()
            return hold
        until = time.monotonic() + pauses.next(time.monotonic() - began)
        while not self.stopping and time.monotonic() < until:
            self._rest(until - time.monotonic())
        return None

    def _ask(self, conn: Conn) -> Hold[Conn] | None:
        """Ask for the lock, and wait for it without bound, or until stop."""
        hold = Hold(conn, self._key, next(self._client._owners), False, by=self._by)
        call = Told(w.ACQUIRE, self.wake, hold)
        try:
            conn.send(call, hold.key, hold.owner, 0, -1, self._ttl, 0)
            self._answer(conn, call)
            if self.stopping:
                conn.withdraw(call)
                return None
            if call.error is not None:
                raise call.error
            if conn.granted(call) is None:  # the longest wait that the daemon allows is over
                return None
            if conn.adopt(hold, Note(self.wake)):
                return hold
            conn.give_up(hold)  # the hold was over before this thread ran
            return None
        except BaseException:
            conn.withdraw(call)
            raise

    def _answer(self, conn: Conn, call: Told) -> None:
        while not call.done and not self.stopping:
            self._rest(conn.step)
            conn.listen(conn.catch_up)

    def _last(self, term: Term) -> None:
        while self.lasts(term):
            self._rest(min(STEP, term.remaining + 0.001))

    def _lead(self, hold: Hold[Conn]) -> None:
        """Lead until the term is over. Raises the error of a callback."""
        term = Term(hold)
        elected = threading.Thread(target=self._elect, args=(term,), name="locksidecar-elected", daemon=True)
        self._elected, self.term = elected, term
        try:
            elected.start()
            self._last(term)
        finally:
            reason = hold.lost or None
            if term._finish(reason or "resigned"):
                self._lose(term, reason)
            if elected.ident is not None:
                elected.join()
            self._elected = self.term = None
            self._release(hold)
        if term._failure is not None:
            raise term._failure

    def _elect(self, term: Term) -> None:
        """Call on_elected, unless the term is over before it has begun."""
        if not term._begin():
            return
        self._client._known.lend(term._hold, threading.current_thread())
        try:
            self._on_elected(term)
        except BaseException as e:
            if not term._expected(e):
                term._failure = e
        if self.pid == os.getpid():
            self.wake()

    def _lose(self, term: Term, reason: str | None) -> None:
        try:
            self._on_lost(term, reason)
        except BaseException as e:
            if term._failure is not None:
                _log.exception("election %r: on_lost failed, as on_elected had", self._key)
            else:
                term._failure = e

    def _release(self, hold: Hold[Conn]) -> None:
        if hold.over:
            hold.conn.give_up(hold)
            return
        try:
            reply = hold.conn.release(hold)
            if reply and reply[0] != OK:
                _log.info("election %r: the release was answered %s", self._key, w.text(reply))
        except LockError as e:  # the release has been sent, or the connection has ended, which also releases
            _log.info("election %r: %s", self._key, e)
