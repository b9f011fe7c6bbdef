"""The replacement for redis-py's clients if redis-py is not installed."""

from __future__ import annotations

from typing import Any, NoReturn


class Absent:
    """Replaces a client of redis-py: it accepts the same arguments, and can do nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    @classmethod
    def from_url(cls, url: str, **_: Any) -> Any:
        return cls()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: redis-py is not installed, so that there is nothing but lock()")


class AbsentSentinel(Absent):
    """Replaces redis-py's Sentinel."""

    def master_for(self, _: str, redis_class: Any, *__: Any, **___: Any) -> Any:
        return redis_class()

    slave_for = master_for
