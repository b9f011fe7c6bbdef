"""Refused requests, and their errors."""

from __future__ import annotations

import copy
import datetime
import math
import os
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from daemon import Daemon

import locksidecar
import locksidecar.asyncio
from locksidecar import Client, redis_compat
from locksidecar import _wire as w


@pytest.mark.parametrize("key", ["", "k" * 513, "ü" * 257, "a\nb", "\x7f", "\x80", "\x9f", "\ud800"])
def test_bad_keys_are_refused_before_anything_is_sent(key: str) -> None:
    with pytest.raises(locksidecar.Invalid):
        Client("/nowhere").lock(key)


def test_a_key_is_text() -> None:
    with pytest.raises(TypeError):
        Client("/nowhere").lock(b"k")  # type: ignore[arg-type]


@pytest.mark.parametrize("ttl", [0, -1, math.inf, math.nan])
def test_bad_ttls_are_refused(ttl: float) -> None:
    with pytest.raises(locksidecar.Invalid):
        Client("/nowhere").lock("k", ttl=ttl)


@pytest.mark.parametrize("value", ["10m", "10", b"10", datetime.timedelta(seconds=10), [10]])
def test_a_time_is_a_number_of_seconds(value: Any) -> None:
    client, aio = Client("/nowhere"), locksidecar.asyncio.Client("/nowhere")
    lock = client.lock("k")
    for name, call in (
        ("ttl", lambda: client.lock("k", ttl=value)),
        ("ttl", lambda: client.lock_many(["k"], ttl=value)),
        ("ttl", lambda: client.election("k", print, print, ttl=value)),
        ("ttl", lambda: aio.lock("k", ttl=value)),
        ("keep", lambda: client.lock("k", keep=value)),
        ("timeout", lambda: client.lock("k", timeout=value)),
        ("timeout", lambda: lock.acquire(timeout=value)),
        ("timeout", lambda: lock.acquire(True, value)),
        ("timeout", lambda: Client("/nowhere", timeout=value)),
        ("timeout", lambda: redis_compat.Lock(client, "k", timeout=value).acquire()),
        ("blocking_timeout", lambda: redis_compat.Lock(client, "k", blocking_timeout=value).acquire()),
        ("blocking_timeout", lambda: redis_compat.Lock(client, "k").acquire(blocking_timeout=value)),
    ):
        with pytest.raises(TypeError, match=rf"^{name} is a number of seconds, not "):
            call()


def test_numbers_of_other_types_are_times(client: Client) -> None:
    for some in (Decimal("1.5"), Fraction(3, 2)):
        with client.lock("k", ttl=some, timeout=some):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("fence", [-1, 1 << 63, 1 << 64])
def test_bad_fences_are_refused(fence: int) -> None:
    client = Client("/nowhere")
    for call in (client.release_detached, lambda key, fence: client.force_unlock(key, fence=fence)):
        with pytest.raises(locksidecar.Invalid, match=r"^a fence is from 0 to 2\*\*63 - 1, not "):
            call("k", fence)


@pytest.mark.parametrize("fence", ["7", 7.0, True, None])
def test_a_fence_is_an_int(fence: Any) -> None:
    client = Client("/nowhere")
    for call in (client.release_detached, lambda key, fence: client.force_unlock(key, fence=fence)):
        with pytest.raises(TypeError, match=r"^a fence is an int, not "):
            call("k", fence)


def test_a_long_time_is_refused_by_the_daemon(client: Client) -> None:
    with pytest.warns(UserWarning, match="hours"), pytest.raises(locksidecar.Invalid, match="is longer than"):
        client.lock("k", ttl=1e300).acquire()


def test_callbacks_are_callable() -> None:
    bad: Any = "not a function"
    client = Client("/nowhere")
    for name, make in (
        ("on_lost", lambda: Client("/nowhere", on_lost=bad)),
        ("on_lost", lambda: client.lock("k", on_lost=bad)),
        ("on_lost", lambda: client.semaphore("k", 2, on_lost=bad)),
        ("on_lost", lambda: client.lock_many(["k"], on_lost=bad)),
        ("on_elected", lambda: client.election("k", bad, print)),
        ("on_lost", lambda: client.election("k", print, bad)),
    ):
        with pytest.raises(TypeError, match=f"^{name} must be callable, not 'not a function'$"):
            make()


def test_shared_is_true_or_false(client: Client) -> None:
    with client.lock("k", shared=2) as lock:  # type: ignore[arg-type]
        assert lock.mode == "shared"


@pytest.mark.parametrize("timeout", [1e10, math.inf])
def test_a_client_may_wait_for_ever(daemon: Daemon, timeout: float) -> None:
    with Client(daemon.path, timeout=w.Seconds(timeout)) as client, client.lock("k"):
        pass


def test_timeouts_have_the_manners_of_threading(client: Client) -> None:
    lock = client.lock("k")
    with pytest.raises(ValueError, match="non-blocking"):
        lock.acquire(False, 1)
    with pytest.raises(ValueError, match="non-negative"):
        lock.acquire(timeout=-2)
    with pytest.raises(ValueError, match="non-negative"):
        lock.acquire(timeout=math.nan)
    for timeout in (None, -1, math.inf, 1e300, 0.0001):
        assert lock.acquire(timeout=timeout)
        lock.release()


@pytest.mark.parametrize("owner", [-1, 1 << 32])
def test_bad_owners_are_refused(owner: int) -> None:
    with pytest.raises(locksidecar.Invalid):
        Client("/nowhere").lock("k", owner=owner)


def test_the_daemon_refuses_a_ttl_out_of_range(client: Client) -> None:
    with pytest.raises(locksidecar.Invalid):
        client.lock("k", ttl=90000).acquire()
    assert client.lock("k").acquire()  # and the connection stays open


def test_no_daemon() -> None:
    client = Client("/nowhere/at/all")
    for call in (client.ping, client.lock("k").locked, lambda: client.lock("k").acquire(blocking=False)):
        with pytest.raises(locksidecar.Unavailable, match="/nowhere/at/all"):
            call()
    lock = client.lock("k")
    with pytest.raises(locksidecar.Unavailable):
        lock.acquire()
    assert not lock.owned()
    with pytest.raises(locksidecar.NotHeld):
        lock.release()
    with pytest.raises(locksidecar.Unavailable), lock:
        pytest.fail("entered")


def test_with_raises_when_it_is_not_acquired(client: Client) -> None:
    with client.lock("k"), pytest.raises(locksidecar.NotAcquired), client.lock("k", timeout=0.01, owner=1):
        pytest.fail("entered")


def release_and_fail(lock: locksidecar.Lock) -> None:
    with lock:
        lock.release()  # so that the exit fails, too
        raise KeyError


def test_with_does_not_hide_the_bodys_error(client: Client) -> None:
    lock = client.lock("k")
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert not lock.owned()
    with pytest.raises(KeyError):
        release_and_fail(lock)


def test_with_says_that_the_body_was_not_protected(client: Client) -> None:
    lock = client.lock("k")
    with pytest.raises(locksidecar.NotHeld), lock:
        lock.release()


def test_where_the_daemon_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", "/named")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/xdg")
    assert Client()._path == "/named"
    assert Client("/given")._path == "/given"
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", "")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert Client()._path == "/xdg/locksidecar/locksidecar.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert Client()._path == "/run/locksidecar/locksidecar.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/xdg")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert Client()._path == "/run/locksidecar/locksidecar.sock"


def test_errors_can_be_sent_between_processes() -> None:
    lost = locksidecar.LostError("k", 5, 7, "gone")
    again = pickle.loads(pickle.dumps(lost))
    assert (again.key, again.fence, again.owner, again.reason, str(again)) == ("k", 5, 7, "gone", str(lost))


def test_clients_and_locks_stay_in_their_process() -> None:
    client = Client("/nowhere")
    for thing in (client, client.lock("k")):
        for send in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="another process"):
                send(thing)


def test_every_error_is_a_lock_error() -> None:
    for name in locksidecar.__all__:
        cls = getattr(locksidecar, name)
        if isinstance(cls, type) and issubclass(cls, Exception):
            assert issubclass(cls, locksidecar.LockError)
    assert issubclass(locksidecar.LostError, locksidecar.NotHeld)


def test_a_name_that_is_too_long_is_clipped(daemon: Daemon) -> None:
    with Client(daemon.path, "ü" * 100, label="l" * 200) as client:
        client.ping()
