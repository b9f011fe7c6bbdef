"""Leader election for threads, on an exclusive lock: the class for users."""

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

    At any time at most one candidate of all hosts leads. Each term is one hold of the exclusive lock ``key``, with its
    fence.

    on_elected(term) is called when a term begins, in a thread of its own. The term does not end when it returns, but
    when the lock is lost, or resign or stop is called. It should return soon when term.lost is set.
    on_lost(term, reason) is called exactly once for each on_elected that has begun, at once when the term is over, even
    if on_elected is still running. reason is the reason of the LostError (``expired``, ``connection``, ``silence``, …),
    or None if this candidate has ended the term.

    When this candidate ends a term, it releases the lock only after both have returned. So no successor begins while
    this term still works. One process never has two terms at once: on_elected is not called again before both have
    returned.

    An exception of either ends the term and the campaign, and on_lost is called if it was not yet. run and stop raise
    the exception, and ``error`` keeps it. There is one exception to this: a LostError of term.check, and errors raised
    from it, do not count.

    These failures do not end a campaign: the daemon or its store is away, the daemon is going away, or a limit of it is
    reached. The campaign continues after a pause, which grows up to 2 seconds. All other errors end it: Denied,
    Invalid, Unsupported and ProtocolError. Closing the client ends it, too.

    A campaign that is not stopped ends with the process, because its threads are daemon threads. A forked child does
    not lead, and has no campaign; it may call start.
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
        """Campaign in the background, until stop. RuntimeError if a campaign is in progress."""
        self._new().begin()

    def run(self) -> None:
        """Campaign until another thread, a callback or a signal handler calls stop. Raises the error that ended it.

        AlreadyHeld if this thread holds the key by a lock: it would wait for itself.

        An exception such as Ctrl-C stops the campaign, too. The exception is raised after the term has ended, its
        callbacks have returned, and the lock is released. A second exception does not wait for that.
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

        wait: block until then, and raise the error that ended the campaign, if there was one. A callback never waits,
        and neither does a signal handler in the thread that runs the campaign. Another signal handler should use
        wait=False, because it may have interrupted the thread that it would wait for.

        Idempotent. The election may be started again afterwards.
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
        """End the present term, if there is one, and go to the back of the queue. Does not block."""
        campaign = self._ours()
        if campaign is not None and campaign.term is not None:
            campaign.resigning = campaign.term
            campaign.wake()

    def __enter__(self) -> Election:
        try:
            self.start()
        except BaseException:  # an interrupt: nothing else would stop the campaign
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
