"""What stands for redis-py's clients where redis-py is not installed."""

from __future__ import annotations

from typing import Any, NoReturn


class Absent:
    """Takes what redis-py's clients take, and can do nothing with it."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    @classmethod
    def from_url(cls, url: str, **_: Any) -> Any:
        return cls()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: redis-py is not installed, so that there is nothing but lock()")
