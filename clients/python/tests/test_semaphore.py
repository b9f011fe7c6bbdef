"""Semaphores, with threads and with tasks: on a real daemon, and against one that sends what the test chooses."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

import pytest
from aio import until as auntil
from daemon import Daemon, Script, until
from peer import FENCE, Background, Peer

import locksidecar
import locksidecar.asyncio
from locksidecar import LostError
from locksidecar import _wire as w

Connect = Callable[..., locksidecar.Client]
AsyncConnect = Callable[..., locksidecar.asyncio.Client]


def test_permits(client: locksidecar.Client, connect: Connect) -> None:
    semaphore = client.semaphore("k", 3)
    assert (semaphore.key, semaphore.permits) == ("k", 3)
    with pytest.raises(locksidecar.NotHeld):
        semaphore.release()
    assert semaphore.acquire()
    first = semaphore.fence
    with semaphore as second:  # one more, in the same thread
        assert second.fence != first
        assert 0 < second.remaining <= 30
        with connect().semaphore("k", 3, timeout=0.02) as third:
            assert client.semaphore("k", 3).acquire(blocking=False) is False
            with pytest.raises(locksidecar.NotAcquired, match="semaphore 'k'"):
                third.__enter__()
            assert client.semaphore("k", 3).holders() == 3
            assert client.lock("k").acquire(blocking=False)  # a lock and a semaphore are independent
    assert semaphore.owned()
    assert semaphore.fence == first
    semaphore.release()
    assert not semaphore.owned()
    assert semaphore.remaining == 0
    with pytest.raises(locksidecar.NotHeld):
        semaphore.release()


def test_bad_numbers(client: locksidecar.Client) -> None:
    for n in (0, -1, 10_001):
        with pytest.raises(locksidecar.Invalid, match="permits"):
            client.semaphore("k", n)
    for odd in (2.0, True, "3"):
        with pytest.raises(TypeError):
            client.semaphore("k", odd)  # type: ignore[arg-type]


def test_a_thread_has_its_own(client: locksidecar.Client) -> None:
    semaphore = client.semaphore("k", 2)
    with semaphore:
        with pytest.raises(locksidecar.NotHeld):
            Background(semaphore.release).result()
        assert semaphore.owned()


def test_a_permit_that_passes_between_threads(client: locksidecar.Client) -> None:
    semaphore = client.semaphore("k", 2, owner=7)
    assert semaphore.acquire()
    assert Background(semaphore.acquire).result() is True
    assert client.semaphore("k", 2, owner=7).acquire(blocking=False) is False
    Background(semaphore.release).result()
    semaphore.release()
    with pytest.raises(locksidecar.NotHeld):
        semaphore.release()


def test_a_permit_that_is_renewed_by_its_holder(client: locksidecar.Client) -> None:
    semaphore = client.semaphore("k", 1, ttl=4, renew=False)
    with semaphore:
        assert semaphore.remaining <= 4
        semaphore.extend(9)
        assert 4 < semaphore.remaining <= 9


def test_never_more_than_there_are(daemon: Daemon, connect: Connect) -> None:
    inside, fences, mu = 0, set[int](), threading.Lock()

    def passes(semaphore: locksidecar.Semaphore) -> None:
        nonlocal inside
        for _ in range(30):
            with semaphore as permit:
                with mu:
                    inside += 1
                    assert inside <= 3
                    assert permit.fence not in fences
                    fences.add(permit.fence)
                with mu:
                    inside -= 1

    ran = [Background(passes, c.semaphore("k", 3)) for c in (connect(), connect(), connect()) for _ in range(3)]
    for r in ran:
        r.result()
    assert len(fences) == 9 * 30
    until("nothing is held", lambda: not daemon.keys())


def test_a_killed_process_gives_its_permits_back(client: locksidecar.Client, script: Callable[..., Script]) -> None:
    holder = script(
        "import locksidecar, sys\n"
        "s = locksidecar.Client(sys.argv[1]).semaphore('k', 2)\n"
        "print(s.acquire(), s.acquire())\n"
        "input()\n"
    )
    assert holder.line() == "True True"
    semaphore = client.semaphore("k", 2)
    assert semaphore.acquire(blocking=False) is False
    holder.process.kill()
    assert semaphore.acquire(timeout=30)
    semaphore.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_no_permit(client: locksidecar.Client) -> None:
    semaphore = client.semaphore("k", 2)
    with semaphore:
        pid = os.fork()
        if pid == 0:
            try:
                held = semaphore.owned()
                semaphore.release()
            except locksidecar.NotHeld:
                os._exit(1 if held else 0)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert semaphore.owned()


def test_a_restart_of_the_daemon_ends_them(daemon: Daemon, client: locksidecar.Client) -> None:
    lost: list[LostError] = []
    semaphore = client.semaphore("k", 2, on_lost=lost.append)
    semaphore.acquire()
    semaphore.acquire()
    daemon.kill()
    until("both are called lost", lambda: len(lost) == 2)
    for _ in range(2):
        with pytest.raises(LostError, match="connection"):
            semaphore.release()
    daemon.start()
    with semaphore:
        assert semaphore.owned()


def test_one_of_two_is_lost(peer: Peer) -> None:
    """If a permit is reported lost, only that permit is lost. Each release releases the newest of the others."""
    lost: list[LostError] = []
    client = locksidecar.Client(peer.path, "test", timeout=2)
    semaphore = client.semaphore("k", 5, ttl=7, renew=False, owner=1, on_lost=lost.append)
    owners = []
    for n in range(2):
        acquired = Background(semaphore.acquire, True, 1.5)
        if n == 0:
            peer.welcome()
        q = peer.grant(60_000, fence=FENCE + n)
        assert q[2] == "k"
        assert q[4:] == (w.PERMIT, 1500, 7000, w.FIXED, 5)
        assert acquired.result() is True
        owners.append(q[3])
    peer.say(64, 0, "k", owners[0], FENCE, 2)
    until("on_lost is called", lambda: lost)
    assert (lost[0].fence, lost[0].reason) == (FENCE, "gone")
    assert semaphore.owned()
    assert semaphore.fence == FENCE + 1
    released = Background(semaphore.release)
    assert peer.released()[2:5] == ("k", owners[1], FENCE + 1)
    released.result()
    with pytest.raises(LostError, match="gone"):
        semaphore.release()
    with pytest.raises(locksidecar.NotHeld):
        semaphore.release()
    assert len(lost) == 1


def test_a_store_without_semaphores(peer: Peer) -> None:
    client = locksidecar.Client(peer.path, "test", timeout=2)
    acquired = Background(client.semaphore("k", 5).acquire)
    peer.welcome()
    q = peer.expect(w.ACQUIRE)
    peer.say(10, q[1], "the store of this key has no semaphores")
    with pytest.raises(locksidecar.Unsupported):
        acquired.result()


# ---- tasks ----


async def test_permits_of_tasks(aclient: locksidecar.asyncio.Client, aconnect: AsyncConnect) -> None:
    semaphore = aclient.semaphore("k", 2)
    async with semaphore as first:
        fence = first.fence
        async with semaphore as second:
            assert second.fence != fence
            assert await aconnect().semaphore("k", 2).acquire(blocking=False) is False
            assert await semaphore.holders() == 2
        assert semaphore.fence == fence
    assert not semaphore.owned()
    with pytest.raises(locksidecar.NotHeld):
        await semaphore.release()


async def test_tasks_of_one_handle(aclient: locksidecar.asyncio.Client) -> None:
    """There are never more tasks inside than permits, and each task releases its own."""
    semaphore, inside = aclient.semaphore("k", 3), 0

    async def passes() -> None:
        nonlocal inside
        for _ in range(10):
            async with semaphore:
                inside += 1
                assert inside <= 3
                await asyncio.sleep(0)
                inside -= 1

    await asyncio.gather(*(passes() for _ in range(8)))
    assert inside == 0


async def test_a_cancelled_wait_for_a_permit(aclient: locksidecar.asyncio.Client, aconnect: AsyncConnect) -> None:
    other = aconnect().semaphore("k", 1)
    assert await other.acquire()

    async def waits() -> None:
        async with aclient.semaphore("k", 1):
            pytest.fail("entered")

    async def waiting() -> bool:
        return bool((await aclient._asked(w.INSPECT, "k", w.PERMIT))[5] == 1)

    task = asyncio.ensure_future(waits())
    await auntil("it waits", waiting)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await other.release()
    async with aclient.semaphore("k", 1, timeout=30):
        pass


async def test_several_at_once_of_one_task(aclient: locksidecar.asyncio.Client) -> None:
    """The concurrent acquires of one task get as many permits, which are released one by one."""
    semaphore = aclient.semaphore("k", 2)
    got = [semaphore.acquire(timeout=30) for _ in range(2)]
    assert [await g for g in got] == [True, True]
    assert await semaphore.holders() == 2
    await semaphore.release()
    await semaphore.release()
    await auntil("nothing is held", lambda: not semaphore.owned())


def test_a_lost_permit_is_not_counted(connect: Callable[..., locksidecar.Client]) -> None:
    semaphore = connect().semaphore("s", 2)
    semaphore.acquire()
    assert semaphore.held_count == 1
    assert connect().force_unlock("s", semaphore=True) == 1
    until("the loss is known", lambda: not semaphore.owned())
    assert semaphore.held_count == 0
    with pytest.raises(locksidecar.LostError):
        semaphore.release()
