"""Leader election for all drivers: a term, and a campaign from start to stop. No I/O.

A campaign is one loop: acquire a hold, lead as long as it lasts, release. Everything that happens to it is a condition
to check (a request, the state of the hold), and a wake-up to check again. So nothing can be missed, and the order of
events does not matter.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from . import _wire as w
from ._base import Pauses
from ._errors import Limit, LockError, LostError, Unavailable, log
from ._handle import settle
from ._hold import Call, Hold, asks

# These errors end no campaign, because they may pass.
MENDS: Final = (Unavailable, Limit)

STEP: Final = 1.0  # seconds after which a term is checked, because timers do not count the time that a machine sleeps
T = TypeVar("T", bound="BaseTerm")


class BaseOver:
    """An event that is set when the term is over, and true then."""

    def __init__(self, over: Callable[[], bool]) -> None:
        super().__init__()
        self._over = over

    def is_set(self) -> bool:
        """Tell whether the term is over now."""
        return super().is_set() or self._over()  # type: ignore[misc]  # of the driver's event

    __bool__ = is_set


class BaseTerm:
    """One time of being the leader."""

    _event: Callable[[Callable[[], bool]], Any]  # makes the event of the driver

    def __init__(self, hold: Hold) -> None:
        self._hold = hold
        self.lost: Any = self._event(self._over)  # true when the term is over
        self._first = threading.Lock()  # taken by on_elected when it begins, or by the campaign that cancels it
        self._end = ""  # the reason, once the end was noticed
        self._failure: BaseException | None = None  # the error of a callback

    @property
    def key(self) -> str:
        """The key of the election."""
        return self._hold.key

    @property
    def fence(self) -> int:
        """The fencing token, which is larger for each later leader. It stays readable when the term is over."""
        return self._hold.fence

    @property
    def remaining(self) -> float:
        """The number of seconds for which the term certainly lasts; 0 if it is over."""
        return 0.0 if self._over() else w.left(self._hold.valid)

    def check(self) -> None:
        """Raise LostError if the term is over: lost, or given up (reason ``resigned``). Sends nothing."""
        if self._over():
            raise self._hold.loss(self._end or self._hold.lost or "connection")

    def _over(self) -> bool:
        """Tell whether the term is over. Once it is, it stays over."""
        if not self._end and self._here():
            settle(self._hold)
        return bool(self._end) or not self._hold.owned()

    def _here(self) -> bool:
        """Tell whether data that has arrived may be handled here."""
        return True

    def _begin(self) -> bool:
        """Tell whether the caller, on_elected or the campaign, is the first one."""
        return self._first.acquire(blocking=False)

    def _expected(self, e: BaseException | None) -> bool:
        """Tell whether a callback's error is one that check raised, or is raised from that."""
        while e is not None:
            if isinstance(e, LostError) and (e.key, e.fence) == (self.key, self.fence):
                return self._over()
            e = e.__cause__
        return False

    def __repr__(self) -> str:
        state = "over" if self._over() else "lasts"
        return f"<locksidecar.{type(self).__name__} {self.key!r} fence {self.fence} {state}>"


class BaseCampaign(ABC):
    """The requests to a campaign, its course, and its result.

    A driver also has start (in the background), run (until the end), join (wait for the end) and inside: whether the
    caller would be waited for.
    """

    _cancellations: tuple[type[BaseException], ...] = ()  # what is a stop when it is raised during a wait
    _terms: type[BaseTerm]

    def __init__(self, election: BaseElection[Any]) -> None:
        self._election = election  # kept alive: its terms must not look like terms of a discarded handle
        self._client = election._client
        self._key = election.key
        self._lock = election._lock
        self.pid = os.getpid()  # a forked child has campaigns of its own
        self.loop = self._client._here()  # None for threads
        self.term: Any = None
        self.begun = self.finished = False  # it is in progress in between
        self.stopping = False
        self.cancelled: BaseException | None = None
        self.resigning: BaseTerm | None = None
        self.error: BaseException | None = None  # the error that ended it

    @abstractmethod
    def wake(self) -> None:
        """Make the campaign check again."""

    @abstractmethod
    async def _rest(self, most: float) -> None:
        """Wait for wake, for so many seconds at most."""

    @abstractmethod
    def _begin(self, term: Any) -> None:
        """Start on_elected."""

    @abstractmethod
    async def _finish(self, term: Any, reason: str | None) -> None:
        """Call on_lost for a term that is over, and wait for both callbacks."""

    @abstractmethod
    def _end(self) -> None:
        """Record the end."""

    def busy(self) -> bool:
        """Tell whether it is in progress."""
        return self.loop is self._client._here() and self.begun and not self.finished

    def _cancelled(self, e: BaseException) -> None:
        """Record a cancellation, and stop."""
        self.cancelled = self.cancelled or e
        self.stopping = True

    def stop(self) -> None:
        """Ask for the end. Takes no lock, so that it may be called anywhere."""
        self.stopping = True
        self.wake()

    def lasts(self, term: BaseTerm) -> bool:
        """Tell whether a term continues."""
        if self.stopping or self.resigning is term or term._failure is not None:
            return False
        # not lost: the connection is just ending, and the loss will be reported
        return not term._over() or not term._hold.lost

    async def _course(self) -> None:
        """Campaign until stop. Keeps the error that ended it, also a cancellation; raises only what ends the loop."""
        try:
            self._client._notifier.start()  # so that silence is noticed soon
            pauses = Pauses(0.05, 2.0)
            while True:
                if self.stopping:
                    break
                await self._attempt(pauses)
        except BaseException as e:
            self.error = e
            self._end_loop(e)
        finally:
            self._end()

    async def _attempt(self, pauses: Pauses) -> None:
        """Wait for the lock, maybe without bound, and lead for one term. After a failure, pause for a short time."""
        client, began, hold = self._client, time.monotonic(), None
        try:
            hold = await self._ask(client._live() or await client._connect(began))
        except self._cancellations as e:
            self._cancelled(e)
        except MENDS as e:
            if client._closed and not self.stopping:
                raise
            log.log(logging.WARNING if pauses.first else logging.INFO, "election %r continues: %s", self._key, e)
        # a long attempt counts as a success: for example, the daemon restarted after a long wait
        if hold is not None or time.monotonic() - began > pauses.longest:
            pauses.reset()
        if hold is not None:
            await self._lead(hold)
            return
        until = time.monotonic() + pauses.next()
        while not self.stopping and time.monotonic() < until:
            await self._rest(until - time.monotonic())

    async def _ask(self, conn: Any) -> Hold | None:
        """Ask for the lock, and wait for it without bound, or until stop."""
        hold: Hold = self._lock._request(conn, next(self._client._owners), None)
        hold.wake = self.wake
        call = Call(w.ACQUIRE, hold)
        try:
            conn.send(call, *asks(hold, -1, self._lock._ttl, 0, None))
            while True:
                if self.stopping:
                    conn.withdraw(call)
                    return None
                if call.done:
                    break
                await self._rest(conn.step)
                conn.listen(conn.catch_up)
            if call.error is not None:
                raise call.error
            if conn.granted(call) is not None:  # else the longest wait that the daemon allows is over
                if conn.adopt(hold, *self._client._on_lost):
                    conn.watch(hold)
                    return hold
                conn.give_up(hold)  # the hold was over before this thread or task ran
            return None
        except BaseException:
            conn.withdraw(call)
            raise

    async def _lead(self, hold: Hold) -> None:
        """Lead until the term is over. Raises the error of a callback."""
        term = self.term = self._terms(hold)
        try:
            self._begin(term)
            while True:
                if not self.lasts(term):
                    break
                await self._rest(min(STEP, term.remaining + 0.001))
        except Exception as e:
            term._failure = e
        reason = hold.lost or None
        term._end = reason or "resigned"
        term.lost.set()
        await self._finish(term, reason)
        self.term = None
        await self._release(hold)
        if term._failure is not None:
            raise term._failure

    async def _elect(self, term: BaseTerm) -> None:
        """Call on_elected, unless the term is over before it has begun."""
        if not term._begin():
            return
        self._client._known.lend(term._hold, self._lock._who())
        try:
            await self._call(self._election._on_elected, term)
        except self._cancellations as e:
            if not term._end:
                term._failure = RuntimeError("on_elected was cancelled by somebody else")
                term._failure.__cause__ = e
        except BaseException as e:
            if not term._expected(e):
                term._failure = e
            self._end_loop(e)
        finally:
            if self.pid == os.getpid():
                self.wake()

    async def _lose(self, term: BaseTerm, reason: str | None) -> None:
        """Call on_lost."""
        try:
            await self._call(self._election._on_lost, term, reason)
        except BaseException as e:
            self._end_loop(e)
            if term._failure is None:
                term._failure = e
            else:
                log.exception("election %r: on_lost failed, as on_elected had", self._key)

    async def _call(self, f: Callable[..., Any], *args: Any) -> None:
        done = f(*args)
        if inspect.isawaitable(done):
            if not self._cancellations:
                raise TypeError(f"a client for threads cannot await {f!r}: use locksidecar.asyncio")
            await done

    def _end_loop(self, e: BaseException) -> None:
        """Raise a callback's error if it is one that ends a loop, such as SystemExit."""
        if self._cancellations and not isinstance(e, Exception):
            raise e

    async def _release(self, hold: Hold) -> None:
        calls: list[Call] = []
        try:
            hold.conn.release(hold, [], calls)  # this has released; the rest only waits
            await self._lock._finish_release(hold, calls)
        except self._cancellations as e:
            self._cancelled(e)
        except LockError as e:  # the release has been sent, or the connection has ended, which also releases
            log.info("election %r: %s", self._key, e)


class BaseElection(Generic[T]):
    """What all candidates have. Client.election documents what holds for them."""

    _campaign: Any = None
    _campaigns: type[BaseCampaign]

    def __init__(
        self,
        client: Any,
        key: str,
        on_elected: Callable[..., Any],
        on_lost: Callable[..., Any],
        ttl: float | None,
        cancel: bool = False,
    ) -> None:
        self._client = client
        self._lock = client.lock(key, ttl)
        self._on_elected = w.check_callback(on_elected, "on_elected")
        self._on_lost = w.check_callback(on_lost, "on_lost")
        self._cancel = cancel

    @property
    def key(self) -> str:
        """The key of the election."""
        return str(self._lock.key)

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads now. Sends nothing; never true past the hold's deadline."""
        return self.term is not None

    @property
    def error(self) -> BaseException | None:
        """The error that ended the last campaign, if there was one."""
        campaign = self._ours()
        return None if campaign is None else campaign.error

    @property
    def term(self) -> T | None:
        """The present term; None if this candidate does not lead now."""
        campaign = self._ours()
        term: T | None = None if campaign is None else campaign.term
        return None if term is None or term._over() else term

    def start(self) -> None:
        """Campaign in the background, until stop. RuntimeError if a campaign is in progress."""
        self._new().start()

    async def _run(self, campaign: Any) -> None:
        self._lock._check(self._lock._who(), True)
        await campaign.run()
        if campaign.cancelled is not None:
            raise campaign.cancelled
        if campaign.error is not None:
            raise campaign.error

    def _stop(self) -> Any:
        """Ask for the end of the campaign, and return the campaign."""
        self._client._here()
        campaign = self._ours()
        if campaign is not None:
            campaign.stop()
        return campaign

    async def _stopped(self, campaign: Any) -> None:
        """Wait for the end, unless this would be waited for, too. Raise the error that ended the campaign."""
        if campaign is None or not campaign.begun or campaign.inside():
            return
        await campaign.join()
        if campaign.error is not None:
            raise campaign.error

    async def _left(self, body: BaseException | None) -> None:
        """Stop at the end of a scope. If its body has failed, the body's error counts."""
        try:
            await self._stopped(self._stop())
        except Exception:
            if body is None:
                raise
            log.exception("election %r, whose body failed", self.key)

    def resign(self) -> None:
        """End the present term, if there is one, and go to the back of the queue. Does not wait for that."""
        self._client._here()
        campaign = self._ours()
        if campaign is not None and campaign.term is not None:
            campaign.resigning = campaign.term
            campaign.wake()

    def _new(self) -> Any:
        """Return a new campaign; RuntimeError if one is in progress."""
        made = self._campaigns(self)
        self._claim(made, False)
        return made

    def _claim(self, campaign: Any, begun: bool) -> None:
        """Make a campaign the present one, which may have begun; RuntimeError if another one is in progress."""
        with self._client._known.mu:
            before = self._ours()
            if before is not None and before is not campaign and before.busy():
                raise RuntimeError("this election is campaigning already")
            self._campaign, campaign.begun = campaign, begun

    def _ours(self) -> Any:
        """Return this process's campaign."""
        if self._campaign is not None and self._campaign.pid != os.getpid():
            self._campaign = None
        return self._campaign

    def __repr__(self) -> str:
        module = type(self).__module__.removesuffix("._election")
        return f"<{module}.Election {self.key!r} {'leads' if self.is_leader else 'does not lead'}>"
