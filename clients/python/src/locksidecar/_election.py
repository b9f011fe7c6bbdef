"""Leader election for threads, on an exclusive lock: what a user holds in the hand."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Final

from . import _wire as w
from ._campaign import Campaign, Elected, Lost, Term
from ._hold import Origin

if TYPE_CHECKING:
    from ._client import Client

_log: Final = logging.getLogger("locksidecar")


class Election:
    """One candidate for leadership, made by Client.election.

    At any time at most one candidate of all hosts leads. Each term is one hold of the exclusive lock
    ``key``, with its fence.

    on_elected(term) is called when a term begins, in a thread of its own. Its return does not end the term: that
    lasts until the lock is lost, or resign or stop is called. It should end soon when term.lost is set.
    on_lost(term, reason) is called exactly once for each on_elected that has begun, at once when the term
    is over, though on_elected may still be running then. reason is that of the LostError (``expired``,
    ``connection``, ``silence``, …), or None when the term was given up by ourselves.

    When we give a term up, the lock is released only after both have returned: no successor begins while our
    term still works. One process never has two terms at once: on_elected is not called again before both have
    returned.

    An exception of either ends the term, with on_lost if that has not been called yet, and the campaign; run and
    stop raise it, and ``error`` keeps it. A LostError that term.check has raised is none, nor what is
    raised from it.

    A daemon that is away, or going away, or whose store is, and its limits, end no campaign: it goes on, after a
    pause that grows up to 2 seconds. Any other error ends it: Denied, Invalid, Unsupported, ProtocolError; and so
    does closing the client.

    A campaign that is not stopped ends with the process, as its threads are daemon threads. In a forked child nobody
    leads or campaigns; start may be called there.
    """

    def __init__(self, client: Client, key: str, on_elected: Elected, on_lost: Lost, ttl: float | None) -> None:
        self._client = client
        self._key = w.check_key(key)
        self._ttl = w.to_ttl(ttl)
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._by = Origin(self, 4)
        self._pid = os.getpid()
        self._starting = threading.Lock()
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
        """Campaign in the background, until stop. RuntimeError when a campaign is under way."""
        self._new().begin()

    def run(self) -> None:
        """Campaign until stop is called, by another thread, a callback or a signal handler. Raises what ended it.

        AlreadyHeld if this thread holds the key by a lock: it would wait for itself.

        An exception here (Ctrl-C) stops it too: the term is given up, its callbacks have returned, and the lock is
        released before the exception goes on. A second one does not wait for that.
        """
        thread = threading.current_thread()
        self._client._known.check(self._key, weakref.ref(thread), self._by, True)
        campaign = self._new()
        campaign.runner = thread
        try:
            campaign.begin()
            campaign.join()
        except BaseException:
            campaign.stop()
            campaign.join()
            raise
        finally:
            campaign.runner = None
        if campaign.error is not None:
            raise campaign.error

    def stop(self, wait: bool = True) -> None:
        """End the campaign: the term is over at once, and the lock is released when its callbacks have returned.

        wait: block until then, and raise what ended the campaign, if that was an error. A callback never waits,
            nor does a signal handler in the thread that runs the campaign. A signal handler anywhere else
            asks with wait=False: what it interrupts may be what would have to be waited for.

        Idempotent. The election may be started anew afterwards.
        """
        campaign = self._ours()
        if campaign is None:
            return
        campaign.stop()
        if not wait or campaign.inside():
            return
        campaign.join()
        if campaign.error is not None:
            raise campaign.error

    def resign(self) -> None:
        """Give up the present term, if there is one, and go to the back of the queue. Does not block."""
        campaign = self._ours()
        if campaign is not None and campaign.term is not None:
            campaign.resigning = campaign.term
            campaign.wake()

    def __enter__(self) -> Election:
        try:
            self.start()
        except BaseException:  # an interrupt: nobody else would stop it
            self.stop(wait=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, body: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except Exception:
            if kind is None:
                raise
            _log.exception("election %r, whose body failed", self._key)

    def __repr__(self) -> str:
        return f"<locksidecar.Election {self._key!r} {'leads' if self.is_leader else 'does not lead'}>"

    def _ours(self) -> Campaign | None:
        """Return this process's campaign."""
        if self._pid != os.getpid():
            self._pid, self._starting, self._campaign = os.getpid(), threading.Lock(), None
        return self._campaign

    def _new(self) -> Campaign:
        before = self._ours()
        with self._starting:
            if before is not None and not before.finished:
                raise RuntimeError("the election is under way")
            self._campaign = Campaign(self._client, self._key, self._ttl, self._on_elected, self._on_lost, self._by)
            return self._campaign
