"""Several locks at once, on a real daemon: all or none, and valid only while all are."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from daemon import Daemon, ask, until
from peer import Background
from test_lock import lock_list

import locksidecar
from locksidecar import Client, Locks, LostError

Connect = Callable[..., Client]


@pytest.fixture
def daemon(shared: Daemon) -> Daemon:
    """The daemon for many tests is sufficient."""
    return shared


def free(client: Client, *keys: str) -> None:
    """Check that each key can be acquired at once."""
    for key in keys:
        lock = client.lock(key)
        assert lock.acquire(timeout=30), key
        lock.release()


def test_all_are_held_and_released(client: Client, connect: Connect) -> None:
    keys, other = ["zebra", "ant", "mouse", "Ant", "ä"], connect()
    free(other, "mouse")  # so that the fences differ more
    locks = client.lock_many(keys)
    assert locks.keys == tuple(keys)
    assert not locks.owned()
    assert locks.acquire() is True
    assert locks.owned()
    assert 0 < locks.remaining <= 30
    assert list(locks.fences) == keys
    for key, fence in locks.fences.items():
        assert fence == ask(client, 7, key)[7] > 0
        assert other.lock(key).acquire(blocking=False) is False
    assert "not" not in repr(locks)
    locks.release()
    assert not locks.owned()
    assert locks.remaining == 0
    free(other, *keys)
    with pytest.raises(locksidecar.NotHeld):
        _ = locks.fences
    with pytest.raises(locksidecar.NotHeld):
        locks.release()


def test_or_none(client: Client, connect: Connect) -> None:
    other = connect()
    with other.lock("m"):
        assert client.lock_many(["a", "m", "z"]).acquire(blocking=False) is False
        start = time.monotonic()
        assert client.lock_many(["z", "m", "a"]).acquire(timeout=0.05) is False
        assert time.monotonic() - start >= 0.05
        with pytest.raises(locksidecar.NotAcquired, match="'z', 'm', 'a' and 1 more"):
            client.lock_many(["z", "m", "a", "b"], timeout=0.01).__enter__()
        free(other, "a", "b", "z")


def test_a_waiter_gets_them_when_the_last_is_released(client: Client, connect: Connect) -> None:
    other = connect()
    locks, held = client.lock_many(["a", "b"]), other.lock_many(["b", "c"])
    held.acquire()
    waiter = Background(locks.acquire)
    lock_list(client, "b", waiters=1)
    held.release()
    assert waiter.result() is True
    assert other.lock_many(["c", "a"]).acquire(blocking=False) is False


def test_with_gives_the_handle_and_releases(client: Client, connect: Connect) -> None:
    locks = client.lock_many({"a", "b"})
    with locks as held:
        assert held is locks
        assert held.owned()
    free(connect(), "a", "b")
    with pytest.raises(KeyError), locks:
        raise KeyError
    with pytest.raises(KeyError):
        release_and_fail(locks)
    with pytest.raises(locksidecar.NotHeld), locks:
        locks.release()

    @locks
    def work(n: int) -> int:
        return n if locks.owned() else 0

    assert work(7) == 7
    assert not locks.owned()


def release_and_fail(locks: Locks) -> None:
    with locks:
        locks.release()  # so that the exit fails, too
        raise KeyError


def test_the_same_thread_acquires_again(client: Client, connect: Connect) -> None:
    locks = client.lock_many(["a", "b"])
    with locks:
        first = locks.fences
        with locks:
            assert locks.fences == first
        assert locks.owned()
        assert client.lock_many(["b"]).acquire(blocking=False) is False  # another handle is another owner
        waiter = Background(locks.acquire)  # and so is another thread
        lock_list(client, "a", waiters=1)
    assert waiter.result() is True
    assert not locks.owned()  # it is the other thread's


def test_a_named_owner_holds_by_several_handles(client: Client, connect: Connect) -> None:
    other = connect()
    one, many = client.lock("b", owner=7), client.lock_many(["a", "b"], owner=7)
    again = client.lock_many(["b", "c"], owner=7)
    one.acquire()
    assert Background(many.acquire).result() is True
    assert many.fences["b"] == one.fence
    assert again.acquire(blocking=False)
    many.release()
    free(other, "a")
    one.release()
    assert again.owned()
    assert other.lock("b").acquire(blocking=False) is False
    Background(again.release).result()
    free(other, "b", "c")


def test_two_threads_acquire_as_one_owner_at_once(client: Client, connect: Connect) -> None:
    losses: list[LostError] = []
    locks, other = client.lock_many(["a", "b"], owner=7, on_lost=losses.append), connect()
    blocker = connect().lock("b")
    blocker.acquire()
    both = [Background(locks.acquire) for _ in range(2)]
    until("both wait", lambda: ask(client, 7, "b")[5] + ask(client, 7, "a")[5] == 2)
    blocker.release()
    assert [b.result() for b in both] == [True, True]
    for _ in range(2):
        assert locks.owned()
        assert other.lock("a").acquire(blocking=False) is False
        locks.release()
    assert not locks.owned()
    with pytest.raises(locksidecar.NotHeld):
        locks.release()
    free(other, "a", "b")
    assert not losses


def test_a_loss_is_reported_once_to_each_listener(connect: Connect) -> None:
    """However often the owner has acquired the lock, and by however many handles."""
    losses: list[LostError] = []
    client, other = connect(on_lost=losses.append), connect()
    locks, lock = client.lock_many(["a", "b"], owner=7), client.lock("a", owner=7)
    blocker = other.lock("a")
    blocker.acquire()
    both = [Background(locks.acquire) for _ in range(2)]
    until("both wait", lambda: ask(client, 7, "a")[5] == 2)
    blocker.release()
    assert [b.result() for b in both] == [True, True]
    lock.acquire()
    assert other.force_unlock("a") == 1
    until("on_lost is called", lambda: losses)
    for count in (2, 1):
        assert not locks.owned()
        with pytest.raises(LostError):
            locks.release()
        assert len(losses) == 1, count
    with pytest.raises(LostError):
        lock.release()
    with pytest.raises(locksidecar.NotHeld) as e:
        locks.release()
    assert type(e.value) is locksidecar.NotHeld
    free(other, "a", "b")
    assert len(losses) == 1


def test_what_the_owner_releases_by_another_handle_is_not_held(client: Client, connect: Connect) -> None:
    many = client.lock_many(["a", "b"], owner=7)
    many.acquire()
    client.lock("b", owner=7).release()
    assert not many.owned()
    with pytest.raises(locksidecar.NotHeld, match="'b'") as e:
        many.release()
    assert not isinstance(e.value, LostError)
    free(connect(), "a", "b")


def test_shared(client: Client, connect: Connect) -> None:
    other = connect()
    a, b = client.lock_many(["a", "b"], shared=True), other.lock_many(["b", "c"], shared=True)
    with a, b:
        assert other.lock("b").acquire(blocking=False) is False
    upgrade = client.lock_many(["a", "b"], owner=1)
    with client.lock("b", shared=True, owner=1), pytest.raises(locksidecar.Upgrade):
        upgrade.acquire()
    free(other, "a", "b", "c")
    with upgrade as held:
        held.downgrade()
        assert b.acquire(timeout=30)
        with pytest.raises(locksidecar.Upgrade):
            held.acquire()
        assert held.owned()


def test_they_end_by_themselves_if_nobody_renews_them(client: Client, connect: Connect) -> None:
    losses: list[LostError] = []
    locks = client.lock_many(["a", "b", "c"], ttl=0.5, renew=False, on_lost=losses.append)
    locks.acquire()
    assert locks.remaining <= 0.5
    locks.extend(1)
    assert locks.remaining > 0.5
    fences = locks.fences
    until("they have ended", lambda: not locks.owned())
    until("on_lost is called", lambda: losses)
    assert locks.fences == fences
    with pytest.raises(LostError):
        locks.extend()
    with pytest.raises(LostError) as e:
        locks.release()
    assert (e.value.key, e.value.reason) == (losses[0].key, losses[0].reason)
    assert e.value.reason in ("fixed_end", "silence")
    assert locks.acquire(timeout=60)
    assert all(locks.fences[key] > fences[key] for key in "abc")
    locks.release()
    assert len(losses) == 1  # however many were lost


def test_two_who_want_the_same_do_not_wait_for_each_other(client: Client, connect: Connect) -> None:
    """Every order of the keys, some of them overlapping, with single locks in between."""
    keys = [f"k{n}" for n in range(6)]
    inside = dict.fromkeys(keys, 0)
    clients = [client, connect(), connect()]
    start = threading.Barrier(9)

    def work(n: int) -> None:
        pick = random.Random(n)
        start.wait()
        for _ in range(15):
            some = pick.sample(keys, pick.randint(1, 4))
            with clients[n % 3].lock_many(some) as held:
                for key in some:
                    inside[key] += 1
                    assert inside[key] == 1
                assert held.owned()
                time.sleep(0.0005)
                for key in some:
                    inside[key] -= 1

    for b in [Background(work, n) for n in range(9)]:
        b.result(bound=120)
    free(connect(), *keys)


def test_as_many_as_there_may_be(client: Client, connect: Connect) -> None:
    other = connect()
    keys = [f"k{n}" for n in range(1024)]
    with client.lock_many(keys) as held:
        assert len(held.fences) == 1024
        assert other.lock_many(keys[-1:]).acquire(blocking=False) is False
    assert other.lock_many(keys).acquire(timeout=30)


def test_a_release_that_needs_more_room_than_the_acquire(client: Client, connect: Connect) -> None:
    keys = [f"{n:0500}" for n in range(129)]
    with client.lock_many(keys) as held:  # its frame is nearly full, and fences take more
        assert held.owned()
    assert connect().lock_many(keys).acquire(timeout=30)


def test_what_does_not_fit_into_a_frame_is_not_sent(client: Client, connect: Connect) -> None:
    with client.lock("k") as held:
        with pytest.raises(locksidecar.Invalid, match="the daemon allows"):
            client.lock_many([f"{n:0500}" for n in range(200)]).acquire()
        assert held.owned()
        free(connect(), f"{0:0500}")


def test_what_cannot_be_acquired_together_is_refused_before_anything_is_sent() -> None:
    client = Client("/nowhere")
    for keys in ([], ["a", "b", "a"], [f"k{n}" for n in range(1025)], ["a", ""], ["a", "b\n"]):
        with pytest.raises(locksidecar.Invalid):
            client.lock_many(keys)
    with pytest.raises(TypeError, match="for one key, use lock"):
        client.lock_many("abc")
    with pytest.raises(TypeError):
        client.lock_many([b"k"])  # type: ignore[list-item]
    with pytest.raises(locksidecar.Invalid):
        client.lock_many(["k"], ttl=0)
    with pytest.raises(ValueError, match="non-negative"):
        client.lock_many(["k"], timeout=-2)
