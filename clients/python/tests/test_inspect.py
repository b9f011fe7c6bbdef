"""Inspections: holders on this host and on others, and a daemon that does not know holders."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import aio
import pytest
from conftest import ROOT
from daemon import Daemon, until
from peer import FENCE, Background, Peer

import locksidecar
from locksidecar import Client, Holder, Inspection
from locksidecar import _wire as w
from locksidecar._inspect import inspection

Connect = Callable[..., Client]


@pytest.fixture
def hosts(binary: str, server: str) -> Iterator[list[Daemon]]:
    """Two daemons on one store."""
    daemons = [Daemon(binary), Daemon(binary)]
    try:
        for n, daemon in enumerate(daemons):
            daemon.start("--upstream", server, "--host-name", f"web-{n}")
        yield daemons
    finally:
        for daemon in daemons:
            daemon.close()


def only(state: Inspection) -> Holder:
    assert len(state.holders) == 1, state
    return state.holders[0]


def test_a_free_lock_has_no_holders(client: Client) -> None:
    assert client.lock("k").inspect() == Inspection(False, False, False, 0, 0, None, None, ())
    assert client.semaphore("k", 2).inspect().held is False


def test_the_holder_on_this_host(client: Client, connect: Connect) -> None:
    waiter = connect().lock("k")
    with client.lock("k", ttl=20) as held:
        waits = Background(waiter.acquire)
        until("it waits", lambda: held.inspect().waiters_here == 1)
        state = held.inspect()
        assert (state.held, state.here, state.shared, state.holders_here) == (True, True, False, 1)
        assert state.fence == held.fence
        assert state.left is not None
        assert 0 < state.left <= 20
        by = only(state)
        assert (by.kind, by.pid, by.uid, by.client, by.fence) == ("here", os.getpid(), os.getuid(), "test", held.fence)
        assert by.session is not None
        assert by.held is not None
        assert by.held >= 0
        assert by.started is None or by.started <= time.time()
        assert str(by) == f"process {os.getpid()} (test)"
    waits.result()


def test_readers_and_permits_on_this_host(client: Client, connect: Connect) -> None:
    readers = [c.lock("k", shared=True) for c in (client, connect())]
    for reader in readers:
        reader.acquire()
    state = readers[0].inspect()
    assert (state.shared, state.holders_here, len(state.holders)) == (True, 2, 2)
    permits = client.semaphore("k", 3)
    with permits, permits:
        state = permits.inspect()
        assert (state.held, state.holders_here, len(state.holders)) == (True, 2, 2)
        assert len({holder.fence for holder in state.holders}) == 2


def test_the_holder_on_another_host(hosts: list[Daemon]) -> None:
    with Client(hosts[0].path, "here") as here, Client(hosts[1].path, "there") as there:
        lock, permits = there.lock("k"), there.semaphore("s", 2)
        with lock, permits:
            until("the daemon has registered", lambda: only(here.lock("k").inspect()).kind == "daemon")
            state = here.lock("k").inspect()
            assert (state.held, state.here, state.holders_here, state.fence) == (True, False, 0, None)
            by = only(state)
            assert hosts[1].process is not None
            assert (by.kind, by.host, by.daemon) == ("daemon", "web-1", hosts[1].process.pid)
            assert by.version
            assert by.started is not None
            assert abs(time.time() - by.started) < 3600
            assert (by.session, by.pid, by.uid, by.client, by.fence) == (None, None, None, "", None)
            assert str(by) == "web-1"
            assert only(here.semaphore("s", 2).inspect()).host == "web-1"
            assert only(lock.inspect()).client == "there"
        until("it is free", lambda: not here.lock("k").inspect().held)


async def test_the_holder_on_another_host_under_asyncio(loop: aio.Loop, hosts: list[Daemon]) -> None:
    here, there = (loop.client(daemon.path) for daemon in hosts)

    async def registered() -> bool:
        return only(await here.lock("k").inspect()).kind == "daemon"

    async with there.lock("k"), there.semaphore("s", 2):
        await aio.until("the daemon has registered", registered)
        state = await here.lock("k").inspect()
        assert (state.held, state.here, only(state).host) == (True, False, "web-1")
        assert only(await here.semaphore("s", 2).inspect()).host == "web-1"
        assert only(await there.lock("k").inspect()).pid == os.getpid()


def test_a_daemon_that_knows_no_holders(peer: Peer) -> None:
    client = Client(peer.path, "test")
    asked = Background(client.lock("k").inspect)
    peer.welcome()
    q = peer.expect(w.INSPECT)
    assert q[2:] == ("k", 0, 1)
    peer.say(0, q[1], 1, 1, 3, 2, 29_000, FENCE)
    assert asked.result() == Inspection(True, True, True, 3, 2, 29.0, FENCE, ())
    asked = Background(client.semaphore("k", 4).inspect)
    q = peer.expect(w.INSPECT)
    assert q[2:] == ("k", 2, 1)
    peer.say(0, q[1], 2, 0, 0, 1, -1, 0)
    assert asked.result() == Inspection(True, False, False, 0, 1, None, None, ())
    asked = Background(client.lock("k").inspect)
    q = peer.expect(w.INSPECT)
    peer.say(8, q[1], "eight inspects are to be answered")
    with pytest.raises(locksidecar.Limit):
        asked.result()


def vectors() -> list[tuple[str, bytes, dict[str, Any]]]:
    found = []
    for name in ("replies.txt", "replies-accept.txt"):
        with open(os.path.join(ROOT, "protocol", "vectors", name), encoding="utf-8") as f:
            rows = [line.rstrip("\n").split("\t") for line in f if line.startswith("inspected-")]
        found += [(row[0], bytes.fromhex(row[1]), json.loads(row[2])) for row in rows]
    assert len(found) >= 6
    return found


@pytest.mark.parametrize(("name", "data", "says"), vectors(), ids=lambda v: v if isinstance(v, str) else "")
def test_the_protocols_vectors(name: str, data: bytes, says: dict[str, Any]) -> None:
    message, _ = next(w.cut(data, w.MAX_FRAME))
    state = inspection(message)
    assert (state.held, state.here) == (says["held"] != 0, says["held"] == 1)
    assert (state.holders_here, state.waiters_here) == (says["holders"], says["waiters"])
    assert state.left == (None if says["left"] < 0 else says["left"] / 1000)
    rows = says.get("by", [])
    assert len(state.holders) == len(rows)
    for holder, row in zip(state.holders, rows, strict=True):
        kinds = {1: "here", 2: "daemon", 3: "unregistered", 4: "foreign"}
        assert holder.kind == kinds.get(row[0], "unknown")
        assert (holder.host, holder.version, holder.name, holder.note) == (row[1], row[2], row[7], row[8])
        assert (holder.daemon or 0, (holder.started or 0) * 1000) == (row[3], row[4])
        assert [-1 if v is None else v * 1000 for v in (holder.held, holder.left)] == row[5:7]
        assert (holder.session or 0, holder.pid or 0, holder.client, holder.fence or 0) == (*row[9:11], *row[12:14])
        assert (-1 if holder.uid is None else holder.uid) == row[11]


@pytest.mark.parametrize(
    "fields",
    [
        (1, 0, 1, 0, 0),
        (1, 0, 1, 0, -2, 5),
        (1, 0, 1, 0, 0, 5, "by"),
        (1, 0, 1, 0, 0, 5, ("web-3",)),
        (1, 0, 1, 0, 0, 5, ((2, "web-3"),)),
        (1, 0, 1, 0, 0, 5, ((2, 3, "", 0, 0, -1, -1, "", "", 0, 0, -1, "", 0),)),
        (1, 0, 1, 0, 0, 5, ((2, "web-3", "", 0.5, 0, -1, -1, "", "", 0, 0, -1, "", 0),)),
    ],
)
def test_malformed_inspections(fields: tuple[object, ...]) -> None:
    with pytest.raises(locksidecar.ProtocolError):
        inspection((0, 7, *fields))


def test_holders_for_people() -> None:
    """Hosts and clients choose their names."""
    row = [2, "web\x1b[2J\u202e3", "0.1", 5, 0, -1, -1, "", "not on n1", 0, 0, -1, "", 0]

    def shown(**more: object) -> str:
        names = ["kind", "host", "version", "daemon", "started", "held", "left", "name", "note", "session", "pid"]
        values = dict(zip([*names, "uid", "client", "fence"], row, strict=True)) | more
        return str(only(inspection((0, 7, 2, 0, 0, 0, -1, 0, (tuple(values.values()),)))))

    assert shown() == "web\ufffd[2J\ufffd3 (not on n1)"
    assert shown(kind=1, note="") == "this host"
    assert shown(kind=1, note="", session=9) == "session 9"
    assert shown(kind=1, note="", session=9, client="job") == "job"
    assert shown(kind=1, note="", session=9, pid=12) == "process 12"
    assert shown(kind=1, note="", session=9, pid=12, client="job\n") == "process 12 (job\ufffd)"
    assert shown(kind=3, note="") == "an unregistered daemon"
    assert shown(kind=4, note="") == "another program"
    assert shown(kind=77, note="") == "another host"
