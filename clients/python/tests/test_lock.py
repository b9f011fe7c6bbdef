"""Locks on a real daemon, when nothing goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from daemon import Script, ask, until
from peer import Background

import locksidecar
from locksidecar import Client

Connect = Callable[..., Client]


def test_acquire_and_release(client: Client) -> None:
    lock = client.lock("k")
    assert not lock.owned()
    assert not lock.locked()
    assert lock.acquire() is True
    assert lock.owned()
    assert lock.locked()
    assert 0 < lock.remaining <= 30
    assert lock.fence > 0
    lock.release()
    assert not lock.owned()
    assert lock.remaining == 0
    until("nobody holds it", lambda: not lock.locked())
    with pytest.raises(locksidecar.NotHeld):
        _ = lock.fence
    with pytest.raises(locksidecar.NotHeld):
        lock.release()


def test_with_gives_the_handle_and_releases(client: Client) -> None:
    lock = client.lock("k")
    with lock as held:
        assert held is lock
        assert held.owned()
    assert not lock.owned()


def test_fences_rise(client: Client, connect: Connect) -> None:
    other = connect()
    fences = []
    for _ in range(20):
        for c in (client, other):
            with c.lock("k") as held:
                fences.append(held.fence)
    assert fences == sorted(set(fences))


def test_another_client_is_kept_out(client: Client, connect: Connect) -> None:
    other = connect().lock("k")
    with client.lock("k"):
        assert other.locked()
        assert other.acquire(blocking=False) is False
        start = time.monotonic()
        assert other.acquire(timeout=0.05) is False
        assert time.monotonic() - start >= 0.05
        assert other.acquire(timeout=0) is False
    assert other.acquire(blocking=False) is True
    other.release()


def test_a_waiter_gets_it_when_it_is_released(client: Client, connect: Connect) -> None:
    lock, other = client.lock("k"), connect().lock("k")
    lock.acquire()
    waiter = Background(other.acquire)
    lock_list(client, "k", waiters=1)
    assert waiter.running
    lock.release()
    assert waiter.result() is True


def lock_list(client: Client, key: str, waiters: int) -> None:
    """Wait until so many requests wait for the key."""
    until(f"{waiters} wait", lambda: ask(client, 7, key)[5] == waiters)


def test_the_same_thread_acquires_again(client: Client) -> None:
    lock = client.lock("k")
    other = client.lock("k")
    with lock:
        first = lock.fence
        with lock:
            assert lock.fence == first
            assert lock.acquire(blocking=False)
            lock.release()
        assert lock.owned()
        assert other.acquire(blocking=False) is False  # another handle is another owner
    assert not lock.owned()
    assert other.acquire(blocking=False) is True


def test_a_second_thread_on_the_same_handle_waits(client: Client) -> None:
    lock = client.lock("k")
    lock.acquire()
    lock.acquire()

    def other() -> None:
        assert not lock.owned()
        with pytest.raises(locksidecar.NotHeld):
            lock.release()
        assert lock.acquire(blocking=False) is False
        assert lock.acquire() is True
        lock.release()

    waiter = Background(other)
    lock_list(client, "k", waiters=1)
    lock.release()
    assert waiter.running
    lock.release()
    waiter.result()


def test_a_dead_thread_is_not_followed_by_one_with_its_number(client: Client) -> None:
    lock = client.lock("k")
    Background(lock.acquire).result()
    # Whatever ident the next threads get, none of them is the holder.
    for _ in range(20):
        assert Background(lock.owned).result() is False
        assert Background(lambda: lock.acquire(blocking=False)).result() is False


def test_a_named_owner_passes_between_threads_and_handles(client: Client) -> None:
    lock, same = client.lock("k", owner=7), client.lock("k", owner=7)
    stranger = client.lock("k", owner=8)
    Background(lock.acquire).result()
    assert lock.owned()
    assert same.acquire(blocking=False)
    assert same.fence == lock.fence
    assert stranger.acquire(blocking=False) is False
    Background(lock.release).result()
    assert same.owned()
    same.release()
    assert not lock.owned()
    lock.acquire()
    same.release()  # another handle, the same owner
    assert not lock.owned()
    assert stranger.acquire(blocking=False)


def test_two_threads_acquire_as_one_owner_at_once(client: Client, connect: Connect) -> None:
    lock = client.lock("k", owner=7)
    blocker, other = connect().lock("k"), connect().lock("k")
    blocker.acquire()
    both = [Background(lock.acquire) for _ in range(2)]
    lock_list(client, "k", waiters=2)
    blocker.release()
    assert [b.result() for b in both] == [True, True]
    lock.release()
    assert lock.owned()
    assert other.acquire(blocking=False) is False
    lock.release()
    assert not lock.owned()
    assert other.acquire(timeout=30)


def test_shared_holders_exclude_exclusive_ones(client: Client, connect: Connect) -> None:
    a, b = client.lock("k", shared=True), connect().lock("k", shared=True)
    writer = connect().lock("k")
    with a, b:
        assert a.owned()
        assert b.owned()
        assert writer.acquire(blocking=False) is False
    with writer:
        assert a.acquire(blocking=False) is False


def test_shared_to_exclusive_is_refused(client: Client) -> None:
    a, b = client.lock("k", shared=True, owner=1), client.lock("k", owner=1)
    with a, pytest.raises(locksidecar.Upgrade):
        b.acquire()


def test_downgrade_lets_readers_in(client: Client, connect: Connect) -> None:
    lock, reader = client.lock("k"), connect().lock("k", shared=True)
    with lock:
        fence = lock.fence
        assert reader.acquire(blocking=False) is False
        lock.downgrade()
        assert lock.owned()
        assert lock.fence == fence
        assert reader.acquire(timeout=30)
        with pytest.raises(locksidecar.Upgrade):
            lock.acquire()
    assert reader.owned()


def test_extend_moves_the_end_of_a_lock_that_is_not_renewed(client: Client) -> None:
    lock = client.lock("k", ttl=3, renew=False)
    with lock:
        assert lock.remaining <= 3
        lock.extend(30)
        assert lock.remaining > 3
        lock.extend()  # its own TTL by now
        assert lock.remaining > 3
    with pytest.raises(locksidecar.NotHeld):
        lock.extend()


def test_a_renewed_lock_outlives_its_ttl(client: Client) -> None:
    losses: list[locksidecar.LostError] = []
    lock = client.lock("k", ttl=1, on_lost=losses.append)
    with lock:
        fence, end = lock.fence, time.monotonic() + 2.5
        until("2.5 s are over", lambda: time.monotonic() > end)
        assert lock.owned()
        assert lock.fence == fence
    assert not losses


def test_threads_exclude_each_other(client: Client) -> None:
    handle, total = client.lock("k"), [0]
    fences: list[int] = []

    def work(lock: locksidecar.Lock) -> None:
        for _ in range(50):
            with lock:
                seen = total[0]
                fences.append(lock.fence)
                time.sleep(0)  # let other threads run, if they were admitted
                total[0] = seen + 1

    workers = [Background(work, handle if n % 2 else client.lock("k")) for n in range(8)]
    for worker in workers:
        worker.result()
    assert total[0] == 400
    assert fences == sorted(set(fences))


def test_many_threads_on_one_connection(client: Client) -> None:
    start = threading.Barrier(32)

    def work(n: int) -> None:
        start.wait()
        lock = client.lock(f"k{n}")
        for _ in range(50):
            with lock:
                assert lock.owned()
            client.ping()

    for worker in [Background(work, n) for n in range(32)]:
        worker.result()


PROCESS = """
import sys, locksidecar
client = locksidecar.Client(sys.argv[1])
lock = client.lock("counter")
print("ready")
sys.stdin.readline()
last = 0
for _ in range(200):
    with lock as held:
        assert held.fence > last
        last = held.fence
        with open(sys.argv[2]) as f: n = int(f.read())
        with open(sys.argv[2], "w") as f: f.write(str(n + 1))
"""


def test_processes_exclude_each_other(script: Callable[..., Script], tmp_path: object) -> None:
    path = f"{tmp_path}/counter"
    with open(path, "w") as f:
        f.write("0")
    scripts = [script(PROCESS, path) for _ in range(3)]
    for s in scripts:
        assert s.line() == "ready"
    for s in scripts:
        s.say("go")
    assert [s.end() for s in scripts] == [0, 0, 0]
    with open(path) as f:
        assert f.read() == "600"


def test_a_decorated_function_runs_under_the_lock(client: Client, connect: Connect) -> None:
    lock, other = client.lock("k"), connect().lock("k")

    @lock
    def work(n: int, *, more: int) -> int:
        """Say more."""
        assert lock.owned()
        assert other.acquire(blocking=False) is False
        return n + more if n == 0 else work(n - 1, more=more)

    assert work(2, more=3) == 3
    assert work.__doc__ == "Say more."
    assert not lock.owned()

    async def later() -> None: ...

    def some() -> Iterator[int]:
        yield 1

    for f in (later, some):  # they would run when the lock is released
        with pytest.raises(TypeError, match="does not run its body"):
            lock(f)


def test_ping(client: Client) -> None:
    assert 0 < client.ping() < 30


def test_a_closed_client_releases(connect: Connect, client: Client) -> None:
    closing = connect()
    lock = closing.lock("k")
    losses: list[locksidecar.LostError] = []
    other = closing.lock("k2", on_lost=losses.append)
    lock.acquire()
    other.acquire()
    closing.close()
    closing.close()
    assert not lock.owned()
    assert not losses
    with pytest.raises(locksidecar.NotHeld):
        lock.release()
    with pytest.raises(locksidecar.ConnectionLost):
        lock.acquire()
    assert client.lock("k").acquire(timeout=30)


def test_keys_of_every_kind(client: Client) -> None:
    for key in ("k", "ü" * 256, " a/b ", "\u00a0", "🔒" * 128, "k" * 512):
        with client.lock(key) as held:
            assert held.locked()
