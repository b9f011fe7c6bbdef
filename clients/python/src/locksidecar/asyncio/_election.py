"""Leader election for tasks, on an exclusive lock: the class for users."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from .. import _wire as w
from .._hold import Origin
from ._campaign import Campaign, Elected, Lost, Term

if TYPE_CHECKING:
    from ._client import Client

_log: Final = logging.getLogger("locksidecar")
_running: Final[set[asyncio.Task[None]]] = set()  # a loop alone does not keep a task alive


class Election:
    """One candidate for leadership, made by Client.election.

    At any time at most one candidate of all hosts leads. Each term is one hold of the exclusive lock ``key``, with its
    fence.

    on_elected(term) is called when a term begins, in a task of its own. It is a coroutine function, or one that does
    not block. The term does not end when it returns, but when the lock is lost, or resign or stop is called. Then its
    task is cancelled. With cancel=False it has to check term.lost instead.
    on_lost(term, reason), of either kind, is called exactly once for each on_elected that has begun, at once when the
    term is over, even if on_elected is still ending. reason is the reason of the LostError (``expired``,
    ``connection``, ``silence``, …), or None if this candidate has ended the term.

    When this candidate ends a term, it releases the lock only after both have returned. So no successor begins while
    this term still works. One client never has two terms of an election at once: on_elected is not called again before
    both have returned.

    An exception of either ends the term and the campaign, and on_lost is called if it was not yet. run and stop raise
    the exception, and ``error`` keeps it. There is one exception to this: a LostError of term.check, and errors raised
    from it, do not count.

    These failures do not end a campaign: the daemon or its store is away, the daemon is going away, or a limit of it is
    reached. The campaign continues after a pause, which grows up to 2 seconds. All other errors end it: Denied,
    Invalid, Unsupported and ProtocolError. Closing the client ends it, too.

    A forked child does not lead, and has no campaign; it may start one.
    """

    def __init__(
        self, client: Client, key: str, on_elected: Elected, on_lost: Lost, ttl: float | None, cancel: bool
    ) -> None:
        self._client = client
        self._key = w.check_key(key)
        self._ttl = w.to_ttl(ttl)
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._cancel = cancel
        self._by = Origin(self, 4)
        self._campaign: Campaign | None = None

    @property
    def key(self) -> str:
        """What the election is for."""
        return self._key

    @property
    def is_leader(self) -> bool:
        """Whether this candidate leads now. Sends nothing; never true past the hold's deadline."""
        return self.term is not None

    @property
    def term(self) -> Term | None:
        """The present term; None if this candidate does not lead now."""
        campaign = self._ours()
        term = None if campaign is None else campaign.term
        return None if term is None or term._over() else term

    @property
    def error(self) -> BaseException | None:
        """The error that ended the last campaign, if there was one."""
        campaign = self._ours()
        return None if campaign is None else campaign.error

    def start(self) -> None:
        """Campaign in a task of its own, until stop. RuntimeError if a campaign is in progress."""
        campaign = self._new()
        campaign.task = task = self._client._here().create_task(campaign.run())
        _running.add(task)
        task.add_done_callback(_running.discard)

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
            self._client._known.check(self._key, weakref.ref(task), self._by, True)
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

    def resign(self) -> None:
        """End the present term, if there is one, and go to the back of the queue. Does not wait for that."""
        self._client._here()
        campaign = self._ours()
        if campaign is not None and campaign.term is not None:
            campaign.resigning = campaign.term
            campaign.wake()

    async def __aenter__(self) -> Election:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        except Exception:
            if kind is None:
                raise
            _log.exception("election %r, whose body failed", self._key)

    def __repr__(self) -> str:
        return f"<locksidecar.asyncio.Election {self._key!r} {'leads' if self.is_leader else 'does not lead'}>"

    def _ours(self) -> Campaign | None:
        """Return this process's campaign."""
        if self._campaign is not None and self._campaign.pid != os.getpid():
            self._campaign = None
        return self._campaign

    def _new(self) -> Campaign:
        loop = self._client._here()
        before = self._ours()
        if before is not None and before.loop is loop and before.begun and not before.ended.is_set():
            raise RuntimeError("the election is under way")
        self._campaign = Campaign(
            self._client, self._key, self._ttl, self._on_elected, self._on_lost, self._cancel, self._by
        )
        return self._campaign
