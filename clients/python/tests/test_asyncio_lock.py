"""asyncio locks on a real daemon, when nothing goes wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from aio import until, waiters
from daemon import Daemon

import locksidecar
from locksidecar import LostError
from locksidecar.asyncio import Client, Lock

Connect = Callable[..., Client]
OWN = ("AnyLock", "Client", "Election", "Lock", "Locks", "Semaphore", "Term")


def test_the_names_are_those_of_the_other_client() -> None:
    assert {*locksidecar.asyncio.__all__} == {*locksidecar.__all__} - {"__version__"}
    for name in locksidecar.asyncio.__all__:
        same = getattr(locksidecar.asyncio, name) is getattr(locksidecar, name)
        assert same == (name not in OWN), name
    for cls in OWN:
        theirs, ours = getattr(locksidecar, cls), getattr(locksidecar.asyncio, cls)
        for name in vars(theirs):
            if not name.startswith("_"):
                assert hasattr(ours, name), f"{cls}.{name}"


async def test_acquire_and_release(aclient: Client) -> None:
    lock = aclient.lock("k")
    assert not lock.owned()
    assert not await lock.locked()
    assert await lock.acquire() is True
    assert lock.owned()
    assert await lock.locked()
    assert 0 < lock.remaining <= 30
    assert lock.fence > 0
    assert "not" not in repr(lock)
    await lock.release()
    assert not lock.owned()
    assert lock.remaining == 0
    assert not await lock.locked()
    with pytest.raises(locksidecar.NotHeld):
        _ = lock.fence
    with pytest.raises(locksidecar.NotHeld):
        await lock.release()


async def test_with_gives_the_handle_and_releases(aclient: Client) -> None:
    lock = aclient.lock("k")
    async with lock as held:
        assert held is lock
        assert held.owned()
    assert not lock.owned()


async def test_with_raises_when_it_is_not_acquired(aclient: Client) -> None:
    async with aclient.lock("k"):
        with pytest.raises(locksidecar.NotAcquired):
            async with aclient.lock("k", timeout=0.01, owner=1):
                pytest.fail("entered")


async def test_with_does_not_hide_the_bodys_error(aclient: Client) -> None:
    lock = aclient.lock("k")
    with pytest.raises(KeyError):
        async with lock:
            raise KeyError
    assert not lock.owned()
    with pytest.raises(KeyError):
        async with lock:
            await lock.release()  # so that the exit fails, too
            raise KeyError
    with pytest.raises(locksidecar.NotHeld):
        async with lock:
            await lock.release()


async def test_another_client_is_kept_out(aclient: Client, aconnect: Connect) -> None:
    other = aconnect().lock("k")
    async with aclient.lock("k"):
        assert await other.locked()
        assert await other.acquire(blocking=False) is False
        start = time.monotonic()
        assert await other.acquire(timeout=0.05) is False
        assert time.monotonic() - start >= 0.05
        assert await other.acquire(timeout=0) is False
    assert await other.acquire(blocking=False) is True
    await other.release()


async def test_both_kinds_of_client_exclude_each_other(aclient: Client, shared: Daemon) -> None:
    with locksidecar.Client(shared.path) as client:
        with client.lock("k") as held:
            before = held.fence
            assert await aclient.lock("k").acquire(blocking=False) is False
        async with aclient.lock("k") as lock:
            assert lock.fence > before
            assert client.lock("k").acquire(blocking=False) is False


async def test_a_waiter_gets_it_when_it_is_released(aclient: Client, aconnect: Connect) -> None:
    lock, other = aclient.lock("k"), aconnect().lock("k", owner=1)
    await lock.acquire()
    waiter = asyncio.create_task(other.acquire())
    await waiters(aclient, "k", 1)
    assert not waiter.done()
    await lock.release()
    assert await waiter is True


async def test_the_same_task_acquires_again(aclient: Client) -> None:
    lock, other = aclient.lock("k"), aclient.lock("k")
    async with lock:
        first = lock.fence
        async with lock:
            assert lock.fence == first
            assert await lock.acquire(blocking=False)
            await lock.release()
        assert lock.owned()
        assert await other.acquire(blocking=False) is False  # another handle is another owner
    assert not lock.owned()
    assert await other.acquire(blocking=False) is True


async def test_another_task_of_the_loop_is_another_owner(aclient: Client) -> None:
    lock = aclient.lock("k")
    await lock.acquire()
    await lock.acquire()

    async def other() -> None:
        assert not lock.owned()
        with pytest.raises(locksidecar.NotHeld):
            await lock.release()
        assert await lock.acquire(blocking=False) is False
        assert await lock.acquire() is True
        await lock.release()

    task = asyncio.create_task(other())
    await waiters(aclient, "k", 1)
    await lock.release()
    assert not task.done()
    await lock.release()
    await task


async def test_who_calls_owns_though_another_task_awaits(aclient: Client) -> None:
    """Before Python 3.12, wait_for runs its argument in a task of its own."""
    lock = aclient.lock("k")
    assert await asyncio.wait_for(lock.acquire(), 60)
    assert lock.owned()
    await asyncio.create_task(lock.extend())
    await asyncio.wait_for(lock.release(), 60)
    assert not lock.owned()
    assert all(await asyncio.gather(lock.acquire(), lock.acquire()))  # one owner: it holds twice
    await lock.release()
    assert lock.owned()
    await lock.release()
    assert not await lock.locked()


async def test_one_task_asks_for_a_shared_lock_twice_at_once(aclient: Client, aconnect: Connect) -> None:
    lock, writer = aclient.lock("k", shared=True), aconnect().lock("k")
    await asyncio.gather(*(lock.acquire() for _ in range(5)))
    for _ in range(5):
        assert lock.owned()
        assert await writer.acquire(blocking=False) is False
        await lock.release()
    assert await writer.acquire(timeout=60)


async def test_a_named_owner_passes_between_tasks_and_handles(aclient: Client) -> None:
    lock, same = aclient.lock("k", owner=7), aclient.lock("k", owner=7)
    stranger = aclient.lock("k", owner=8)

    async def acquire() -> None:
        await lock.acquire()

    await asyncio.create_task(acquire())
    assert lock.owned()
    assert await same.acquire(blocking=False)
    assert same.fence == lock.fence
    assert await stranger.acquire(blocking=False) is False
    await lock.release()
    assert same.owned()
    await same.release()
    assert not lock.owned()
    assert await stranger.acquire(blocking=False)


async def test_two_tasks_acquire_as_one_owner_at_once(aclient: Client, aconnect: Connect) -> None:
    lock = aclient.lock("k", owner=7)
    blocker, other = aconnect().lock("k"), aconnect().lock("k")
    await blocker.acquire()
    both = [asyncio.create_task(lock.acquire()) for _ in range(2)]
    await waiters(aclient, "k", 2)
    await blocker.release()
    assert await asyncio.gather(*both) == [True, True]
    await lock.release()
    assert lock.owned()
    assert await other.acquire(blocking=False) is False
    await lock.release()
    assert not lock.owned()
    assert await other.acquire(timeout=30)


async def test_shared_exclusive_upgrade_and_downgrade(aclient: Client, aconnect: Connect) -> None:
    lock, reader = aclient.lock("k"), aconnect().lock("k", shared=True)
    async with lock:
        fence = lock.fence
        assert await reader.acquire(blocking=False) is False
        await lock.downgrade()
        assert lock.owned()
        assert lock.fence == fence
        assert await reader.acquire(timeout=30)
        with pytest.raises(locksidecar.Upgrade):
            await lock.acquire()
    assert reader.owned()


async def test_extend_moves_the_end_of_a_lock_that_is_not_renewed(aclient: Client) -> None:
    lock = aclient.lock("k", ttl=3, renew=False)
    async with lock:
        assert lock.remaining <= 3
        await lock.extend(30)
        assert lock.remaining > 3
        await lock.extend()
        assert lock.remaining > 3
    with pytest.raises(locksidecar.NotHeld):
        await lock.extend()


async def test_a_lock_that_is_not_renewed_ends(aclient: Client, aconnect: Connect) -> None:
    losses: list[LostError] = []
    lock = aclient.lock("k", ttl=0.3, renew=False, on_lost=losses.append)
    await lock.acquire()
    fence = lock.fence
    assert await aconnect().lock("k").acquire(timeout=60)
    assert not lock.owned()
    await until("on_lost is called", lambda: losses)
    assert losses[0].reason in ("fixed_end", "silence")
    with pytest.raises(LostError):
        await lock.extend()
    assert lock.fence == fence
    with pytest.raises(LostError):
        await lock.release()
    with pytest.raises(locksidecar.NotHeld):
        await lock.release()


async def test_with_says_that_the_lock_was_lost(aclient: Client) -> None:
    lock = aclient.lock("k", ttl=0.4, renew=False)
    with pytest.raises(LostError):
        async with lock:
            await until("it has ended", lambda: not lock.owned())
    async with lock:  # and the handle still works
        assert lock.owned()


async def test_a_renewed_lock_outlives_its_ttl(aclient: Client) -> None:
    losses: list[LostError] = []
    lock = aclient.lock("k", ttl=0.5, on_lost=losses.append)
    async with lock:
        fence, end = lock.fence, time.monotonic() + 1.3
        await until("1.3 s are over", lambda: time.monotonic() > end)
        assert lock.owned()
        assert lock.fence == fence
    assert not losses


async def test_on_lost_may_be_a_coroutine_and_use_the_client(aclient: Client, caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()

    async def again(lost: LostError) -> None:
        async with aclient.lock(lost.key, timeout=60) as held:
            assert held.fence > lost.fence
        done.set()

    await aclient.lock("k", ttl=0.4, renew=False, on_lost=again).acquire()
    await asyncio.wait_for(done.wait(), 60)

    def fail(lost: LostError) -> None:
        raise KeyError

    async def fail_later(lost: LostError) -> None:
        raise KeyError

    for n, tell in enumerate((fail, fail_later)):
        await aclient.lock(str(n), ttl=0.4, renew=False, on_lost=tell).acquire()
        await until("it is logged", lambda n=n: f"on_lost failed for lock '{n}'" in caplog.text)  # type: ignore[misc]
    await until("they have ended", lambda: asyncio.all_tasks() <= {asyncio.current_task()} | others())


def others() -> set[asyncio.Task[object]]:
    """Return the task that runs the test."""
    return {t for t in asyncio.all_tasks() if "Loop._run" in repr(t)}


async def test_closing_ends_what_on_lost_began(aconnect: Connect) -> None:
    client = aconnect()
    began, ended = asyncio.Event(), asyncio.Event()

    async def hang(_: LostError) -> None:
        began.set()
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    await client.lock("k", ttl=0.4, renew=False, on_lost=hang).acquire()
    await asyncio.wait_for(began.wait(), 60)
    await client.close()
    assert ended.is_set()


async def test_tasks_exclude_each_other(aclient: Client, aconnect: Connect) -> None:
    handle, total = aclient.lock("k"), [0]
    other = aconnect()
    fences: list[int] = []

    async def work(lock: Lock) -> None:
        for _ in range(25):
            async with lock:
                seen = total[0]
                fences.append(lock.fence)
                await asyncio.sleep(0)  # let other tasks run, if they were admitted
                total[0] = seen + 1

    await asyncio.gather(*(work(handle if n % 2 else other.lock("k")) for n in range(8)))
    assert total[0] == 200
    assert fences == sorted(set(fences))


async def test_many_tasks_on_one_connection(aclient: Client) -> None:
    async def work(n: int) -> None:
        lock = aclient.lock(f"k{n}")
        for _ in range(5):
            async with lock:
                assert lock.owned()
            await aclient.ping()

    await asyncio.gather(*(work(n) for n in range(200)))
    assert aclient._conn is not None
    assert not aclient._conn._pending
    assert not aclient._conn._holds


async def test_a_closed_client_releases_and_fails_what_waits(aconnect: Connect, aclient: Client) -> None:
    closing = aconnect()
    lock, losses = closing.lock("k"), list[LostError]()
    await lock.acquire()
    await closing.lock("k2", on_lost=losses.append).acquire()
    waiting = asyncio.create_task(closing.lock("k", owner=5).acquire())
    await waiters(aclient, "k", 1)
    await closing.close()
    await closing.close()
    with pytest.raises(locksidecar.ConnectionLost, match="closed"):
        await waiting
    assert not lock.owned()
    assert not losses
    with pytest.raises(locksidecar.NotHeld):
        await lock.release()
    with pytest.raises(locksidecar.ConnectionLost):
        await lock.acquire()
    assert await aclient.lock("k").acquire(timeout=30)


async def test_a_client_is_a_block_too(aconnect: Connect, aclient: Client) -> None:
    async with aconnect() as client:
        await client.lock("k").acquire()
    assert await aclient.lock("k").acquire(timeout=30)


async def test_bad_arguments(aclient: Client) -> None:
    lock = aclient.lock("k")
    with pytest.raises(ValueError, match="non-blocking"):
        await lock.acquire(False, 1)
    with pytest.raises(ValueError, match="non-negative"):
        await lock.acquire(timeout=-2)
    with pytest.raises(locksidecar.Invalid):
        aclient.lock("")
    with pytest.raises(locksidecar.Invalid):
        aclient.lock("k", owner=-1)
    with pytest.raises(locksidecar.Invalid):
        await aclient.lock("k", ttl=90000).acquire()
    with pytest.raises(ValueError, match="positive"):
        Client(timeout=0)
    assert await lock.acquire()  # and the connection stays open


async def test_a_decorated_function_runs_under_the_lock(aclient: Client, aconnect: Connect) -> None:
    lock, other = aclient.lock("k"), aconnect().lock("k")

    @lock
    async def work(n: int, *, more: int) -> int:
        """Say more."""
        assert lock.owned()
        assert await other.acquire(blocking=False) is False
        return n + more if n == 0 else await work(n - 1, more=more)

    assert await work(2, more=3) == 3
    assert work.__doc__ == "Say more."
    assert not lock.owned()
    with pytest.raises(TypeError, match="coroutine functions"):
        lock(len)  # type: ignore[arg-type]
