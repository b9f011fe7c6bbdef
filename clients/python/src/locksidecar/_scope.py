"""The common part of all handles for threads: acquire, its owner, and the scopes around it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from . import _wire as w
from ._conn import Conn
from ._errors import ConnectionLost, Draining, LockError, Unconfirmed, Upgrade
from ._handle import SWEEP, Terms, Tries, anybody, sure, sweep
from ._hold import Call, Who
from ._requests import H
from ._table import Owners

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._client import Client

P = ParamSpec("P")
R = TypeVar("R")

_log: Final = logging.getLogger("locksidecar")


class Scope(Terms, Generic[H]):
    """A handle of a client for threads. H is the type of its holds: Hold or Holds."""

    _unit = "thread"

    def __init__(self, client: Client, *terms: Any) -> None:
        self._client = client
        self._held: dict[Who, H] = {}  # by thread, or by the named owner
        self._sweep_at = SWEEP
        super().__init__(*terms)

    @abstractmethod
    def _request(self, conn: Conn, owner: int, who: Who) -> tuple[Call, H]:
        """Make the acquire request of this handle."""

    @abstractmethod
    def _find(self) -> H | None: ...

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        """Acquire; false if it was not granted in time.

        blocking=False tries; timeout bounds the wait, and -1 or None does not. After an exception nothing is acquired.
        """
        wait = w.to_wait(blocking, timeout)
        hold = self._find()
        if hold is not None and self._reenter(hold):
            return True
        self._check(self._who(), wait != 0)
        return self._acquire(wait)

    def _reenter(self, hold: H) -> bool:
        if hold.shared and not self._shared and sure(hold):
            raise Upgrade("held shared by this owner; an exclusive hold could never be granted")
        before = hold.count
        try:
            if sure(hold) and hold.conn.reenter(hold):
                self._keep(hold)
                hold.conn.adopt(hold, self._on_lost)
                return True
        except BaseException:
            if self._owner is None:  # otherwise other threads count, too
                hold.count = before
            raise
        hold.conn.lapse(hold.each, w.now())
        self._refuse_lost(hold)
        self._forget(hold)
        hold.conn.give_up(hold)
        return False

    def _acquire(self, wait: int, sent: tuple[Conn, Call, H] | None = None) -> bool:
        """Acquire with new requests. sent: the first one, which was sent already."""
        client = self._client
        if self._on_lost is not None:
            client._notifier.start()
        tries, trace = Tries(wait), client._trace()
        while True:
            if sent is None:
                conn = client._live() or client._connect(tries.until())
                owner = self._owner if self._owner is not None else next(client._owners)
                call, asked = self._request(conn, owner, self._who())
            else:
                conn, call, asked = sent
            try:
                limit = tries.limit(client._timeout)
                if sent is None:
                    conn.request(call, asked, tries.left, self._ttl, self._flags, limit, trace)
                sent = None
                hold = conn.grant_of(call, asked, limit)
                if hold is None:
                    return False
                hold = self._join(hold)
                if conn.adopt(hold, self._on_lost):
                    self._keep(hold)
                    return True
                conn.give_up(hold)  # the hold was over before this thread ran
                if tries.lapsed(hold):
                    return False
            except (ConnectionLost, Draining) as e:
                # After either error nothing is held, so the request may be sent again.
                time.sleep(tries.refused(e, conn, client._closed))
                tries.paused()
            except BaseException:  # no answer, or an interrupt at any point above
                conn.withdraw(call)
                self._forget(asked)
                raise

    def _join(self, hold: H) -> H:
        """Return the hold that a grant counts for: itself, or one that the owner was granted at the same time."""
        return hold

    @abstractmethod
    def release(self) -> None: ...

    def __enter__(self) -> Self:
        before = self._depth()
        try:
            if not self.acquire(timeout=self._timeout):
                raise self._not_acquired()
            return self
        except BaseException:  # an interrupt just after the acquire: nothing else would release
            if self._owner is None and self._depth() > before:
                with contextlib.suppress(LockError):
                    self.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except Unconfirmed as e:
            _log.info("%s: %s", self._name, e)  # the body ran under the lock
        except LockError as e:
            if kind is None:
                raise
            self._exit_failed(e, body)

    def __call__(self, f: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: each call of it runs under the lock, as by ``with``."""
        if inspect.iscoroutinefunction(f) or inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f):
            raise TypeError(f"{f!r} only begins when it is called: use with inside of it, or locksidecar.asyncio")

        @functools.wraps(f)
        def under_lock(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return f(*args, **kwargs)

        return under_lock

    def __repr__(self) -> str:
        return f"<locksidecar.{type(self).__name__} {self._name} {'owned' if self.owned() else 'not owned'}>"

    # ---- owners ----

    @property
    def _known(self) -> Owners:
        return self._client._known

    def _new_owner(self) -> int:
        return next(self._client._owners)

    def _who(self) -> Who:
        """Return the calling owner."""
        return self._owner if self._owner is not None else weakref.ref(threading.current_thread())

    def _all(self, which: Callable[[Who], bool] = anybody) -> Iterable[H]:
        return [hold for who, hold in list(self._held.items()) if which(who)] if self._held else ()

    def _keep(self, hold: H) -> None:
        self._held[self._who()] = hold
        if len(self._held) >= self._sweep_at:
            self._sweep_at = max(SWEEP, 2 * sweep(self._held, lambda hold: hold.over))

    def _forget(self, hold: H) -> None:
        who = self._who()
        if self._held.get(who) is hold:
            self._held.pop(who, None)
