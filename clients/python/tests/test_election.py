"""Leader election on a real daemon, for threads."""

from __future__ import annotations

import random
import signal
import threading
import time
import types
from collections.abc import Callable

import pytest
from candidate import Candidate, Stage
from daemon import Daemon, Script, ask, until
from peer import Background
from test_fork import Child
from test_lock import lock_list

import locksidecar
from locksidecar import Client, LostError, Term
from locksidecar import _wire as w

Connect = Callable[..., Client]


@pytest.fixture
def daemon(shared: Daemon) -> Daemon:
    """The daemon for many tests is sufficient."""
    return shared


class Failed(Exception):
    pass


def nothing(*_: object) -> None:
    pass


def test_a_term(client: Client, connect: Connect) -> None:
    stage = Stage()
    one = Candidate(client, stage)
    election = one.election
    assert not election.is_leader
    assert election.term is None
    with election as entered:
        assert entered is election
        until("it leads", lambda: one.leads)
        assert "leads" in repr(election)
        term = election.term
        assert term is not None
        assert term.key == election.key == "k"
        assert term.fence == stage.fences[0] > 0
        assert 0 < term.remaining <= 30
        assert not term.lost.is_set()
        assert not term.lost
        assert not term.lost.wait(0.01)
        term.check()
        assert connect().lock("k").acquire(blocking=False) is False
        with pytest.raises(RuntimeError, match="campaigning already"):
            election.start()
        with pytest.raises(RuntimeError, match="campaigning already"):
            election.run()
    assert not election.is_leader
    assert election.term is None
    assert election.error is None
    assert term.lost
    assert term.lost.wait()
    assert term.remaining == 0
    assert term.fence == stage.fences[0]
    with pytest.raises(LostError, match="resigned"):
        term.check()
    assert sorted(e[0] for e in one.events) == ["elected", "ended", "lost"]
    assert one.reasons() == [None]
    assert connect().lock("k").acquire(blocking=False) is True
    election.stop()
    election.resign()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_callback_that_cannot_be_awaited_is_an_error(client: Client) -> None:
    async def elected(term: Term) -> None:
        pytest.fail("a client for threads has run it")

    with pytest.raises(TypeError, match=r"cannot await .*: use locksidecar.asyncio"):
        client.election("k", elected, nothing).run()


def test_a_campaign_can_be_started_anew(client: Client) -> None:
    one = Candidate(client, Stage())
    one.election.stop()  # there is no campaign
    for n in range(2):
        one.election.start()
        until("it leads", lambda n=n: one.leads and one.count("elected") == n + 1)  # type: ignore[misc]
        one.election.stop()
    assert one.reasons() == [None, None]


def test_a_successor_begins_when_the_work_has_ended(client: Client, connect: Connect) -> None:
    stage = Stage()
    one, two = Candidate(client, stage), Candidate(connect(), stage)
    one.may_end.clear()
    one.election.start()
    until("the first leads", lambda: one.leads)
    two.election.start()
    lock_list(client, "k", waiters=1)
    stopped = Background(one.election.stop)
    until("on_lost is called", lambda: one.count("lost") == 1)  # although on_elected is running
    assert one.count("ended") == 0
    assert not one.election.is_leader
    assert stopped.running
    assert ask(client, w.INSPECT, "k")[2] == 1  # and the client still has the lock
    assert not two.events
    one.may_end.set()
    stopped.result()
    until("the second leads", lambda: two.leads)
    two.election.stop()
    assert stage.overlaps == 0


def test_who_resigns_goes_to_the_back_of_the_queue(client: Client, connect: Connect) -> None:
    stage = Stage()
    three = [Candidate(c, stage) for c in (client, connect(), connect())]
    for n, one in enumerate(three):
        one.election.start()
        if n:
            lock_list(client, "k", waiters=n)
        else:
            until("the first leads", lambda: three[0].leads)
    for turn in range(6):
        now = three[turn % 3]
        until("its turn has come", lambda now=now, turn=turn: now.leads and len(stage.fences) == turn + 1)  # type: ignore[misc]
        lock_list(client, "k", waiters=2)
        now.election.resign()
    for one in three:
        one.election.stop()
        assert one.reasons()[:2] == [None, None]
    assert stage.overlaps == 0


def test_one_process_never_has_two_terms_at_once(client: Client) -> None:
    stage = Stage()
    one = Candidate(client, stage)
    one.may_end.clear()
    one.election.start()
    for n in range(3):
        until("it is elected", lambda n=n: one.count("elected") == n + 1)  # type: ignore[misc]
        one.election.resign()
        until("on_lost is called", lambda n=n: one.count("lost") == n + 1)  # type: ignore[misc]
        assert (one.count("elected"), one.count("ended")) == (n + 1, n)
        one.may_end.set()
        until("its work has ended", lambda n=n: one.count("ended") == n + 1)  # type: ignore[misc]
        one.may_end.clear()
    one.may_end.set()
    one.election.stop()
    assert stage.overlaps == 0


def test_a_term_lasts_though_on_elected_has_returned(client: Client) -> None:
    returned, reasons = threading.Event(), list[str | None]()
    with client.election("k", lambda _: returned.set(), lambda _, reason: reasons.append(reason)) as election:
        assert returned.wait(60)
        time.sleep(0.05)
        assert election.is_leader
        assert not reasons
    assert reasons == [None]


def fail(*_: object) -> None:
    raise Failed


def fail_at_the_end(term: Term) -> None:
    term.lost.wait()
    raise Failed


def exit_(_: Term) -> None:
    raise SystemExit(3)


def test_an_error_of_on_elected_ends_the_campaign(client: Client) -> None:
    reasons: list[str | None] = []
    election = client.election("k", fail, lambda _, reason: reasons.append(reason))
    with pytest.raises(Failed):
        election.run()
    assert isinstance(election.error, Failed)
    assert reasons == [None]
    election.start()
    until("it has failed", lambda: election.error)
    assert not election.is_leader
    assert client.lock("k").acquire(timeout=30)
    for _ in range(2):
        with pytest.raises(Failed):
            election.stop()
    with pytest.raises(SystemExit):
        client.election("e", exit_, nothing).run()


@pytest.mark.parametrize("elected", [nothing, fail_at_the_end])
def test_an_error_at_the_end_of_a_term_ends_the_campaign(client: Client, elected: Callable[[Term], None]) -> None:
    election = client.election("k", elected, nothing if elected is fail_at_the_end else fail)
    running = Background(election.run)
    until("it leads", lambda: election.is_leader)
    election.resign()
    with pytest.raises(Failed):
        running.result()
    assert client.lock("k").acquire(timeout=30)


def test_the_first_error_counts_and_the_other_is_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    def lost(_: Term, __: str | None) -> None:
        raise KeyError

    with pytest.raises(Failed):
        client.election("k", fail, lost).run()
    assert "on_lost failed" in caplog.text


def fail_within(election: locksidecar.Election) -> None:
    with election:
        until("it has failed", lambda: election.error)
        raise KeyError


def test_a_body_keeps_its_error(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    election = client.election("k", fail, nothing)
    with pytest.raises(KeyError):
        fail_within(election)
    assert "whose body failed" in caplog.text
    with pytest.raises(Failed), election:
        until("it has failed", lambda: election.error)


def test_to_end_by_check_is_no_error(client: Client) -> None:
    terms: list[Term] = []

    def work(term: Term) -> None:
        terms.append(term)
        try:
            while True:
                term.check()
                time.sleep(0.001)
        except LostError as e:
            if len(terms) == 2:
                raise Failed from e
            raise

    with client.election("k", work, nothing) as election:
        for n in range(3):
            until("it is elected", lambda n=n: len(terms) == n + 1)  # type: ignore[misc]
            election.resign()
    assert election.error is None

    def pretend(term: Term) -> None:
        raise LostError(term.key, term.fence, 0, "not true")

    with pytest.raises(LostError, match="not true"):
        client.election("k", pretend, nothing).run()


@pytest.mark.parametrize("stop_in", ["elected", "lost"])
def test_callbacks_may_stop_and_resign(client: Client, stop_in: str) -> None:
    calls: list[str] = []

    def elected(_: Term) -> None:
        calls.append("elected")
        if stop_in == "elected" and calls.count("elected") == 3:
            election.stop()
        else:
            election.resign()

    def lost(_: Term, __: str | None) -> None:
        calls.append("lost")
        if stop_in == "lost" and calls.count("lost") == 3:
            election.stop()

    election = client.election("k", elected, lost)
    Background(election.run).result()
    assert calls.count("elected") == calls.count("lost") == 3
    assert election.error is None


def test_stop_while_it_waits(client: Client, connect: Connect) -> None:
    with connect().lock("k"):
        one = Candidate(client, Stage())
        running = Background(one.election.run)
        lock_list(client, "k", waiters=1)
        assert not one.election.is_leader
        one.election.stop()
        running.result()
        lock_list(client, "k", waiters=0)
    assert not one.events
    assert client.lock("k").acquire(timeout=30)


def test_stop_where_there_is_no_daemon() -> None:
    with Client("/nowhere/at/all") as client:
        with client.election("k", nothing, nothing) as election:
            time.sleep(0.2)
            assert election.error is None
        assert election.error is None


def test_closing_the_client_ends_the_campaign(connect: Connect) -> None:
    leading, waiting = connect(), connect()
    one, two = Candidate(leading, Stage()), Candidate(waiting, Stage())
    one.election.start()
    until("it leads", lambda: one.leads)
    two.election.start()
    lock_list(leading, "k", waiters=1)
    for candidate, client in ((two, waiting), (one, leading)):
        client.close()
        until("it has ended", lambda c=candidate: c.election.error)  # type: ignore[misc]
        with pytest.raises(locksidecar.ConnectionLost):
            candidate.election.stop()
    assert one.reasons() == ["closed"]
    assert not two.events


def signal_leader(one: Candidate) -> None:
    """Signal the main thread, which runs the campaign, once it leads."""
    until("it leads", lambda: one.leads)
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGALRM)


def test_an_exception_in_run_stops_it(client: Client, connect: Connect) -> None:
    one = Candidate(client, Stage())

    def ring(_: int, __: types.FrameType | None) -> None:
        raise Failed

    before = signal.signal(signal.SIGALRM, ring)
    try:
        interrupt = Background(signal_leader, one)
        with pytest.raises(Failed):
            one.election.run()
        interrupt.result()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert one.reasons() == [None]
    assert connect().lock("k").acquire(blocking=False)


@pytest.mark.parametrize("wait", [True, False])
def test_a_signal_handler_may_stop(client: Client, wait: bool) -> None:
    one = Candidate(client, Stage())
    before = signal.signal(signal.SIGALRM, lambda *_: one.election.stop(wait=wait))
    try:
        alarm = Background(signal_leader, one)
        one.election.run()
        alarm.result()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert one.reasons() == [None]


def test_an_interrupt_of_run_before_its_campaign_starts(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    election = client.election("k", lambda term: None, lambda term, reason: None)
    monkeypatch.setattr(election._campaigns, "start", lambda campaign: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Background(election.run).result(5)


def test_candidates_that_come_and_go(client: Client, connect: Connect) -> None:
    """No two leaders work at any time, and each has had its on_lost."""
    stage, clients = Stage(), [client, connect(), connect()]
    many = [Candidate(clients[n % 3], stage) for n in range(6)]

    def come_and_go(one: Candidate, pick: random.Random) -> None:
        for _ in range(6):
            with one.election:
                for _ in range(pick.randrange(4)):
                    time.sleep(pick.random() / 100)
                    one.election.resign()

    for b in [Background(come_and_go, one, random.Random(n)) for n, one in enumerate(many)]:
        b.result(bound=120)
    assert stage.overlaps == 0
    assert stage.inside == 0
    for one in many:
        assert one.count("elected") == one.count("ended") == one.count("lost")
        assert set(one.reasons()) <= {None}
    assert client.lock("k").acquire(timeout=30)


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_a_forked_child_never_leads(client: Client) -> None:
    one = Candidate(client, Stage())
    with one.election:
        until("it leads", lambda: one.leads)
        term = one.election.term
        assert term is not None

        def child() -> None:
            assert not one.election.is_leader
            assert one.election.term is None
            assert term.remaining == 0
            assert term.lost.wait()
            with pytest.raises(LostError, match="fork"):
                term.check()
            one.election.resign()
            one.election.stop()
            one.election.start()  # it may campaign for itself
            lock_list(client, "k", waiters=1)
            assert not one.election.is_leader
            one.election.stop()

        assert Child(child).end() == 0
        assert one.election.term is term
        term.check()
    assert one.reasons() == [None]


LEADER = """
import sys, locksidecar
client = locksidecar.Client(sys.argv[1])
def say(*words):  # in one piece: two threads do
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
def elected(term):
    say("elected", term.fence)
    sys.stdin.readline()
    say(election.is_leader, term.remaining, bool(term.lost))
    try:
        term.check()
    except locksidecar.LostError as e:
        say("lost", term.fence == e.fence)
    sys.stdin.readline()
    election.stop()
def lost(term, reason):
    say("on_lost", reason)
election = client.election(sys.argv[2], elected, lost, ttl=1)
election.run()
"""


def test_a_leader_that_is_killed_has_a_successor(client: Client, script: Callable[..., Script]) -> None:
    leader = script(LEADER, "k")
    assert leader.line().startswith("elected")
    one = Candidate(client, Stage())
    with one.election:
        lock_list(client, "k", waiters=1)
        leader.process.kill()
        until("the other leads", lambda: one.leads)


def test_a_leader_that_is_stopped_past_its_ttl_does_not_believe_that_it_leads(idle: Daemon) -> None:
    config = f"{idle.dir}/config.yaml"
    with open(config, "w") as f:
        f.write("namespaces:\n  keepalive/: {heartbeat: 4s}\n")
    idle.start("--config", config)
    frozen = Script(LEADER, idle.path, "keepalive/k")
    try:
        with Client(idle.path) as client:
            past_its_ttl(frozen, client)
    finally:
        frozen.close()


def past_its_ttl(frozen: Script, client: Client) -> None:
    fence = int(frozen.line().split()[1])
    one = Candidate(client, Stage(), "keepalive/k", ttl=1)
    with one.election:
        lock_list(client, "keepalive/k", waiters=1)
        frozen.process.send_signal(signal.SIGSTOP)
        until("the other leads", lambda: one.leads)
        assert one.stage.fences[0] > fence
        frozen.say("go")
        frozen.process.send_signal(signal.SIGCONT)
        said = sorted([frozen.line(), frozen.line(), frozen.line()])  # on_lost is called at any moment
        assert said[:2] == ["False 0.0 True", "lost True"]
        assert said[2] in ("on_lost silence", "on_lost silent")
        assert one.leads
        frozen.say("end")
        assert frozen.end() == 0
        assert one.leads


def test_a_class_of_a_user_needs_no_documentation() -> None:
    class Mine(locksidecar.Election): ...

    assert Mine.__doc__ is None
