"""The client for tasks: what is called on it."""

from __future__ import annotations

import functools
import inspect
import re
import string
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import _wire as w
from .._base import ReadWriteLock
from .._handle import Owner, Terms
from .._table import OnLost
from ._election import Elected, Election, TermLost
from ._lock import Lock, PairedLock
from ._scope import AnyLock, Locks, Semaphore
from ._tasks import Link

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

F = TypeVar("F", bound=Callable[..., Any])


class Client(Link):
    """A connection to the daemon on this host, for any number of tasks of one event loop.

    It connects when it is first needed, and again after the daemon has restarted. It belongs to
    the loop on which it is first used, until that is closed; on another one everything is a
    RuntimeError. All times are in seconds.
    """

    def lock(
        self,
        key: str,
        ttl: float | None = None,
        renew: bool = True,
        shared: bool = False,
        *,
        timeout: float = -1,
        owner: Owner = None,
        on_lost: OnLost | None = None,
        confirm: bool | None = None,
        keep: float | None = None,
    ) -> Lock:
        """Return a handle for a lock. Nothing is acquired yet, and nothing is sent.

        ttl: the length of the lease; by default the daemon's.
        renew: with True, the daemon renews the lock until release or the end of this process. With False, the lock ends
        by itself after ttl, unless it is extended.
        shared: other shared holders may hold the lock at the same time.
        timeout: how long ``with`` waits; -1 without bound.
        owner: by default the handle and the thread (or task) together are the owner. "handle": the handle alone, for a
        lock that another thread releases. A number below 2**32: all handles of the client with this number.
        on_lost: called with a LostError when the lock is lost: in a thread of its own, or with asyncio on the loop. On
        the loop, it may be a coroutine function, which runs as a task of the client.
        confirm: whether a release waits until the store has confirmed it; by default as the client. With False, a
        release is only sent. For a moment, a try on another host may then still find the lock held. A release that
        fails is reported to on_lost, as ``unconfirmed`` or ``gone``.
        keep: how many seconds after its grant the lock stays taken, even if it is released earlier or this process
        ends. So a job that several hosts start at the same time runs once.
        """
        return Lock(self, key, ttl, renew, shared, timeout, owner, on_lost, confirm, keep)

    def lock_many(self, keys: Iterable[str], *, shared: bool = False, **terms: Unpack[Terms]) -> Locks:
        """Return a handle for several locks, which are acquired together: all or none.

        keys: 1 to 1,024 different keys; Invalid otherwise. Their order does not matter: no two callers ever wait for
        each other.
        on_lost: called once, with the LostError of the first lock that is lost.

        The rest is as for lock.
        """
        return Locks(self, keys, shared=shared, **terms)

    def semaphore(self, key: str, permits: int, **terms: Unpack[Terms]) -> Semaphore:
        """Return a handle for a semaphore with this number of permits over all hosts.

        permits: 1 to 10,000; Invalid otherwise. All users of the semaphore must give the same number.
        owner: "handle", or a number below 2**32, for permits that pass between threads (or tasks): every user of this
        handle can release the newest permit. By default each thread has its own permits.
        on_lost: called for each permit that is lost. The client has chosen the ``owner`` in its LostError.

        The rest is as for lock. A semaphore and a lock of the same key are independent. An acquire raises Unsupported
        if the store has no semaphores.
        """
        return Semaphore(self, key, permits, **terms)

    def lock_any(self, keys: Iterable[str], *, shared: bool = False, **terms: Unpack[Terms]) -> AnyLock:
        """Return a handle for one of several locks: the one that is free first.

        keys: 1 to 64 different keys; Invalid otherwise. The rest is as for lock.
        """
        return AnyLock(self, keys, shared=shared, **terms)

    def read_write(self, key: str, **terms: Unpack[Terms]) -> ReadWriteLock[Lock]:
        """Return a pair of handles for one lock, for reading (shared) and for writing. The rest is as for lock."""
        read, write = PairedLock(self, key, shared=True, **terms), PairedLock(self, key, **terms)
        write.join(read)
        return ReadWriteLock(read, write)

    def locked(self, key: str, **terms: Any) -> Callable[[F], F]:
        """Return a decorator: each call of the function runs under the lock of a key that depends on its arguments.

        key: a format string with the names of parameters, such as ``"order:{id}"``. TypeError if there is no such
        parameter.
        terms: as for lock.
        """

        def decorate(f: F) -> F:
            self.lock("x", **terms)._must_run(f)
            signature = inspect.signature(f)
            fields = list(string.Formatter().parse(key))
            fields += [inner for field in fields for inner in string.Formatter().parse(field[2] or "")]
            names = {re.split(r"[.\[]", name)[0] for _, name, _, _ in fields if name is not None}
            if unknown := names - set(signature.parameters):
                raise TypeError(f"{key!r}: {getattr(f, '__qualname__', f)} has no parameter {min(unknown)!r}")

            @functools.wraps(f)
            async def under_lock(*args: Any, **kwargs: Any) -> Any:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                async with self.lock(key.format(**bound.arguments), **terms):
                    return await f(*args, **kwargs)

            return cast(F, under_lock)

        return decorate

    def election(
        self,
        key: str,
        on_elected: Elected,
        on_lost: TermLost,
        *,
        ttl: float | None = None,
        cancel: bool = True,
    ) -> Election:
        """Return a candidate for leadership. Nothing is sent yet: start, run or ``async with`` begin its campaign.

        At any time at most one candidate of all hosts leads. Each term is one hold of the exclusive lock ``key``, with
        its fence.

        When this candidate ends a term, it releases the lock only after both callbacks have returned. So no successor
        begins while this term still works. One candidate never has two terms at once: on_elected is not called again
        before both have returned.

        An exception of either callback ends the term and the campaign, and on_lost is called if it was not yet. run and
        stop raise the exception, and ``error`` keeps it. There is one exception to this: a LostError of term.check, and
        errors raised from it, do not count.

        These failures do not end a campaign: the daemon or its store is away, the daemon is going away, or a limit of
        it is reached. The campaign continues after a pause, which grows up to 2 seconds. All other errors end it:
        Denied, Invalid, Unsupported and ProtocolError. Closing the client ends it, too.

        A forked child does not lead, and has no campaign; it may start one.

        on_elected: called with each term that begins; see Election.
        on_lost: called once for each term when it is over, with the term and a reason.
        ttl: the length of the lease; by default the daemon's. It bounds the time without a leader after the leader's
        host has failed. If only the leader's process has ended, the lock is released at once.
        cancel: on_elected's task is cancelled when its term is over.
        """
        return Election(self, key, on_elected, on_lost, ttl, cancel)

    async def ping(self) -> float:
        """Ping the daemon, and return how long the answer took."""
        start = time.monotonic()
        await self._asked(w.PING)
        return time.monotonic() - start

    async def release_detached(self, key: str, fence: int) -> None:
        """Free a lock that ``keep`` still keeps after its release, or after the end of its process.

        Raises NotHeld if this host keeps none with this fence, and Denied if it is another user's.
        """
        await self._asked(w.RELEASE, w.check_key(key), 0, w.check_int(fence, "a fence"), w.DETACHED)

    async def force_unlock(self, key: str, *, semaphore: bool = False, fence: int = 0) -> int:
        """End all holds of a lock on this host, of any user, and return their number.

        Their holders are told at once (reason ``forced``). Raises Denied unless this user is root, the daemon's own
        user or one of its ``operators``.

        semaphore: end the holds of permits of the semaphore, instead of the lock.
        fence: end only the holds with this fence.
        """
        fields = w.check_key(key), w.PERMIT if semaphore else 0, w.check_int(fence, "a fence")
        return int(w.numbers(await self._asked(w.FORCE_UNLOCK, *fields), 1)[0])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
