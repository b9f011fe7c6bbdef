"""A cancelled acquire holds nothing, a cancelled release has released, and no task is left."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aio import Loop, descriptors, until, waiters
from daemon import Daemon
from peer import FENCE, Peer, ms

import locksidecar
from locksidecar import ConnectionLost, LostError
from locksidecar import _wire as w
from locksidecar.asyncio import Client, Lock

Connect = Callable[..., Client]
thread = asyncio.to_thread
needs_timeout = pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout came with Python 3.11")


async def ended(task: asyncio.Task[object]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_connection_that_ends_while_it_is_made_closes_its_descriptor_once(aconnect: Connect) -> None:
    for steps in range(8):
        client = aconnect()
        task = asyncio.create_task(client.lock("k").acquire())
        for _ in range(steps):
            await asyncio.sleep(0)
        conn = client._conn
        await client.close()
        with contextlib.suppress(ConnectionLost):
            await task
        # A number that is kept would be closed again with the object, and belong to another descriptor by then.
        assert conn is None or conn._sock.fileno() == -1


async def test_a_cancelled_acquire_withdraws(aclient: Client, aconnect: Connect) -> None:
    holder = aconnect().lock("k")
    await holder.acquire()
    lock = aclient.lock("k")
    task = asyncio.create_task(lock.acquire())
    await waiters(aclient, "k", 1)
    task.cancel()
    await ended(task)
    await waiters(aclient, "k", 0)
    assert not lock.owned()
    await holder.release()
    assert await aclient.lock("k").acquire(blocking=False)  # and the connection stays open
    conn = aclient._conn
    assert conn is not None
    await until("it is forgotten", lambda: not conn._pending)


async def test_a_cancelled_block_is_not_entered(aclient: Client, aconnect: Connect) -> None:
    holder = aconnect().lock("k")
    await holder.acquire()

    async def enter() -> None:
        async with aclient.lock("k"):
            pytest.fail("entered")

    task = asyncio.create_task(enter())
    await waiters(aclient, "k", 1)
    task.cancel()
    await ended(task)
    await waiters(aclient, "k", 0)


async def test_wait_for(aclient: Client, aconnect: Connect) -> None:
    holder = aconnect().lock("k")
    await holder.acquire()
    lock = aclient.lock("k")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(lock.acquire(), 0.05)
    await waiters(aclient, "k", 0)
    await holder.release()
    assert await asyncio.wait_for(lock.acquire(), 60)
    assert lock.owned()


@needs_timeout
async def test_timeout(aclient: Client, aconnect: Connect) -> None:
    if sys.version_info < (3, 11):
        return
    holder = aconnect().lock("k")
    await holder.acquire()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), aclient.lock("k"):
            pytest.fail("entered")
    await waiters(aclient, "k", 0)
    await holder.release()
    async with asyncio.timeout(60), aclient.lock("k") as held:
        assert held.owned()


async def connected(peer: Peer, loop: Loop, **more: float) -> Client:
    """Return a client of the peer that is connected."""
    client = loop.client(peer.path, **more)
    pinged = asyncio.create_task(client.ping())
    await thread(peer.welcome)
    await thread(lambda: peer.say(0, peer.expect(w.PING)[1], 1))
    await pinged
    return client


@pytest.mark.parametrize("keep", [None, 600])
async def test_a_grant_that_crosses_the_cancel_is_released(loop: Loop, peer: Peer, keep: int | None) -> None:
    client = await connected(peer, loop, timeout=2)
    lock = client.lock("k", owner=7, keep=keep)
    task = asyncio.create_task(lock.acquire())
    q = await thread(peer.expect, w.ACQUIRE)
    task.cancel()
    await ended(task)
    c = await thread(peer.expect, w.CANCEL)
    assert c[2:] == (q[1], "k")
    peer.say(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0)
    peer.say(0, c[1], 0)
    released = await thread(peer.expect, w.RELEASE)
    assert released[2:6] == ("k", 7, FENCE, w.ASYNC | (w.NOW if keep else 0))
    peer.say(0, released[1], 0)
    assert not lock.owned()
    conn = client._conn
    assert conn is not None
    await until("nothing is left of it", lambda: not conn._pending and not conn._holds)


async def test_a_grant_that_came_just_before_the_cancel_is_released(loop: Loop, peer: Peer) -> None:
    """The reply was read, but the task was not woken yet."""
    client = await connected(peer, loop, timeout=2)
    lock = client.lock("k", owner=7)
    task = asyncio.create_task(lock.acquire())
    q = await thread(peer.expect, w.ACQUIRE)
    assert client._conn is not None
    peer.say(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0)
    end = time.monotonic() + 30
    while not client._conn._holds:  # without a turn of the loop
        client._conn.catch_up()
        assert time.monotonic() < end
    assert not task.done()
    task.cancel()
    await ended(task)
    released = await thread(peer.expect, w.RELEASE)
    assert released[2:6] == ("k", 7, FENCE, w.ASYNC)
    assert not lock.owned()
    assert not client._conn._holds


async def test_a_cancelled_release_completes(loop: Loop, peer: Peer) -> None:
    client = await connected(peer, loop, timeout=2)
    lock = client.lock("k", owner=7)
    task = asyncio.create_task(lock.acquire())
    await thread(peer.grant, 60_000)
    await task
    release = asyncio.create_task(lock.release())
    q = await thread(peer.expect, w.RELEASE)
    release.cancel()
    await ended(release)
    assert not lock.owned()
    conn = client._conn
    assert conn is not None
    peer.say(0, q[1], 0)
    await until("the answer was read", lambda: not conn._pending)


async def test_a_release_whose_task_never_ran_is_a_release(aclient: Client, aconnect: Connect) -> None:
    lock = aclient.lock("k")
    await lock.acquire()
    task = asyncio.create_task(lock.release())
    task.cancel()
    await ended(task)
    assert not lock.owned()
    assert await aconnect().lock("k").acquire(timeout=60)


async def test_a_block_whose_end_is_cancelled_has_released(loop: Loop, peer: Peer) -> None:
    client = await connected(peer, loop, timeout=2)

    async def use() -> None:
        async with client.lock("k", owner=7):
            pass

    task = asyncio.create_task(use())
    await thread(peer.grant, 60_000)
    q = await thread(peer.expect, w.RELEASE)
    task.cancel()
    await ended(task)
    peer.say(0, q[1], 0)


async def test_a_cancelled_extend_leaves_the_hold(loop: Loop, peer: Peer) -> None:
    client = await connected(peer, loop, timeout=2)
    lock = client.lock("k", owner=7)
    task = asyncio.create_task(lock.acquire())
    await thread(peer.grant, 20_000)
    await task
    extend = asyncio.create_task(lock.extend(60))
    q = await thread(peer.expect, w.RENEW)
    extend.cancel()
    await ended(extend)
    assert lock.owned()
    peer.say(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0)
    await until("what the daemon states counts", lambda: lock.remaining > 40)


async def test_who_connects_is_cancelled_and_the_others_are_served(loop: Loop, peer: Peer) -> None:
    client = loop.client(peer.path, timeout=30)
    first = asyncio.create_task(client.ping())
    await thread(peer.accept)  # and no welcome yet
    second = asyncio.create_task(client.ping())
    await asyncio.sleep(0)
    first.cancel()
    await ended(first)
    await thread(peer.welcome)
    await thread(lambda: peer.say(0, peer.expect(w.PING)[1], 1))
    assert await second > 0


async def test_who_connects_is_cancelled_at_any_step(aconnect: Connect) -> None:
    for steps in range(12):
        client = aconnect()
        task = asyncio.create_task(client.ping())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        before = descriptors()
        await asyncio.wait_for(client.close(), 60)
        assert descriptors() <= before
    other = aconnect()
    assert await other.ping() > 0


async def test_closing_fails_who_connects(loop: Loop, peer: Peer) -> None:
    client = loop.client(peer.path, timeout=30)
    tasks = [asyncio.create_task(c) for c in (client.ping(), client.ping(), client.lock("k", owner=1).locked())]
    await thread(peer.accept)
    await client.close()
    for task in tasks:
        with pytest.raises(locksidecar.ConnectionLost, match="closed"):
            await task


async def storm(
    aclient: Client, use: Callable[[Lock, dict[str, int]], Coroutine[Any, Any, None]], aconnect: Connect
) -> None:
    """Cancel tasks at all kinds of moments. No two tasks may be inside at once, and nothing stays held."""
    random.seed(7)
    keys, inside = [f"k{n}" for n in range(3)], dict.fromkeys((f"k{n}" for n in range(3)), 0)
    clients = [aclient, aconnect()]
    for client in clients:
        await client.ping()  # connected, whatever is cancelled
    for n in range(30):
        tasks = [asyncio.create_task(use(clients[i % 2].lock(keys[i % 3]), inside)) for i in range(12)]
        for task in tasks:
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
            if random.random() < 0.8:
                task.cancel()
        if n % 10 == 0:
            await asyncio.sleep(0.002)
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            assert end is None or isinstance(end, asyncio.CancelledError), end
    watcher = aconnect()
    for key in keys:
        assert await watcher.lock(key).acquire(timeout=60), f"{key} is left held"
    for client in clients:
        conn = client._conn
        assert conn is not None
        assert conn.dead is None
        await until("nothing is left", lambda conn=conn: not conn._pending and not conn._holds)  # type: ignore[misc]


async def test_a_storm_of_cancellations(aclient: Client, aconnect: Connect) -> None:
    async def use(lock: Lock, inside: dict[str, int]) -> None:
        for _ in range(20):
            async with lock:
                inside[lock.key] += 1
                assert inside[lock.key] == 1
                try:
                    await asyncio.sleep(0)
                finally:
                    inside[lock.key] -= 1

    await storm(aclient, use, aconnect)


async def test_a_storm_of_timeouts(aclient: Client, aconnect: Connect) -> None:
    async def use(lock: Lock, inside: dict[str, int]) -> None:
        for n in range(20):
            try:
                assert await asyncio.wait_for(lock.acquire(), 0.0002 * (n % 5))
            except asyncio.TimeoutError:
                continue
            try:
                inside[lock.key] += 1
                assert inside[lock.key] == 1
                await asyncio.sleep(0)
            finally:
                inside[lock.key] -= 1
                await asyncio.wait_for(lock.release(), 60)

    await storm(aclient, use, aconnect)


# ---- guard ----


@needs_timeout
async def test_a_guarded_body_ends_when_the_lock_is_lost(aclient: Client) -> None:
    lock = aclient.lock("k", ttl=0.4, renew=False)
    went_on = False
    with pytest.raises(LostError) as e:
        async with lock.guard() as held:
            assert held is lock
            assert lock.owned()
            await asyncio.sleep(1000)
            went_on = True
    assert not went_on
    assert e.value.reason in ("fixed_end", "silence")
    assert isinstance(e.value.__cause__, asyncio.CancelledError)
    task = asyncio.current_task()
    assert task is not None
    if sys.version_info >= (3, 11):
        assert task.cancelling() == 0
    await asyncio.sleep(0)  # the refused grant has left nothing
    assert not lock.owned()
    async with lock.guard():  # and the handle still works
        assert lock.owned()
    assert not lock.owned()


@needs_timeout
async def test_a_guarded_body_that_ends_in_time(aclient: Client, aconnect: Connect) -> None:
    async with aclient.lock("k").guard():
        assert await aconnect().lock("k").acquire(blocking=False) is False
    with pytest.raises(KeyError):
        async with aclient.lock("k").guard():
            raise KeyError
    assert await aconnect().lock("k").acquire(blocking=False)


@needs_timeout
async def test_a_guarded_body_that_is_cancelled_by_others(aclient: Client) -> None:
    lock, inside = aclient.lock("k", ttl=0.3, renew=False), asyncio.Event()

    async def body() -> None:
        async with lock.guard():
            inside.set()
            await asyncio.sleep(1000)

    task = asyncio.create_task(body())
    await inside.wait()
    task.cancel()
    await ended(task)
    assert await aclient.lock("k").acquire(timeout=60)


@needs_timeout
async def test_a_guarded_body_that_is_cancelled_by_both(aclient: Client) -> None:
    """A cancellation from elsewhere is never swallowed."""
    lock, inside = aclient.lock("k", ttl=0.4, renew=False), asyncio.Event()

    async def body() -> None:
        async with lock.guard():
            inside.set()
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:  # by the loss
                task.cancel()
                raise

    task = asyncio.create_task(body())
    await inside.wait()
    await ended(task)
    assert task.cancelled()


@needs_timeout
async def test_guards_within_guards(aclient: Client) -> None:
    outer, inner = aclient.lock("a"), aclient.lock("b", ttl=0.4, renew=False)
    async with outer.guard():
        with pytest.raises(LostError, match="'b'"):
            async with inner.guard():
                await asyncio.sleep(1000)
        assert outer.owned()
    with pytest.raises(LostError, match="'b'"):
        async with inner.guard(), inner.guard():  # both are cancelled by one loss
            await asyncio.sleep(1000)
    await asyncio.sleep(0)


@needs_timeout
async def test_a_guarded_body_that_swallows_the_cancellation(aclient: Client) -> None:
    with pytest.raises(LostError):
        async with aclient.lock("k", ttl=0.4, renew=False).guard():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
    await asyncio.sleep(0)


@needs_timeout
async def test_a_guard_within_a_timeout(aclient: Client) -> None:
    if sys.version_info < (3, 11):
        return
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), aclient.lock("k").guard():
            await asyncio.sleep(1000)
    async with aclient.lock("k").guard():
        pass


@needs_timeout
async def test_a_guard_when_the_daemon_is_killed(loop: Loop, daemon: Daemon) -> None:
    with pytest.raises(LostError, match="connection"):
        async with loop.client(daemon.path).lock("k").guard():
            daemon.kill()
            await asyncio.sleep(1000)


@needs_timeout
async def test_a_guard_is_used_once(aclient: Client) -> None:
    guard = aclient.lock("k").guard()
    async with guard:
        pass
    with pytest.raises(RuntimeError, match="once"):
        async with guard:
            pytest.fail("entered")


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="there it works")
async def test_no_guard_before_it_can_be_right(aclient: Client) -> None:
    with pytest.raises(RuntimeError, match=r"3\.11"):
        aclient.lock("k").guard()


async def test_an_owner_that_was_cancelled_asks_again_when_that_is_settled(loop: Loop, peer: Peer) -> None:
    """Before the answer to the cancel a grant may come, and a new request would re-enter it."""
    client = loop.client(peer.path)
    lock = client.lock("k", owner=7)
    first = asyncio.create_task(lock.acquire())
    await thread(peer.welcome)
    q = await thread(peer.expect, w.ACQUIRE)
    first.cancel()
    c = await thread(peer.expect, w.CANCEL)
    again = [asyncio.create_task(lock.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    again[2].cancel()  # others wait for the same answer
    pinged = asyncio.create_task(client.ping())
    peer.say(0, (await thread(peer.expect, w.PING))[1], 1)  # the client has sent no acquire
    await pinged
    peer.say(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0)
    peer.say(0, c[1], 0)
    assert (await thread(peer.expect, w.RELEASE))[2:] == ("k", 7, FENCE, w.ASYNC)  # before the next acquire
    for n in range(2):
        q = await thread(peer.expect, w.ACQUIRE)
        peer.say(0, q[1], FENCE + 1, 60_000, ms() + 60_000, n + 1, 0, 0)
    assert await asyncio.gather(*again[:2]) == [True, True]
