"""What all handles for threads have: acquire, its owner, and the scopes around it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from . import _wire as w
from ._errors import LockError
from ._handle import H, Handle, run
from ._hold import Who

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")


class Scope(Handle[H]):
    """A handle of a client for threads."""

    _unit = "thread"

    def acquire(self, blocking: bool = True, timeout: float | None = -1) -> bool:
        """Acquire; false if it was not granted in time.

        blocking=False tries; timeout bounds the wait, and -1 or None does not. After an exception nothing is acquired.
        """
        return run(self._acquire(self._who(), w.to_wait(blocking, timeout)))

    def release(self, wait: bool | None = None) -> None:
        """Release it, or one of several acquires of it.

        wait: until the store has confirmed; by default as ``confirm`` says. Without it, a failure goes to on_lost.

        NotHeld if this owner does not hold it, LostError (a NotHeld) if it did and lost it; of several locks, the
        others are released then. No other owner's hold is ever released. Unconfirmed if the store has not confirmed.
        """
        run(self._released(*self._let_go(self._who(), self._confirm if wait is None else wait)))

    def extend(self, ttl: float | None = None) -> None:
        """Renew it now, to end no earlier than ttl from now; by default its own TTL. It is never shortened.

        Only a lock with renew=False needs this. NotHeld if it is not held. Unavailable if the store does not confirm;
        then the earlier validity still counts.
        """
        run(self._change(w.RENEW, w.to_ttl(ttl)))

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
        except LockError as e:
            if self._raises(e, body):
                raise

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

    def _who(self) -> Who:
        """Return the calling owner."""
        return self._owner if self._owner is not None else weakref.ref(threading.current_thread())
