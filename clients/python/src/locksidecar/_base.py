"""What the clients for threads and for event loops have in common. No I/O."""

from __future__ import annotations

import itertools
import math
import os
import random
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, NoReturn, TypeVar

from . import _wire as w
from ._errors import ConnectionLost, LockError, Unavailable, error
from ._hold import OWN
from ._session import _open
from ._table import OnLost, Owners

L = TypeVar("L")

Trace = Callable[[], "str | None"]

OPENTELEMETRY: Final = "opentelemetry.trace"
_ADMIN: Final = ".admin"  # the admin socket has the path of the socket for locks, plus this
_LONG: Final = 1e9  # seconds; a socket cannot have a timeout of many more

_clients: Final[weakref.WeakSet[Base]] = weakref.WeakSet()


class ReadWriteLock(Generic[L]):
    """A lock for reading and one for writing, with one owner; made by Client.read_write.

    A writer may also acquire ``read``. When it has released ``write``, it continues as a reader. A reader that acquires
    ``write`` gets an Upgrade error, because it would wait for itself.
    """

    def __init__(self, read: L, write: L) -> None:
        self.read = read
        self.write = write


class Pauses:
    """The pauses between failed attempts, in seconds: they grow, and are random."""

    def __init__(self, first: float = 0.01, longest: float = 0.25) -> None:
        self._first, self.longest = first, longest
        self.reset()

    def reset(self) -> None:
        """Begin again, after a success."""
        self._next = self._first

    @property
    def first(self) -> bool:
        """Whether there was no failure since the last success."""
        return self._next == self._first

    def next(self) -> float:
        """Return the pause after a failure."""
        pause, self._next = self._next, min(self.longest, 2 * self._next)
        return pause * random.uniform(0.5, 1)


def current() -> str | None:
    """Return the traceparent of OpenTelemetry's current span; None without one.

    A program that has not imported OpenTelemetry has none, so it is not imported for this.
    """
    api = sys.modules.get(OPENTELEMETRY)
    span = getattr(api, "get_current_span", None)  # it may be being imported just now
    if span is None:
        return None
    context = span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def nowhere() -> None:
    """Return no trace."""


class Base(ABC):
    """The common part of the clients for threads and for tasks: their terms, and one connection at a time."""

    _conn: Any

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        name: str | None = None,
        *,
        label: str = "",
        timeout: float = 5.0,
        trace: Trace | None = current,
        confirm: bool = True,
        on_lost: OnLost | None = None,
    ) -> None:
        """Set the daemon's socket, and the name of this client in the daemon's lists. Connects to nothing yet.

        path: by default LOCKSIDECAR_SOCKET, or else the daemon's default path.
        name, label: names for people; by default the program's name.
        timeout: how long the daemon may take to answer, in addition to the wait of an acquire.
        trace: a function that returns the traceparent (W3C Trace Context) of an acquire, or None. The acquiring thread
        or task calls it for each acquire. By default it returns OpenTelemetry's current span, if the program uses that.
        With trace=None no acquire has a traceparent.
        confirm: whether a release waits until the store has confirmed it; a handle may differ.
        on_lost: called for each lock that is lost, also if the handle has an on_lost of its own; see lock.
        """
        timeout = w.check_unit(timeout, "timeout")
        if not timeout > 0:
            raise ValueError("timeout must be positive")
        self._path = socket_path(path)
        self._name = os.path.basename(sys.argv[0] if sys.argv else "") or "python" if name is None else name
        self._label = label
        self._timeout = min(timeout, _LONG)
        self._trace: Trace = trace or nowhere
        self._confirm = confirm
        self._on_lost = () if on_lost is None else (w.check_callback(on_lost, "on_lost"),)
        self._owners = itertools.count(OWN)
        self._thrown_away: weakref.finalize[..., Any] | None = None  # see _own
        self._reset()
        self._closed = False
        _clients.add(self)

    def _reset(self) -> None:
        """Start with nothing, also in a new process. Nothing of the old process is used, in particular no locks."""
        self._conn = None
        self._known = Owners()
        self._failed: tuple[float, LockError] = (-math.inf, Unavailable())
        self._disown()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Client cannot be copied or sent to another process: make one there")

    # ---- the connection ----

    @abstractmethod
    async def _turn(self, start: float) -> tuple[Any, LockError]:
        """Make an attempt when no other thread or task makes one."""

    @abstractmethod
    async def _dial(self) -> Any:
        """Make a connection; OSError or LockError when that fails."""

    @abstractmethod
    async def _pause(self, seconds: float) -> None:
        """Wait for so many seconds."""

    @staticmethod
    def _running() -> Any:
        """Return the running loop; None for threads."""
        return None

    def _here(self) -> Any:
        """Raise RuntimeError if the client may not be used here. Return the running loop; None for threads."""
        return None

    def _live(self) -> Any:
        """Return the connection, or None if there is none that can be used."""
        conn = self._conn
        return conn if conn is not None and conn.ready and conn.dead is None else None

    async def _connect(self, until: float) -> Any:
        """Return the connection, and make one if necessary. Attempts end at the time until of the monotonic clock.

        Attempts are made one at a time, but not during a pause: a try must not wait for the attempts of others.
        """
        self._here()
        if (conn := self._live()) is not None:
            return conn
        start, pauses = time.monotonic(), Pauses()
        while True:
            conn, why = await self._turn(start)
            if conn is not None:
                return conn
            start, pause = time.monotonic(), pauses.next()
            if not isinstance(why, Unavailable) or start + pause >= until:
                raise type(why)(*why.args)
            await self._pause(pause)

    async def _attempt(self, start: float) -> tuple[Any, LockError]:
        """Return the connection, and make one if necessary; or return None and the error.

        If another thread or task has failed to connect since start, this returns its error and makes no attempt.
        """
        failed, why = self._failed
        if (conn := self._live()) is None and failed < start and not self._closed:
            try:
                conn = await self._dial()
            except (OSError, LockError) as e:
                why = unreachable(self._path, e)
                self._failed = time.monotonic(), why
        if self._closed:
            self._end()  # close may have seen no connection yet
            raise ConnectionLost("the client is closed")
        return conn, why

    def _end(self, why: str = "the client is closed") -> None:
        """End the connection of a client that is closed, or cannot be used any more."""
        if self._conn is not None:
            self._conn.die(ConnectionLost(why), quiet=True)
            self._disown()

    def _own(self, conn: Any, discard: Callable[..., object], *args: object) -> None:
        """Record the connection, which discard ends when the client is garbage collected without having been closed.

        Nothing else keeps the connection alive: its holds have on_lost, which may refer to the client.
        """
        self._conn = conn
        self._disown()
        self._thrown_away = weakref.finalize(self, discard, *args)
        self._thrown_away.atexit = False

    def _disown(self) -> None:
        if self._thrown_away is not None:
            self._thrown_away.detach()

    async def _asked(self, op: int, *fields: object) -> w.Message:
        """Send a request, once more if that changes nothing. Return its reply, which is a success."""
        try:
            reply: w.Message = await (await self._connect(0)).call(op, *fields)
        except ConnectionLost:  # perhaps this thread or task was the first to notice
            if op in (w.RELEASE, w.FORCE_UNLOCK):  # the second one would get another answer, or end another hold
                raise
            reply = await (await self._connect(0)).call(op, *fields)
        if reply[0] != w.OK:
            raise error(reply[0], w.text(reply))
        return reply


def socket_path(path: str | os.PathLike[str] | None) -> str:
    """Return the daemon's socket, in the order of PROTOCOL.md."""
    if path is not None:
        return os.fspath(path)
    if named := os.environ.get("LOCKSIDECAR_SOCKET"):
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.geteuid() != 0:
        return os.path.join(runtime, "locksidecar", "locksidecar.sock")
    return "/run/locksidecar/locksidecar.sock"


def unreachable(path: str, e: OSError | LockError) -> LockError:
    """Return the error for a failed connect. It names the socket, and the socket that may be meant instead."""
    hint = _hint(path)
    if isinstance(e, LockError):
        return type(e)(f"{e}, at {path}{hint}")  # e first: its text begins with the name of the error
    if isinstance(e, (FileNotFoundError, ConnectionRefusedError)):
        start = "" if hint else "; start one with 'locksidecar serve', or name its socket with LOCKSIDECAR_SOCKET"
        return Unavailable(f"no daemon at {path}: {e}{hint or start}")
    if isinstance(e, PermissionError):
        return Unavailable(f"this user (uid {os.geteuid()}) may not connect to {path}: {e}")
    if isinstance(e, TimeoutError):
        return Unavailable(f"the daemon at {path} has not answered: {e}{hint}")
    return Unavailable(f"cannot connect to {path}: {e}{hint}")


def _hint(path: str) -> str:
    locks = path.removesuffix(_ADMIN)
    if locks != path:
        return f"; it has the name of an admin socket, beside {locks} for locks"
    if not os.path.exists(path) and os.path.exists(path + _ADMIN):
        return f"; only an admin socket is there, {path}{_ADMIN}"
    return ""


def _after_fork() -> None:
    """Forget, in a child process, everything that belongs to the parent, including new connections."""
    for conn in list(_open):
        conn.forked()
    _open.clear()
    for client in list(_clients):
        client._reset()


os.register_at_fork(after_in_child=_after_fork)
