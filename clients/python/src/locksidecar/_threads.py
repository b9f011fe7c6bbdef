"""What threads bring: the client's connection, its reports of losses, and the owner of a lock."""

from __future__ import annotations

import inspect
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final

from ._base import Base
from ._conn import Conn
from ._errors import ConnectionLost, LockError, LostError, Unavailable, log
from ._handle import H, Handle, run
from ._hold import Who
from ._table import Notifier, OnLost


class Link(Base):
    """A client for threads."""

    def _reset(self) -> None:
        super()._reset()
        self._mu = threading.Lock()  # guards connecting, one attempt at a time
        self._notifier = _Notifier()
        weakref.finalize(self, self._notifier.stop)  # its thread ends with the client

    def close(self) -> None:
        """End the connection: the daemon releases everything that is held on it. Idempotent.

        An attempt to connect, which may be this thread's own when a signal handler calls this, is not waited for.
        """
        self._closed = True
        self._end()
        self._notifier.stop()

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def _turn(self, start: float) -> tuple[Conn | None, LockError]:
        with self._mu:
            return run(self._attempt(start))

    async def _dial(self) -> Conn:
        conn = Conn(self._timeout, self._notifier, self._known)
        try:
            conn.connect(self._path, self._name, self._label)
            self._own(conn, conn.discard, conn._sock, self._path)
            conn.keep()
        except BaseException:
            conn.die(ConnectionLost("interrupted while connecting"))
            conn.shut()
            raise
        return conn


class _Notifier(Notifier):
    """Reports in a thread of its own, which starts with the first report."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[OnLost, LostError] | None] = queue.SimpleQueue()
        self._mu = threading.Lock()

    def start(self) -> None:
        """Notice losses soon, and start the thread."""
        if self.needed:
            return
        with self._mu:
            if not self.needed:
                thread = threading.Thread(target=self._run, args=(self._queue,), name="locksidecar-lost", daemon=True)
                try:
                    thread.start()
                except RuntimeError as e:  # no more threads, or the interpreter shuts down
                    raise Unavailable(f"cannot start the thread that calls on_lost: {e}") from None
                self.needed = True

    def _report(self, on_lost: OnLost, why: LostError) -> None:
        self._queue.put((on_lost, why))

    def stop(self) -> None:
        self._queue.put(None)

    @staticmethod
    def _run(losses: queue.SimpleQueue[tuple[OnLost, LostError] | None]) -> None:
        while (item := losses.get()) is not None:
            on_lost, why = item
            try:
                on_lost(why)
            except BaseException:  # sys.exit would end only this thread, and later losses would not be reported
                log.exception("on_lost failed for lock %r", why.key)


class Here(threading.local):
    """The owner that each thread is, by default."""

    def __init__(self) -> None:
        self.update()

    def update(self) -> None:
        """Look which thread this is: a forked child may have another Thread for it."""
        self.who: Who = weakref.ref(threading.current_thread())


here: Final = Here()

os.register_at_fork(after_in_child=here.update)


class Owned(Handle[H]):
    """A handle of a client for threads."""

    _unit = "thread"

    def _who(self) -> Who:
        """Return the calling owner."""
        return self._owner if self._owner is not None else weakref.ref(threading.current_thread())

    @staticmethod
    def _must_run(f: Callable[..., Any]) -> None:
        """Raise TypeError if a function cannot run under a lock."""
        kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
        if any(kind(code) for kind in kinds for code in (f, type(f).__call__)):
            raise TypeError(f"calling {f!r} does not run its body: use with inside of it, or locksidecar.asyncio")
