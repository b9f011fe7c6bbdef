"""A child process owns nothing that its parent has."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable

import pytest
from daemon import BOUND, Daemon, until
from peer import Background, Peer, ms

import locksidecar
from locksidecar import Client, LostError, redis_compat
from locksidecar import _wire as w

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded")  # this is what is tested


class Child:
    """A forked child that runs a function. The test ends it."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.go, go = os.pipe()  # the child ends when the parent closes its end
        self.pid = os.fork()
        if self.pid == 0:
            os.close(go)
            code = 1
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # should it hang
            try:
                run()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(self.go)
        self._go = go

    def end(self) -> int:
        os.close(self._go)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def test_the_child_holds_nothing_and_connects_for_itself(client: Client) -> None:
    losses: list[LostError] = []
    lock, other = client.lock("k", on_lost=losses.append), client.lock("other")
    lock.acquire()

    def child() -> None:
        assert not lock.owned()
        assert lock.remaining == 0
        with pytest.raises(locksidecar.NotHeld):
            lock.release()
        assert lock.acquire(blocking=False) is False
        with other:
            assert other.owned()
        assert not losses

    assert Child(child).end() == 0
    assert lock.owned()  # whatever the child did, and after its end
    assert not losses
    lock.release()


def test_a_child_keeps_no_lock_of_its_parent(daemon: Daemon, client: Client) -> None:
    """The parent's connection ends with the parent, although the child lives."""
    parent = Client(daemon.path)
    lock = parent.lock("k")
    lock.acquire()
    ready, say = os.pipe()

    def child() -> None:
        os.write(say, b"x")
        os.read(ready_to_end, 1)

    ready_to_end, end = os.pipe()
    lives = Child(child)
    os.read(ready, 1)
    parent.close()
    assert client.lock("k").acquire(timeout=60)
    os.write(end, b"x")
    assert lives.end() == 0


def test_fork_while_other_threads_use_the_client(client: Client) -> None:
    stop = threading.Event()

    def work(n: int) -> None:
        while not stop.is_set():
            with client.lock(f"k{n}"):
                pass

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()

    def child() -> None:
        for _ in range(20):
            with client.lock("child"):
                pass
        client.close()

    try:
        for _ in range(10):
            assert Child(child).end() == 0
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert client.ping() > 0


def test_fork_while_another_thread_is_inside_the_client(client: Client) -> None:
    """A lock of a thread that is held at the fork stays held in the child."""
    lock = client.lock("k")
    lock.acquire()
    conn = client._conn
    assert conn is not None

    def child() -> None:
        assert not lock.owned()
        assert lock.acquire(blocking=False) is False

    with conn._role, conn._mu, conn._wlock, client._mu:
        forked = Child(child)
    assert forked.end() == 0


def test_fork_while_another_thread_connects(peer: Peer) -> None:
    client = Client(peer.path, timeout=30)
    pinged = Background(client.ping)
    peer.accept()  # and no welcome yet
    assert Child(sockets_are_closed).end() == 0
    peer.read()
    peer.say(0, 1, 1, 1, ms(), 65536, 100, 30000, 86400000, 1, [], "test")
    peer.say(0, peer.expect(w.PING)[1], 1)
    pinged.result()


def sockets_are_closed() -> None:
    connected = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(fd))) as s:
            connected += s.family == socket.AF_UNIX and s.getpeername() is not None and not s.getsockname()
    assert connected == 0


def test_a_child_hears_of_its_own_losses(client: Client) -> None:
    losses: list[LostError] = []
    lock = client.lock("k", ttl=0.2, renew=False, on_lost=losses.append)
    lock.acquire()
    until("the parent hears", lambda: losses)

    def child() -> None:
        losses.clear()
        assert lock.acquire(timeout=60)
        until("the child hears", lambda: losses)

    assert Child(child).end() == 0


def test_several_locks_are_not_the_childs(client: Client) -> None:
    losses: list[LostError] = []
    locks = client.lock_many(["a", "b"], on_lost=losses.append)
    locks.acquire()

    def child() -> None:
        assert not locks.owned()
        with pytest.raises(LostError, match="fork"):
            locks.release()
        assert locks.acquire(blocking=False) is False
        assert not losses

    assert Child(child).end() == 0
    assert locks.owned()
    locks.release()
    assert not losses


def test_a_with_block_that_the_child_leaves(client: Client) -> None:
    def child() -> None:
        with pytest.raises(LostError) as e:
            lock.__exit__(None, None, None)
        assert e.value.reason == "fork"

    with client.lock("k") as lock:
        assert Child(child).end() == 0
        assert lock.owned()


def test_a_fork_while_another_thread_makes_its_default_client(monkeypatch: pytest.MonkeyPatch) -> None:
    making, go = threading.Event(), threading.Event()

    class Slow(Client):
        def __init__(self) -> None:
            making.set()
            go.wait(BOUND)
            super().__init__()

    monkeypatch.setattr(redis_compat._common, "_defaults", {})
    parent = Background(redis_compat._common.client_of, Slow, None)
    assert making.wait(BOUND)
    child = Child(lambda: Background(redis_compat._common.client_of, Client, None).result())
    try:
        assert child.end() == 0
    finally:
        go.set()
    assert isinstance(parent.result(), Slow)
