"""The requirements of PROTOCOL.md for a client, against a daemon that sends what the test chooses."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

import pytest
from daemon import BOUND, until
from peer import FENCE, Background, Peer, ms

import locksidecar
from locksidecar import Client, Lock, LostError
from locksidecar import _wire as w
from locksidecar._hold import Call, Hold


def held(peer: Peer, left: int = 60_000, **more: int) -> tuple[Client, Lock]:
    """Make a client that holds k by a grant that is valid for left milliseconds."""
    client = Client(peer.path, "test", timeout=2)
    lock = client.lock("k", owner=7)
    acquired = Background(lock.acquire)
    peer.welcome(more.get("ahead", 0))
    peer.grant(left, **more)
    assert acquired.result() is True
    return client, lock


def test_requests_on_the_wire(peer: Peer) -> None:
    client = Client(peer.path, "me", label="l", timeout=2)
    peer_side = Background(peer.accept)
    lock = client.lock("k", ttl=1.5, renew=False, shared=True, owner=7)
    acquired = Background(lock.acquire, True, 0.25)
    peer_side.result()
    assert peer.read() == (1, 1, 1, 1, "me", "l")
    peer.say(0, 1, 1, 5, ms(), 65536, 100, 30000, 86400000, 1, [], "test")
    assert peer.read() == (2, 2, "k", 7, 1, 250, 1500, 1)
    peer.say(0, 2, FENCE, 1000, ms() + 60_000, 1, ms() + 60_000, 0)
    assert acquired.result()
    extended = Background(lock.extend, 2)
    assert peer.read() == (4, 3, "k", 7, FENCE, 2000)
    peer.say(0, 3, FENCE, 1000, ms() + 60_000, 1, ms() + 60_000, 0)
    extended.result()
    changed = Background(lock.downgrade)
    assert peer.read() == (5, 4, "k", 7, FENCE)
    peer.say(0, 4, FENCE, 1000, ms() + 60_000, 1, ms() + 60_000, 0)
    changed.result()
    asked = Background(lock.locked)
    assert peer.read() == (7, 5, "k")
    peer.say(0, 5, 1, 0, 1, 0, -1, FENCE)
    assert asked.result() is True
    released = Background(lock.release)
    assert peer.read() == (3, 6, "k", 7, FENCE, 0)
    peer.say(0, 6, 0)
    released.result()
    pinged = Background(client.ping)
    assert peer.read() == (10, 7)
    peer.say(0, 7, ms())
    assert pinged.result() > 0


def test_a_refused_downgrade_leaves_it_exclusive(peer: Peer) -> None:
    """It is shared from the request on, because the daemon admits readers before its answer comes."""
    _, lock = held(peer)
    for code, mode in ((6, "exclusive"), (0, "shared"), (6, "shared")):
        changed = Background(lock.downgrade)
        q = peer.expect(w.DOWNGRADE)
        assert lock.mode == "shared"
        if code:
            peer.say(code, q[1], "no")
            with pytest.raises(locksidecar.Unavailable):
                changed.result()
        else:
            peer.say(0, q[1], FENCE, 1000, ms() + 60_000, 1, 0, 0)
            changed.result()
        assert lock.mode == mode


def test_frames_come_in_pieces_and_together(peer: Peer) -> None:
    client, lock = held(peer)
    pinged = Background(client.ping)
    q = peer.expect(w.PING)
    for byte in w.frame(65, 0, ms() + 90_000, 90_000) + w.frame(0, q[1], 1):
        peer.raw(bytes([byte]))
    pinged.result()
    assert lock.remaining > 80
    peer.raw(w.frame(65, 0, ms() + 120_000, 1) + w.frame(99, 0, {"later": None}) + w.frame(64, 0, "k", 7, FENCE, 1))
    until("lost is read without a caller", lambda: not lock.owned())


def test_a_beat_extends_what_was_granted_before_it(peer: Peer) -> None:
    client, first = held(peer, left=20_000)
    peer.say(65, 0, ms() + 50_000, 50_000)
    second = client.lock("other", owner=8)
    acquired = Background(second.acquire)
    peer.grant(20_000, fence=FENCE + 1)
    acquired.result()
    assert first.remaining > 40
    assert second.remaining <= 20
    peer.say(65, 0, ms() + 1_000, 1_000)  # it never shortens anything
    peer.say(65, 0, ms() + 90_000, 90_000)
    until("both are extended", lambda: second.remaining > 80)
    assert first.remaining > 80


def test_a_beat_does_not_extend_a_fixed_hold_beyond_its_end(peer: Peer) -> None:
    _, lock = held(peer, left=5_000, end=ms() + 30_000)
    peer.say(65, 0, ms() + 90_000, 90_000)
    until("it is extended", lambda: lock.remaining > 10)
    assert lock.remaining <= 30


def test_silence_is_not_validity(peer: Peer) -> None:
    losses: list[LostError] = []
    client = Client(peer.path, "test", timeout=2)
    lock = client.lock("k", owner=7, on_lost=losses.append)
    acquired = Background(lock.acquire)
    peer.welcome()
    peer.grant(300)
    acquired.result()
    until("it has lapsed", lambda: not lock.owned())
    until("on_lost is called", lambda: losses)
    assert losses[0].reason == "silence"
    q = peer.expect(w.RELEASE)  # otherwise the daemon would continue to renew it
    assert q[2:5] == ("k", 7, FENCE)
    peer.say(65, 0, ms() + 60_000, 60_000)
    peer.expect(w.PING)  # the answer to the keepalive
    pinged = Background(client.ping)
    q = peer.expect(w.PING)
    peer.say(0, q[1], 1)
    pinged.result()
    assert not lock.owned()  # and stays lost, because a caller was told so
    with pytest.raises(LostError):
        lock.release()


@pytest.mark.parametrize(("renew", "reason"), [(True, "too_long"), (False, "fixed_end")])
def test_what_the_end_of_a_lock_is_called(peer: Peer, renew: bool, reason: str) -> None:
    losses: list[LostError] = []
    client = Client(peer.path, "test", timeout=2)
    lock = client.lock("k", renew=renew, owner=7, on_lost=losses.append)
    acquired = Background(lock.acquire)
    peer.welcome()
    peer.grant(60_000, end=ms() + 500)
    acquired.result()
    with contextlib.suppress(LostError):  # too slow
        client.lock("k", renew=not renew, owner=7).acquire()  # a re-entry does not change it
    until("it has come to its end", lambda: not lock.owned())
    until("on_lost is called", lambda: losses)
    assert losses[0].reason == reason
    assert peer.expect(w.RELEASE)[2:5] == ("k", 7, FENCE)
    with pytest.raises(LostError, match=reason):
        lock.release()


@pytest.mark.parametrize("ask", ["owned", "remaining"])
def test_nothing_revives_a_lock_that_was_called_not_owned(peer: Peer, ask: str) -> None:
    client = Client(peer.path, "test", timeout=2)
    lock = client.lock("k", owner=7)
    acquired = Background(lock.acquire)
    peer.welcome()
    peer.grant(300)
    acquired.result()
    until("it has run out", lambda: not (lock.owned() if ask == "owned" else lock.remaining))
    peer.say(65, 0, ms() + 60_000, 60_000)
    q = peer.expect(w.RELEASE)  # otherwise the daemon would continue to renew it
    assert q[2:5] == ("k", 7, FENCE)
    assert not lock.owned()
    with pytest.raises(LostError, match="silence"):
        lock.release()


@pytest.mark.parametrize(
    ("reason", "name"), [(1, "expired"), (2, "gone"), (3, "fixed_end"), (4, "forced"), (5, "session"), (6, "shutdown")]
)
def test_a_loss_is_told_of_once(peer: Peer, reason: int, name: str) -> None:
    losses: list[LostError] = []
    told: list[LostError] = []
    client = Client(peer.path, "test", timeout=2)
    lock = client.lock("k", owner=7, on_lost=losses.append)
    again = client.lock("k", owner=7, on_lost=told.append)
    last = client.lock("last", owner=7, on_lost=losses.append)
    acquired = Background(lock.acquire)
    peer.welcome()
    peer.grant(60_000)
    acquired.result()
    assert again.acquire()
    acquired = Background(last.acquire)
    peer.grant(60_000)
    acquired.result()
    peer.say(64, 0, "k", 7, FENCE, reason)
    peer.say(64, 0, "k", 7, FENCE, reason)
    peer.say(67, 0, 11, "the daemon is stopping")
    until("the last is told of", lambda: len(losses) > 1)
    assert [(e.key, e.fence, e.owner, e.reason) for e in losses] == [
        ("k", FENCE, 7, name),
        ("last", FENCE, 7, "connection"),
    ]
    assert [e.reason for e in told] == [name]
    with pytest.raises(LostError, match=name):
        lock.release()


def test_a_loss_before_acquire_has_returned_is_not_told_of(peer: Peer) -> None:
    losses: list[LostError] = []
    client = Client(peer.path, "test", timeout=2)
    lock = client.lock("k", owner=7, on_lost=losses.append)
    acquired = Background(lock.acquire)
    peer.welcome()
    q = peer.expect(w.ACQUIRE)
    peer.raw(w.frame(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0) + w.frame(64, 0, "k", 7, FENCE, 2))
    peer.grant(60_000, fence=FENCE + 1)
    assert acquired.result() is True
    peer.say(64, 0, "k", 7, FENCE + 1, 4)
    until("on_lost is called", lambda: losses)
    assert [(e.fence, e.reason) for e in losses] == [(FENCE + 1, "forced")]


def test_a_hold_that_the_daemon_does_not_know_is_lost(peer: Peer) -> None:
    _, lock = held(peer)
    extended = Background(lock.extend)
    peer.say(3, peer.expect(w.RENEW)[1], "why")
    with pytest.raises(LostError):
        extended.result()
    assert not lock.owned()


def test_a_beat_that_has_arrived_counts_though_nobody_has_read_it(peer: Peer) -> None:
    """The whole process was stopped for longer than the TTL."""
    client, lock = held(peer, left=200)
    assert client._conn is not None
    with client._conn._role:  # no thread reads
        peer.say(65, 0, ms() + 60_000, 60_000)
        hold = lock._mine()
        assert hold is not None
        until("the grant's own validity is over", lambda: not hold.owned())  # no caller has asked
    assert lock.owned()
    assert lock.remaining > 30
    released = Background(lock.release)
    peer.released()
    released.result()


def test_a_reply_that_never_comes_is_not_awaited_for_ever_among_others(peer: Peer) -> None:
    client, _ = held(peer)
    client._conn.timeout = 0.3
    pinged = Background(client.ping)
    peer.expect(w.PING)
    end = time.monotonic() + BOUND
    while pinged.running and time.monotonic() < end:  # other messages come all the time
        peer.say(200, 0)
    with pytest.raises(locksidecar.Unavailable, match="not answered"):
        pinged.result()


def test_acquires_are_asked_again_while_the_daemon_goes_away(peer: Peer) -> None:
    client = Client(peer.path, "test", timeout=2)
    lock = client.lock("k", owner=7)
    acquired = Background(lock.acquire, True, 60)
    peer.welcome()
    peer.say(66, 0, 30_000, "the daemon is stopping")
    peer.say(11, peer.expect(w.ACQUIRE)[1], "going away")
    peer.say(11, peer.expect(w.ACQUIRE)[1], "going away")
    peer.say(67, 0, 11, "the daemon is stopping")
    peer.welcome()
    peer.grant(60_000)
    assert acquired.result() is True


@pytest.mark.parametrize("ahead", [1_000_000, -1_000_000, 1 << 40])
def test_a_daemon_with_another_clock(peer: Peer, ahead: int) -> None:
    _, lock = held(peer, left=20_000, ahead=ahead + 2_000_000)
    assert 15 < lock.remaining <= 20


def test_clocks_are_one_only_if_that_is_sure() -> None:
    assert w.shift(100, 100, 100) == 0
    assert w.shift(100, 150, 200) == 0
    assert w.shift(100, 150, 201) == -51  # it took long, so the clocks may be different
    assert w.shift(100, 99, 200) == 0
    assert w.shift(100, 201, 200) == -102
    # The daemon's clock is 7 behind. It states a deadline of 1000 at its time 500; here, that is at 507 to 508.
    assert 1000 + w.shift(506, 500, 900) <= 1000 + 7


def test_lost_of_another_fence_is_ignored(peer: Peer) -> None:
    client, lock = held(peer)
    peer.say(64, 0, "k", 7, FENCE - 1, 1)
    peer.say(64, 0, "k", 8, FENCE, 1)
    peer.say(64, 0, "unknown", 7, FENCE, 1)
    pinged = Background(client.ping)
    q = peer.expect(w.PING)
    peer.say(0, q[1], 1)
    pinged.result()
    assert lock.owned()
    peer.say(64, 0, "k", 7, FENCE, 99)
    until("it is lost", lambda: not lock.owned())
    with pytest.raises(LostError, match="reason 99"):
        lock.release()


def test_giving_up_cancels(peer: Peer) -> None:
    client = Client(peer.path, "test", timeout=0.2)
    lock = client.lock("k", owner=7)
    acquired = Background(lock.acquire, True, 0.1)
    peer.welcome()
    q = peer.expect(w.ACQUIRE)
    c = peer.expect(w.CANCEL)  # the daemon answers pings, so the client keeps waiting
    with pytest.raises(locksidecar.Unavailable, match="not answered"):
        acquired.result()
    assert c[2:] == (q[1], "k")
    peer.say(4, q[1], "withdrawn")
    peer.say(0, c[1], 1)
    pinged = Background(client.ping)
    peer.say(0, peer.expect(w.PING)[1], 1)
    pinged.result()
    assert client._conn is not None
    assert not client._conn._pending


def test_a_grant_that_crosses_the_cancel_is_released(peer: Peer) -> None:
    client = Client(peer.path, "test", timeout=0.2)
    lock = client.lock("k", owner=7)
    acquired = Background(lock.acquire, True, 0.1)
    peer.welcome()
    q = peer.expect(w.ACQUIRE)
    c = peer.expect(w.CANCEL)
    with pytest.raises(locksidecar.Unavailable):
        acquired.result()
    peer.say(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0)
    peer.say(0, c[1], 0)
    assert peer.expect(w.RELEASE)[2:5] == ("k", 7, FENCE)
    assert not lock.owned()


def test_a_wait_for_the_answer_to_a_cancel_ends_with_the_connection(peer: Peer) -> None:
    """An interrupt may leave the end of the connection incomplete until the keeper repeats it, seconds later."""
    client = Client(peer.path, "test", timeout=1)
    lock = client.lock("k", owner=7)
    acquired = Background(lock.acquire, True, 0.1)
    peer.welcome()
    peer.expect(w.ACQUIRE)
    peer.expect(w.CANCEL)
    with pytest.raises(locksidecar.Unavailable):
        acquired.result()
    again, conn = Background(lock.acquire), client._conn
    until("it waits", lambda: conn._role)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conn, "cut", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            conn.die(locksidecar.ConnectionLost("interrupted"))
    old, peer.sock = peer.sock, None  # the daemon does not hang up
    peer.listener.settimeout(3)
    peer.welcome()
    peer.grant(60_000)
    assert again.result() is True
    assert old is not None
    old.close()


def test_an_acquire_that_never_arrived_is_forgotten(peer: Peer) -> None:
    client = Client(peer.path, "test", timeout=0.2)
    acquired = Background(client.lock("k").acquire, True, 0.1)
    peer.welcome()
    peer.expect(w.ACQUIRE)  # as if it had not arrived
    peer.say(0, peer.expect(w.CANCEL)[1], 0)
    with pytest.raises(locksidecar.Unavailable):
        acquired.result()
    pinged = Background(client.ping)
    peer.say(0, peer.expect(w.PING)[1], 1)
    pinged.result()
    assert client._conn is not None
    assert not client._conn._pending


def test_a_grant_that_is_over_when_it_comes_is_no_grant(peer: Peer) -> None:
    client = Client(peer.path, "test", timeout=2)
    lock = client.lock("k", owner=7)
    acquired = Background(lock.acquire)
    peer.welcome()
    peer.grant(0)
    assert peer.expect(w.RELEASE)[4] == FENCE
    peer.grant(60_000, fence=FENCE + 1)
    assert acquired.result()
    assert lock.fence == FENCE + 1


CODES: list[tuple[int, type[Exception]]] = [
    (4, locksidecar.Canceled),
    (5, locksidecar.Upgrade),
    (6, locksidecar.Unavailable),
    (8, locksidecar.Limit),
    (9, locksidecar.Invalid),
    (10, locksidecar.Unsupported),
    (11, locksidecar.Draining),
    (12, locksidecar.Denied),
    (200, locksidecar.LockError),
]


@pytest.mark.parametrize(("code", "cls"), CODES)
def test_every_failure_of_an_acquire_has_its_error(peer: Peer, code: int, cls: type[Exception]) -> None:
    client = Client(peer.path, "test", timeout=2)
    lock = client.lock("k")
    acquired = Background(lock.acquire, False)
    peer.welcome()
    peer.say(code, peer.expect(w.ACQUIRE)[1], "why", 5, None)
    with pytest.raises(cls, match="why") as e:
        acquired.result()
    assert type(e.value) is cls
    assert not lock.owned()


@pytest.mark.parametrize(("code", "fields"), [(1, ("held", 29000)), (2, ("",))])
def test_busy_and_timeout_are_no_errors(peer: Peer, code: int, fields: tuple[object, ...]) -> None:
    acquired = Background(Client(peer.path, "test", timeout=2).lock("k").acquire)
    peer.welcome()
    peer.say(code, peer.expect(w.ACQUIRE)[1], *fields)
    assert acquired.result() is False


def test_a_release_that_the_store_has_not_confirmed(peer: Peer) -> None:
    _, lock = held(peer)
    released = Background(lock.release)
    peer.say(7, peer.expect(w.RELEASE)[1], "why")
    with pytest.raises(locksidecar.Unconfirmed):
        released.result()
    assert not lock.owned()


def test_with_ends_well_if_only_the_stores_confirmation_is_missing(peer: Peer) -> None:
    _, lock = held(peer)
    left = Background(lock.__exit__, None, None, None)
    peer.say(7, peer.expect(w.RELEASE)[1], "why")
    left.result()


def test_nothing_is_owned_once_the_connection_has_ended(peer: Peer) -> None:
    client, lock = held(peer)
    conn = client._conn
    assert conn is not None
    client._closed = True  # so that no thread connects again
    pinged = Background(client.ping)  # it reads; the keeper might wait for mu
    peer.expect(w.PING)
    with conn._mu:  # so that nothing after the first step can be done yet
        peer.hang_up()
        until("it is noticed", lambda: conn.dead)
        assert not lock.owned()
        assert lock.remaining == 0
    with pytest.raises(locksidecar.ConnectionLost):
        pinged.result()


def test_the_end_of_the_connection_is_release(peer: Peer) -> None:
    _, lock = held(peer)
    released = Background(lock.release)
    peer.expect(w.RELEASE)
    peer.hang_up()
    released.result()
    assert not lock.owned()


def test_a_release_that_is_not_held_says_so(peer: Peer) -> None:
    _, lock = held(peer)
    released = Background(lock.release)
    peer.say(3, peer.expect(w.RELEASE)[1], "why")
    with pytest.raises(LostError):
        released.result()


def test_fatal_ends_the_connection_and_the_next_call_makes_one(peer: Peer) -> None:
    client, lock = held(peer)
    peer.say(67, 0, 11, "the daemon is stopping")
    until("it is lost", lambda: not lock.owned())
    assert peer.read() == ()  # the client has closed its side
    pinged = Background(client.ping)
    peer.welcome()
    peer.say(0, peer.expect(w.PING)[1], 1)
    pinged.result()
    assert not lock.owned()


def test_a_daemon_that_speaks_no_common_version(peer: Peer) -> None:
    pinged = Background(Client(peer.path, timeout=2).ping)
    peer.accept()
    peer.read()
    peer.say(67, 0, 14, "versions 2 to 3")
    with pytest.raises(locksidecar.ProtocolError, match="versions 2 to 3"):
        pinged.result()


def test_a_daemon_that_goes_away_before_its_welcome(peer: Peer) -> None:
    pinged = Background(Client(peer.path, timeout=2).ping)
    peer.welcome(before=w.frame(66, 0, 30_000, "the daemon is stopping") + w.frame(99, 0))
    peer.say(0, peer.expect(w.PING)[1], 1)
    pinged.result()


def test_a_daemon_that_does_not_answer_hello(peer: Peer) -> None:
    pinged = Background(Client(peer.path, timeout=0.1).ping)
    with pytest.raises(locksidecar.Unavailable):
        pinged.result()


def bad(name: str, *frames: bytes) -> object:
    return pytest.param(b"".join(frames), id=name)


@pytest.mark.parametrize(
    "data",
    [
        bad("http", b"HTTP/1.0 400 Bad Request\r\n\r\n"),
        bad("empty frame", b"\0\0\0\0"),
        bad("frame of 4 GiB", b"\xff\xff\xff\xff"),
        bad("array of 4 billion", b"\0\0\0\5\xdd\xff\xff\xff\xff"),
        bad("never used", b"\0\0\0\1\xc1"),
        bad("nested", b"\0\0\4\0" + b"\x91" * 1024),
        bad("behind a keepalive", w.frame(65, 0, 1, 1), w.frame("keepalive")),
        bad("reply without id", w.frame(0)),
        bad("short keepalive", w.frame(65, 0)),
        bad("end", b""),
    ],
)
def test_garbage_ends_the_connection_and_hangs_nobody(peer: Peer, data: bytes) -> None:
    client, lock = held(peer)
    callers: list[Callable[[], object]] = [client.ping, client.lock("other").acquire, client.lock("third").locked]
    waiting = [Background(c) for c in callers]
    for _ in callers:
        peer.read()
    assert client._conn is not None
    conn = client._conn
    client._closed = True  # so that no thread connects again
    peer.raw(data)
    if not data:
        peer.hang_up()
    for b in waiting:
        with pytest.raises(locksidecar.LockError):
            b.result()
    assert conn.dead is not None
    assert not lock.owned()


def test_the_frame_limit_is_the_daemons(peer: Peer) -> None:
    client = Client(peer.path, timeout=2)
    pinged = Background(client.ping)
    peer.welcome(max_frame=1 << 20)
    q = peer.expect(w.PING)
    peer.raw(w.frame(99, 0, "x" * 100_000) + w.frame(0, q[1], 1))
    pinged.result()


def test_the_socket_is_not_inherited(peer: Peer) -> None:
    client, _ = held(peer)
    assert client._conn is not None
    assert not os.get_inheritable(client._conn._sock.fileno())


def test_an_owner_that_gave_up_asks_again_when_that_is_settled(peer: Peer) -> None:
    """Before the answer to the cancel a grant may come, and a new request would re-enter it."""
    client = Client(peer.path, "test", timeout=BOUND)
    pinged = Background(client.ping)
    peer.welcome()
    peer.say(0, peer.expect(w.PING)[1], ms())
    pinged.result()
    conn = client._conn
    assert conn is not None
    call = Call(w.ACQUIRE, Hold(conn, "k", 7, False, who=7))
    conn.send(call, "k", 7, 0, -1, 0, 0)
    q = peer.expect(w.ACQUIRE)
    conn.withdraw(call)  # as an interrupt does
    c = peer.expect(w.CANCEL)
    again = [Background(client.lock("k", owner=7).acquire) for _ in range(2)]
    pinged = Background(client.ping)
    peer.say(0, peer.expect(w.PING)[1], ms())  # the client has sent no acquire
    pinged.result()
    peer.say(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0)
    peer.say(0, c[1], 0)
    assert peer.expect(w.RELEASE)[2:] == ("k", 7, FENCE, w.ASYNC)  # before the next acquire
    for n, _ in enumerate(again):
        q = peer.expect(w.ACQUIRE)
        peer.say(0, q[1], FENCE + 1, 60_000, ms() + 60_000, n + 1, 0, 0)
    assert [b.result() for b in again] == [True, True]
    assert not conn._cancels


def test_close_does_not_wait_for_an_attempt_to_connect(peer: Peer) -> None:
    client = Client(peer.path, timeout=600)
    acquire = Background(client.lock("k").acquire)
    peer.accept()
    assert peer.read()[0] == w.HELLO
    Background(client.close).result()  # a signal handler may call it in the thread that connects
    peer.say(0, 1, 1, 1, ms(), 65536, 100, 30000, 86400000, 1, [], "test")
    with pytest.raises(locksidecar.ConnectionLost, match="the client is closed"):
        acquire.result()
    assert peer.read() == ()
