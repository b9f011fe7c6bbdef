"""Tests that take seconds, since a daemon after a kill waits for the stated validity. All of them run at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import aio
import pytest
from candidate import Candidate, Stage
from daemon import Daemon, ask, drains, until
from peer import Background
from test_asyncio_election import Candidate as AsyncioCandidate

import locksidecar
from locksidecar import Client, LostError, _handle
from locksidecar import _wire as w

SESSION = 10_000_000_000  # nanoseconds; the embedded store never states a longer validity


class Scene:
    """A daemon of its own, and clients of it."""

    def __init__(self, stack: ExitStack, binary: str) -> None:
        self.stack = stack
        self.daemon = Daemon(binary)
        stack.callback(self.daemon.close)

    def connect(self, timeout: float = 5) -> Client:
        return self.stack.enter_context(Client(self.daemon.path, "test", timeout=timeout))


def a_restart(s: Scene) -> None:
    s.daemon.start()
    client = s.connect()
    losses: list[LostError] = []
    lock = client.lock("k", ttl=1, on_lost=losses.append)
    lock.acquire()
    fence = lock.fence
    s.daemon.kill()
    until("it is noticed", lambda: not lock.owned())
    assert lock.remaining == 0
    assert lock.fence == fence
    until("on_lost is called", lambda: losses)
    assert (losses[0].key, losses[0].fence, losses[0].reason) == ("k", fence, "connection")
    with pytest.raises(LostError):
        lock.release()
    with pytest.raises(locksidecar.NotHeld):
        lock.release()
    s.daemon.start()
    assert lock.acquire(timeout=60)
    assert lock.fence > fence
    lock.release()
    assert len(losses) == 1


def a_wait_over_a_restart(s: Scene) -> None:
    s.daemon.start()
    client = s.connect()
    holder, lock = client.lock("k", ttl=1), s.connect().lock("k", ttl=1)
    holder.acquire()
    waiter = Background(lock.acquire, True, 60)
    until("it waits", lambda: ask(client, w.INSPECT, "k")[5] == 1)
    s.daemon.kill()
    s.daemon.start()
    assert waiter.result() is True


def a_wait_over_an_orderly_restart(s: Scene) -> None:
    s.daemon.start("--drain", "30s")
    client = s.connect()
    holder, lock = client.lock("k"), s.connect().lock("k")
    holder.acquire()
    waiter = Background(lock.acquire, True, 60)
    until("it waits", lambda: ask(client, w.INSPECT, "k")[5] == 1)
    s.daemon.signal(signal.SIGTERM)
    until("it drains", lambda: drains(client))
    assert holder.owned()
    holder.release()
    assert s.daemon.process is not None
    assert s.daemon.process.wait(30) == 0
    s.daemon.start()
    assert waiter.result() is True
    with client.lock("other") as held:
        assert held.owned()


def a_frozen_daemon(s: Scene) -> None:
    s.daemon.start()
    losses: list[LostError] = []
    lock = s.connect(timeout=1).lock("k", ttl=1, on_lost=losses.append)
    lock.acquire()
    s.daemon.freeze()
    latest = w.now() + SESSION  # no stated validity can last longer
    until("the stated validity is over", lambda: w.now() >= latest or not lock.owned())
    assert not lock.owned()
    assert lock.remaining == 0
    until("on_lost is called", lambda: losses)
    assert losses[0].reason == "silence"
    assert not lock.owned()
    with pytest.raises(LostError):
        lock.release()
    with pytest.raises(locksidecar.Unavailable):
        lock.acquire(timeout=0.1)
    s.daemon.thaw()
    assert s.connect().lock("k").acquire(timeout=60)
    assert len(losses) == 1


def an_election_over_a_restart(s: Scene) -> None:
    s.daemon.start()
    stage = Stage()
    two = [Candidate(s.connect(), stage, ttl=1) for _ in range(2)]
    for one in two:
        s.stack.enter_context(one.election)
    until("somebody leads", lambda: any(one.leads for one in two))
    first = next(one for one in two if one.leads)
    s.daemon.kill()
    until("on_lost is called", lambda: first.count("lost"))
    assert first.reasons() == ["connection"]
    assert not any(one.election.is_leader for one in two)
    s.daemon.start()
    until("somebody leads again", lambda: any(one.leads for one in two), 60)
    assert stage.overlaps == 0
    assert len(stage.fences) == 2


def an_election_over_an_orderly_restart(s: Scene) -> None:
    s.daemon.start("--drain", "500ms")
    stage = Stage()
    two = [Candidate(s.connect(), stage) for _ in range(2)]
    for one in two:
        s.stack.enter_context(one.election)
    until("somebody leads", lambda: any(one.leads for one in two))
    first = next(one for one in two if one.leads)
    s.daemon.signal(signal.SIGTERM)
    until("on_lost is called", lambda: first.count("lost"))
    assert first.reasons()[0] in ("shutdown", "connection")
    assert s.daemon.process is not None
    assert s.daemon.process.wait(30) == 0
    s.daemon.start()
    until("somebody leads again", lambda: any(one.leads for one in two), 60)
    assert stage.overlaps == 0


def an_election_with_a_frozen_daemon(s: Scene) -> None:
    s.daemon.start()
    one = Candidate(s.connect(timeout=1), Stage(), ttl=1)
    s.stack.enter_context(one.election)
    until("it leads", lambda: one.leads)
    s.daemon.freeze()
    until("on_lost is called", lambda: one.count("lost"))
    assert one.reasons() == ["silence"]
    assert not one.election.is_leader
    s.daemon.thaw()
    until("it leads again", lambda: one.leads, 60)


def an_asyncio_election(s: Scene, kind: str) -> None:
    s.daemon.start()
    loop = aio.Loop(kind)

    async def scene() -> None:
        stage: list[int] = []
        two = [AsyncioCandidate(loop.client(s.daemon.path), stage) for _ in range(2)]
        for one in two:
            one.election.start()
        await aio.until("somebody leads", lambda: any(one.leads for one in two))
        first = next(one for one in two if one.leads)
        await asyncio.to_thread(s.daemon.kill)
        await aio.until("on_lost is called", lambda: first.reasons() == ["connection"])
        assert not any(one.election.is_leader for one in two)
        await asyncio.to_thread(s.daemon.start)
        await aio.until("somebody leads again", lambda: any(one.leads for one in two), 60)
        for one in two:
            await one.election.stop()

    loop.run(scene())


def an_asyncio_election_on_asyncio(s: Scene) -> None:
    an_asyncio_election(s, "asyncio")


def an_asyncio_election_on_uvloop(s: Scene) -> None:
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    an_asyncio_election(s, "uvloop")


def an_asyncio_restart(s: Scene, kind: str) -> None:
    s.daemon.start()
    loop = aio.Loop(kind)

    async def scene() -> None:
        client = loop.client(s.daemon.path)
        losses: list[LostError] = []
        lock = client.lock("k", ttl=1, on_lost=losses.append)
        await lock.acquire()
        fence = lock.fence
        waiter = asyncio.create_task(client.lock("k", ttl=1, owner=1).acquire(timeout=60))
        await aio.waiters(client, "k", 1)
        await asyncio.to_thread(s.daemon.kill)
        await aio.until("on_lost is called", lambda: losses)
        assert (losses[0].key, losses[0].fence, losses[0].reason) == ("k", fence, "connection")
        assert not lock.owned()
        assert lock.fence == fence
        with pytest.raises(LostError):
            await lock.release()
        with pytest.raises(locksidecar.NotHeld):
            await lock.release()
        await asyncio.to_thread(s.daemon.start)
        assert await waiter is True
        assert client.lock("k", owner=1).fence > fence
        assert len(losses) == 1

    loop.run(scene())


def an_asyncio_restart_on_asyncio(s: Scene) -> None:
    an_asyncio_restart(s, "asyncio")


def an_asyncio_restart_on_uvloop(s: Scene) -> None:
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    an_asyncio_restart(s, "uvloop")


SCENES: list[Callable[[Scene], None]] = [
    a_restart,
    a_wait_over_a_restart,
    a_wait_over_an_orderly_restart,
    a_frozen_daemon,
    an_asyncio_restart_on_asyncio,
    an_asyncio_restart_on_uvloop,
    an_election_over_a_restart,
    an_election_over_an_orderly_restart,
    an_election_with_a_frozen_daemon,
    an_asyncio_election_on_asyncio,
    an_asyncio_election_on_uvloop,
]


@pytest.fixture(scope="module")
def together(binary: str, runners: object) -> Iterator[list[Background]]:
    """All scenes, which start with the first test that needs one, and the conformance runners beside them."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_handle, "_PATIENCE", 30.0)  # on a busy machine a start may take long
        yield [Background(scene, Scene(stack, binary)) for scene in SCENES]


@pytest.mark.parametrize("n", range(len(SCENES)), ids=[scene.__name__ for scene in SCENES])
def test_scene(together: list[Background], n: int) -> None:
    together[n].result(bound=120)
