"""Releases without an answer, kept locks, one of several locks, pairs, keyed decorators, questions about a hold."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Any

import aio
import pytest
from daemon import Daemon, until
from peer import FENCE, Background, Peer, ms

import locksidecar
from locksidecar import Client, Denied, Invalid, LostError, NotHeld, Upgrade
from locksidecar import _wire as w

Connect = Callable[..., Client]


def acquire(peer: Peer, lock: Any) -> int:
    """Acquire in this thread, and return the owner's number."""

    def serve() -> int:
        peer.welcome()
        return int(peer.grant(60_000)[3])

    serving = Background(serve)
    assert lock.acquire()
    owner: int = serving.result()
    return owner


# ---- releases without an answer ----


@pytest.mark.parametrize("by", ["client", "lock", "call", "many", "permit", "named"])
def test_a_release_without_an_answer(daemon: Daemon, connect: Connect, by: str) -> None:
    client = Client(daemon.path, confirm=by != "client")
    if by == "many":
        lock: Any = client.lock_many(["k", "other"], confirm=False)
    elif by == "permit":
        lock = client.semaphore("k", 2, confirm=False)
    else:
        lock = client.lock("k", confirm=False if by in ("lock", "named") else None, owner=7 if by == "named" else None)
    for _ in range(20):
        assert lock.acquire(timeout=60)
        assert lock.owned()
        if by == "call":
            lock.release(wait=False)
        else:
            lock.release()
        assert not lock.owned()
        with pytest.raises(NotHeld):
            lock.release()
    with lock, lock:
        pass
    assert client._conn is not None
    assert not client._conn._pending
    other = connect().semaphore("k", 2) if by == "permit" else connect().lock("k")
    assert other.acquire(timeout=60)
    client.close()


def test_the_frame_of_a_release_without_an_answer(peer: Peer) -> None:
    client = Client(peer.path, "test", confirm=False)
    lock = client.lock("k", owner=7)
    acquired = Background(lambda: lock.acquire() and lock.acquire())
    peer.welcome()
    peer.grant(60_000)
    acquired.result()
    lock.release()  # one of two: nothing is sent
    lock.release()
    assert peer.read()[:6] == (w.RELEASE, w.MAX_INT, "k", 7, FENCE, w.QUIET)


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize(("code", "reason"), [(3, "gone"), (7, "unconfirmed")])
def test_a_release_that_fails_later_is_a_loss(peer: Peer, code: int, reason: str, short: bool) -> None:
    losses: list[LostError] = []
    everywhere: list[LostError] = []
    client = Client(peer.path, "test", on_lost=everywhere.append)
    lock = client.lock("k", on_lost=losses.append, confirm=False, owner=None if short else 7)
    owner = acquire(peer, lock)
    lock.release()
    assert peer.expect(w.RELEASE)[1] == w.MAX_INT
    peer.say(64, 0, "k", owner, FENCE, 2)  # it crosses the release, and is not told
    for _ in range(2):  # a daemon says it once
        peer.say(68, 0, "k", owner, FENCE, code, "so")
    until("the loss is told", lambda: len(losses) == 1 and len(everywhere) == 1)
    assert (losses[0].key, losses[0].owner, losses[0].fence, losses[0].reason) == ("k", owner, FENCE, reason)


def test_a_release_that_fails_later_is_logged_without_on_lost(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    client = Client(peer.path, "test", confirm=False)
    lock = client.lock("k")
    owner = acquire(peer, lock)
    lock.release()
    with caplog.at_level(logging.WARNING, "locksidecar"):
        peer.say(68, 0, "k", owner, FENCE, 7, "so")
        until("it is logged", lambda: "unconfirmed" in caplog.text)


def test_a_lost_lock_is_not_released_without_an_answer(peer: Peer) -> None:
    client = Client(peer.path, "test", confirm=False)
    lock = client.lock("k")
    owner = acquire(peer, lock)
    peer.say(64, 0, "k", owner, FENCE, 1)
    until("it is lost", lambda: not lock.owned())
    with pytest.raises(LostError, match="expired"):
        lock.release()


async def test_a_release_without_an_answer_under_asyncio(loop: aio.Loop, daemon: Daemon) -> None:
    client = loop.client(daemon.path, confirm=False)
    lock = client.lock("k")
    for _ in range(20):
        async with lock:
            assert lock.owned()
        assert not lock.owned()
    await lock.acquire()
    await lock.release(wait=True)
    assert await loop.client(daemon.path).lock("k").acquire(blocking=False)


# ---- kept locks ----


def test_a_kept_lock_outlives_its_release(client: Client, connect: Connect) -> None:
    other = connect()
    lock = client.lock("k", keep=3600)
    lock.acquire()
    fence = lock.fence
    lock.release()
    assert not lock.owned()
    assert other.lock("k").acquire(blocking=False) is False
    with pytest.raises(NotHeld):
        other.release_detached("k", fence + 1)
    other.release_detached("k", fence)  # any process of the same user
    with other.lock("k"):
        pass


def test_a_kept_lock_outlives_its_client(daemon: Daemon, client: Client) -> None:
    first = Client(daemon.path)
    lock = first.lock("k", keep=3600)
    lock.acquire()
    fence = lock.fence
    first.close()
    assert client.lock("k").acquire(timeout=0.05) is False
    client.release_detached("k", fence)
    assert client.lock("k").acquire(timeout=60)


def test_a_kept_lock_opens_at_once_on_demand(client: Client, connect: Connect) -> None:
    lock = client.lock("k", keep=3600)
    lock.acquire()
    lock.release(now=True)
    assert connect().lock("k").acquire(blocking=False)


def test_a_lock_whose_keep_may_last_is_not_called_released(peer: Peer) -> None:
    """The end of the connection releases, but does not end the keep."""
    for now in (True, False):
        client = Client(peer.path, "test", timeout=60)
        lock = client.lock("k", keep=60, owner=7)
        acquired = Background(lock.acquire)
        peer.welcome()
        peer.grant(60_000)
        acquired.result()
        released = Background(lambda lock=lock, now=now: lock.release(now=now))
        peer.expect(w.RELEASE)
        peer.hang_up()
        if now:
            with pytest.raises(locksidecar.Unconfirmed, match="until its keep ends"):
                released.result()
        else:
            released.result()
        client.close()


@pytest.mark.parametrize("crosses", [True, False])
def test_a_kept_grant_that_nobody_wants_opens_at_once(peer: Peer, crosses: bool) -> None:
    client = Client(peer.path, "test", timeout=0.4 if crosses else 60)
    lock = client.lock("k", keep=60)
    acquired = Background(lambda: lock.acquire(blocking=False))
    peer.welcome()
    q = peer.expect(w.ACQUIRE)
    assert q[8:11] == (0, "", 60_000)
    if crosses:
        message = peer.read()
        while message[0] == w.PING:
            peer.say(0, message[1], 1)
            message = peer.read()
        assert message[:3] == (w.CANCEL, message[1], q[1])
    peer.say(0, q[1], FENCE, 0, ms() + (60_000 if crosses else -1), 1, 0, 0)
    message = peer.read()
    while message[0] != w.RELEASE:
        message = peer.read()
    assert message[2:] == ("k", q[3], FENCE, w.ASYNC | w.NOW)
    if crosses:
        with pytest.raises(locksidecar.Unavailable):
            acquired.result()
    else:
        assert acquired.result() is False


async def test_a_kept_lock_under_asyncio(loop: aio.Loop, daemon: Daemon) -> None:
    client = loop.client(daemon.path)
    async with client.lock("k", keep=3600) as held:
        fence = held.fence
    assert await client.lock("k").acquire(blocking=False) is False
    await client.release_detached("k", fence)
    lock = client.lock("k", keep=3600)
    assert await lock.acquire(blocking=False)
    await lock.release(now=True)
    assert await client.lock("k").acquire(blocking=False)


@pytest.mark.parametrize("keep", [0, -1, float("inf")])
def test_what_cannot_be_kept(client: Client, keep: float) -> None:
    with pytest.raises(Invalid, match="keep"):
        client.lock("k", keep=keep)


# ---- one of several ----


def test_only_one_lock_can_be_kept(client: Client) -> None:
    """A term that would have no effect is refused."""
    more: dict[str, Any] = {"keep": 600}
    for make in (
        lambda: client.lock_many(["k"], **more),
        lambda: client.lock_any(["k"], **more),
        lambda: client.semaphore("k", 1, **more),
    ):
        with pytest.raises(TypeError, match="keep"):
            make()
    with pytest.raises(TypeError, match="shared"):
        client.semaphore("k", 1, shared=True)  # type: ignore[call-arg, arg-type]


def test_the_answer_names_the_key(peer: Peer) -> None:
    client = Client(peer.path, "test")
    lock = client.lock_any(["a", "b", "c"])

    def serve() -> None:
        peer.welcome()
        q = peer.expect(w.ACQUIRE_ANY)
        assert q[2] == ("a", "b", "c")
        assert q[4:8] == (0, -1, 0, 0)
        peer.say(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0, 1)
        r = peer.expect(w.RELEASE)
        assert r[2:5] == ("b", q[3], FENCE)
        peer.say(0, r[1], 0)

    serving = Background(serve)
    with lock:
        assert lock.key == "b"
        assert lock.fence == FENCE
        assert lock.owned()
        with lock:
            assert lock.held_count == 2
    serving.result()
    with pytest.raises(NotHeld):
        _ = lock.key


def test_a_wait_for_one_of_several_is_withdrawn(peer: Peer) -> None:
    client = Client(peer.path, "test", timeout=0.4)
    acquired = Background(lambda: client.lock_any(["a", "b"]).acquire(timeout=0.01))
    peer.welcome()
    q = peer.expect(w.ACQUIRE_ANY)
    message = peer.read()
    while message[0] == w.PING:
        peer.say(0, message[1], 1)
        message = peer.read()
    assert message[0] == w.CANCEL
    assert message[2] == q[1]
    with pytest.raises(locksidecar.Unavailable):
        acquired.result()


def test_which_keys_one_can_be_of(client: Client) -> None:
    for keys in ([], ["a", "a"], [f"k{n}" for n in range(65)]):
        with pytest.raises(Invalid):
            client.lock_any(keys)
    with pytest.raises(TypeError):
        client.lock_any("abc")


# ---- pairs ----


def test_a_writer_reads_on(client: Client, connect: Connect) -> None:
    pair, other = client.read_write("k"), connect().read_write("k")
    pair.write.acquire()
    pair.read.acquire()
    assert pair.write.mode == pair.read.mode == "exclusive"
    assert pair.read.held_count == 2
    assert other.read.acquire(blocking=False) is False
    fence = pair.write.fence
    pair.write.release()
    mode: str | None = pair.read.mode
    assert mode == "shared"
    assert pair.read.fence == fence
    assert other.read.acquire(timeout=60)
    with pytest.raises(NotHeld, match="not for writing"):
        pair.write.release()
    with pytest.raises(Upgrade):
        pair.write.acquire(timeout=1)
    other.read.release()
    pair.read.release()
    assert other.write.acquire(timeout=60)
    with pytest.raises(NotHeld, match="not for reading"):
        other.read.release()


def test_a_pair_in_any_order(client: Client, connect: Connect) -> None:
    pair, other = client.read_write("k"), connect().lock("k")
    with pair.write:
        pair.read.acquire()
        pair.read.release()
        assert pair.write.mode == "exclusive"
        pair.write.downgrade()
        assert other.acquire(blocking=False) is False
    assert other.acquire(timeout=60)
    assert Background(lambda: pair.read.acquire(timeout=0.05)).result() is False


def test_a_pair_that_is_lost_is_released_as_often(client: Client) -> None:
    pair = client.read_write("k", ttl=0.3, renew=False)
    pair.write.acquire()
    pair.read.acquire()
    until("it is over", lambda: not pair.write.owned())
    for side in (pair.write, pair.read):
        with pytest.raises(LostError, match="fixed_end"):
            side.acquire()
        with pytest.raises(LostError, match="fixed_end"):
            side.release()
    with pair.write, pair.read:
        assert pair.read.owned()


async def test_a_pair_under_asyncio(loop: aio.Loop, daemon: Daemon) -> None:
    client, other = loop.client(daemon.path), loop.client(daemon.path)
    pair = client.read_write("k")
    async with pair.write:
        await pair.read.acquire()
    assert pair.read.mode == "shared"
    assert await other.lock("k", shared=True).acquire(timeout=60)
    await pair.read.release()
    assert not pair.read.owned()


# ---- decorators ----


def test_a_key_of_the_arguments(client: Client, connect: Connect) -> None:
    watcher = connect()

    @client.locked("order:{number}:{part}", timeout=60)
    def work(number: int, part: str = "all") -> tuple[int, str, bool]:
        return number, part, watcher.lock(f"order:{number}:{part}").locked()

    assert work(7) == (7, "all", True)
    assert work(number=8, part="x") == (8, "x", True)
    assert work.__name__ == "work"
    with pytest.raises(TypeError, match="no parameter 'order'"):
        client.locked("order:{order}")(work)
    with pytest.raises(TypeError, match="no parameter 'width'"):
        client.locked("order:{number:>{width}}")(work)
    with pytest.raises(TypeError, match="no parameter 'order'"):
        client.locked("order:{order}")(functools.partial(work, 7))
    with pytest.raises(TypeError, match="nonsense"):
        client.locked("order:{number}", nonsense=1)(work)

    async def later(number: int) -> None: ...

    class Later:
        async def __call__(self, number: int) -> None: ...

    for f in (later, Later()):
        with pytest.raises(TypeError, match="does not run its body"):
            client.locked("{number}")(f)
        with pytest.raises(TypeError, match="does not run its body"):
            client.lock("k")(f)


async def test_a_key_of_the_arguments_under_asyncio(loop: aio.Loop, daemon: Daemon) -> None:
    client = loop.client(daemon.path)

    @client.locked("order:{number}")
    async def work(number: int) -> bool:
        await asyncio.sleep(0)
        return bool(await client.lock(f"order:{number}").locked())

    assert await work(7)
    assert not await client.lock("order:7").locked()
    with pytest.raises(TypeError):
        client.locked("{number}")(lambda number: number)  # type: ignore[arg-type, return-value, unused-ignore]


# ---- questions ----


def test_what_a_handle_knows_of_its_hold(client: Client) -> None:
    lock = client.lock("k", ttl=60)
    assert (lock.held_count, lock.mode) == (0, None)
    with pytest.raises(NotHeld):
        lock.check()
    with lock, lock:
        assert (lock.held_count, lock.mode) == (2, "exclusive")
        lock.check()
        lock.downgrade()
        assert lock.mode == "shared"
        assert lock.inspect().holders_here == 1


def test_a_lost_lock_fails_its_check(client: Client) -> None:
    lock = client.lock("k", ttl=0.2, renew=False)
    lock.acquire()
    until("it is over", lambda: not lock.owned())
    with pytest.raises(LostError, match="fixed_end"):
        lock.check()
    assert lock.mode is None


# ---- operators ----


def test_an_operator_ends_holds(client: Client, connect: Connect) -> None:
    losses: list[LostError] = []
    lock = connect().lock("k", on_lost=losses.append)
    lock.acquire()
    assert client.force_unlock("k", fence=1) == 0
    assert client.force_unlock("k") == 1  # the tests run as the daemon's own user
    until("its holder is told", lambda: losses)
    assert losses[0].reason == "forced"
    assert client.force_unlock("k", semaphore=True) == 0


def test_only_an_operator_ends_holds(peer: Peer) -> None:
    client = Client(peer.path, "test")
    forced = Background(lambda: client.force_unlock("k", fence=9))
    peer.welcome()
    q = peer.expect(w.FORCE_UNLOCK)
    assert q[2:] == ("k", 0, 9)
    peer.say(12, q[1], "not an operator")
    with pytest.raises(Denied):
        forced.result()
