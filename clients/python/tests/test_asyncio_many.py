"""Several asyncio locks at once: on a real daemon, and against one that sends what the test chooses."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable

import pytest
from aio import Loop, until, waiters
from peer import FENCE, Peer, ms
from test_asyncio_cancel import connected, ended, needs_timeout, thread

import locksidecar
from locksidecar import LostError
from locksidecar import _wire as w
from locksidecar.asyncio import Client, Locks

Connect = Callable[..., Client]

KEYS = ["b", "a", "c"]
HELD = [(key, FENCE + n) for n, key in enumerate(KEYS)]


async def free(client: Client, *keys: str) -> None:
    """Check that each key can be acquired."""
    for key in keys:
        lock = client.lock(key)
        assert await lock.acquire(timeout=30), key
        await lock.release()


async def test_all_or_none(aclient: Client, aconnect: Connect) -> None:
    other = aconnect()
    locks = aclient.lock_many(KEYS)
    assert not locks.owned()
    async with locks as held:
        assert held is locks
        assert locks.owned()
        assert list(locks.fences) == KEYS
        assert 0 < locks.remaining <= 30
        for key in KEYS:
            assert await other.lock(key).acquire(blocking=False) is False
        assert await other.lock_many(["z", "c"]).acquire(blocking=False) is False
        assert await other.lock_many(["z", "c"]).acquire(timeout=0.02) is False
        with pytest.raises(locksidecar.NotAcquired, match="'z', 'c'"):
            async with other.lock_many(["z", "c"], timeout=0.01):
                pytest.fail("entered")
        await free(other, "z")
    assert not locks.owned()
    await free(other, *KEYS)
    with pytest.raises(locksidecar.NotHeld):
        await locks.release()
    with pytest.raises(locksidecar.Invalid):
        aclient.lock_many(["a", "a"])
    with pytest.raises(locksidecar.Invalid, match="the daemon allows"):
        await aclient.lock_many([f"{n:0500}" for n in range(200)]).acquire()


async def test_tasks_and_owners(aclient: Client, aconnect: Connect) -> None:
    locks = aclient.lock_many(["a", "b"])

    async def other() -> bool:
        return await locks.acquire()

    async with locks, locks:
        waiter = asyncio.create_task(other())
        await waiters(aclient, "a", 1)
    assert await waiter is True
    assert not locks.owned()
    named, one = aclient.lock_many(["c", "d"], owner=7), aclient.lock("d", owner=7)
    async with one:
        await asyncio.create_task(named.acquire())  # in any task
        assert named.owned()
        await named.release()
        await free(aconnect(), "c")
        assert one.owned()
    await free(aconnect(), "c", "d")


async def test_two_tasks_acquire_as_one_owner_at_once(aclient: Client, aconnect: Connect) -> None:
    locks, blocker = aclient.lock_many(["a", "b"], owner=7), aconnect().lock("b")
    await blocker.acquire()
    both = [asyncio.create_task(locks.acquire()) for _ in range(2)]
    await asyncio.sleep(0.05)
    await blocker.release()
    assert [await b for b in both] == [True, True]
    for _ in range(2):
        assert locks.owned()
        await locks.release()
    assert not locks.owned()
    with pytest.raises(locksidecar.NotHeld):
        await locks.release()
    await free(aconnect(), "a", "b")


async def test_as_many_as_there_may_be(aclient: Client, aconnect: Connect) -> None:
    keys = [f"k{n}" for n in range(1024)]
    async with aclient.lock_many(keys) as held:
        assert len(held.fences) == 1024
    long = [f"{n:0500}" for n in range(129)]
    async with aclient.lock_many(long):
        pass
    async with aconnect().lock_many([*long[:10], *keys[:100]], timeout=30):
        pass


async def test_they_end_by_themselves_if_nobody_renews_them(aclient: Client) -> None:
    losses: list[LostError] = []
    locks = aclient.lock_many(["a", "b"], ttl=0.4, renew=False, on_lost=losses.append)
    await locks.acquire()
    await locks.extend(0.6)
    await until("on_lost is called", lambda: losses)
    assert not locks.owned()
    with pytest.raises(LostError, match=losses[0].reason):
        await locks.release()
    async with locks as held:
        await held.downgrade()
        assert held.owned()
    assert len(losses) == 1


async def test_a_cancelled_acquire_withdraws(aclient: Client, aconnect: Connect) -> None:
    holder = aconnect().lock("b")
    await holder.acquire()
    locks = aclient.lock_many(["a", "b", "c"])
    task = asyncio.create_task(locks.acquire())
    await waiters(aclient, "b", 1)
    task.cancel()
    await ended(task)
    await waiters(aclient, "b", 0)
    await free(aconnect(), "a", "c")
    await holder.release()
    assert await aclient.lock_many(["a", "b", "c"]).acquire(timeout=30)


async def test_a_release_whose_task_never_ran_is_a_release(aclient: Client, aconnect: Connect) -> None:
    locks = aclient.lock_many(["a", "b"])
    await locks.acquire()
    task = asyncio.create_task(locks.release())
    task.cancel()
    await ended(task)
    assert not locks.owned()
    await free(aconnect(), "a", "b")


async def test_a_storm_of_cancellations(aclient: Client, aconnect: Connect) -> None:
    random.seed(7)
    keys = [f"k{n}" for n in range(5)]
    inside = dict.fromkeys(keys, 0)
    clients = [aclient, aconnect()]
    for client in clients:
        await client.ping()

    async def use(n: int) -> None:
        for _ in range(10):
            some = random.sample(keys, random.randint(1, 3))
            async with clients[n % 2].lock_many(some):
                for key in some:
                    inside[key] += 1
                    assert inside[key] == 1
                try:
                    await asyncio.sleep(0)
                finally:
                    for key in some:
                        inside[key] -= 1

    for _ in range(15):
        tasks = [asyncio.create_task(use(n)) for n in range(10)]
        for task in tasks:
            for _ in range(random.randrange(5)):
                await asyncio.sleep(0)
            if random.random() < 0.5:
                task.cancel()
        await asyncio.sleep(0.002)
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            assert end is None or isinstance(end, asyncio.CancelledError), end
    await free(aconnect(), *keys)
    for client in clients:
        conn = client._conn
        assert conn is not None
        await until("nothing is left", lambda conn=conn: not conn._pending and not conn._holds)  # type: ignore[misc]


async def held(loop: Loop, peer: Peer, **more: Callable[[LostError], object]) -> tuple[Client, Locks]:
    """Return a client that holds the keys."""
    client = await connected(peer, loop, timeout=2)
    locks = client.lock_many(KEYS, owner=7, on_lost=more.get("on_lost"))
    acquired = asyncio.create_task(locks.acquire())
    await thread(peer.grant_many, 60_000, 60_000, 60_000)
    assert await acquired is True
    return client, locks


async def test_grants_that_cross_the_cancel_are_released(loop: Loop, peer: Peer) -> None:
    client = await connected(peer, loop, timeout=2)
    locks = client.lock_many(KEYS, owner=7)
    task = asyncio.create_task(locks.acquire())
    q = await thread(peer.expect, w.ACQUIRE_MANY)
    task.cancel()
    await ended(task)
    c = await thread(peer.expect, w.CANCEL)
    assert c[2:] == (q[1], "b")
    peer.say(0, q[1], [[FENCE + n, 60_000, ms() + 60_000, 1, 0, 0] for n in range(3)])
    peer.say(0, c[1], 0)
    released = await thread(peer.expect, w.RELEASE_MANY)
    assert released[2:] == (tuple(HELD), 7, w.ASYNC)
    peer.say(0, released[1], [0, 0, 0])
    assert not locks.owned()
    conn = client._conn
    assert conn is not None
    await until("nothing is left of it", lambda: not conn._pending and not conn._holds)


async def test_a_cancelled_release_completes(loop: Loop, peer: Peer) -> None:
    _, locks = await held(loop, peer)
    release = asyncio.create_task(locks.release())
    q = await thread(peer.expect, w.RELEASE_MANY)
    assert q[2:] == (tuple(HELD), 7, 0)
    release.cancel()
    await ended(release)
    assert not locks.owned()
    peer.say(0, q[1], [0, 0, 0])


async def test_one_that_is_lost_is_the_loss_of_all(loop: Loop, peer: Peer) -> None:
    losses: list[LostError] = []
    _, locks = await held(loop, peer, on_lost=losses.append)
    peer.say(64, 0, "a", 7, FENCE + 1, 4)
    await until("on_lost is called", lambda: losses)
    assert not locks.owned()
    assert locks.fences == dict(HELD)
    release = asyncio.create_task(locks.release())
    q = await thread(peer.expect, w.RELEASE_MANY)
    assert q[2] == (HELD[0], HELD[2])
    peer.say(0, q[1], [0, 0])
    with pytest.raises(LostError, match="'a' was lost: forced"):
        await release
    assert len(losses) == 1


@pytest.mark.parametrize(("codes", "cls"), [([0, 3, 0], LostError), ([7, 0, 0], locksidecar.Unconfirmed)])
async def test_a_release_that_went_half_well(loop: Loop, peer: Peer, codes: list[int], cls: type[Exception]) -> None:
    _, locks = await held(loop, peer)
    release = asyncio.create_task(locks.release())
    peer.say(0, (await thread(peer.expect, w.RELEASE_MANY))[1], codes)
    with pytest.raises(cls):
        await release


@needs_timeout
async def test_a_guarded_body_ends_when_one_is_lost(aclient: Client, aconnect: Connect) -> None:
    locks = aclient.lock_many(["a", "b"], ttl=0.4, renew=False)
    with pytest.raises(LostError):
        async with locks.guard() as guarded:
            assert guarded is locks
            await asyncio.sleep(1000)
    task = asyncio.current_task()
    assert task is not None
    if sys.version_info >= (3, 11):
        assert task.cancelling() == 0
    async with locks.guard():
        assert locks.owned()
    await free(aconnect(), "a", "b")
