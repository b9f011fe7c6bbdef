"""Where the short path of a lock meets the general one, and one thread or request meets another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import aio
import pytest
from daemon import Daemon, ask, until
from peer import FENCE, Background, Peer, ms

from locksidecar import Client, ConnectionLost, LostError
from locksidecar import _session as session
from locksidecar import _wire as w

Connect = Callable[..., Client]


def twice(client: Client, holder: Any, lock: Any) -> None:
    """Let two threads of the owner of lock acquire it by two requests, which are sent while holder holds it."""
    assert holder.acquire()
    both = [Background(lock.acquire), Background(lock.acquire)]
    until("both wait", lambda: ask(client, w.INSPECT, "k")[5] == 2)
    holder.release()
    assert all(b.result() for b in both)


def test_a_release_without_an_answer_releases_only_its_own_grants(client: Client, connect: Connect) -> None:
    """Another thread of the owner acquires just before the release is sent."""
    lock = client.lock("k", owner="handle")
    twice(client, connect().lock("k"), lock)
    assert client._conn is not None
    lock.release()
    count_down, done = client._conn.count_down, []

    def first(hold: Any, before: Any) -> Any:
        last = count_down(hold, before)
        if not done:
            done.append(Background(lock.acquire).result())
        return last

    client._conn.count_down = first
    lock.release(wait=False)
    client.ping()
    assert done == [True]
    assert lock.owned()
    assert not connect().lock("k").acquire(blocking=False), "two hold it"
    lock.release()
    assert connect().lock("k").acquire(timeout=60)


def test_an_interrupted_release_gives_back_every_grant(client: Client, connect: Connect) -> None:
    for at in range(3):
        lock = client.lock("k", owner="handle")
        twice(client, connect().lock("k"), lock)
        assert client._conn is not None
        lock.release()
        asked: list[int] = []
        new_call = client._conn.new_call

        def interrupted(op: int, *more: Any, at: int = at, asked: list[int] = asked, new: Any = new_call) -> Any:
            asked.append(op)
            if len(asked) > at:
                del client._conn.new_call
                raise KeyboardInterrupt
            return new(op, *more)

        client._conn.new_call = interrupted
        if at < 2:
            with pytest.raises(KeyboardInterrupt):
                lock.release()
        else:
            lock.release()
            del client._conn.new_call
        other = connect().lock("k")
        assert other.acquire(timeout=10), f"it is left held after an interrupt at request {at}"
        other.release()


def end(client: Client, told: list[LostError]) -> None:
    """Wait until all losses are told, and add one more."""
    last = LostError("", 0, 0, "closed")
    client._notifier._queue.put((told.append, last))
    until("all is told", lambda: last in told)


def test_a_hold_that_no_acquire_returned_is_not_reported(peer: Peer) -> None:
    told: list[LostError] = []
    client = Client(peer.path, "test", on_lost=told.append)
    lock = client.lock("k")

    def serve() -> None:
        peer.welcome()
        peer.grant(60_000)
        peer.released()
        q = peer.expect(w.ACQUIRE)
        grant = w.frame(0, q[1], FENCE + 1, 60_000, ms() + 60_000, 1, 0, 0)
        peer.raw(grant + w.frame(64, 0, "k", q[3], FENCE + 1, 1))  # they arrive together
        peer.grant(60_000, fence=FENCE + 2)
        peer.released()

    serving = Background(serve)
    for _ in range(2):  # the second acquire takes the shortest path
        assert lock.acquire()
        fence = lock.fence
        lock.release()
    serving.result()
    assert fence == FENCE + 2
    end(client, told)
    assert len(told) == 1


async def test_a_hold_that_no_acquire_returned_is_not_reported_under_asyncio(loop: aio.Loop, peer: Peer) -> None:
    told: list[LostError] = []
    client = loop.client(peer.path, on_lost=told.append)
    lock = client.lock("k")

    def serve() -> None:
        peer.welcome()
        q = peer.expect(w.ACQUIRE)
        grant = w.frame(0, q[1], FENCE + 1, 60_000, ms() + 60_000, 1, 0, 0)
        peer.raw(grant + w.frame(64, 0, "k", q[3], FENCE + 1, 1))  # they arrive together
        peer.grant(60_000, fence=FENCE + 2)
        peer.released()

    serving = Background(serve)
    await client._connect(0)  # so that the acquire takes the shortest path
    assert await lock.acquire()
    assert lock.fence == FENCE + 2
    await lock.release()
    serving.result()
    assert told == []


async def test_a_release_waits_if_asked_where_another_handle_holds_the_key_too(loop: aio.Loop, peer: Peer) -> None:
    """The client itself does not wait for a confirmation."""
    client = loop.client(peer.path, confirm=False)

    def serve() -> int:
        peer.welcome()
        peer.grant(60_000)
        peer.grant(60_000)
        return int(peer.released()[5])

    serving = Background(serve)
    await client._connect(0)  # so that the release begins on the shortest path
    locks = [client.lock("k", shared=True) for _ in range(2)]
    for lock in locks:
        assert await lock.acquire(blocking=False)
    await locks[1].release(wait=True)
    assert serving.result() == 0, "the release is quiet"


@pytest.mark.parametrize("short", [True, False])
def test_a_loss_is_told_once_to_each(peer: Peer, short: bool) -> None:
    told: list[LostError] = []
    client = Client(peer.path, "test", on_lost=told.append)
    lock = client.lock("k", on_lost=told.append, owner=None if short else 7)

    def serve() -> int:
        peer.welcome()
        peer.grant(60_000)
        peer.released()
        return int(peer.grant(60_000, fence=FENCE + 1)[3])

    serving = Background(serve)
    lock.acquire()
    lock.release()
    lock.acquire()
    peer.say(64, 0, "k", serving.result(), FENCE + 1, 1)
    until("it is lost", lambda: not lock.owned())
    end(client, told)
    assert len(told) == 2  # the last one is of end


def test_a_failed_release_of_many_without_an_answer_is_a_loss(peer: Peer) -> None:
    told: list[LostError] = []
    client = Client(peer.path, "test")
    locks = client.lock_many(["a", "b"], on_lost=told.append, confirm=False)

    def serve() -> int:
        peer.welcome()
        return int(peer.grant_many(60_000, 60_000)[3])

    serving = Background(serve)
    assert locks.acquire()
    owner = serving.result()
    locks.release()
    for n, key in enumerate("ab"):
        assert peer.expect(w.RELEASE)[2] == key
        peer.say(68, 0, key, owner, FENCE + n, 7, "so")
    until("the loss is told", lambda: told)
    pinged = Background(client.ping)
    peer.say(0, peer.expect(w.PING)[1], ms())
    pinged.result()
    end(client, told)
    assert [(e.key, e.reason) for e in told[:-1]] == [("a", "unconfirmed")]


def test_a_forced_unlock_is_not_repeated(peer: Peer) -> None:
    """The second one could end the hold of the next owner."""
    client = Client(peer.path, "test")
    forced = Background(client.force_unlock, "k")
    peer.welcome()
    peer.expect(w.FORCE_UNLOCK)
    peer.hang_up()
    with pytest.raises(ConnectionLost):
        forced.result()


async def test_the_trace_is_asked_once_for_each_request(loop: aio.Loop, daemon: Daemon) -> None:
    calls: list[int] = []

    def trace() -> str:
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError
        return ""

    holder = loop.client(daemon.path).lock("k")
    await holder.acquire()
    client = loop.client(daemon.path, trace=trace)
    await client.ping()
    assert not await client.lock("k").acquire(blocking=False)
    assert len(calls) == 1  # the second call would leave the request without an owner


def test_quiet_releases_in_many_threads(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MAX_QUIET", 4)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def work(n: int) -> None:
            lock = client.lock(f"k{n}", owner="handle", on_lost=print, confirm=False)
            for _ in range(300):
                lock.acquire()
                lock.release()

        for each in [Background(work, n) for n in range(4)]:
            each.result()
    finally:
        sys.setswitchinterval(interval)


def every(client: Client, kind: str) -> Any:
    """Return a handle of a kind that does not take the shortest path."""
    if kind == "many":
        return client.lock_many(["k", "other"])
    if kind == "any":
        return client.lock_any(["k", "other"], owner=7)
    return client.lock("k", owner=7 if kind == "named" else None, timeout=60)


KINDS = ["thread", "named", "many", "any"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_grant_that_an_interrupt_has_cut_is_not_a_loss(client: Client, kind: str) -> None:
    """Otherwise the owner could neither acquire again nor release."""
    lock = every(client, kind)
    client.ping()
    assert client._conn is not None

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    client._conn._state = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        lock.acquire(timeout=60)
    assert lock.acquire(timeout=60)
    lock.release()


@pytest.mark.parametrize("kind", KINDS)
def test_a_grant_just_before_the_end_of_the_connection_is_not_a_loss(client: Client, kind: str) -> None:
    lock = every(client, kind)
    client.ping()
    conn = client._conn
    assert conn is not None
    answered = conn.answered

    async def late(c: Any, limit: float | None) -> None:
        """Notice the end of the connection before the grant."""
        await answered(c, limit)
        conn.die(ConnectionLost("so"))
        raise ConnectionLost("so")

    conn.answered = late  # type: ignore[method-assign]
    assert lock.acquire(timeout=60)
    lock.release()


def test_an_interrupted_request_expects_no_answer(client: Client) -> None:
    for many, change in ((False, False), (True, False), (False, True)):
        lock: Any = client.lock_many(["k", "other"]) if many else client.lock("k", owner=7)
        lock.acquire()
        conn = client._conn
        assert conn is not None
        enter = conn.enter

        def cut(c: Any, fields: Any, conn: Any = conn, enter: Any = enter) -> bytes:
            del conn.enter
            enter(c, fields)
            raise KeyboardInterrupt

        conn.enter = cut  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            lock.downgrade() if change else lock.release()
        client.ping()
        assert not conn._pending
        if not change:
            assert lock.acquire(timeout=60)
        lock.release()


@pytest.mark.parametrize("again", [True, False])
def test_a_pair_after_an_interrupted_acquire(client: Client, connect: Connect, again: bool) -> None:
    pair = client.read_write("k")
    pair.write.acquire()
    conn = client._conn
    assert conn is not None

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    conn.adopt = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        pair.read.acquire()
    del conn.adopt
    if again:
        pair.read.acquire()
    pair.write.release()
    assert pair.read.owned() is again
    if again:
        pair.read.release()
    assert connect().lock("k").acquire(timeout=5)


def test_a_pair_after_an_interrupted_release(client: Client, connect: Connect) -> None:
    pair = client.read_write("k")
    pair.write.acquire()
    pair.read.acquire()
    mine, calls = pair.read._mine, []

    def interrupted(who: Any = None) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return mine(who)

    pair.read._mine = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        pair.read.release()
    pair.read.release()
    pair.write.release()
    assert connect().lock("k").acquire(timeout=5)
