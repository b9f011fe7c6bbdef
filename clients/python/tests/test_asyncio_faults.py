"""What can go wrong around an asyncio client: silence, garbage, other loops, fork, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Callable

import pytest
from aio import LOOPS, Loop, descriptors, new_loop, until
from daemon import Daemon
from peer import FENCE, Background, Peer, ms
from test_fork import Child

import locksidecar
from locksidecar import LostError, _handle
from locksidecar import _wire as w
from locksidecar.asyncio import Client, Lock

Connect = Callable[..., Client]
thread = asyncio.to_thread


async def held(loop: Loop, peer: Peer, left: int = 60_000, **more: int) -> tuple[Client, Lock]:
    """Return a client that holds k by a grant that is valid for left milliseconds."""
    client = loop.client(peer.path, timeout=2)
    lock = client.lock("k", owner=7)
    acquired = asyncio.create_task(lock.acquire())
    await thread(peer.welcome, more.get("ahead", 0))
    await thread(lambda: peer.grant(left, **more))
    assert await acquired is True
    return client, lock


async def pinged(client: Client, peer: Peer) -> None:
    task = asyncio.create_task(client.ping())
    await thread(lambda: peer.say(0, peer.expect(w.PING)[1], 1))
    await task


async def test_frames_come_in_pieces_and_together(loop: Loop, peer: Peer) -> None:
    client, lock = await held(loop, peer)
    task = asyncio.create_task(client.ping())
    q = await thread(peer.expect, w.PING)
    for byte in w.frame(65, 0, ms() + 90_000, 90_000) + w.frame(0, q[1], 1):
        peer.raw(bytes([byte]))
        await asyncio.sleep(0)
    await task
    assert lock.remaining > 80
    peer.raw(w.frame(65, 0, ms() + 120_000, 1) + w.frame(99, 0, {"later": None}) + w.frame(64, 0, "k", 7, FENCE, 1))
    await until("lost is read", lambda: not lock.owned())


async def test_a_welcome_that_comes_in_pieces(loop: Loop, peer: Peer) -> None:
    client = loop.client(peer.path)
    task = asyncio.create_task(client.ping())
    await thread(peer.accept)
    await thread(peer.read)
    welcome = w.frame(0, 1, 1, 5, ms(), 65536, 100, 30000, 86400000, 1, [], "test")
    for at in range(0, len(welcome), 7):
        peer.raw(welcome[at : at + 7])
        await asyncio.sleep(0.001)
    await thread(lambda: peer.say(0, peer.expect(w.PING)[1], 1))
    assert await task > 0


async def test_silence_is_not_validity(loop: Loop, peer: Peer) -> None:
    losses: list[LostError] = []
    client = loop.client(peer.path, timeout=2)
    lock = client.lock("k", owner=7, on_lost=losses.append)
    acquired = asyncio.create_task(lock.acquire())
    await thread(peer.welcome)
    await thread(peer.grant, 300)
    await acquired
    await until("on_lost is called", lambda: losses)
    assert not lock.owned()
    assert losses[0].reason == "silence"
    q = await thread(peer.expect, w.RELEASE)  # otherwise the daemon would continue to renew it
    assert q[2:5] == ("k", 7, FENCE)
    peer.say(65, 0, ms() + 60_000, 60_000)
    await thread(peer.expect, w.PING)  # the answer to the keepalive
    await pinged(client, peer)
    assert not lock.owned()  # and stays lost, because a caller was told so
    with pytest.raises(LostError):
        await lock.release()


async def test_nothing_revives_a_lock_that_was_called_not_owned(loop: Loop, peer: Peer) -> None:
    lock = loop.client(peer.path, timeout=2).lock("k", owner=7)
    acquired = asyncio.create_task(lock.acquire())
    await thread(peer.welcome)
    await thread(peer.grant, 300)
    await acquired
    time.sleep(0.4)  # the loop does not run, so nothing notices that the hold has run out
    assert lock.held_count == 0
    assert not lock.owned()
    peer.say(65, 0, ms() + 60_000, 60_000)
    assert not lock.owned()
    await thread(peer.expect, w.PING)  # the answer to the keepalive
    assert not lock.owned()
    with pytest.raises(LostError, match="silence"):
        await lock.release()
    q = await thread(peer.expect, w.RELEASE)
    assert q[2:5] == ("k", 7, FENCE)  # otherwise the daemon would continue to renew it


@pytest.mark.parametrize("change", ["extend", "downgrade"])
async def test_a_change_does_not_revive_a_lock_that_has_run_out(loop: Loop, peer: Peer, change: str) -> None:
    lock = loop.client(peer.path, timeout=2).lock("k", owner=7)
    acquired = asyncio.create_task(lock.acquire())
    await thread(peer.welcome)
    await thread(peer.grant, 300)
    await acquired
    time.sleep(0.4)  # the loop does not run, so nothing notices that the hold has run out
    changed = asyncio.create_task(getattr(lock, change)())
    q = await thread(peer.expect, w.RELEASE)
    assert q[2:5] == ("k", 7, FENCE)
    with pytest.raises(LostError, match="silence"):
        await changed
    with pytest.raises(LostError, match="silence"):
        await lock.release()


async def test_a_beat_that_has_arrived_counts_though_the_loop_stood_still(loop: Loop, peer: Peer) -> None:
    _, lock = await held(loop, peer, left=200)
    peer.say(65, 0, ms() + 60_000, 60_000)
    end = w.now() + 200 * w.MS
    while w.now() <= end:  # like work that does not await
        pass
    assert lock.owned()
    assert lock.remaining > 30


async def test_a_release_after_the_loop_stood_still(loop: Loop, peer: Peer) -> None:
    _, lock = await held(loop, peer, left=200)
    peer.say(65, 0, ms() + 60_000, 60_000)
    end = w.now() + 200 * w.MS
    while w.now() <= end:
        pass
    release = asyncio.create_task(lock.release())
    await thread(peer.released)
    await release


async def test_each_keepalive_is_answered_whatever_the_welcome_said(loop: Loop, peer: Peer) -> None:
    await held(loop, peer)
    for _ in range(2):
        peer.say(65, 0, ms() + 60_000, 60_000)
        await thread(lambda: peer.say(0, peer.expect(w.PING)[1], 1))


@pytest.mark.parametrize("ahead", [1_000_000, -1_000_000])
async def test_a_daemon_with_another_clock(loop: Loop, peer: Peer, ahead: int) -> None:
    _, lock = await held(loop, peer, left=20_000, ahead=ahead + 2_000_000)
    assert 10 < lock.remaining <= 20


async def test_giving_up_cancels(loop: Loop, peer: Peer) -> None:
    client = loop.client(peer.path, timeout=0.2)
    lock = client.lock("k", owner=7)
    acquired = asyncio.create_task(lock.acquire(timeout=0.1))
    await thread(peer.welcome)
    q = await thread(peer.expect, w.ACQUIRE)
    c = await thread(peer.expect, w.CANCEL)  # the daemon answers pings, so the client keeps waiting
    with pytest.raises(locksidecar.Unavailable, match="not answered"):
        await acquired
    assert c[2:] == (q[1], "k")
    peer.say(4, q[1], "withdrawn")
    peer.say(0, c[1], 1)
    await pinged(client, peer)
    assert client._conn is not None
    assert not client._conn._pending


async def test_a_release_that_is_not_answered(loop: Loop, peer: Peer) -> None:
    client, lock = await held(loop, peer)
    assert client._conn is not None
    client._conn.timeout = 0.1
    with pytest.raises(locksidecar.Unconfirmed):
        await lock.release()
    assert not lock.owned()


async def test_a_grant_that_is_over_when_it_comes_is_no_grant(loop: Loop, peer: Peer) -> None:
    client = loop.client(peer.path, timeout=2)
    lock = client.lock("k", owner=7)
    acquired = asyncio.create_task(lock.acquire())
    await thread(peer.welcome)
    await thread(peer.grant, 0)
    assert (await thread(peer.expect, w.RELEASE))[4] == FENCE
    await thread(lambda: peer.grant(60_000, fence=FENCE + 1))
    assert await acquired
    assert lock.fence == FENCE + 1


async def test_acquires_are_asked_again_while_the_daemon_goes_away(loop: Loop, peer: Peer) -> None:
    client = loop.client(peer.path, timeout=2)
    acquired = asyncio.create_task(client.lock("k", owner=7).acquire(timeout=60))
    await thread(peer.welcome)
    peer.say(66, 0, 30_000, "the daemon is stopping")
    await thread(lambda: peer.say(11, peer.expect(w.ACQUIRE)[1], "going away"))
    await thread(lambda: peer.say(11, peer.expect(w.ACQUIRE)[1], "going away"))
    peer.say(67, 0, 11, "the daemon is stopping")
    await thread(peer.welcome)
    await thread(peer.grant, 60_000)
    assert await acquired is True


async def test_a_release_that_the_store_has_not_confirmed(loop: Loop, peer: Peer) -> None:
    _, lock = await held(loop, peer)
    release = asyncio.create_task(lock.release())
    await thread(lambda: peer.say(7, peer.expect(w.RELEASE)[1], "why"))
    with pytest.raises(locksidecar.Unconfirmed):
        await release


async def test_the_end_of_the_connection_is_release(loop: Loop, peer: Peer) -> None:
    _, lock = await held(loop, peer)
    release = asyncio.create_task(lock.release())
    await thread(peer.expect, w.RELEASE)
    peer.hang_up()
    await release
    assert not lock.owned()


async def test_a_version_that_nobody_speaks(loop: Loop, peer: Peer) -> None:
    task = asyncio.create_task(loop.client(peer.path).ping())
    await thread(peer.accept)
    await thread(peer.read)
    peer.say(67, 0, 14, "versions 2 to 3")
    with pytest.raises(locksidecar.ProtocolError, match="versions 2 to 3"):
        await task


async def test_a_daemon_that_goes_away_before_its_welcome(loop: Loop, peer: Peer) -> None:
    task = asyncio.create_task(loop.client(peer.path).ping())
    away = w.frame(66, 0, 30_000, "the daemon is stopping") + w.frame(99, 0)
    await thread(lambda: peer.welcome(before=away))
    await thread(lambda: peer.say(0, peer.expect(w.PING)[1], 1))
    await task


async def test_a_daemon_that_does_not_answer_hello(loop: Loop, peer: Peer) -> None:
    with pytest.raises(locksidecar.Unavailable, match="no welcome"):
        await loop.client(peer.path, timeout=0.1).ping()


async def test_a_daemon_that_hangs_up_on_hello(loop: Loop, peer: Peer) -> None:
    task = asyncio.create_task(loop.client(peer.path).ping())
    await thread(peer.accept)
    peer.hang_up()
    await thread(peer.accept)  # it asks again, because this may have been a restart
    peer.hang_up()
    with pytest.raises(locksidecar.ConnectionLost):
        await task


@pytest.mark.parametrize("how", ["garbage", "hang up", "fatal"])
async def test_the_end_hangs_nobody(loop: Loop, peer: Peer, how: str) -> None:
    client, lock = await held(loop, peer)
    tasks = [asyncio.create_task(c) for c in (client.ping(), client.lock("other").acquire(), lock.locked())]
    for _ in tasks:
        await thread(peer.read)
    client._closed = True  # so that no task connects again
    if how == "garbage":
        peer.raw(b"HTTP/1.0 400 Bad Request\r\n\r\n")
    elif how == "fatal":
        peer.say(67, 0, 15, "too slow")
    else:
        peer.hang_up()
    for task in tasks:
        with pytest.raises(locksidecar.LockError):
            await task
    assert not lock.owned()
    if how != "hang up":
        assert await thread(peer.read) == ()  # and the client has closed its side


async def test_a_daemon_that_does_not_read(loop: Loop, peer: Peer) -> None:
    client, lock = await held(loop, peer)
    conn = client._conn
    assert conn is not None
    conn.timeout = 0.3
    tasks = [asyncio.create_task(client.lock(f"{n:04}" * 100).acquire()) for n in range(3000)]
    client._closed = True  # so that no task connects again
    await until("the socket is full", lambda: conn._stuck or conn.dead)
    conn.heard, conn._pinged = 0.0, 1.0  # the loop did not run: an answer is long overdue
    conn._ring()
    with pytest.raises(locksidecar.ConnectionLost, match="does not read"):
        await tasks[0]
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not lock.owned()


async def test_more_frames_than_the_kernel_takes_at_once(aclient: Client) -> None:
    locks = [aclient.lock(f"{n:04}" * 100) for n in range(1500)]
    assert all(await asyncio.gather(*(lock.acquire() for lock in locks)))
    await asyncio.gather(*(lock.release() for lock in locks))


# ---- connecting ----


async def test_no_daemon(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_handle, "_PATIENCE", 0.1)
    client = loop.client("/nowhere/at/all")
    for call in (client.ping, client.lock("k").locked, client.lock("k").acquire):
        with pytest.raises(locksidecar.Unavailable, match="/nowhere/at/all"):
            await call()
    with pytest.raises(locksidecar.Unavailable):
        async with client.lock("k"):
            pytest.fail("entered")


async def test_nothing_is_left_of_a_closed_client(loop: Loop, shared: Daemon) -> None:
    await loop.client(shared.path).ping()
    before = descriptors(), threading.active_count()
    for _ in range(20):
        async with loop.client(shared.path) as client:
            await client.lock("k", on_lost=print).acquire()
    assert (descriptors(), threading.active_count()) == before


async def test_a_forgotten_client_releases(loop: Loop, shared: Daemon, aclient: Client) -> None:
    await aclient.ping()
    before = descriptors()
    forgotten = Client(shared.path)
    lock = forgotten.lock("k", on_lost=print)
    await lock.acquire()
    del lock, forgotten
    gc.collect()
    assert await aclient.lock("k").acquire(timeout=60)
    await until("its descriptor is closed", lambda: descriptors() == before)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_a_forgotten_client_whose_on_lost_knows_it_and_that_holds(shared: Daemon, aclient: Client) -> None:
    await aclient.ping()
    before = descriptors()

    async def use() -> weakref.ref[Client]:
        forgotten = Client(shared.path)
        lock = forgotten.lock("k", on_lost=lambda _: forgotten.close())
        for _ in range(2):
            await lock.acquire()
            await lock.release()
        await lock.acquire()
        return weakref.ref(forgotten)

    left = await use()
    await until("it is forgotten", lambda: gc.collect() >= 0 and left() is None)
    assert await aclient.lock("k").acquire(timeout=60)
    await until("its descriptor is closed", lambda: descriptors() == before)


async def test_it_cannot_be_sent_or_copied(aclient: Client) -> None:
    for thing in (aclient, aclient.lock("k")):
        with pytest.raises(TypeError, match="another process"):
            pickle.dumps(thing)


# ---- other loops ----


async def test_another_loop_is_told_so(aclient: Client, loop: Loop) -> None:
    lock, named = aclient.lock("k"), aclient.lock("n", owner=1)
    await lock.acquire()
    await named.acquire()

    def elsewhere() -> None:
        async def use() -> None:
            calls: list[Callable[[], object]] = [
                lock.owned,
                named.owned,
                lambda: lock.remaining,
                lambda: named.fence,
                lock.acquire,
                named.release,
                lock.extend,
            ]
            for call in calls:
                with pytest.raises(RuntimeError, match="another event loop"):
                    call()
            for asked in (aclient.ping, lock.locked, aclient.close, lock.__aenter__):
                with pytest.raises(RuntimeError, match="another event loop"):
                    await asked()
            assert "not owned here" in repr(named)

        other = new_loop(loop.name)
        other.run_until_complete(use())
        other.close()

    await thread(elsewhere)
    with pytest.raises(RuntimeError, match="no running event loop"):
        await thread(lock.owned)
    assert lock.owned()
    assert named.owned()
    assert not aclient._closed


@pytest.mark.parametrize("kind", LOOPS)
def test_a_client_outlives_its_loop(shared: Daemon, kind: str) -> None:
    """The client is a global of a program that calls asyncio.run twice."""
    client = Client(shared.path)
    lock = client.lock("k")

    async def first() -> None:
        assert await lock.acquire()

    async def second() -> None:
        assert not lock.owned()
        assert await lock.acquire(timeout=60)  # the old connection has been closed
        assert lock.owned()
        await client.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of the transport whose loop was closed
        for run in (first, second):
            loop = new_loop(kind)
            loop.run_until_complete(run())
            loop.close()
        gc.collect()


@pytest.mark.parametrize("kind", LOOPS)
def test_each_loop_with_a_client_of_its_own(shared: Daemon, kind: str) -> None:
    total, fences = [0], list[int]()

    def work() -> None:
        async def use() -> None:
            async with Client(shared.path) as client:
                for _ in range(25):
                    async with client.lock("k") as lock:
                        fences.append(lock.fence)
                        seen = total[0]
                        await asyncio.sleep(0)
                        total[0] = seen + 1

        loop = new_loop(kind)
        loop.run_until_complete(use())
        loop.close()

    for b in [Background(work) for _ in range(4)]:
        b.result()
    assert total[0] == 100
    assert fences == sorted(fences)


def test_a_client_without_a_loop_can_be_made() -> None:
    lock = Client("/nowhere").lock("k")
    with pytest.raises(RuntimeError, match="no running event loop"):
        lock.owned()
    assert "not owned here" in repr(lock)


async def test_no_task_is_no_owner(aclient: Client) -> None:
    lock, seen = aclient.lock("k"), list[object]()
    await lock.acquire()

    def callback() -> None:
        seen.append(lock.owned())
        with pytest.raises(RuntimeError, match="no task"):
            _ = lock.acquire()
        seen.append(True)

    asyncio.get_running_loop().call_soon(callback)
    await until("the callback ran", lambda: len(seen) == 2)
    assert seen == [False, True]


# ---- fork ----


@pytest.mark.filterwarnings("ignore:.*multi-threaded", "ignore:.*unclosed:ResourceWarning")
async def test_a_forked_child_holds_nothing_and_connects_for_itself(
    loop: Loop, aclient: Client, shared: Daemon
) -> None:
    losses: list[LostError] = []
    lock, other = aclient.lock("k", on_lost=losses.append), aclient.lock("other")
    await lock.acquire()
    assert connections() == 1

    def child() -> None:
        assert connections() == 0

        async def use() -> None:
            assert not lock.owned()
            with pytest.raises(locksidecar.NotHeld):
                await lock.release()
            assert await lock.acquire(blocking=False) is False
            async with other:
                assert other.owned()
            await aclient.close()

        asyncio.run(use())
        gc.collect()
        assert not losses

    assert await thread(lambda: forked(child)) == 0
    assert forked(child) == 0  # from the loop's own thread, too
    assert await aclient.ping() > 0  # whatever the child did, and after its end
    assert lock.owned()
    assert not losses
    await lock.release()


def connections() -> int:
    """Count the descriptors of this process that are connected to something with a path."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(fd))) as s:
            count += s.family == socket.AF_UNIX and s.getpeername() != ""
    return count


def forked(run: Callable[[], None]) -> int:
    return Child(run).end()


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
async def test_a_forked_child_keeps_no_lock_of_its_parent(loop: Loop, shared: Daemon, aclient: Client) -> None:
    parent = loop.client(shared.path)
    await parent.lock("k").acquire()
    ready, say = os.pipe()
    ready_to_end, end = os.pipe()

    def child() -> None:
        os.write(say, b"x")
        os.read(ready_to_end, 1)

    lives = Child(child)
    os.read(ready, 1)
    await parent.close()
    assert await aclient.lock("k").acquire(timeout=60)
    os.write(end, b"x")
    assert lives.end() == 0
    for fd in (ready, say, ready_to_end, end):
        os.close(fd)


async def test_a_reply_that_never_comes_is_not_awaited_for_ever_among_others(loop: Loop, peer: Peer) -> None:
    client, _ = await held(loop, peer)
    assert client._conn is not None
    client._conn.timeout = 0.3
    task = asyncio.create_task(client.ping())
    await thread(peer.expect, w.PING)
    end = time.monotonic() + 30
    while not task.done() and time.monotonic() < end:  # other messages come all the time
        peer.say(65, 0, ms() + 60_000, 60_000)
        await asyncio.sleep(0)
    with pytest.raises(locksidecar.Unavailable, match="not answered"):
        await task
    with contextlib.suppress(OSError):
        peer.hang_up()
