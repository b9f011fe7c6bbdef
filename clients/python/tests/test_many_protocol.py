"""The requirements of PROTOCOL.md for several locks, against a daemon that sends what the test chooses."""

from __future__ import annotations

import pytest
from daemon import until
from peer import FENCE, Background, Peer, ms

import locksidecar
from locksidecar import Client, Locks, LostError
from locksidecar import _wire as w

KEYS = ["b", "a", "c"]
HELD = [(key, FENCE + n) for n, key in enumerate(KEYS)]


def held(peer: Peer, *lefts: int, losses: list[LostError] | None = None) -> tuple[Client, Locks]:
    """Make a client that holds the keys by grants that are valid for so many milliseconds."""
    client = Client(peer.path, "test", timeout=2)
    locks = client.lock_many(KEYS, owner=7, on_lost=None if losses is None else losses.append)
    acquired = Background(locks.acquire)
    peer.welcome()
    peer.grant_many(*(lefts or (60_000,) * 3))
    assert acquired.result() is True
    return client, locks


def pinged(client: Client, peer: Peer) -> None:
    ping = Background(client.ping)
    peer.say(0, peer.expect(w.PING)[1], 1)
    ping.result()


def test_the_frames_are_those_of_the_protocol(peer: Peer) -> None:
    client = Client(peer.path, "test", timeout=2)
    locks = client.lock_many(KEYS, ttl=5, renew=False, shared=True, owner=7)
    acquired = Background(locks.acquire, True, 1.5)
    peer.welcome()
    q = peer.grant_many(60_000, 60_000, 60_000)
    assert q == (8, 2, tuple(KEYS), 7, 1, 1500, 5000, 1)
    assert acquired.result() is True
    assert locks.fences == dict(HELD)
    assert list(locks.fences) == KEYS
    released = Background(locks.release)
    q = peer.expect(w.RELEASE_MANY)
    assert q == (9, 3, tuple(HELD), 7, 0)
    peer.say(0, 3, [0, 0, 0])
    released.result()


def test_they_are_valid_for_as_long_as_the_first_of_them(peer: Peer) -> None:
    _, locks = held(peer, 60_000, 20_000, 40_000)
    assert 15 < locks.remaining <= 20
    peer.say(65, 0, ms() + 50_000, 50_000)
    until("the keepalive is read", lambda: locks.remaining > 40)


def test_one_that_is_lost_is_the_loss_of_all(peer: Peer) -> None:
    losses: list[LostError] = []
    client, locks = held(peer, losses=losses)
    peer.say(64, 0, "a", 7, FENCE + 1, 4)
    until("on_lost is called", lambda: losses)
    assert (losses[0].key, losses[0].fence, losses[0].reason) == ("a", FENCE + 1, "forced")
    assert not locks.owned()
    assert locks.remaining == 0
    assert locks.fences == dict(HELD)
    pinged(client, peer)  # nothing was released: the others stay held
    peer.say(64, 0, "b", 7, FENCE, 2)
    pinged(client, peer)
    released = Background(locks.release)
    q = peer.expect(w.RELEASE_MANY)
    assert q[2] == (("c", FENCE + 2),)
    peer.say(0, q[1], [0])
    with pytest.raises(LostError, match="'a' was lost: forced"):  # the first one that was reported
        released.result()
    with pytest.raises(locksidecar.NotHeld):
        locks.release()
    assert len(losses) == 1


def test_each_acquire_of_what_was_lost_is_released(peer: Peer) -> None:
    client, locks = held(peer)
    assert locks.acquire()
    peer.say(64, 0, "a", 7, FENCE + 1, 1)
    pinged(client, peer)
    with pytest.raises(LostError):
        locks.release()
    released = Background(locks.release)
    assert peer.expect(w.RELEASE_MANY)[2] == (HELD[0], HELD[2])
    peer.hang_up()
    with pytest.raises(LostError, match="'a' was lost: expired"):
        released.result()


def test_lost_locks_are_acquired_again_after_their_release(peer: Peer) -> None:
    client, locks = held(peer)
    peer.say(64, 0, "b", 7, FENCE, 4)
    pinged(client, peer)
    for other in (locks, client.lock_many(["x", "b"], owner=7), client.lock("b", owner=7)):
        with pytest.raises(LostError, match="'b' was lost: forced"):
            other.acquire()
    released = Background(locks.release)
    q = peer.expect(w.RELEASE_MANY)
    assert q[2:] == (tuple(HELD[1:]), 7, 0)
    peer.say(0, q[1], [0, 0])
    q = peer.expect(w.RELEASE)
    assert q[2:] == ("b", 7, FENCE, w.ASYNC | w.ALL)  # opens the key of a hold that was ended by force
    peer.say(3, q[1], "lost")
    with pytest.raises(LostError, match="'b' was lost: forced"):
        released.result()
    acquired = Background(locks.acquire)
    peer.grant_many(60_000, 60_000, 60_000, fence=FENCE + 10)
    assert acquired.result() is True
    assert locks.fences["c"] == FENCE + 12


def test_silence_is_not_validity(peer: Peer) -> None:
    losses: list[LostError] = []
    _, locks = held(peer, 60_000, 300, 60_000, losses=losses)
    until("on_lost is called", lambda: losses)
    assert (losses[0].key, losses[0].reason) == ("a", "silence")
    assert not locks.owned()
    assert peer.expect(w.RELEASE)[2:5] == ("a", 7, FENCE + 1)  # no client believes any more that it holds this one


def test_grants_of_which_one_is_over_when_they_come_are_none(peer: Peer) -> None:
    client = Client(peer.path, "test", timeout=2)
    locks = client.lock_many(KEYS, owner=7)
    acquired = Background(locks.acquire)
    peer.welcome()
    peer.grant_many(60_000, 0, 60_000)
    assert peer.expect(w.RELEASE)[2:5] == ("a", 7, FENCE + 1)
    assert peer.expect(w.RELEASE_MANY)[2] == (HELD[0], HELD[2])
    peer.grant_many(60_000, 60_000, 60_000, fence=FENCE + 10)
    assert acquired.result() is True


def test_a_loss_before_acquire_has_returned_is_not_told_of(peer: Peer) -> None:
    losses: list[LostError] = []
    client = Client(peer.path, "test", timeout=2)
    acquired = Background(client.lock_many(KEYS, owner=7, on_lost=losses.append).acquire)
    peer.welcome()
    q = peer.expect(w.ACQUIRE_MANY)
    rows = [[FENCE + n, 60_000, ms() + 60_000, 1, 0, 0] for n in range(3)]
    peer.raw(w.frame(0, q[1], rows) + w.frame(64, 0, "c", 7, FENCE + 2, 2))
    assert peer.expect(w.RELEASE_MANY)[2] == tuple(HELD[:2])
    peer.grant_many(60_000, 60_000, 60_000, fence=FENCE + 10)
    assert acquired.result() is True
    assert not losses


def test_giving_up_cancels_and_grants_that_cross_that_are_given_back(peer: Peer) -> None:
    client = Client(peer.path, "test", timeout=0.2)
    locks = client.lock_many(KEYS, owner=7)
    acquired = Background(locks.acquire, True, 0.1)
    peer.welcome()
    q = peer.expect(w.ACQUIRE_MANY)
    c = peer.expect(w.CANCEL)
    with pytest.raises(locksidecar.Unavailable, match="not answered"):
        acquired.result()
    assert c[2:] == (q[1], "b")
    peer.say(0, q[1], [[FENCE + n, 60_000, ms() + 60_000, 1, 0, 0] for n in range(3)])
    peer.say(0, c[1], 0)
    q = peer.expect(w.RELEASE_MANY)
    assert q[2:] == (tuple(HELD), 7, w.ASYNC)
    peer.say(0, q[1], [0, 0, 0])
    assert not locks.owned()
    pinged(client, peer)
    assert client._conn is not None
    assert not client._conn._pending
    assert not client._conn._holds


FAILURES: list[tuple[list[int], type[Exception]]] = [
    ([0, 3, 0], LostError),
    ([7, 0, 0], locksidecar.Unconfirmed),
    ([7, 0, 3], LostError),
    ([7, 200, 0], locksidecar.LockError),
]


@pytest.mark.parametrize(("codes", "cls"), FAILURES)
def test_a_release_that_went_half_well(peer: Peer, codes: list[int], cls: type[Exception]) -> None:
    _, locks = held(peer)
    released = Background(locks.release)
    peer.say(0, peer.expect(w.RELEASE_MANY)[1], codes)
    with pytest.raises(cls) as e:
        released.result()
    assert type(e.value) is cls
    assert not locks.owned()


def test_with_ends_well_if_only_the_stores_confirmation_is_missing(peer: Peer) -> None:
    _, locks = held(peer)
    left = Background(locks.__exit__, None, None, None)
    peer.say(0, peer.expect(w.RELEASE_MANY)[1], [0, 7, 0])
    left.result()


def test_the_end_of_the_connection_is_release(peer: Peer) -> None:
    _, locks = held(peer)
    released = Background(locks.release)
    peer.expect(w.RELEASE_MANY)
    peer.hang_up()
    released.result()
    assert not locks.owned()


def test_a_release_that_is_not_answered(peer: Peer) -> None:
    client, locks = held(peer)
    assert client._conn is not None
    client._conn.timeout = 0.1
    with pytest.raises(locksidecar.Unconfirmed):
        locks.release()
    assert not locks.owned()


REFUSALS: list[tuple[int, tuple[object, ...], type[Exception]]] = [
    (4, (1,), locksidecar.Canceled),
    (5, (0,), locksidecar.Upgrade),
    (6, (2,), locksidecar.Unavailable),
    (8, (0,), locksidecar.Limit),
    (9, (), locksidecar.Invalid),
    (12, (), locksidecar.Denied),
    (16, (), locksidecar.Limit),
    (200, (None,), locksidecar.LockError),
]


@pytest.mark.parametrize(("code", "fields", "cls"), REFUSALS)
def test_every_failure_has_its_error(peer: Peer, code: int, fields: tuple[object, ...], cls: type[Exception]) -> None:
    locks = Client(peer.path, "test", timeout=2).lock_many(KEYS)
    acquired = Background(locks.acquire, False)
    peer.welcome()
    peer.say(code, peer.expect(w.ACQUIRE_MANY)[1], "why", *fields)
    with pytest.raises(cls, match="why") as e:
        acquired.result()
    assert type(e.value) is cls
    assert not locks.owned()


@pytest.mark.parametrize("rows", ["text", [], [[FENCE, 1, 1, 1, 0, 0]] * 2, [[FENCE, 1, 1, 1, 0]] * 3, [1, 2, 3]])
def test_grants_of_another_shape_end_the_connection(peer: Peer, rows: object) -> None:
    client = Client(peer.path, "test", timeout=2)
    locks = client.lock_many(KEYS)
    acquired = Background(locks.acquire)
    peer.welcome()
    peer.say(0, peer.expect(w.ACQUIRE_MANY)[1], rows)
    with pytest.raises(locksidecar.ProtocolError):
        acquired.result()
    assert not locks.owned()
    assert peer.read() == ()


@pytest.mark.parametrize("codes", ["text", [], [0, 0], [0, 0, 256], [0, 0, "ok"]])
def test_codes_of_another_shape_end_the_connection(peer: Peer, codes: object) -> None:
    client, locks = held(peer)
    conn = client._conn
    assert conn is not None
    released = Background(locks.release)
    peer.say(0, peer.expect(w.RELEASE_MANY)[1], codes)
    with pytest.raises(locksidecar.ProtocolError):
        released.result()
    assert isinstance(conn.dead, locksidecar.ProtocolError)


def test_a_failed_quiet_release_is_reported_also_after_a_loss(peer: Peer) -> None:
    """Nothing else would tell that a lock which was not lost may still be closed."""
    losses: list[LostError] = []
    client, locks = held(peer, losses=losses)
    peer.say(w.LOST, 0, "a", 7, FENCE + 1, 1)
    pinged(client, peer)
    with pytest.raises(LostError):
        locks.release(wait=False)
    for _ in range(2):
        q = peer.expect(w.RELEASE)
        peer.say(w.RELEASE_FAILED, 0, q[2], q[3], q[4], w.UNKNOWN)
    pinged(client, peer)
    until("both are reported", lambda: len(losses) > 1)
    assert [(e.key, e.reason) for e in losses] == [("a", "expired"), ("b", "unconfirmed")]
