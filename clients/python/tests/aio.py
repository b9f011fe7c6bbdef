"""Coroutine tests: each runs on asyncio's own loop and on uvloop, and has to leave nothing behind."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from daemon import BOUND

from locksidecar.asyncio import Client

HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
LOOPS = (
    "asyncio",
    pytest.param("uvloop", marks=pytest.mark.skipif(not HAS_UVLOOP, reason="uvloop is not installed")),
)


def new_loop(name: str) -> asyncio.AbstractEventLoop:
    if name == "asyncio":
        return asyncio.new_event_loop()
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Loop:
    """Runs one test, closes its clients at the end, and checks that nothing is left."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.clients: list[Client] = []
        self.complaints: list[dict[str, Any]] = []  # calls of the loop's exception handler
        self.background: set[asyncio.Task[Any]] = set()  # of the test itself

    def client(self, path: str, **more: Any) -> Client:
        self.clients.append(Client(path, "test", **more))
        return self.clients[-1]

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a test to its end."""
        loop = new_loop(self.name)
        loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        try:
            loop.run_until_complete(self._run(coroutine))
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
        assert not self.complaints

    async def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        me = asyncio.current_task()
        try:
            await asyncio.wait_for(coroutine, 4 * BOUND)
            left = asyncio.all_tasks() - {me} - self.background
            assert not left, "tasks are left"
        finally:
            for client in self.clients:
                await client.close()
        await until("the test's own tasks have ended", lambda: asyncio.all_tasks() == {me})


async def until(what: str, condition: Callable[[], object], bound: float = BOUND) -> None:
    """Poll until the condition, which may be a coroutine function, holds."""
    end = time.monotonic() + bound
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        assert time.monotonic() < end, f"not within {bound} s: {what}"
        await asyncio.sleep(0.005)


async def waiters(client: Client, key: str, count: int) -> None:
    """Wait until so many requests wait for the key."""

    async def waiting() -> bool:
        return bool((await client._asked(7, key))[5] == count)

    await until(f"{count} wait", waiting)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
