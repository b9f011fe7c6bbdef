"""Leader election for tasks: on a real daemon, and against one that sends what the test chooses."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
from collections.abc import Callable

import pytest
from aio import Loop, until, waiters
from daemon import Daemon
from peer import FENCE, Peer, ms
from test_asyncio_cancel import ended, needs_timeout, thread
from test_asyncio_faults import forked

import locksidecar
from locksidecar import LostError
from locksidecar import _wire as w
from locksidecar.asyncio import Client, Election, Term

Connect = Callable[..., Client]


class Failed(Exception):
    pass


def nothing(*_: object) -> None:
    pass


class Candidate:
    """Works until it is cancelled, and then until the test lets it end. Records what happens."""

    def __init__(self, client: Client, stage: list[int], **more: bool) -> None:
        self.stage = stage  # the fences of all terms; 0 while no leader works
        self.inside = 0
        self.events: list[tuple[str, int, str | None]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.election = client.election("k", self.elected, self.lost, **more)

    async def elected(self, term: Term) -> None:
        assert not self.stage or self.stage[-1] == 0, "somebody works"
        assert all(fence < term.fence for fence in self.stage)
        self.stage.append(term.fence)
        self.events.append(("elected", term.fence, None))
        try:
            assert await term.lost.wait() is True
        finally:
            await self.may_end.wait()
            self.stage.append(0)
            self.events.append(("ended", term.fence, None))

    async def lost(self, term: Term, reason: str | None) -> None:
        assert term.lost.is_set()
        await asyncio.sleep(0)
        self.events.append(("lost", term.fence, reason))

    def count(self, what: str) -> int:
        return sum(event[0] == what for event in self.events)

    @property
    def leads(self) -> bool:
        return self.election.is_leader and self.count("elected") > self.count("ended")

    def reasons(self) -> list[str | None]:
        return [reason for what, _, reason in self.events if what == "lost"]


async def test_a_term(aclient: Client, aconnect: Connect) -> None:
    one = Candidate(aclient, [])
    election = one.election
    assert not election.is_leader
    async with election as entered:
        assert entered is election
        await until("it leads", lambda: one.leads)
        assert "leads" in repr(election)
        term = election.term
        assert term is not None
        assert term.key == election.key == "k"
        assert term.fence == one.stage[0] > 0
        assert 0 < term.remaining <= 30
        assert not term.lost
        term.check()
        await thread(term.check)  # from another thread too
        assert await aconnect().lock("k").acquire(blocking=False) is False
        with pytest.raises(RuntimeError, match="campaigning already"):
            election.start()
        with pytest.raises(RuntimeError, match="campaigning already"):
            await election.run()
    assert not election.is_leader
    assert election.term is None
    assert election.error is None
    assert term.lost
    assert await term.lost.wait()
    assert term.remaining == 0
    with pytest.raises(LostError, match="resigned"):
        term.check()
    assert [e[0] for e in one.events] == ["elected", "ended", "lost"]
    assert one.reasons() == [None]
    assert await aconnect().lock("k").acquire(blocking=False) is True
    await election.stop()
    election.resign()


async def test_a_successor_begins_when_the_work_has_ended(aclient: Client, aconnect: Connect) -> None:
    stage: list[int] = []
    one, two = Candidate(aclient, stage), Candidate(aconnect(), stage)
    one.may_end.clear()
    one.election.start()
    await until("the first leads", lambda: one.leads)
    async with two.election:
        await waiters(aclient, "k", 1)
        stopped = asyncio.create_task(one.election.stop())
        await until("on_lost is called", lambda: one.count("lost") == 1)  # although on_elected is running
        assert one.count("ended") == 0
        assert not one.election.is_leader
        assert (await aclient._asked(w.INSPECT, "k"))[2] == 1  # and the client still has the lock
        assert not two.events
        stopped.cancel()  # which does not undo it
        await ended(stopped)
        one.may_end.set()
        await until("the second leads", lambda: two.leads)
        await one.election.stop()


async def test_who_resigns_goes_to_the_back_of_the_queue(aclient: Client, aconnect: Connect) -> None:
    stage: list[int] = []
    three = [Candidate(c, stage) for c in (aclient, aconnect(), aconnect())]
    async with contextlib.AsyncExitStack() as stack:
        for n, one in enumerate(three):
            await stack.enter_async_context(one.election)
            if n:
                await waiters(aclient, "k", n)
            else:
                await until("the first leads", lambda: three[0].leads)
        for turn in range(6):
            now = three[turn % 3]
            await until("its turn has come", lambda now=now: now.leads)  # type: ignore[misc]
            await waiters(aclient, "k", 2)
            assert len(stage) == 2 * turn + 1
            now.election.resign()
    assert all(one.reasons()[:2] == [None, None] for one in three)


async def test_callbacks_may_be_plain_functions(aclient: Client) -> None:
    calls: list[object] = []

    def lost(term: Term, reason: str | None) -> None:
        calls.append(reason)

    async with aclient.election("k", calls.append, lost) as election:
        await until("it is elected", lambda: calls)
        await asyncio.sleep(0.02)
        assert election.is_leader  # the term does not end when it returns
        assert len(calls) == 1
    assert calls[1:] == [None]


async def fail(*_: object) -> None:
    raise Failed


async def test_an_error_of_on_elected_ends_the_campaign(aclient: Client, aconnect: Connect) -> None:
    reasons: list[str | None] = []
    election = aclient.election("k", fail, lambda _, reason: reasons.append(reason))
    with pytest.raises(Failed):
        await election.run()
    assert isinstance(election.error, Failed)
    assert reasons == [None]
    election.start()
    await until("it has failed", lambda: election.error)
    for _ in range(2):
        with pytest.raises(Failed):
            await election.stop()
    with pytest.raises(Failed):
        async with election:
            await until("it has failed", lambda: election.error)
    with pytest.raises(KeyError):
        async with election:
            await until("it has failed", lambda: election.error)
            raise KeyError
    assert await aconnect().lock("k").acquire(timeout=30)


async def fail_at_the_end(term: Term) -> None:
    try:
        await term.lost.wait()
    finally:
        raise Failed


@pytest.mark.parametrize("elected", [nothing, fail_at_the_end])
async def test_an_error_at_the_end_of_a_term_ends_the_campaign(
    aclient: Client, aconnect: Connect, elected: Callable[[Term], object]
) -> None:
    election = aclient.election("k", elected, nothing if elected is fail_at_the_end else fail)
    running = asyncio.create_task(election.run())
    await until("it leads", lambda: election.is_leader)
    await asyncio.sleep(0)
    election.resign()
    with pytest.raises(Failed):
        await running
    assert await aconnect().lock("k").acquire(timeout=30)


async def test_work_that_is_cancelled_by_somebody_else_ends_the_campaign(aclient: Client) -> None:
    works: list[asyncio.Task[object] | None] = []
    reasons: list[str | None] = []

    async def work(_: Term) -> None:
        works.append(asyncio.current_task())
        await asyncio.sleep(1000)

    election = aclient.election("k", work, lambda _, reason: reasons.append(reason))
    election.start()
    await until("it works", lambda: works)
    assert works[0] is not None
    works[0].cancel()
    await until("it has ended", lambda: election.error)
    with pytest.raises(RuntimeError, match="somebody else"):
        await election.stop()
    assert reasons == [None]
    assert await aclient.lock("k").acquire(timeout=30)


async def test_without_cancel_the_work_is_left_to_end_by_itself(aclient: Client) -> None:
    seen: list[str] = []

    async def work(term: Term) -> None:
        try:
            while True:
                term.check()
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            seen.append("ended")

    async with aclient.election("k", work, nothing, cancel=False) as election:
        await until("it leads", lambda: election.is_leader)
        first = election.term
        assert first is not None
        election.resign()
        await until("the next term has begun", lambda: election.term is not None and election.term is not first)
        assert seen == ["ended"]
    assert seen == ["ended", "ended"]
    assert election.error is None


@pytest.mark.parametrize("stop_in", ["elected", "lost"])
async def test_callbacks_may_stop_and_resign(aclient: Client, stop_in: str) -> None:
    calls: list[str] = []

    async def elected(_: Term) -> None:
        calls.append("elected")
        if stop_in == "elected" and calls.count("elected") == 3:
            await election.stop()
        else:
            election.resign()
        await asyncio.sleep(1000)

    async def lost(_: Term, __: str | None) -> None:
        if stop_in == "lost" and calls.count("lost") == 2:
            await election.stop()
        calls.append("lost")

    election = aclient.election("k", elected, lost)
    await asyncio.wait_for(election.run(), 60)
    assert calls.count("elected") == calls.count("lost") == 3


# ---- cancellation ----


async def test_a_cancelled_run_that_leads_ends_in_order(aclient: Client, aconnect: Connect) -> None:
    one = Candidate(aclient, [])
    one.may_end.clear()
    running = asyncio.create_task(one.election.run())
    await until("it leads", lambda: one.leads)
    running.cancel()
    await until("on_lost is called", lambda: one.count("lost"))
    for _ in range(3):  # more of them do not make it faster, because the work has to end first
        running.cancel()
        await asyncio.sleep(0.01)
    assert not running.done()
    assert await aconnect().lock("k").acquire(blocking=False) is False
    one.may_end.set()
    await ended(running)
    assert running.cancelled()
    assert one.reasons() == [None]
    assert await aconnect().lock("k").acquire(blocking=False)


async def test_a_cancelled_run_that_waits_withdraws(aclient: Client, aconnect: Connect) -> None:
    async with aconnect().lock("k"):
        one = Candidate(aclient, [])
        running = asyncio.create_task(one.election.run())
        await waiters(aclient, "k", 1)
        running.cancel()
        await ended(running)
        await waiters(aclient, "k", 0)
        running = asyncio.create_task(one.election.run())
        await waiters(aclient, "k", 1)
        await one.election.stop()
        await running
        await waiters(aclient, "k", 0)
    assert not one.events


async def test_a_campaign_that_is_about_to_begin_is_the_only_one(aclient: Client, aconnect: Connect) -> None:
    election = aclient.election("k", nothing, nothing)
    election.start()
    with pytest.raises(RuntimeError, match="campaigning already"):
        election.start()
    await election.stop()
    both = [election.run(), election.run()]
    running = [asyncio.create_task(one) for one in both]
    done, left = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    (error,) = [task.exception() for task in done]
    assert isinstance(error, RuntimeError)
    await election.stop()
    await asyncio.gather(*left)
    async with aconnect().lock("k", timeout=60):
        assert not election.is_leader


async def test_a_campaign_that_was_cancelled_before_it_began(aclient: Client, aconnect: Connect) -> None:
    election = aclient.election("k", nothing, nothing)
    election.start()
    election._campaign.task.cancel()
    await asyncio.wait_for(election.stop(), 30)
    async with election:
        await until("it leads", lambda: election.is_leader)


async def test_stop_before_run_has_begun(aclient: Client) -> None:
    one = Candidate(aclient, [])
    running = asyncio.create_task(one.election.run())
    await one.election.stop()
    await running
    running = asyncio.create_task(one.election.run())
    running.cancel()
    await ended(running)
    async with one.election:
        await until("it leads", lambda: one.leads)


@needs_timeout
async def test_run_within_a_timeout(aclient: Client) -> None:
    if sys.version_info < (3, 11):
        return
    one = Candidate(aclient, [])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await one.election.run()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert one.count("elected") == one.count("lost") == one.count("ended")


async def test_run_is_cancelled_at_any_step(aclient: Client, aconnect: Connect) -> None:
    await aclient.ping()
    one = Candidate(aclient, [])
    for steps in range(40):
        running = asyncio.create_task(one.election.run())
        for _ in range(steps):
            await asyncio.sleep(0 if steps % 2 else 0.0001)
        running.cancel()
        await ended(running)
        assert one.count("elected") == one.count("lost") == one.count("ended")
    assert await aconnect().lock("k").acquire(timeout=30)


async def test_candidates_that_come_and_go(aclient: Client, aconnect: Connect) -> None:
    stage: list[int] = []
    clients = [aclient, aconnect()]
    many = [Candidate(clients[n % 2], stage) for n in range(5)]

    async def come_and_go(one: Candidate, pick: random.Random) -> None:
        for n in range(8):
            running = asyncio.create_task(one.election.run())
            for _ in range(pick.randrange(4)):
                await asyncio.sleep(pick.random() / 100)
                one.election.resign()
            if n % 2:
                running.cancel()
                await ended(running)
            else:
                await one.election.stop()
                await running

    await asyncio.gather(*(come_and_go(one, random.Random(n)) for n, one in enumerate(many)))
    for one in many:
        assert one.count("elected") == one.count("ended") == one.count("lost")
        assert set(one.reasons()) <= {None}
    assert await aconnect().lock("k").acquire(timeout=30)


@pytest.mark.filterwarnings("ignore:.*unclosed:ResourceWarning")  # of the client, which main does not close
@pytest.mark.parametrize("uncaught", [False, True])
def test_a_loop_that_ends_gives_up(shared: Daemon, uncaught: bool) -> None:
    """asyncio.run cancels the tasks that still run, and so does this."""
    events: list[object] = []

    async def work(_: Term) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            events.append("ended")

    async def main() -> None:
        client = Client(shared.path)
        election = client.election("k", work, lambda _, reason: events.append(reason))
        election.start()
        await until("it leads", lambda: election.is_leader)
        if uncaught:
            raise Failed

    with contextlib.suppress(Failed):
        asyncio.run(main())
    gc.collect()
    assert sorted(map(str, events)) == ["None", "ended"]
    with locksidecar.Client(shared.path) as client:
        assert client.lock("k").acquire(timeout=30)


# ---- what the daemon says ----


async def campaigns(loop: Loop, peer: Peer, **more: bool) -> Candidate:
    """Return a candidate that is connected and campaigns."""
    client = loop.client(peer.path, timeout=2)
    one = Candidate(client, [], **more)
    one.election.start()
    await thread(peer.welcome)
    return one


async def leads(peer: Peer, one: Candidate, left: int = 60_000, fence: int = FENCE) -> Term:
    await thread(lambda: peer.grant(left, fence=fence))
    await until("it works", lambda: one.events and one.events[-1] == ("elected", fence, None))
    term = one.election.term
    assert term is not None
    return term


@pytest.mark.parametrize("cancel", [True, False])
async def test_a_loss_is_told_of_at_once(loop: Loop, peer: Peer, cancel: bool) -> None:
    one = await campaigns(loop, peer, cancel=cancel)
    one.may_end.clear()
    term = await leads(peer, one)
    peer.say(64, 0, "k", term._hold.owner, FENCE, 4)
    await until("on_lost is called", lambda: one.reasons() == ["forced"])
    assert one.count("ended") == 0
    assert not one.election.is_leader
    with pytest.raises(LostError, match="forced"):
        term.check()
    pinged = asyncio.create_task(one.election._client.ping())
    await thread(lambda: peer.say(0, peer.expect(w.PING)[1], 1))  # the client has sent no acquire
    await pinged
    one.may_end.set()
    q = await thread(peer.expect, w.RELEASE)
    assert q[2:] == ("k", term._hold.owner, FENCE, w.ASYNC | w.ALL)  # opens the key of a hold that was ended by force
    await leads(peer, one, fence=FENCE + 1)
    stopped = asyncio.create_task(one.election.stop())
    await thread(peer.released)
    await stopped


async def test_nobody_leads_past_the_deadline(loop: Loop, peer: Peer) -> None:
    one = await campaigns(loop, peer)
    term = await leads(peer, one, left=300)
    while w.now() < term._hold.valid:  # like work that does not await
        pass
    assert not one.election.is_leader
    assert term.remaining == 0
    with pytest.raises(LostError, match="silence"):
        term.check()
    await until("on_lost is called", lambda: one.reasons() == ["silence"])
    assert (await thread(peer.expect, w.RELEASE))[4] == FENCE
    await leads(peer, one, fence=FENCE + 1)
    peer.hang_up()
    await one.election.stop()


async def test_a_grant_that_crosses_stop_is_given_back(loop: Loop, peer: Peer) -> None:
    one = await campaigns(loop, peer)
    q = await thread(peer.expect, w.ACQUIRE)
    stopped = asyncio.create_task(one.election.stop())
    c = await thread(peer.expect, w.CANCEL)
    peer.say(0, q[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0)
    peer.say(0, c[1], 0)
    assert (await thread(peer.expect, w.RELEASE))[2:6] == ("k", q[3], FENCE, w.ASYNC)
    await stopped
    assert not one.events


async def test_what_mends_itself_ends_no_campaign(loop: Loop, peer: Peer) -> None:
    one = await campaigns(loop, peer)
    for code in (6, 11, 8, 2):
        await thread(lambda code=code: peer.say(code, peer.expect(w.ACQUIRE)[1], "why"))  # type: ignore[misc]
    peer.say(67, 0, 11, "the daemon is stopping")
    await thread(peer.accept)
    peer.hang_up()
    await thread(peer.welcome)
    await leads(peer, one)
    peer.hang_up()
    await until("on_lost is called", lambda: one.reasons() == ["connection"])
    await thread(peer.welcome)
    await leads(peer, one, fence=FENCE + 1)
    peer.hang_up()
    await one.election.stop()


@pytest.mark.parametrize(("code", "cls"), [(9, locksidecar.Invalid), (12, locksidecar.Denied)])
async def test_what_does_not_ends_it(loop: Loop, peer: Peer, code: int, cls: type[Exception]) -> None:
    one = await campaigns(loop, peer)
    peer.say(code, (await thread(peer.expect, w.ACQUIRE))[1], "why")
    await until("it has ended", lambda: one.election.error)
    with pytest.raises(cls, match="why"):
        await one.election.stop()


async def test_a_version_that_nobody_speaks_ends_it(loop: Loop, peer: Peer) -> None:
    running = asyncio.create_task(loop.client(peer.path).election("k", nothing, nothing).run())
    await thread(peer.accept)
    await thread(peer.read)
    peer.say(67, 0, 14, "versions 2 to 3")
    with pytest.raises(locksidecar.ProtocolError, match="versions 2 to 3"):
        await running


async def test_stop_where_there_is_no_daemon(loop: Loop) -> None:
    async with loop.client("/nowhere/at/all").election("k", nothing, nothing) as election:
        await asyncio.sleep(0.2)
        assert election.error is None
    assert election.error is None


async def test_closing_the_client_ends_the_campaign(aconnect: Connect, aclient: Client) -> None:
    leading, waiting = aconnect(), aconnect()
    one, two = Candidate(leading, []), Candidate(waiting, [])
    one.election.start()
    await until("it leads", lambda: one.leads)
    two.election.start()
    await waiters(aclient, "k", 1)
    for candidate, client in ((two, waiting), (one, leading)):
        await client.close()
        await until("it has ended", lambda c=candidate: c.election.error)  # type: ignore[misc]
        with pytest.raises(locksidecar.ConnectionLost):
            await candidate.election.stop()
    assert one.reasons() == ["closed"]
    assert not two.events


@pytest.mark.filterwarnings("ignore:.*multi-threaded", "ignore:.*unclosed:ResourceWarning")
async def test_a_forked_child_never_leads(aclient: Client) -> None:
    one = Candidate(aclient, [])
    async with one.election as election:
        await until("it leads", lambda: one.leads)
        term = election.term
        assert term is not None

        def child() -> None:
            assert not election.is_leader
            assert term.remaining == 0
            with pytest.raises(LostError, match="fork"):
                term.check()

            async def use() -> None:
                assert await term.lost.wait()
                assert not election.is_leader
                await election.stop()
                await aclient.close()

            asyncio.run(use())

        assert await thread(lambda: forked(child)) == 0
        assert election.term is term
        term.check()
    assert one.reasons() == [None]


async def test_another_loop_is_told_so(aclient: Client) -> None:
    one = Candidate(aclient, [])
    async with one.election as election:
        await until("it leads", lambda: one.leads)

        def elsewhere(election: Election) -> None:
            async def use() -> None:
                for call in (election.start, election.stop, election.resign):
                    with pytest.raises(RuntimeError, match="another event loop"):
                        call()

            asyncio.run(use())

        await thread(elsewhere, election)
        assert election.is_leader
