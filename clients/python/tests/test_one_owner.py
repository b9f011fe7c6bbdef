"""Threads that share an owner: each release ends a different hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from daemon import until
from peer import FENCE, Background, Peer

from locksidecar import Client, LostError, NotHeld
from locksidecar import _wire as w

Connect = Callable[..., Client]


def meanwhile(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, do: Callable[[], object], after: bool) -> None:
    """Make another thread do something at the next call of a function, before or after it."""
    real = getattr(target, name)

    def call(*args: Any) -> Any:
        monkeypatch.setattr(target, name, real)
        found = real(*args) if after else None
        Background(do).result()
        return found if after else real(*args)

    monkeypatch.setattr(target, name, call)


def test_two_threads_release_permits_of_one_owner(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    permits = client.semaphore("s", 3, owner="handle")
    for _ in range(3):
        permits.acquire()
    meanwhile(monkeypatch, permits, "_mine", permits.release, after=True)
    permits.release()  # it finds the permit that the other thread has just released
    assert permits.holders() == 1
    permits.release()
    with pytest.raises(NotHeld) as e:
        permits.release()
    assert type(e.value) is NotHeld


def test_two_threads_hear_of_the_loss_of_a_permit_each(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(peer.path, "test")
    permits = client.semaphore("s", 2, owner="handle")
    acquired = Background(lambda: [permits.acquire() for _ in range(2)])
    peer.welcome()
    owners = [peer.grant(60_000, fence=FENCE + n)[3] for n in range(2)]
    acquired.result()
    for n, owner in enumerate(owners):
        peer.say(64, 0, "s", owner, FENCE + n, 4)
    until("they are lost", lambda: all(hold.lost for hold in permits._all()))
    heard: list[int] = []

    def release() -> None:
        with pytest.raises(LostError) as e:
            permits.release()
        heard.append(e.value.fence)

    meanwhile(monkeypatch, permits, "_mine", release, after=True)
    release()
    assert heard == [FENCE + 1, FENCE]
    assert [peer.expect(w.RELEASE)[4] for _ in range(2)] == heard
    with pytest.raises(NotHeld) as e:
        permits.release()
    assert type(e.value) is NotHeld


def test_two_threads_release_what_one_has_acquired(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for lock in (client.lock("k", owner="handle"), client.lock_many(["k", "j"], owner="handle")):
        lock.acquire()
        meanwhile(monkeypatch, lock, "_mine", lock.release, after=True)
        with pytest.raises(NotHeld) as e:
            lock.release()
        assert type(e.value) is NotHeld
        with lock:
            assert lock.owned()


def test_threads_share_the_permits_of_a_handle(client: Client) -> None:
    permits = client.semaphore("s", 4, owner="handle")

    def work() -> None:
        for _ in range(100):
            with permits:
                pass

    for thread in [Background(work) for _ in range(4)]:
        thread.result()
    assert permits.holders() == 0


def test_one_of_several_is_entered_again_while_all_are_released(
    client: Client, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, one = client.lock_many(["j", "k"], owner=7), client.lock("k", owner=7)
    both.acquire()
    assert client._conn is not None
    meanwhile(monkeypatch, client._conn, "count_down", one.acquire, after=False)
    both.release()
    assert one.owned()
    assert connect().lock("k").acquire(blocking=False) is False
    assert connect().lock("j").acquire(blocking=False) is True
    one.release()
    assert connect().lock("k").acquire(blocking=False) is True
