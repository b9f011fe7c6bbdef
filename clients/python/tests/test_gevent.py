"""The client for threads under gevent's monkey patches, where greenlets are the threads."""

from __future__ import annotations

import importlib.util
import select
import socket
from collections.abc import Callable

import pytest
from daemon import Daemon, Script

import locksidecar

PATCHED = "from gevent import monkey; monkey.patch_all()\nimport sys, gevent, locksidecar\n"

needs_gevent = pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="gevent is not installed")


@needs_gevent
def test_greenlets_exclude_each_other(script: Callable[..., Script]) -> None:
    ran = script(
        PATCHED
        + """
client, inside, overlaps, done = locksidecar.Client(sys.argv[1]), [0], [0], [0]
def run():
    lock = client.lock("k")
    for _ in range(20):
        with lock:
            inside[0] += 1
            gevent.sleep(0)
            overlaps[0] += inside[0] != 1
            inside[0] -= 1
            done[0] += 1
gevent.joinall([gevent.spawn(run) for _ in range(10)], raise_error=True)
print(done[0], overlaps[0])
lock = client.lock("k")
with lock:
    try:
        client.lock("k").acquire()
    except locksidecar.AlreadyHeld:
        print("refused")
    other = gevent.spawn(lock.acquire, timeout=0.1)
    print(other.get())
client.close()
"""
    )
    assert ran.line() == "200 0"
    assert ran.line() == "refused"
    assert ran.line() == "False"
    assert ran.end() == 0


@needs_gevent
def test_waits_end_while_the_daemon_hangs(daemon: Daemon, script: Callable[..., Script]) -> None:
    """Meanwhile other greenlets run, and nothing is owned past the stated validity."""
    ran = script(
        PATCHED
        + """
client = locksidecar.Client(sys.argv[1], timeout=1)
lost = gevent.event.Event() if hasattr(gevent, "event") else __import__("gevent.event").event.Event()
lock = client.lock("k", ttl=0.5, renew=False, on_lost=lambda e: lost.set())
lock.acquire()
client.lock("held", owner=1).acquire()
print("ready")
sys.stdin.readline()
ticks = [0]
def tick():
    while True:
        gevent.sleep(0.01)
        ticks[0] += 1
gevent.spawn(tick)
lost.wait()
print(lock.owned(), lock.remaining)
for kind in ({"timeout": 0.1}, {}):
    before = ticks[0]
    try:
        print(client.lock("held", owner=2).acquire(**kind))
    except locksidecar.Unavailable as e:
        print("unavailable", ticks[0] > before)
"""
    )
    assert ran.line() == "ready"
    daemon.freeze()
    ran.say("go")
    assert ran.line() == "False 0.0"
    assert ran.line() == "unavailable True"
    assert ran.line() == "unavailable True"
    assert ran.end() == 0


@needs_gevent
def test_elections_of_greenlets(script: Callable[..., Script]) -> None:
    ran = script(
        PATCHED
        + """
client, seen = locksidecar.Client(sys.argv[1]), []
def lead(term):
    seen.append("leads")
    term.lost.wait()
for _ in range(2):
    with client.election("k", lead, lambda term, reason: seen.append(reason)):
        while len(seen) % 2 == 0:
            gevent.sleep(0.01)
print(seen)
"""
    )
    assert ran.line() == "['leads', None, 'leads', None]"
    assert ran.end() == 0


def test_other_cooperative_sockets_are_refused(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like eventlet, which removes select.poll."""
    client = locksidecar.Client(daemon.path)
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "recv", lambda *_: b"", raising=False)
        patch.delattr(select, "poll")
        with pytest.raises(locksidecar.Unsupported, match="eventlet"):
            client.ping()
    client.ping()
    client.close()
