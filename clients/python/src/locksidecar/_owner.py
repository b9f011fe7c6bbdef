"""The owner of a thread's locks."""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from ._handle import H, Handle
from ._hold import Who


class Here(threading.local):
    """The owner that each thread is, by default."""

    def __init__(self) -> None:
        self.look()

    def look(self) -> None:
        """Look which thread this is: a forked child may have another Thread for it."""
        self.who: Who = weakref.ref(threading.current_thread())


here: Final = Here()

os.register_at_fork(after_in_child=here.look)


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
