"""Owners: after a loss, with two handles of one key, and across threads and tasks."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import aio
import pytest
from daemon import ask, until
from peer import FENCE, Background, Peer, ms

import locksidecar
import locksidecar.asyncio
from locksidecar import AlreadyHeld, Client, LostError, NotHeld
from locksidecar import _wire as w
from locksidecar._hold import Hold

Connect = Callable[..., Client]
AsyncClient = locksidecar.asyncio.Client


def lose(peer: Peer, client: Client, lock: Any, reason: int = 4) -> None:
    """Make the daemon report a hold as lost, by default by force, and wait until the client knows it."""
    hold = lock._mine().each[0]
    peer.say(64, 0, hold.key, hold.owner, hold.fence, reason)
    until("it is lost", lambda: not lock.owned())


# ---- a lock that was lost, and not released ----


def test_a_lost_lock_is_not_entered_again(client: Client, connect: Connect) -> None:
    lock, other = client.lock("k", ttl=0.3, renew=False), connect().lock("k")
    entered: list[int] = []

    @lock
    def inner() -> None:
        entered.append(lock.fence)

    def outer() -> None:
        with lock:
            inner()
            assert other.acquire(timeout=60)  # its end has passed
            for acquire in (inner, lock.acquire, lock.__enter__, lambda: lock.acquire(blocking=False)):
                with pytest.raises(LostError, match="fixed_end") as e:
                    acquire()
                assert (e.value.key, e.value.fence, e.value.reason) == ("k", entered[0], "fixed_end")
            assert not lock.owned()
            other.release()
            with pytest.raises(LostError):
                lock.acquire(timeout=0.1)  # also when the lock is free

    with pytest.raises(LostError, match="fixed_end"):
        outer()
    with lock:
        assert lock.fence > entered[0]
    assert len(entered) == 1


async def test_a_lost_lock_is_not_entered_again_under_asyncio(aclient: AsyncClient, aconnect: Any) -> None:
    lock, other = aclient.lock("k", ttl=0.3, renew=False), aconnect().lock("k")
    fences: list[int] = []

    async def body() -> None:
        async with lock:
            fences.append(lock.fence)
            assert await other.acquire(timeout=60)
            for kind in ({}, {"blocking": False}, {"timeout": 1}):
                with pytest.raises(LostError, match="fixed_end"):
                    await lock.acquire(**kind)
            with pytest.raises(LostError, match="fixed_end"):
                async with lock:
                    pytest.fail("entered")
            assert not lock.owned()
            await other.release()

    with pytest.raises(LostError, match="fixed_end"):
        await body()
    async with lock:
        assert lock.fence > fences[0]


def test_another_handle_of_the_thread_does_not_enter_a_lost_lock(peer: Peer) -> None:
    client = Client(peer.path, "test")
    first = client.lock("k")
    acquired = Background(lambda: first.acquire() and first._mine())
    peer.welcome()
    q = peer.grant(60_000)
    hold = acquired.result()
    here = client.lock("k")

    def inner() -> None:
        first._held.clear()
        first._keep(first._who(), hold)
        hold.who = first._who()
        client._known.enter(hold)  # as if this thread had acquired it
        peer.say(64, 0, "k", q[3], FENCE, 1)
        until("it is lost", lambda: hold.lost)
        for other in (here, client.lock_many(["a", "k"])):
            for kind in ({}, {"blocking": False}):
                with pytest.raises(LostError, match="'k' was lost: expired"):
                    other.acquire(**kind)
        with pytest.raises(LostError, match="expired"):
            first.release()

    Background(inner).result()
    acquired = Background(here.acquire)
    peer.grant(60_000, fence=FENCE + 1)
    acquired.result()


def test_every_handle_of_a_named_owner_knows_of_its_loss(client: Client) -> None:
    first, second = client.lock("k", ttl=0.2, renew=False, owner=7), client.lock("k", owner=7)
    third = client.lock_many(["a", "k"], owner=7)
    stranger = client.lock("k", owner=8)
    first.acquire()
    second.acquire()
    until("it has ended", lambda: not first.owned())
    assert stranger.acquire(timeout=60)
    for lock in (first, second, third, client.lock("k", owner=7)):
        with pytest.raises(LostError, match="fixed_end"):
            lock.acquire()
    for lock in (client.lock("k", owner=7), first):  # as often as it was acquired, by any handle
        with pytest.raises(LostError):
            third.acquire(blocking=False)
        with pytest.raises(LostError):
            lock.release()
    stranger.release()
    with third:
        assert third.owned()
    with second:
        assert second.owned()
    with pytest.raises(NotHeld) as e:
        first.release()
    assert type(e.value) is NotHeld


def test_the_end_of_the_connection_is_a_loss_too(peer: Peer) -> None:
    client = Client(peer.path, "test")
    lock = client.lock("k", owner=7)
    acquired = Background(lock.acquire)
    peer.welcome()
    peer.grant(60_000)
    acquired.result()
    peer.hang_up()
    until("it is lost", lambda: not lock.owned())
    for again in (lock, client.lock("k", owner=7)):
        with pytest.raises(LostError, match="connection"):
            again.acquire()
    with pytest.raises(LostError, match="connection"):
        lock.release()
    acquired = Background(lock.acquire)
    peer.welcome()
    peer.grant(60_000, fence=FENCE + 1)
    acquired.result()


def test_a_fixed_lock_may_be_left_to_end(client: Client) -> None:
    """A handle that is gone cannot release. It does not block the next handle of the same thread."""
    for _ in range(2):
        lock = client.lock("k", ttl=0.2, renew=False)
        assert lock.acquire(timeout=60)
        hold = lock._mine()
        del lock
    assert hold is not None
    until("it has ended", lambda: not hold.owned())
    assert client.lock("k", ttl=0.2, renew=False).acquire(timeout=60)
    client._known._sweep_at = 0
    with client.lock("other"):
        assert [key for key, _ in client._known._entries] == ["k", "other"]


def test_a_grant_that_was_not_taken_is_no_loss(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold that ends before its acquire returns never belonged to its owner."""
    lock = client.lock("k")
    client.ping()
    conn = client._conn
    assert conn is not None

    def adopt(*_: object) -> bool:
        monkeypatch.undo()
        conn.interrupted(KeyboardInterrupt())
        raise KeyboardInterrupt

    monkeypatch.setattr(conn, "adopt", adopt)
    with pytest.raises(KeyboardInterrupt):
        lock.acquire(timeout=60)  # by the general path, which has such a moment
    assert lock.acquire(timeout=60)
    lock.release()


def test_a_forced_unlock_opens_the_key_with_the_release(peer: Peer) -> None:
    client = Client(peer.path, "test", timeout=2)
    lock = client.lock("k", owner=7)
    acquired = Background(lambda: lock.acquire() and lock.acquire())
    peer.welcome()
    peer.grant(60_000)
    acquired.result()
    lose(peer, client, lock)
    for _ in range(2):  # only the second and last one is sent to the daemon; no thread waits for the answer
        with pytest.raises(LostError, match="forced"):
            lock.release()
    assert peer.expect(w.RELEASE)[2:] == ("k", 7, FENCE, w.ASYNC | w.ALL)
    pinged = Background(client.ping)
    peer.say(0, peer.read()[1], ms())
    pinged.result()


async def test_a_forced_unlock_opens_the_key_with_the_release_under_asyncio(loop: aio.Loop, peer: Peer) -> None:
    client = loop.client(peer.path)
    lock = client.lock("k", owner=7)
    acquired = asyncio.create_task(lock.acquire())
    await asyncio.to_thread(peer.welcome)
    await asyncio.to_thread(peer.grant, 60_000)
    await acquired
    peer.say(64, 0, "k", 7, FENCE, 4)
    with pytest.raises(LostError, match="forced"):
        async with client.lock("k", owner=7):
            await aio.until("it is lost", lambda: not lock.owned())
    with pytest.raises(LostError, match="forced"):
        await lock.release()
    q = await asyncio.to_thread(peer.expect, w.RELEASE)
    assert q[2:] == ("k", 7, FENCE, w.ASYNC | w.ALL)


# ---- a grant that crosses the loss of what its owner holds ----


def crossed(peer: Peer, lost: int, q: w.Message, fence: int, left: int = 60_000) -> None:
    """Report k as lost and grant it to its owner's next request, in one write."""
    row = [fence, left, ms() + left, 1, 0, 0]
    answer = w.frame(0, q[1], *row) if q[0] == w.ACQUIRE else w.frame(0, q[1], [[fence + 1, *row[1:]], row])
    peer.raw(w.frame(64, 0, "k", lost, FENCE, 5) + answer)


def greet(peer: Peer, left: int) -> w.Message:
    """Welcome a client, and grant its requests."""
    peer.welcome()
    return peer.grant(left)


def test_a_grant_that_crosses_the_loss_of_a_named_owners_hold_is_given_back(peer: Peer) -> None:
    client = Client(peer.path, "test")
    first, second = client.lock("k", owner=7), client.lock("k", owner=7)
    acquired = [Background(first.acquire)]
    peer.welcome()
    q = peer.expect(w.ACQUIRE)
    acquired.append(Background(second.acquire))
    late = peer.expect(w.ACQUIRE)  # the owner has nothing yet, so each of its handles asks
    peer.say(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0)
    until("one has it", lambda: not all(b.running for b in acquired))
    crossed(peer, 7, late, FENCE + 1)
    assert peer.expect(w.RELEASE)[2:] == ("k", 7, FENCE + 1, w.ASYNC)
    with pytest.raises(LostError, match="session") as e:
        acquired[1].result()
    assert e.value.fence == FENCE
    assert not first.owned()
    assert not second.owned()
    many = client.lock_many(["j", "k"], owner=7)
    for lock in (second, many):
        with pytest.raises(LostError):
            lock.acquire()
    with pytest.raises(LostError):
        first.release()
    acquired = [Background(first.acquire)]
    peer.grant(60_000, fence=FENCE + 2)
    acquired[0].result()
    assert first.fence == FENCE + 2


def test_several_grants_that_cross_the_loss_of_one_are_given_back(peer: Peer) -> None:
    client = Client(peer.path, "test")
    first, both = client.lock("k", owner=7), client.lock_many(["j", "k"], owner=7)
    acquired = Background(first.acquire)
    peer.welcome()
    peer.grant(60_000)
    acquired.result()
    acquired = Background(both.acquire)
    crossed(peer, 7, peer.expect(w.ACQUIRE_MANY), FENCE + 1)
    assert peer.expect(w.RELEASE_MANY)[2:] == ((("j", FENCE + 2), ("k", FENCE + 1)), 7, w.ASYNC)
    with pytest.raises(LostError, match="'k' was lost: session"):
        acquired.result()
    assert not both.owned()
    with pytest.raises(LostError):
        first.release()
    assert client._conn is not None
    assert not client._conn._holds
    assert not client._known._entries


def test_a_try_that_crosses_the_loss_of_the_threads_hold_is_given_back(peer: Peer) -> None:
    client = Client(peer.path, "test")
    first, second = client.lock("k", shared=True), client.lock("k", shared=True)
    played = Background(greet, peer, 60_000)
    first.acquire()
    owner = played.result()[3]

    def play() -> w.Message:
        crossed(peer, owner, peer.expect(w.ACQUIRE), FENCE + 1)
        return peer.expect(w.RELEASE)

    played = Background(play)
    with pytest.raises(LostError, match="session") as e:
        second.acquire(blocking=False)
    assert e.value.fence == FENCE
    assert played.result()[4:] == (FENCE + 1, w.ASYNC)
    assert not second.owned()
    with pytest.raises(LostError, match="session"):
        first.release()
    assert not client._known._entries


def test_a_grant_after_the_end_of_the_threads_hold_is_given_back(peer: Peer) -> None:
    """The daemon has sent no lost: its stated validity has run out."""
    client = Client(peer.path, "test")
    first, second = client.lock("k", shared=True), client.lock("k", shared=True)
    played = Background(greet, peer, 2_000)
    first.acquire()
    played.result()
    hold = first._mine()
    assert hold is not None

    def play() -> None:
        q = peer.expect(w.ACQUIRE)
        until("it is over", lambda: w.now() >= hold.valid)
        peer.say(0, q[1], FENCE + 1, 60_000, ms() + 60_000, 1, 0, 0)
        assert {peer.expect(w.RELEASE)[4] for _ in range(2)} == {FENCE, FENCE + 1}

    played = Background(play)
    with pytest.raises(LostError, match="silence"):
        second.acquire(blocking=False)
    played.result()
    with pytest.raises(LostError, match="silence"):
        first.release()


def test_several_locks_of_a_named_owner_that_lost_one_while_it_waited(client: Client, connect: Connect) -> None:
    other = connect().lock("j")
    other.acquire()
    first, both = client.lock("k", ttl=0.3, renew=False, owner=7), client.lock_many(["j", "k"], owner=7)
    first.acquire()
    acquired = Background(both.acquire)
    until("it waits", lambda: ask(client, w.INSPECT, "j")[5] == 1)
    until("the first has ended", lambda: not first.owned())
    other.release()
    with pytest.raises(LostError, match="'k' was lost: fixed_end"):
        acquired.result()
    assert not both.owned()
    with other, connect().lock("k"), pytest.raises(LostError, match="fixed_end"):  # the refused grant has left nothing
        first.release()
    with both:
        assert both.owned()


async def test_a_grant_that_crosses_the_loss_of_a_tasks_hold_is_given_back(loop: aio.Loop, peer: Peer) -> None:
    client = loop.client(peer.path)
    for owner in (None, 7):
        first = client.lock("k", owner=owner, shared=True)
        second: Any = client.lock("k", shared=True) if owner is None else client.lock_many(["j", "k"], owner=owner)
        acquired = asyncio.ensure_future(first.acquire())  # for this task
        await asyncio.sleep(0)
        if owner is None:
            await asyncio.to_thread(peer.welcome)
        number = (await asyncio.to_thread(peer.grant, 60_000))[3]
        await acquired
        trying = asyncio.ensure_future(second.acquire(blocking=False))
        q = await asyncio.to_thread(peer.expect, w.ACQUIRE if owner is None else w.ACQUIRE_MANY)
        crossed(peer, number, q, FENCE + 1)
        with pytest.raises(LostError, match="session"):
            await trying
        q = await asyncio.to_thread(peer.expect, w.RELEASE if owner is None else w.RELEASE_MANY)
        assert (q[4] if owner is None else q[2][1][1]) == FENCE + 1
        assert not second.owned()
        with pytest.raises(LostError, match="session"):
            await first.release()
        assert not client._known._entries


# ---- two handles of one key ----


def test_a_second_handle_in_the_same_thread_says_so(client: Client) -> None:
    first = client.lock("k")
    others: list[Any] = [client.lock("k"), client.lock("k", shared=True), client.lock_many(["j", "k"])]
    with first:
        for other in others:
            for kind in ({}, {"timeout": 5}):
                with pytest.raises(
                    AlreadyHeld, match=r"key 'k' is already held in this thread by another handle \("
                ) as e:
                    other.acquire(**kind)
                assert f"created at {__file__}:" in str(e.value)
                assert str(e.value).endswith("use that handle, or pass owner= to share")
            with pytest.raises(AlreadyHeld):
                other.__enter__()
            assert other.acquire(blocking=False) is False  # a try waits for nothing
            assert other.acquire(timeout=0) is False
        assert Background(others[0].acquire, False).result() is False  # another thread may ask
        assert client.lock("k", owner=1).acquire(timeout=0.01) is False  # and so may a named owner
        assert client.lock("k", owner="handle").acquire(timeout=0.01) is False
    for other in others:
        with other:
            assert other.owned()


def test_a_handle_that_is_gone_still_holds(client: Client) -> None:
    with pytest.warns(ResourceWarning, match="thrown away while it is held"):
        client.lock("k").acquire()
    with pytest.raises(AlreadyHeld, match="created at"):
        client.lock("k").acquire()


def test_one_of_several_and_one_in_the_same_thread(client: Client, connect: Connect) -> None:
    first, second = client.lock_any(["a", "b"]), client.lock_any(["a", "b"])
    with first:
        with pytest.raises(AlreadyHeld, match=f"key {first.key!r} is already held in this thread by another handle"):
            client.lock(first.key).acquire(timeout=60)
        with second:  # the other one was free
            assert {first.key, second.key} == {"a", "b"}
            third = client.lock_any(["b", "a"])
            with pytest.raises(AlreadyHeld):
                third.acquire(timeout=60)
            assert third.acquire(blocking=False) is False
            assert Background(lambda: third.acquire(timeout=0.01)).result() is False
            with first:
                assert first.held_count == 2
    assert not client._known._entries
    with client.lock("a"), client.lock_any(["a", "b"]) as other:
        assert other.key == "b"


async def test_one_of_several_and_one_in_the_same_task(aclient: AsyncClient) -> None:
    async with aclient.lock_any(["a", "b"]) as first:
        with pytest.raises(AlreadyHeld, match=f"key {first.key!r} is already held in this task by another handle"):
            await aclient.lock(first.key).acquire(timeout=60)
        async with aclient.lock_any(["a", "b"]):
            with pytest.raises(AlreadyHeld):
                await aclient.lock_any(["a", "b"]).acquire(timeout=60)


def test_one_of_several_is_not_acquired_by_an_owner_that_has_lost_it(client: Client) -> None:
    one = client.lock("a", ttl=0.2, renew=False)
    one.acquire()
    until("it is over", lambda: not one.owned())
    with pytest.raises(LostError):
        client.lock_any(["a", "b"]).acquire(timeout=60)
    with pytest.raises(LostError):
        one.release()
    with client.lock_any(["a", "b"]):
        pass


def test_several_locks_and_one_in_the_same_thread(client: Client) -> None:
    with client.lock_many(["a", "b"]):
        for other in (client.lock("b"), client.lock_many(["b", "c"])):
            with pytest.raises(AlreadyHeld, match="'b'"):
                other.acquire()
    with client.lock("b"), client.lock("c"):
        pass


def test_readers_of_one_thread(client: Client) -> None:
    """With a writer between them the second one would wait forever."""
    reader, second = client.lock("k", shared=True), client.lock("k", shared=True)
    with reader:
        with pytest.raises(AlreadyHeld):
            second.acquire()
        assert second.acquire(blocking=False)
        second.release()


def test_each_reader_of_one_thread_is_known(client: Client, connect: Connect) -> None:
    """A writer of the thread would wait for the remaining hold, whichever it is."""
    readers = [client.lock("k", shared=True) for _ in range(3)]
    writers: list[Any] = [client.lock("k"), client.lock_many(["j", "k"])]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        for n, reader in enumerate(readers):
            assert reader.acquire(blocking=n == 0)
        for n in order:
            for writer in writers:
                with pytest.raises(AlreadyHeld, match="key 'k' is already held in this thread by another handle"):
                    writer.acquire(timeout=60)
            readers[n].release()
        assert not client._known._entries
        for writer in writers:
            with writer:
                pass


def test_the_loss_of_one_reader_is_known_when_another_is_released(peer: Peer) -> None:
    client = Client(peer.path, "test")
    first, second, third = (client.lock("k", shared=True) for _ in range(3))
    owners: list[int] = []

    def play() -> None:
        peer.welcome()
        owners.extend(peer.grant(60_000)[3] for _ in range(2))
        peer.released()
        peer.say(64, 0, "k", owners[1], FENCE, 5)

    played = Background(play)
    assert first.acquire()
    assert second.acquire(blocking=False)
    first.release()
    until("it is lost", lambda: not second.owned())
    played.result()
    for lock in (first, third, client.lock("k")):
        for kind in ({}, {"blocking": False}):
            with pytest.raises(LostError, match="session"):
                lock.acquire(**kind)
    with pytest.raises(LostError, match="session"):
        second.release()
    assert not client._known._entries


async def test_each_reader_of_one_task_is_known(aclient: AsyncClient) -> None:
    readers = [aclient.lock("k", shared=True) for _ in range(3)]
    writers: list[Any] = [aclient.lock("k"), aclient.lock_many(["j", "k"])]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        for n, reader in enumerate(readers):
            assert await reader.acquire(blocking=n == 0)
        for n in order:
            for writer in writers:
                with pytest.raises(AlreadyHeld, match="key 'k' is already held in this task by another handle"):
                    await writer.acquire(timeout=60)
            await readers[n].release()
        assert not aclient._known._entries
        for writer in writers:
            async with writer:
                pass


async def test_each_wait_of_one_task_is_known(aclient: AsyncClient, aconnect: Any) -> None:
    """A wait that is given up or granted does not hide another wait of the same task."""
    holder, shared = aconnect().lock("k"), aclient.lock("k", shared=True)
    await holder.acquire()
    first = [asyncio.ensure_future(shared.acquire()) for _ in range(2)]
    await aio.waiters(aclient, "k", 2)
    first[0].cancel()
    await asyncio.wait(first[:1])
    with pytest.raises(AlreadyHeld, match="waited for in this task"):
        await aclient.lock("k").acquire(timeout=60)
    await holder.release()
    await first[1]
    with pytest.raises(AlreadyHeld, match="held in this task"):
        await aclient.lock("k").acquire(timeout=60)
    await shared.release()
    assert not aclient._known._entries


async def test_a_second_handle_in_the_same_task_says_so(aclient: AsyncClient) -> None:
    first, second = aclient.lock("k"), aclient.lock("k")
    both = aclient.lock_many(["j", "k"])
    async with first:
        for other in (second, both):
            with pytest.raises(AlreadyHeld, match="key 'k' is already held in this task by another handle"):
                await other.acquire()
            assert await other.acquire(blocking=False) is False
    async with both:
        with pytest.raises(AlreadyHeld):
            await first.acquire(timeout=5)
    async with second:
        pass


async def test_a_second_handle_while_the_first_waits(aclient: AsyncClient, aconnect: Any) -> None:
    holder = aconnect().lock("k")
    await holder.acquire()
    first = asyncio.ensure_future(aclient.lock("k").acquire())  # for this task
    await aio.waiters(aclient, "k", 1)
    with pytest.raises(AlreadyHeld, match="key 'k' is already waited for in this task by another handle"):
        await aclient.lock("k").acquire()
    assert await aclient.lock("k").acquire(blocking=False) is False
    first.cancel()
    await asyncio.wait([first])
    await holder.release()
    async with aclient.lock("k"):
        pass


def test_the_work_of_a_leader_has_the_key(client: Client) -> None:
    """It would wait for its own term."""
    refused: list[BaseException] = []

    def lead(term: locksidecar.Term) -> None:
        try:
            client.lock("k").acquire()
        except AlreadyHeld as e:
            refused.append(e)
        term.lost.wait()

    election = client.election("k", lead, lambda *_: None)
    with election:
        until("it is refused", lambda: refused)
    assert f"another handle (created at {__file__}:" in str(refused[0])
    assert not client._known._entries
    with client.lock("k"):
        pass


async def test_the_work_of_a_leader_has_the_key_under_asyncio(aclient: AsyncClient) -> None:
    refused: list[BaseException] = []

    async def lead(_: locksidecar.asyncio.Term) -> None:
        try:
            await aclient.lock("k").acquire()
        except AlreadyHeld as e:
            refused.append(e)

    async with aclient.election("k", lead, lambda *_: None):
        await aio.until("it is refused", lambda: refused)
    assert not aclient._known._entries


def test_an_election_does_not_wait_for_its_own_thread(client: Client) -> None:
    election = client.election("k", print, print)
    for lock in (client.lock("k"), client.lock("k", shared=True), client.lock_many(["j", "k"])):
        with lock, pytest.raises(AlreadyHeld, match="key 'k' is already held in this thread by another handle"):
            election.run()
    assert election.error is None
    with client.lock("k"), election:  # in the background it may wait
        pass


async def test_an_election_does_not_wait_for_its_own_task(aclient: AsyncClient) -> None:
    election = aclient.election("k", print, print)
    async with aclient.lock("k"):
        with pytest.raises(AlreadyHeld, match="key 'k' is already held in this task by another handle"):
            await election.run()
        async with election:
            pass


def test_work_under_a_term_that_is_lost_does_not_acquire_its_key(client: Client) -> None:
    """Also if the term is over when the work begins, or if the election object is gone."""
    refused: list[BaseException] = []

    def lead(term: locksidecar.Term) -> None:
        if refused:
            return
        gc.collect()
        client._known.leave(term._hold)
        with term._hold.conn._mu:
            term._hold.conn._lose(term._hold, "forced")
        client._known.lend(term._hold, weakref.ref(threading.current_thread()))  # as if it began now
        for kind in ({}, {"blocking": False}):
            try:
                client.lock("k").acquire(**kind)
            except LostError as e:
                refused.append(e)

    client.election("k", lead, lambda *_: None).start()
    until("both are refused", lambda: len(refused) == 2)
    assert [str(e) for e in refused] == ["lock 'k' was lost: forced"] * 2


# ---- owners that are not one thread, or one task ----


def test_a_handle_may_be_the_owner(client: Client) -> None:
    """A framework may enter and leave a scope in two threads."""
    lock = client.lock("k", owner="handle")
    Background(lock.__enter__).result()
    assert lock.owned()
    assert client.lock("k", owner="handle").acquire(blocking=False) is False
    Background(lock.__exit__, None, None, None).result()
    assert not lock.owned()
    both = client.lock_many(["a", "b"], owner="handle")
    Background(both.acquire).result()
    both.release()
    permit = client.semaphore("s", 1, owner="handle")
    Background(permit.acquire).result()
    permit.release()


async def test_a_handle_may_be_the_owner_under_asyncio(aclient: AsyncClient) -> None:
    lock = aclient.lock("k", owner="handle")
    await asyncio.create_task(enter(lock))
    assert lock.owned()
    await lock.__aexit__(None, None, None)
    assert not lock.owned()


async def enter(lock: Any) -> None:
    await lock.__aenter__()


def test_the_wrong_thread_hears_how_to_do_it(client: Client) -> None:
    lock = client.lock("k")
    Background(lock.acquire).result()
    with pytest.raises(NotHeld, match=r'held by another thread.*make the handle with owner="handle"'):
        lock.release()
    with pytest.raises(NotHeld, match="held by another thread"):
        lock.__exit__(None, None, None)
    with pytest.raises(NotHeld, match="held by another thread"):
        _ = lock.fence
    with pytest.warns(ResourceWarning, match="by a thread that has ended without releasing it"):
        assert lock.acquire(timeout=0.01) is False
    with pytest.warns(ResourceWarning, match=f"'k': thrown away while it is held .created at {__file__}:"):
        del lock


async def test_the_wrong_task_hears_how_to_do_it(aclient: AsyncClient) -> None:
    lock = aclient.lock("k")
    await asyncio.create_task(enter(lock))
    with pytest.raises(NotHeld, match=r'held by another task.*make the handle with owner="handle"'):
        await lock.release()
    with pytest.warns(ResourceWarning, match="by a task that has ended without releasing it"):
        assert await lock.acquire(timeout=0.01) is False
    with pytest.warns(ResourceWarning, match="thrown away while it is held"):
        lock = aclient.lock("other")


@pytest.mark.filterwarnings("error")
def test_no_warning_where_nothing_is_wrong(client: Client) -> None:
    client.lock("named", owner=7).acquire()
    client.lock("fixed", ttl=0.2, renew=False).acquire()
    with client.lock("k"):
        pass
    gc.collect()
    client.lock("named", owner=7).release()


def test_ended_threads_are_forgotten(client: Client) -> None:
    lock = client.lock("k", ttl=0.2, renew=False)
    lock._sweep_at = 3

    def leave() -> None:
        assert lock.acquire(timeout=60)
        hold = lock._mine()
        assert hold is not None
        until("it has ended", lambda: not hold.owned())

    for _ in range(3):
        Background(leave).result()
        gc.collect()
    assert len(lock._held) == 1


# ---- holds that can no longer be released ----


def kept(client: Any) -> list[str]:
    """Return the keys of which an owner has an entry, after a sweep."""
    with client._known.mu:
        client._known._sweep_at = 0
        hold = Hold(client._conn, "sweep", 1, False, who=1)
        client._known.enter(hold)
        client._known.leave(hold)
    return sorted(key for key, _ in client._known._entries)


def ended(handle: Any) -> Callable[[], bool]:
    """Return a function that tells whether all holds of a handle have ended, and the client knows it."""
    holds = handle._mine().each
    return lambda: all(hold.lost for hold in holds)


def test_losses_of_discarded_handles_are_forgotten(client: Client) -> None:
    """A named owner's loss is kept: another handle may release it."""
    handles = [client.lock(f"k{n}", ttl=0.2, renew=False, owner=("handle", None, 7)[n % 3]) for n in range(6)]
    for handle in handles:
        handle.acquire()
    for handle in handles:
        until("it has ended", ended(handle))
    assert kept(client) == ["k0", "k1", "k2", "k3", "k4", "k5"]
    last = handles[:2]
    del handles, handle
    gc.collect()
    assert kept(client) == ["k0", "k1", "k2", "k5"]
    for handle in last:
        with pytest.raises(LostError):
            handle.release()
    for key in ("k2", "k5"):
        with pytest.raises(LostError):
            client.lock(key, owner=7).release()
    assert not kept(client)


def test_losses_of_ended_threads_are_forgotten(client: Client) -> None:
    lock = client.lock("k", ttl=0.2, renew=False)
    both = client.lock_many(["a", "b"], ttl=0.2, renew=False)
    end = threading.Event()

    def leave() -> None:
        lock.acquire()
        both.acquire()
        for handle in (lock, both):
            until("it has ended", ended(handle))
        ready.set()
        end.wait()

    ready = threading.Event()
    thread = Background(leave)
    assert ready.wait(60)
    assert kept(client) == ["a", "b", "k"]
    end.set()
    thread.result()
    assert not kept(client)  # although the thread's object lives: thread.thread
    assert lock.acquire(timeout=60)
    lock.release()


async def test_losses_of_ended_tasks_are_forgotten(aclient: AsyncClient) -> None:
    lock = aclient.lock("k", ttl=0.2, renew=False)
    end, ready = asyncio.Event(), asyncio.Event()

    async def leave() -> None:
        await lock.acquire()
        await aio.until("it has ended", ended(lock))
        ready.set()
        await end.wait()

    task = asyncio.create_task(leave())
    await ready.wait()
    assert kept(aclient) == ["k"]
    end.set()
    await task
    assert not kept(aclient)


def test_keys_that_were_tried_in_vain_are_forgotten(client: Client, connect: Connect) -> None:
    keys = [f"k{n}" for n in range(400)]
    with connect().lock_many(keys):
        for key in keys:
            assert client.lock(key).acquire(blocking=False) is False
        assert len(client._known._entries) <= 128


# ---- the report of a loss at the end of a scope ----


def test_a_body_that_failed_hears_of_the_loss(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    lock = client.lock("k", ttl=0.2, renew=False)

    def body() -> None:
        with lock:
            until("it has ended", lambda: not lock.owned())
            raise KeyError("the body's own")

    with pytest.raises(KeyError, match="the body's own") as e:
        body()
    said = "lock 'k': lock 'k' was lost: fixed_end"
    if sys.version_info >= (3, 11):
        assert e.value.__notes__ == [said]
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.WARNING, "lock 'k', whose body failed: lock 'k' was lost: fixed_end")
    ]


async def test_a_body_that_failed_hears_of_the_loss_under_asyncio(
    aclient: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    lock = aclient.lock("k", ttl=0.2, renew=False)

    async def body() -> None:
        async with lock:
            await aio.until("it has ended", lambda: not lock.owned())
            raise KeyError

    with pytest.raises(KeyError) as e:
        await body()
    if sys.version_info >= (3, 11):
        assert e.value.__notes__ == ["lock 'k': lock 'k' was lost: fixed_end"]
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_the_loss_itself_needs_no_note(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    lock = client.lock("k", ttl=0.2, renew=False)

    def body() -> None:
        with lock:
            until("it has ended", lambda: not lock.owned())
            lock.extend()

    with pytest.raises(LostError) as e:
        body()
    assert not getattr(e.value, "__notes__", [])
    assert not caplog.records


# ---- durations ----


@pytest.mark.parametrize("module", [locksidecar, locksidecar.asyncio])
def test_milliseconds_where_seconds_are_meant(module: Any) -> None:
    client = module.Client("/nowhere")
    makes: list[Callable[[], object]] = [
        lambda: client.lock("k", ttl=30000),
        lambda: client.lock_many(["k"], ttl=30000),
        lambda: client.semaphore("k", 1, ttl=30000),
        lambda: client.election("k", print, print, ttl=30000),
    ]
    for make in makes:
        with pytest.warns(
            UserWarning, match=r"ttl=30000 is in seconds: 8.33 hours. Milliseconds would be 30$"
        ) as found:
            make()
        assert found[0].filename == __file__
    with pytest.warns(UserWarning, match="timeout=5000 is in seconds: 1.39 hours. Milliseconds would be 5$"):
        client.lock("k", timeout=5000)
    with pytest.warns(UserWarning, match="timeout=5000 "):
        module.Client("/nowhere", timeout=5000)


@pytest.mark.filterwarnings("error")
def test_an_hour_is_a_ttl() -> None:
    Client("/nowhere").lock("k", ttl=3600, timeout=3600)
    Client("/nowhere").lock("k", timeout=float("inf"))


# ---- the end of a fixed lock ----


def test_when_a_fixed_lock_ends(client: Client) -> None:
    fixed, renewed = client.lock("fixed", ttl=60, renew=False), client.lock("renewed", ttl=60)
    both = client.lock_many(["a", "b"], ttl=60, renew=False)
    assert fixed.ends_in is None
    with fixed, renewed, both:
        for lock in (fixed, both):
            assert lock.ends_in is not None
            assert 20 < lock.ends_in <= 60
        assert renewed.ends_in is None
        fixed.extend(120)
        assert 60 < fixed.ends_in <= 120  # type: ignore[operator]
        fixed.extend(1)  # never shortens
        assert fixed.ends_in > 60  # type: ignore[operator]
    assert fixed.ends_in is None


def test_every_fixed_lock_ends_with_its_reason(client: Client) -> None:
    """The reason is the same, whether this process or the daemon notices the end first."""
    losses: list[LostError] = []
    told = threading.Semaphore(0)

    def lost(e: LostError) -> None:
        losses.append(e)
        told.release()

    locks = [client.lock(f"k{n}", ttl=0.1 + n / 500, renew=False, on_lost=lost) for n in range(40)]
    for lock in locks:
        lock.acquire()
    for _ in locks:
        assert told.acquire(timeout=60)
    assert {e.reason for e in losses} == {"fixed_end"}
