"""The drop-in for redis-py's Lock: the behavior of redis-py's own, and the differences."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import aio
import pytest
import redis
import redis.asyncio
from daemon import SRC, Daemon, ask, until
from peer import Background

import locksidecar
from locksidecar import _wire as w
from locksidecar import redis_compat
from locksidecar.redis_compat import Lock, LockError, LockNotOwnedError, Redis
from locksidecar.redis_compat import asyncio as redis_compat_asyncio

AsyncLock = redis_compat_asyncio.Lock
SEEN = (redis.exceptions.LockError, redis.exceptions.LockNotOwnedError)


@pytest.fixture
def r(shared: Daemon) -> Iterator[Redis]:
    """A Redis without a server: only its locks are used."""
    made = Redis(host="127.0.0.1", port=1)
    with locksidecar.Client(shared.path, "test") as made.sidecar:
        yield made


def test_acquire_and_release(r: Redis) -> None:
    lock = r.lock("foo")
    assert isinstance(lock, Lock)
    assert lock.local.token is None
    assert lock.acquire(blocking=False) is True
    assert isinstance(lock.local.token, bytes)
    assert lock.locked() is True
    assert lock.owned() is True
    assert lock.release() is None
    assert lock.local.token is None
    assert lock.locked() is False
    assert lock.owned() is False


def test_the_arguments_are_redis_pys(r: Redis) -> None:
    ours, theirs = Lock(r, "foo", 10, 0.2, False, 3, False, False), redis.lock.Lock(r, "foo", 10, 0.2, False, 3, False)
    for name in ("redis", "name", "timeout", "sleep", "blocking", "blocking_timeout", "thread_local"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for cls, original in ((Lock, redis.lock.Lock), (AsyncLock, redis.asyncio.lock.Lock)):
        for name in vars(original):
            if not name.startswith("_") and "lua" not in name.lower() and name != "register_scripts":
                assert hasattr(cls, name), name
    for kwargs in ({}, {"timeout": 5}, {"thread_local": False}, {"raise_on_release_error": False}):
        assert Redis.lock(r, "x", **kwargs).__dict__.keys() >= {"timeout", "thread_local"}


def test_the_version_is_redis_pys() -> None:
    assert redis_compat.__version__ == redis.__version__
    assert redis_compat.VERSION == redis.VERSION
    with pytest.raises(AttributeError):
        redis_compat.__no_such_name__  # noqa: B018


def test_a_timeout_out_of_range_is_called_timeout(r: Redis) -> None:
    for timeout in (-1, float("nan"), float("inf")):
        with pytest.raises(LockError, match=r"^timeout must be a positive number of seconds$"):
            r.lock("foo", timeout=timeout).acquire()


def test_a_client_from_a_sentinel_has_our_locks() -> None:
    sentinels: Any = (redis_compat.Sentinel([("127.0.0.1", 1)]), redis_compat_asyncio.Sentinel([("127.0.0.1", 1)]))
    for sentinel, kind in zip(sentinels, (Redis, redis_compat_asyncio.Redis), strict=True):
        for made in (sentinel.master_for("one"), sentinel.slave_for("one")):
            assert type(made) is kind
            assert isinstance(made.lock("foo"), (Lock, AsyncLock))
        assert type(sentinel.master_for("one", redis.Redis)) is redis.Redis


def test_a_token_of_ones_own(r: Redis) -> None:
    for thread_local in (True, False):
        for token in ("test", b"test"):
            lock = r.lock("foo", thread_local=thread_local)
            assert lock.acquire(blocking=False, token=token)
            assert lock.local.token == b"test"
            lock.release()
            assert lock.local.token is None


def test_who_has_the_token_owns(r: Redis) -> None:
    lock, other = r.lock("foo", timeout=10), r.lock("foo", timeout=10)
    lock.acquire()
    assert not other.owned()
    other.local.token = lock.local.token  # as in a program that passes its token on
    assert other.owned()
    other.extend(5)
    other.release()
    assert not lock.owned()
    with pytest.raises(LockNotOwnedError):
        lock.release()
    assert lock.local.token is None


def test_locks_compete_and_are_not_reentrant(r: Redis) -> None:
    one, two = r.lock("foo"), r.lock("foo")
    assert one.acquire(blocking=False)
    assert not two.acquire(blocking=False)
    assert not one.acquire(blocking=False)
    one.release()
    assert two.acquire(blocking=False)
    assert not one.acquire(blocking=False)
    two.release()


def test_each_thread_has_a_token_of_its_own(r: Redis) -> None:
    lock = r.lock("foo")
    lock.acquire()

    def elsewhere() -> None:
        assert lock.local.token is None
        assert not lock.owned()
        with pytest.raises(LockError):
            lock.release()
        assert lock.acquire(blocking=False) is False

    Background(elsewhere).result()
    lock.release()


def test_a_token_for_all_threads(r: Redis) -> None:
    lock = r.lock("foo", thread_local=False)
    lock.acquire()
    Background(lock.release).result()
    assert not lock.locked()


def test_blocking(r: Redis) -> None:
    one, two = r.lock("foo"), r.lock("foo", blocking_timeout=0.1)
    one.acquire()
    start = time.monotonic()
    assert two.acquire() is False
    assert time.monotonic() - start >= 0.1
    assert two.acquire(blocking_timeout=0.01) is False
    assert two.acquire(blocking_timeout=0) is False
    assert two.acquire(blocking_timeout=-1) is False
    assert r.lock("foo", blocking=False).acquire() is False
    waiter = Background(lambda: r.lock("foo", sleep=60).acquire(blocking=True))  # no polling: sleep is not used
    until("it waits", lambda: ask(r.sidecar, 7, "foo")[5] == 1)
    one.release()
    assert waiter.result() is True


def test_with(r: Redis) -> None:
    with r.lock("foo", blocking_timeout=0.2) as lock:
        assert lock.owned()
        with pytest.raises(LockError, match="within the time") as e, r.lock("foo", blocking_timeout=0.01):
            pytest.fail("entered")
        assert e.value.lock_name == "foo"
    assert not lock.locked()


def lose(lock: Any) -> None:
    with lock:
        until("it has expired", lambda: not lock.owned())


def release_twice(lock: Any) -> None:
    with lock:
        lock.release()


def test_with_when_the_lock_is_gone_at_its_end(r: Redis) -> None:
    lose(r.lock("foo", timeout=0.4, raise_on_release_error=False))
    with pytest.raises(LockNotOwnedError):
        lose(r.lock("foo", timeout=0.4))
    release_twice(r.lock("foo", raise_on_release_error=False))
    with pytest.raises(LockError):
        release_twice(r.lock("foo"))
    with pytest.raises(KeyError), r.lock("foo") as lock:  # noqa: PT012
        lock.release()
        raise KeyError  # and it is not hidden


def test_an_ended_lock_is_released_before_it_is_acquired_again(r: Redis) -> None:
    lock = r.lock("foo", timeout=0.4)
    with pytest.raises(LockNotOwnedError), lock:  # noqa: PT012
        until("it has expired", lambda: not lock.owned())
        for acquire in (lock.acquire, lambda: lock.acquire(blocking=False), lock.__enter__):
            with pytest.raises(LockNotOwnedError, match="fixed_end"):
                acquire()
        with r.lock("foo"):  # another Lock is another owner, as redis-py's is
            pass
        with pytest.raises(LockNotOwnedError, match="fixed_end"):
            lock.acquire()
    with lock:
        assert lock.owned()


def test_a_body_that_failed_hears_of_the_loss(r: Redis, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyError) as e, r.lock("foo", timeout=0.4) as lock:  # noqa: PT012
        until("it has expired", lambda: not lock.owned())
        raise KeyError
    if sys.version_info >= (3, 11):
        assert e.value.__notes__ == ["lock 'foo': lock 'foo' was lost: fixed_end"]
    assert [r.levelname for r in caplog.records] == ["WARNING"]


@pytest.mark.filterwarnings("error")
def test_a_long_timeout_is_in_seconds(r: Redis) -> None:
    with r.lock("foo", timeout=7200, blocking_timeout=7200) as lock:
        assert lock.extend(7200)


def test_unlocked(r: Redis) -> None:
    lock = r.lock("foo", timeout=10)
    for call in (lock.release, lambda: lock.extend(10), lock.reacquire):
        with pytest.raises(LockError) as e:
            call()
        assert type(e.value) is LockError
        assert e.value.lock_name == "foo"


def test_expired(r: Redis) -> None:
    lock = r.lock("foo", timeout=0.4)
    for call in (lambda: lock.extend(10), lock.reacquire, lock.release):
        lock.local.token = None
        lock.acquire()
        until("it has expired", lambda: not lock.locked())
        with pytest.raises(LockNotOwnedError):
            call()
    assert lock.local.token is None  # even though release has failed


def test_extend(r: Redis) -> None:
    lock = r.lock("foo", timeout=10)
    lock.acquire()
    assert 5 < left(lock) <= 10
    assert lock.extend(10) is True
    assert 15 < left(lock) <= 20
    lock.release()
    lock.acquire()
    assert lock.extend(30.5, replace_ttl=True) is True
    assert 25 < left(lock) <= 30.5
    lock.release()


def test_reacquire(r: Redis) -> None:
    lock = r.lock("foo", timeout=2)
    lock.acquire()
    until("some time is over", lambda: left(lock) < 1.9)
    assert lock.reacquire() is True
    assert left(lock) > 1.9
    lock.release()


def left(lock: Lock | AsyncLock) -> float:
    """Return the seconds until the lock's own end."""
    inner = lock._inner(lock.local.token)
    assert inner is not None
    hold = inner._kept()
    assert hold is not None
    return float((hold.end - w.now()) / 1e9)


def test_no_timeout_is_renewed_and_cannot_be_extended(r: Redis) -> None:
    lock = r.lock("foo")
    lock.acquire()
    for call in (lambda: lock.extend(10), lock.reacquire):
        with pytest.raises(LockError, match="no timeout") as e:
            call()
        assert type(e.value) is LockError
    lock.release()
    with r.lock("foo", timeout=0) as zero, pytest.raises(LockNotOwnedError):  # as redis-py
        zero.extend(1)


def test_users_except_clauses_catch(r: Redis) -> None:
    assert issubclass(LockError, redis.exceptions.LockError)
    assert issubclass(LockNotOwnedError, redis.exceptions.LockNotOwnedError)
    assert issubclass(LockNotOwnedError, LockError)
    assert issubclass(LockError, (ValueError, locksidecar.LockError))
    for cls in (LockError, redis_compat.ConnectionError, redis_compat.TimeoutError):
        assert issubclass(cls, redis.exceptions.RedisError)
        assert issubclass(cls, locksidecar.LockError)
    for clause in (redis.exceptions.LockError, redis.RedisError, ValueError, locksidecar.LockError):
        with pytest.raises(clause):
            r.lock("foo").release()
    with pytest.raises(redis.exceptions.LockError):
        r.lock("")
    with pytest.raises(redis.exceptions.LockError):
        r.lock("foo", timeout=1e6).acquire()
    gone = locksidecar.Client("/nowhere")
    with pytest.raises(redis.exceptions.ConnectionError):
        Lock(gone, "foo").acquire(blocking=False)
    with pytest.raises(redis.exceptions.ConnectionError):
        Lock(gone, "foo").locked()


def test_what_is_given_for_redis(shared: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_compat._common, "_defaults", {})
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", shared.path)
    plain = redis.Redis(port=1)
    with locksidecar.Client(shared.path) as client:
        locks = [
            Lock(client, "foo"),  # a client of the daemon
            Lock(plain, "foo"),  # a Redis of theirs: the daemon at the default socket
            plain.lock("foo", lock_class=Lock),
            Redis(port=1).lock(b"foo"),
            redis_compat.from_url("redis://localhost:1/0").lock("foo"),
            redis_compat.StrictRedis(port=1).lock(memoryview(b"foo")),
        ]
        with locks[0]:
            assert [lock.acquire(blocking=False) for lock in locks] == [False] * len(locks)
        for lock in locks:
            with lock:
                assert lock.owned()
    redis_compat._common._defaults[None].close()


def test_everything_else_is_redis_pys() -> None:
    assert redis_compat.ConnectionPool is redis.ConnectionPool
    assert redis_compat.exceptions.WatchError is redis.exceptions.WatchError
    assert redis_compat.RedisError is redis.RedisError
    assert redis_compat.asyncio.ConnectionPool is redis.asyncio.ConnectionPool
    assert issubclass(redis_compat.RedisCluster, redis.RedisCluster)
    assert issubclass(redis_compat.asyncio.Redis, redis.asyncio.Redis)
    with pytest.raises(AttributeError):
        _ = redis_compat.nothing_of_that_name


def test_locks_that_are_left_to_expire_are_forgotten(r: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(300):
        assert r.lock(f"once:{n}", timeout=3).acquire(blocking=False)
    handles = redis_compat._common.handles_of(r.sidecar)
    assert len(handles) == 300
    until("they have expired", lambda: not any(handle.owned() for handle in list(handles.values())))
    r.sidecar._conn.lapse(list(r.sidecar._conn._holds.values()), w.now())
    gc.collect()
    assert not handles


def test_an_ended_lock_is_refused_after_many_others(r: Redis) -> None:
    lock = r.lock("foo", timeout=0.4)
    with pytest.raises(LockNotOwnedError, match="fixed_end"), lock:  # noqa: PT012
        until("it has expired", lambda: not lock.owned())
        for n in range(300):
            assert r.lock(f"once:{n}", timeout=3).acquire(blocking=False)
        with pytest.raises(LockNotOwnedError, match="fixed_end"):
            lock.acquire()


def test_a_lock_that_ends_while_its_owner_waits_is_not_acquired_again(r: Redis) -> None:
    lock = r.lock("foo", timeout=0.4)
    with pytest.raises(LockNotOwnedError), lock:  # noqa: PT012
        with pytest.raises(LockNotOwnedError, match="fixed_end"):
            lock.acquire()  # waits until its own time is over
        assert not lock.owned()
        with r.lock("foo", blocking_timeout=60):  # nothing is left behind
            pass
        with pytest.raises(LockNotOwnedError, match="fixed_end"):
            lock.acquire()
    with lock:
        assert lock.owned()


def test_two_threads_release_with_one_token(r: Redis) -> None:
    for _ in range(20):
        lock, ends = r.lock("foo", thread_local=False), list[bool]()
        lock.acquire()
        token, start = lock.local.token, threading.Barrier(4)

        def release(lock: Lock = lock, token: bytes = token, ends: list[bool] = ends, start: Any = start) -> None:
            start.wait()
            try:
                lock.do_release(token)
                ends.append(True)
            except LockNotOwnedError:
                ends.append(False)

        for b in [Background(release) for _ in range(4)]:
            b.result()
        assert sorted(ends) == [False, False, False, True]


WITHOUT = """
import sys, asyncio
sys.modules["redis"] = None  # as if it were not installed
import locksidecar
from locksidecar import _wire as w
from locksidecar import redis_compat
from locksidecar.redis_compat import Redis, Lock, LockError, RedisError
from locksidecar.redis_compat import asyncio as aredis
from locksidecar.redis_compat.exceptions import LockNotOwnedError
with Redis(host="nowhere").lock("foo", timeout=10) as lock:
    assert lock.owned()
with redis_compat.Sentinel([("nowhere", 1)]).master_for("one").lock("foo") as lock:
    assert lock.owned()
try:
    lock.release()
except LockError as e:
    assert isinstance(e, (RedisError, ValueError)) and e.lock_name == "foo"
for use in (lambda: Redis().get("x"), lambda: redis_compat.ConnectionPool):
    try:
        use()
    except AttributeError:
        pass
    else:
        raise SystemExit("no error")
async def main():
    async with aredis.Redis().lock("foo", timeout=10) as lock:
        assert await lock.owned()
    await redis_compat._common.client_of(aredis.lock.Client, None).close()
asyncio.run(main())
print("done")
"""


def test_without_redis_py(shared: Daemon) -> None:
    env = {"PYTHONPATH": SRC, "LOCKSIDECAR_SOCKET": shared.path}
    out = subprocess.run([sys.executable, "-c", WITHOUT], env=env, capture_output=True, text=True, timeout=60)
    assert out.stdout == "done\n", out.stderr


def test_the_package_itself_does_not_import_redis() -> None:
    code = "import sys, locksidecar, locksidecar.asyncio; raise SystemExit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": SRC}, timeout=60).returncode == 0


# ---- asyncio ----


@pytest.fixture
def ar(loop: aio.Loop, shared: Daemon) -> redis_compat_asyncio.Redis:
    made = redis_compat_asyncio.Redis(host="127.0.0.1", port=1)
    made.sidecar = loop.client(shared.path)
    return made


Make = Callable[..., Any]


async def test_asyncio_acquire_extend_and_release(ar: redis_compat_asyncio.Redis) -> None:
    lock, other = ar.lock("foo", timeout=10), ar.lock("foo")
    assert isinstance(lock, AsyncLock)
    assert await lock.acquire(blocking=False, token="test") is True
    assert lock.local.token == b"test"
    assert await lock.locked() is True
    assert await lock.owned() is True
    assert await other.owned() is False
    assert await other.acquire(blocking=False) is False
    assert await other.acquire(blocking_timeout=0.05) is False
    assert await lock.acquire(blocking=False) is False  # not re-entrant
    assert await lock.extend(10) is True
    assert 15 < left(lock) <= 20
    assert await lock.reacquire() is True
    await asyncio.create_task(lock.release())
    assert lock.local.token is None
    assert await lock.locked() is False
    assert await other.acquire() is True
    with pytest.raises(LockError, match="no timeout"):
        await other.extend(10)
    await other.release()


async def test_asyncio_with(ar: redis_compat_asyncio.Redis) -> None:
    async with ar.lock("foo", timeout=10) as lock:
        assert await lock.owned()
        with pytest.raises(LockError, match="within the time"):
            async with ar.lock("foo", blocking_timeout=0.01):
                pytest.fail("entered")
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        async with ar.lock("foo", timeout=0.4) as lock:
            await aio.until("it has expired", lambda: gone(lock))
    async with ar.lock("foo", timeout=0.4, raise_on_release_error=False) as lock:
        await aio.until("it has expired", lambda: gone(lock))
    for call in (lock.release, lambda: lock.extend(1), lock.reacquire):
        with pytest.raises(redis.exceptions.LockError):
            await call()


async def test_asyncio_an_ended_lock_is_released_first(ar: redis_compat_asyncio.Redis) -> None:
    lock = ar.lock("foo", timeout=0.4)
    await lock.acquire()
    await aio.until("it has expired", lambda: gone(lock))
    for kind in ({}, {"blocking": False}):
        with pytest.raises(LockNotOwnedError, match="fixed_end"):
            await lock.acquire(**kind)
    with pytest.raises(LockNotOwnedError):
        await lock.release()
    async with lock:
        assert await lock.owned()


async def test_asyncio_a_lock_that_ends_while_its_owner_waits(ar: redis_compat_asyncio.Redis) -> None:
    lock = ar.lock("foo", timeout=0.4)
    await lock.acquire()
    with pytest.raises(LockNotOwnedError, match="fixed_end"):
        await lock.acquire()
    for n in range(300):
        assert await ar.lock(f"once:{n}", timeout=3).acquire(blocking=False)
    with pytest.raises(LockNotOwnedError, match="fixed_end"):
        await lock.acquire()
    async with ar.lock("foo", blocking_timeout=60):
        pass
    with pytest.raises(LockNotOwnedError):
        await lock.release()
    async with lock:
        assert await lock.owned()


async def gone(lock: AsyncLock) -> bool:
    return not await lock.locked()


async def test_asyncio_expired(ar: redis_compat_asyncio.Redis) -> None:
    lock = ar.lock("foo", timeout=0.4)
    for call in (lambda: lock.extend(10), lock.reacquire, lock.release):
        lock.local.token = None
        await lock.acquire()
        await aio.until("it has expired", lambda: gone(lock))
        with pytest.raises(LockNotOwnedError):
            await call()
    assert lock.local.token is None


async def test_asyncio_cancelled(ar: redis_compat_asyncio.Redis) -> None:
    lock, other = ar.lock("foo"), ar.lock("foo")
    await lock.acquire()
    waiting = asyncio.create_task(other.acquire())
    await aio.waiters(ar.sidecar, "foo", 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await aio.waiters(ar.sidecar, "foo", 0)
    release = asyncio.create_task(lock.release())
    release.cancel()
    with pytest.raises(asyncio.CancelledError):
        await release
    assert lock.local.token is None
    assert await other.acquire(blocking_timeout=60)  # redis-py#3847: it stayed locked
    await other.release()


def test_asyncio_default_client_follows_the_loop(shared: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", shared.path)
    theirs = redis.asyncio.Redis(port=1)

    async def use(close: bool) -> None:
        lock = AsyncLock(theirs, "foo", timeout=30)
        assert await lock.acquire(blocking_timeout=60)  # the last loop's is released
        if close:
            await redis_compat._common.client_of(redis_compat_asyncio.lock.Client, None).close()

    for close in (False, False, True):
        asyncio.run(use(close))
