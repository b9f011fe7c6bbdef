"""Leader election against a daemon that sends what the test chooses: losses, silence, errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from candidate import Candidate, Stage
from daemon import until
from peer import FENCE, Background, Peer, ms

import locksidecar
from locksidecar import Client, LostError, Term
from locksidecar import _wire as w


@pytest.fixture
def one(peer: Peer) -> Iterator[Candidate]:
    """A candidate whose campaign has begun. At the end, it is stopped and its client is closed."""
    client = Client(peer.path, "test", timeout=2)
    candidate = Candidate(client, Stage())
    candidate.election.start()
    peer.welcome()
    yield candidate
    candidate.may_end.set()
    candidate.election.stop(wait=False)
    client.close()


def leads(peer: Peer, one: Candidate, left: int = 60_000, fence: int = FENCE) -> Term:
    """Make it win, and return its term."""
    q = peer.grant(left, fence=fence)
    assert (q[2], q[4:]) == ("k", (0, -1, 0, 0))
    until("it works", lambda: one.events and one.events[-1] == ("elected", fence, None))
    term = one.election.term
    assert term is not None
    return term


def test_a_loss_is_told_of_at_once_and_no_term_begins_before_the_work_has_ended(peer: Peer, one: Candidate) -> None:
    one.may_end.clear()
    term = leads(peer, one)
    assert one.election.is_leader
    owner = one.election._campaign.term._hold.owner
    peer.say(64, 0, "k", owner, FENCE, 4)
    until("on_lost is called", lambda: one.count("lost"))
    assert one.reasons() == ["forced"]
    assert not one.election.is_leader
    assert term.lost.is_set()
    with pytest.raises(LostError, match="forced"):
        term.check()
    pinged = Background(one.election._client.ping)
    peer.say(0, peer.expect(w.PING)[1], 1)  # the client has sent no acquire
    pinged.result()
    assert one.count("ended") == 0
    one.may_end.set()
    q = peer.expect(w.RELEASE)
    assert q[2:] == ("k", owner, FENCE, w.ASYNC | w.ALL)  # opens the key of a hold that was ended by force
    peer.say(3, q[1], "lost")
    leads(peer, one, fence=FENCE + 1)
    stopped = Background(one.election.stop)
    assert peer.released()[4] == FENCE + 1
    stopped.result()
    assert one.reasons() == ["forced", None]


def test_nobody_leads_past_the_deadline(peer: Peer, one: Candidate) -> None:
    term = leads(peer, one, left=400)
    assert 0 < term.remaining <= 0.4
    conn = term._hold.conn
    with conn._role:  # so that no thread reads or checks
        until("it is over", lambda: w.now() >= term._hold.valid)
        assert not one.election.is_leader
        assert term.remaining == 0
        assert term.lost.is_set()
        with pytest.raises(LostError, match="silence"):
            term.check()
    until("on_lost is called", lambda: one.count("lost"))
    assert one.reasons() == ["silence"]
    assert peer.expect(w.RELEASE)[4] == FENCE
    leads(peer, one, fence=FENCE + 1)


def test_a_beat_prolongs_a_term(peer: Peer, one: Candidate) -> None:
    term = leads(peer, one, left=10_000)
    peer.say(65, 0, ms() + 60_000, 60_000)
    until("it is read", lambda: term.remaining > 30)


def test_the_client_is_told_of_a_term_that_is_lost(peer: Peer) -> None:
    told: list[LostError] = []
    client = Client(peer.path, "test", on_lost=told.append)
    one = Candidate(client, Stage())
    one.election.start()
    peer.welcome()
    term = leads(peer, one)
    peer.say(64, 0, "k", term._hold.owner, FENCE, 1)
    until("the client is told", lambda: told)
    assert (told[0].key, told[0].fence, told[0].reason) == ("k", FENCE, "expired")
    until("on_lost of the election is called", lambda: one.reasons() == ["expired"])
    second = leads(peer, one, fence=FENCE + 1)
    one.election.resign()
    assert second.lost.wait(60)
    peer.released()
    one.election.stop(wait=False)
    client.close()
    assert len(told) == 1


def test_a_grant_that_crosses_stop_is_given_back(peer: Peer, one: Candidate) -> None:
    q = peer.expect(w.ACQUIRE)
    stopped = Background(one.election.stop)
    c = peer.expect(w.CANCEL)
    assert c[2:] == (q[1], "k")
    peer.say(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0)
    peer.say(0, c[1], 0)
    assert peer.expect(w.RELEASE)[2:6] == ("k", q[3], FENCE, w.ASYNC)
    stopped.result()
    assert not one.events


def test_a_grant_that_is_over_when_it_comes_begins_no_term(peer: Peer, one: Candidate) -> None:
    q = peer.expect(w.ACQUIRE)
    peer.raw(w.frame(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0) + w.frame(64, 0, "k", q[3], FENCE, 2))
    peer.grant(0, fence=FENCE + 1)
    assert peer.expect(w.RELEASE)[4] == FENCE + 1
    leads(peer, one, fence=FENCE + 2)
    assert one.count("elected") == 1


def test_what_mends_itself_ends_no_campaign(peer: Peer, one: Candidate) -> None:
    for code in (6, 11, 8, 2):
        peer.say(code, peer.expect(w.ACQUIRE)[1], "why")
    peer.say(67, 0, 11, "the daemon is stopping")
    peer.accept()  # without an answer to hello, as from a new daemon that has not handled it yet
    peer.hang_up()
    peer.welcome()
    leads(peer, one)
    peer.hang_up()
    until("on_lost is called", lambda: one.count("lost"))
    assert one.reasons() == ["connection"]
    peer.welcome()
    leads(peer, one, fence=FENCE + 1)
    assert one.election.error is None


ENDS: list[tuple[int, type[Exception]]] = [
    (9, locksidecar.Invalid),
    (10, locksidecar.Unsupported),
    (12, locksidecar.Denied),
    (200, locksidecar.LockError),
]


@pytest.mark.parametrize(("code", "cls"), ENDS)
def test_what_does_not_ends_it(peer: Peer, one: Candidate, code: int, cls: type[Exception]) -> None:
    peer.say(code, peer.expect(w.ACQUIRE)[1], "why")
    until("it has ended", lambda: one.election.error)
    with pytest.raises(cls, match="why"):
        one.election.stop()
    assert not one.events


def test_a_version_that_nobody_speaks_ends_it(peer: Peer) -> None:
    with Client(peer.path, timeout=2) as client:
        running = Background(client.election("k", print, print).run)
        peer.accept()
        peer.read()
        peer.say(67, 0, 14, "versions 2 to 3")
        with pytest.raises(locksidecar.ProtocolError, match="versions 2 to 3"):
            running.result()


def test_garbage_ends_it_after_the_term(peer: Peer, one: Candidate) -> None:
    leads(peer, one)
    peer.raw(b"HTTP/1.0 400 Bad Request\r\n\r\n")
    until("on_lost is called", lambda: one.count("lost"))
    assert one.reasons() == ["connection"]
    peer.welcome()  # a new connection may do better
    peer.expect(w.ACQUIRE)
    peer.raw(b"HTTP/1.0 400 Bad Request\r\n\r\n")
    until("it has ended", lambda: one.election.error)
    with pytest.raises(locksidecar.ProtocolError):
        one.election.stop()


def test_a_release_that_is_not_confirmed_is_no_error(peer: Peer, one: Candidate) -> None:
    leads(peer, one)
    one.election.resign()
    peer.say(7, peer.expect(w.RELEASE)[1], "why")
    leads(peer, one, fence=FENCE + 1)
    stopped = Background(one.election.stop)
    peer.expect(w.RELEASE)
    peer.hang_up()
    stopped.result()


def test_a_term_that_is_over_before_it_began_is_nobodys(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither callback is called."""
    calls: list[str] = []
    with Client(peer.path, timeout=2) as client:
        election = client.election("k", lambda _: calls.append("elected"), lambda *_: calls.append("lost"))
        hold_up = threading.Event()
        begin = Term._begin

        def late(term: Term) -> bool:
            if threading.current_thread().name == "locksidecar-elected":
                assert hold_up.wait(60)
            return begin(term)

        monkeypatch.setattr(Term, "_begin", late)
        election.start()
        peer.welcome()
        peer.grant(60_000)
        until("it is elected", lambda: election.is_leader)
        term = election.term
        assert term is not None
        election.resign()
        assert term.lost.wait(60)
        until("it is called off", term._first.locked)
        hold_up.set()
        peer.released()
        election.stop()
    assert not calls


def test_other_callbacks_do_not_keep_an_election_waiting(peer: Peer, one: Candidate) -> None:
    """on_lost of a lock may block. The election notices its own loss nevertheless."""
    term = leads(peer, one)
    client, blocked, go = one.election._client, threading.Event(), threading.Event()

    def block(_: LostError) -> None:
        blocked.set()
        assert go.wait(60)

    acquired = Background(client.lock("other", owner=7, on_lost=block).acquire)
    peer.grant(60_000, fence=FENCE + 5)
    acquired.result()
    peer.say(64, 0, "other", 7, FENCE + 5, 1)
    assert blocked.wait(60)
    peer.say(64, 0, "k", term._hold.owner, FENCE, 1)
    until("on_lost is called", lambda: one.reasons() == ["expired"])
    go.set()


def test_arguments_are_looked_at_first() -> None:
    client = Client("/nowhere")
    bad: list[Callable[[], object]] = [
        lambda: client.election("", print, print),
        lambda: client.election("k", print, print, ttl=0),
    ]
    for call in bad:
        with pytest.raises(locksidecar.Invalid):
            call()
