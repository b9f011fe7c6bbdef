"""A real daemon, and everything that can happen to it and to its clients."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from daemon import Daemon, Script, ask, drains, until
from peer import Background

import locksidecar
from locksidecar import Client, LostError, _handle
from locksidecar import _wire as w

Connect = Callable[..., Client]

HOLDER = """
import sys, time, locksidecar
lock = locksidecar.Client(sys.argv[1]).lock("k")
lock.acquire()
print("held")
time.sleep(1000)
"""


def test_a_client_that_is_killed_has_released(client: Client, script: Callable[..., Script]) -> None:
    holder = script(HOLDER)
    assert holder.line() == "held"
    lock = client.lock("k")
    assert lock.acquire(blocking=False) is False
    holder.process.kill()
    assert lock.acquire(timeout=30)


def test_no_caller_hangs_when_the_daemon_goes(
    daemon: Daemon, client: Client, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_handle, "_PATIENCE", 0.2)  # the daemon does not come back
    held = client.lock("k")
    held.acquire()
    other = connect()
    waiters = [Background(other.lock("k").acquire) for _ in range(8)]
    until("they wait", lambda: ask(client, w.INSPECT, "k")[5] == 8)
    daemon.kill()
    for waiter in waiters:
        with pytest.raises(locksidecar.Unavailable):
            waiter.result()


def test_a_frozen_client_does_not_believe_that_it_holds(client: Client, script: Callable[..., Script]) -> None:
    code = """
import sys, locksidecar
client = locksidecar.Client(sys.argv[1])
lock = client.lock("k", ttl=0.5, renew=False)
lock.acquire()
print("held")
sys.stdin.readline()
print(lock.owned(), lock.remaining)
try:
    lock.release()
except locksidecar.LostError as e:
    print(e.reason == "fixed_end")
"""
    frozen = script(code)
    assert frozen.line() == "held"
    frozen.process.send_signal(signal.SIGSTOP)
    lock = client.lock("k")
    assert lock.acquire(timeout=60)  # its time is over
    frozen.process.send_signal(signal.SIGCONT)
    frozen.say("go")
    assert frozen.line() == "False 0.0"
    assert frozen.line() == "True"
    assert lock.owned()


def test_a_lock_that_is_not_renewed_ends(client: Client, connect: Connect) -> None:
    losses: list[LostError] = []
    lock = client.lock("k", ttl=0.3, renew=False, on_lost=losses.append)
    lock.acquire()
    assert lock.remaining <= 0.3
    assert connect().lock("k").acquire(timeout=60)
    assert not lock.owned()
    until("on_lost is called", lambda: losses)
    assert losses[0].reason == "fixed_end"
    with pytest.raises(LostError):
        lock.extend()
    with pytest.raises(LostError):
        lock.release()


def expire(lock: locksidecar.Lock) -> None:
    until("it has ended", lambda: not lock.owned())


def test_with_says_that_the_lock_was_lost(client: Client) -> None:
    lock = client.lock("k", ttl=1, renew=False)
    with pytest.raises(LostError), lock:
        expire(lock)
    with pytest.raises(KeyError):
        expire_and_fail(lock)
    with lock:  # and the handle still works
        assert lock.owned()


def expire_and_fail(lock: locksidecar.Lock) -> None:
    with lock:
        expire(lock)
        raise KeyError


def test_a_lost_lock_is_acquired_again_after_its_release(client: Client) -> None:
    lock = client.lock("k", ttl=1, renew=False)
    lock.acquire()
    fence = lock.fence
    expire(lock)
    with pytest.raises(LostError, match="fixed_end"):
        lock.release()
    assert lock.acquire(timeout=60)
    assert lock.fence > fence
    lock.release()


def test_on_lost_may_use_the_client(client: Client) -> None:
    done = threading.Event()

    def again(lost: LostError) -> None:
        with client.lock(lost.key, timeout=60) as held:
            assert held.fence > lost.fence
            done.set()

    client.lock("k", ttl=0.2, renew=False, on_lost=again).acquire()
    assert done.wait(60)


def test_on_lost_that_fails_is_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    seen = threading.Event()

    def fail(lost: LostError) -> None:
        seen.set()
        raise KeyError

    client.lock("a", ttl=0.2, renew=False, on_lost=fail).acquire()
    assert seen.wait(60)
    until("it is logged", lambda: "on_lost failed" in caplog.text)
    losses: list[LostError] = []
    client.lock("b", ttl=0.2, renew=False, on_lost=losses.append).acquire()
    until("the next one is told of", lambda: losses)


def test_a_stopping_daemon_lets_holders_finish(idle: Daemon) -> None:
    idle.start("--drain", "30s")
    with Client(idle.path) as client:
        lock = client.lock("k")
        lock.acquire()
        idle.signal(signal.SIGTERM)
        until("it drains", lambda: drains(client))
        assert lock.owned()
        lock.release()
        assert idle.process is not None
        assert idle.process.wait(30) == 0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_nothing_is_left_of_a_closed_client(daemon: Daemon) -> None:
    before = descriptors(), threads()
    for _ in range(20):
        client = Client(daemon.path)
        client.lock("k", on_lost=print).acquire()
        client.close()
    until("descriptors are closed and threads have ended", lambda: (descriptors(), threads()) == before)


def test_a_forgotten_client_releases(daemon: Daemon, client: Client) -> None:
    before = descriptors()
    forgotten = Client(daemon.path)
    lock = forgotten.lock("k", on_lost=print)
    lock.acquire()
    del lock, forgotten
    gc.collect()
    assert client.lock("k").acquire(timeout=60)
    until("its descriptor is closed", lambda: descriptors() == before + 1)


def test_a_forgotten_client_whose_on_lost_knows_it(daemon: Daemon) -> None:
    """Also if it has released without waiting, so that a failure may still be reported."""

    def use() -> weakref.ref[Client]:
        forgotten = Client(daemon.path, confirm=False)
        lock = forgotten.lock("k", on_lost=lambda _: forgotten.close())
        for _ in range(3):
            lock.acquire()
            lock.release()
        return weakref.ref(forgotten)

    left = use()  # the thread that reads may just have the connection
    until("it is forgotten", lambda: gc.collect() >= 0 and left() is None)


def test_on_lost_that_exits_its_thread_does_not_hide_later_losses(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def lost(why: LostError) -> None:
        told.append(why.key)
        raise SystemExit

    for key in ("a", "b"):
        client.lock(key, on_lost=lost).acquire()
        client.force_unlock(key)
        until(f"the loss of {key} is told", lambda key=key: key in told)  # type: ignore[misc]
    until("both are logged", lambda: len(caplog.records) == 2)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", ["lock", "many", "any", "permit", "client", "named"])
def test_a_forgotten_client_whose_on_lost_knows_it_and_that_holds(daemon: Daemon, client: Client, kind: str) -> None:
    before = descriptors()

    def use() -> weakref.ref[Client]:
        def lost(_: LostError) -> None:
            forgotten.close()

        forgotten = Client(daemon.path, on_lost=lost if kind == "client" else None)
        make: dict[str, Callable[[], Any]] = {
            "lock": lambda: forgotten.lock("k", on_lost=lost),
            "many": lambda: forgotten.lock_many(["k", "other"], on_lost=lost),
            "any": lambda: forgotten.lock_any(["k"], on_lost=lost),
            "permit": lambda: forgotten.semaphore("k", 1, on_lost=lost),
            "client": lambda: forgotten.lock("k"),
            "named": lambda: forgotten.lock("k", owner=7, on_lost=lost),
        }
        lock = make[kind]()
        for _ in range(2):  # the second acquire takes the shortest path
            assert lock.acquire(timeout=60)
            lock.release()
        lock.acquire()
        return weakref.ref(forgotten)

    left = use()
    until("it is forgotten", lambda: gc.collect() >= 0 and left() is None)
    other = client.semaphore("k", 1) if kind == "permit" else client.lock("k")
    assert other.acquire(timeout=60)
    until("its descriptor is closed", lambda: descriptors() == before + 1)
