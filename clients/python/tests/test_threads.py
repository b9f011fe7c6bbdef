"""Threads that share a client: shared state, connecting, a daemon that hangs, the end of the process."""

from __future__ import annotations

import _thread
import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import aio
import pytest
from daemon import BOUND, Daemon, Script, ask, until
from peer import FENCE, Background, Peer, ms

import locksidecar
from locksidecar import Client, LostError, Unavailable, _handle, _threads
from locksidecar import _wire as w

Connect = Callable[..., Client]


# ---- shared state ----


class Guarded(dict[Any, Any]):
    """A dict that fails if it is used without its lock."""

    mu: threading.Lock

    def __setitem__(self, key: Any, value: Any) -> None:
        assert self.mu.locked()
        super().__setitem__(key, value)

    def get(self, *args: Any) -> Any:
        assert self.mu.locked()
        return super().get(*args)

    def pop(self, *args: Any) -> Any:
        assert self.mu.locked()
        return super().pop(*args)

    def values(self) -> Any:
        assert self.mu.locked()
        return super().values()

    def clear(self) -> None:
        assert self.mu.locked()
        super().clear()


def test_guarded_state_is_used_under_its_lock(daemon: Daemon) -> None:
    client = Client(daemon.path)
    client.ping()
    conn = client._conn
    assert conn is not None
    for name in ("_pending", "_holds"):
        guarded = Guarded(getattr(conn, name))
        guarded.mu = conn._mu
        setattr(conn, name, guarded)
    lock, both = client.lock("k"), client.lock_many(["a", "b"])
    with lock, lock, both:
        assert Background(client.lock("k").acquire, True, 0.05).result() is False
        lock.extend()
        lock.downgrade()
    client.close()


@pytest.fixture
def switching() -> Iterator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_many_threads_share_a_connection(client: Client, connect: Connect) -> None:
    boss = connect()
    for n in range(4):
        boss.lock(f"election{n}", owner=1).acquire()
    elections = [client.election(f"election{n}", lambda _: None, lambda *_: None) for n in range(4)]
    for election in elections:
        election.start()  # requests that are answered late
    inside = [0] * 4

    def run(n: int) -> None:
        lock, own = client.lock(f"k{n % 4}"), client.lock_many([f"a{n}", f"b{n}"])
        for _ in range(100):
            with lock:
                inside[n % 4] += 1
                assert inside[n % 4] == 1
                inside[n % 4] -= 1
            with own:
                assert own.owned()

    for thread in [Background(run, n) for n in range(16)]:
        thread.result(120)
    for election in elections:
        election.stop()
    assert client._conn is not None
    assert not client._conn._holds
    assert not client._known._entries


# ---- connecting ----


def test_a_try_does_not_wait_for_others_that_connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    client = Client(tmp_path / "none")
    paused, go = threading.Event(), threading.Event()
    sleep, connecting = time.sleep, list[threading.Thread]()

    def connects() -> None:
        connecting.append(threading.current_thread())
        client.lock("a").acquire()

    def pause(seconds: float) -> None:
        if threading.current_thread() in connecting:
            paused.set()
            assert go.wait(BOUND)
        sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", pause)
        patch.setattr(_handle, "_PATIENCE", BOUND)
        waiting = Background(connects)
        assert paused.wait(BOUND)
        for kind in ({"blocking": False}, {"timeout": 0.01}):
            with pytest.raises(Unavailable, match="no daemon at"):
                Background(lambda kind=kind: client.lock("b").acquire(**kind)).result()
        assert waiting.running
        client._closed = True
        go.set()
        with pytest.raises(locksidecar.ConnectionLost):
            waiting.result()


def test_no_thread_can_be_started(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens when the interpreter shuts down, since Python 3.12."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    client = Client(daemon.path)
    fds = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        with pytest.raises(Unavailable, match="interpreter shutdown"):
            client.lock("k").acquire()
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable, match="interpreter shutdown"):
            client.lock("k", on_lost=print).acquire()
    assert len(os.listdir("/proc/self/fd")) == fds
    with client.lock("k"):
        pass
    client.close()


def test_the_first_use_at_exit(script: Callable[..., Script]) -> None:
    late = script("""
import atexit, locksidecar, sys
client = locksidecar.Client(sys.argv[1])
def bye():
    try:
        with client.lock("k"):
            print("held")
    except locksidecar.Unavailable:
        print("refused")
atexit.register(bye)
""")
    assert late.line() in ("held", "refused")  # 3.12 starts no thread then
    assert late.end() == 0


def test_a_client_that_is_thrown_away_releases_soon(
    daemon: Daemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_threads._Notifier, "every", lambda _: 1000.0)  # so that the keeper does not check by itself
    forgotten = Client(daemon.path)
    lock = forgotten.lock("k", owner=1)
    lock.acquire()
    del lock
    with pytest.warns(ResourceWarning, match=f"unclosed locksidecar.Client of {daemon.path}"):
        del forgotten
    assert client.lock("k").acquire(timeout=BOUND)


@pytest.mark.filterwarnings("error")
def test_a_client_that_was_closed_may_be_thrown_away(daemon: Daemon) -> None:
    client = Client(daemon.path)
    client.ping()
    client.close()
    del client
    gc.collect()


# ---- a daemon that hangs ----


def waits(client: Client, watcher: Client, key: str) -> Background:
    waiting = Background(client.lock(key).acquire)
    until("it waits", lambda: ask(watcher, w.INSPECT, key)[5] == 1)
    return waiting


def test_a_wait_without_bound_notices_a_daemon_that_hangs(daemon: Daemon, client: Client, connect: Connect) -> None:
    client.lock("k", owner=1).acquire()
    waiter = connect(timeout=1)
    lock = waiter.lock("other")
    lock.acquire()
    waiting = waits(waiter, client, "k")
    conn = waiter._conn
    assert conn is not None
    daemon.freeze()
    with pytest.raises(Unavailable, match="the daemon has not answered for 1 s") as e:
        waiting.result()
    assert type(e.value) is Unavailable
    assert conn.dead is not None
    assert not lock.owned()  # it belonged to that connection
    daemon.thaw()
    with pytest.raises(LostError, match="connection"):
        lock.release()
    with lock:  # and a new one is made
        assert lock.owned()


async def test_a_wait_without_bound_notices_it_under_asyncio(loop: aio.Loop, daemon: Daemon) -> None:
    holder, waiter = loop.client(daemon.path), loop.client(daemon.path, timeout=1)
    await holder.lock("k").acquire()
    waiting = asyncio.create_task(waiter.lock("k").acquire())
    await aio.waiters(holder, "k", 1)
    daemon.freeze()
    with pytest.raises(Unavailable, match="the daemon has not answered for 1 s"):
        await waiting
    daemon.thaw()
    async with waiter.lock("other"):
        pass


def test_an_election_notices_a_daemon_that_hangs(peer: Peer) -> None:
    election = Client(peer.path, "test", timeout=0.4).election("k", print, print)
    election.start()
    peer.welcome()
    peer.expect(w.ACQUIRE)
    peer.expect(w.PING)
    assert drained(peer) == ()
    peer.welcome()  # the campaign continues
    election.stop(wait=False)


def drained(peer: Peer) -> w.Message:
    """Answer nothing until the connection has ended."""
    while message := peer.read():
        assert message[0] in (w.PING, w.CANCEL), message
    return message


async def test_an_election_notices_it_under_asyncio(loop: aio.Loop, peer: Peer) -> None:
    election = loop.client(peer.path, timeout=0.4).election("k", print, print)
    election.start()
    await asyncio.to_thread(peer.welcome)
    await asyncio.to_thread(peer.expect, w.ACQUIRE)
    await asyncio.to_thread(peer.expect, w.PING)
    assert await asyncio.to_thread(drained, peer) == ()
    await asyncio.to_thread(peer.welcome)
    await election.stop()


def test_a_daemon_that_answers_is_waited_for(peer: Peer) -> None:
    client = Client(peer.path, "test", timeout=4)
    acquired = Background(client.lock("k", owner=7).acquire)
    peer.welcome()
    q = peer.expect(w.ACQUIRE)
    for _ in range(3):
        peer.say(0, peer.read()[1], ms())  # a ping
    assert acquired.running
    peer.say(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0)
    assert acquired.result() is True


def test_any_frame_spares_the_ping(peer: Peer) -> None:
    """Any frame shows that the daemon lives."""
    client = Client(peer.path, "test", timeout=BOUND)
    pinged = Background(client.ping)
    peer.welcome()
    peer.say(0, peer.expect(w.PING)[1], 1)
    pinged.result()
    conn = client._conn
    assert conn is not None
    conn.heard -= BOUND
    conn.listen(conn.catch_up)
    assert peer.read()[0] == w.PING
    sent = conn._pinged
    conn.heard = time.monotonic()  # as when a keepalive has come
    conn.listen(conn.catch_up)
    assert conn._pinged == sent
    assert conn.dead is None
