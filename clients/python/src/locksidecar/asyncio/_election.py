"""Leader election for tasks, on an exclusive lock: what a user holds in the hand."""

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
_running: Final[set[asyncio.Task[None]]] = set()  # a loop alone keeps no task alive


class Election:
    """One candidate for leadership, made by Client.election.

    At any time at most one candidate of all hosts leads. Each term is one hold of the exclusive lock
    ``key``, with its fence.

    on_elected(term) is called when a term begins, in a task of its own. It is a coroutine function, or one that does
    not block. Its return does not end the term: that lasts until the lock is lost, or resign or stop is called. Then
    its task is cancelled, or with cancel=False left to see term.lost.
    on_lost(term, reason), of either kind, is called exactly once for each on_elected that has begun, at
    once when the term is over, though on_elected may still be ending then. reason is that of the LostError
    (``expired``, ``connection``, ``silence``, …), or None when the term was given up by ourselves.

    When we give a term up, the lock is released only after both have returned: no successor begins while our
    term still works. One client never has two terms of an election at once: on_elected is not called again before
    both have returned.

    An exception of either ends the term, with on_lost if that has not been called yet, and the campaign; run and
    stop raise it, and ``error`` keeps it. A LostError that term.check has raised is none, nor what is
    raised from it.

    A daemon that is away, or going away, or whose store is, and its limits, end no campaign: it goes on, after a
    pause that grows up to 2 seconds. Any other error ends it: Denied, Invalid, Unsupported, ProtocolError; and so
    does closing the client.

    In a forked child nobody leads or campaigns; it may start anew there.
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
        """Whether this candidate leads at this very moment. Asks nobody; never true past the hold's deadline."""
        return self.term is not None

    @property
    def term(self) -> Term | None:
        """The present term; None when this candidate does not lead at this very moment."""
        campaign = self._ours()
        term = None if campaign is None else campaign.term
        return None if term is None or term._over() else term

    @property
    def error(self) -> BaseException | None:
        """What ended the last campaign, if it was an error."""
        campaign = self._ours()
        return None if campaign is None else campaign.error

    def start(self) -> None:
        """Campaign in a task of its own, until stop. RuntimeError when a campaign is under way."""
        campaign = self._new()
        campaign.task = task = self._client._here().create_task(campaign.run())
        _running.add(task)
        task.add_done_callback(_running.discard)

    def run(self) -> Coroutine[Any, Any, None]:
        """Campaign until stop is called. Raises what ended it.

        AlreadyHeld if the task holds the key by a lock: it would wait for itself.

        Cancelling it stops it too: the term is given up, its callbacks have ended, and the lock is released before
        the cancellation goes on.
        """
        return self._run(self._new())  # so that stop means it, though it may not have begun

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

        The call asks for it; what it returns is awaited for the end, and raises what ended the
        campaign, if that was an error. In a callback of the election it does not wait. Idempotent. The election
        may be started anew afterwards.
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
        """Give up the present term, if there is one, and go to the back of the queue. Does not wait for that."""
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
