"""Failures that look the same in both clients, and in clients in other languages. No other test has both."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import aio
import pytest
from aio import Loop
from daemon import BOUND, Daemon, Script, until
from peer import Background, Peer

import locksidecar
import locksidecar.asyncio
from locksidecar import Client
from locksidecar._base import unreachable

# One program, which is used as it is for threads, and with added awaits for tasks.
STOPPED = """
import sys, asyncio, locksidecar, locksidecar.asyncio
async def main():
    client = CLIENT(sys.argv[1])
    lock = client.lock(sys.argv[2], ttl=1, renew=sys.argv[2].startswith("keepalive/"))
    AWAIT lock.acquire()
    print("held", lock.fence)
    sys.stdin.readline()
    print(lock.owned(), lock.remaining)
    try:
        AWAIT lock.release()
    except locksidecar.LostError as e:
        print(e.reason, e.fence)
    AWAIT client.close()
asyncio.run(main())
"""
KINDS = {
    "threads": STOPPED.replace("CLIENT", "locksidecar.Client").replace("AWAIT ", ""),
    "asyncio": STOPPED.replace("CLIENT", "locksidecar.asyncio.Client").replace("AWAIT", "await"),
}
KEEPALIVES = "namespaces:\n  keepalive/: {heartbeat: 4s}\n"


STOPS = [(kind, key) for kind in KINDS for key in ("keepalive/k", "k")]


@pytest.fixture(scope="module")
def stops(binary: str) -> Iterator[dict[tuple[str, str], Background]]:
    """Run all of them at once, each with a daemon of its own."""
    with ExitStack() as stack:
        daemons = [stack.enter_context(closing(Daemon(binary))) for _ in STOPS]
        yield {stop: Background(stopped, d, *stop) for stop, d in zip(STOPS, daemons, strict=True)}


@pytest.mark.parametrize(("kind", "key"), STOPS)
def test_a_client_that_is_stopped_past_its_ttl(stops: dict[tuple[str, str], Background], kind: str, key: str) -> None:
    """With a TTL that is not renewed, or one that is renewed while the client answers heartbeats."""
    stops[kind, key].result(bound=120)


def stopped(daemon: Daemon, kind: str, key: str) -> None:
    config = os.path.join(daemon.dir, "config.yaml")
    with open(config, "w") as f:
        f.write(KEEPALIVES)
    daemon.start("--config", config)
    frozen = Script(KINDS[kind], daemon.path, key)
    try:
        fence = frozen.line().split()[1]
        frozen.process.send_signal(signal.SIGSTOP)
        with Client(daemon.path) as client, client.lock(key, timeout=60) as lock:
            frozen.say("go")
            frozen.process.send_signal(signal.SIGCONT)
            assert frozen.line() == "False 0.0"
            reason, said = frozen.line().split()
            assert reason in (("silent", "silence") if key.startswith("keepalive/") else ("fixed_end",))
            assert said == fence
            assert frozen.end() == 0
            assert lock.owned()
            assert lock.fence > int(fence)
    finally:
        frozen.close()


HOLDS = """
import sys, asyncio, locksidecar, locksidecar.asyncio
async def main():
    client = CLIENT(sys.argv[1])
    lock = client.lock("k")
    AWAIT lock.acquire()
    print("held")
    AWAIT WAIT
    print(lock.owned())
    AWAIT client.close()
asyncio.run(main())
"""
HOLDERS = {
    "threads": HOLDS.replace("CLIENT", "locksidecar.Client")
    .replace("AWAIT ", "")
    .replace("WAIT", "sys.stdin.readline()"),
    "asyncio": HOLDS.replace("CLIENT", "locksidecar.asyncio.Client")
    .replace("AWAIT", "await")
    .replace("WAIT", "asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)"),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_heartbeat_that_a_reload_adds_costs_no_holds(idle: Daemon, kind: str) -> None:
    """The embedded store states 10 s: a client that is silent after the reload has lost its hold by then."""
    config = os.path.join(idle.dir, "config.yaml")
    with open(config, "w") as f:
        f.write("{}\n")
    idle.start("--config", config)
    holder = Script(HOLDERS[kind], idle.path)
    try:
        assert holder.line() == "held"
        with open(config, "w") as f:
            f.write("namespaces:\n  k: {heartbeat: 4s}\n")
        idle.signal(signal.SIGHUP)
        with Client(idle.path) as client:
            assert not client.lock("k").acquire(timeout=13), "the silent holder has lost it"
        holder.say("go")
        assert holder.line() == "True"
        assert holder.end() == 0
    finally:
        holder.close()


def end(daemon: Daemon) -> None:
    """End it in order, because a daemon that starts after a kill waits until all stated validity is over."""
    daemon.signal(signal.SIGTERM)
    assert daemon.process is not None
    assert daemon.process.wait(BOUND) == 0


def test_the_socket_is_removed(daemon: Daemon, connect: Callable[..., Client]) -> None:
    """A connected client notices nothing. Another client finds no daemon, until there is a new one."""
    client, late = connect(), connect()
    lock = client.lock("k")
    lock.acquire()
    os.unlink(daemon.path)
    with pytest.raises(locksidecar.Unavailable, match="no daemon at") as e:
        late.ping()
    assert type(e.value) is locksidecar.Unavailable
    with client.lock("other"):
        assert lock.owned()
    lock.release()
    end(daemon)
    until("it is noticed", lambda: client._live() is None)
    with pytest.raises(locksidecar.Unavailable, match="no daemon at"):
        client.lock("k").acquire(blocking=False)
    daemon.start()
    for c in (client, late):
        with c.lock("k", timeout=60) as held:
            assert held.owned()


async def test_the_socket_is_removed_under_asyncio(loop: Loop, daemon: Daemon) -> None:
    client, late = loop.client(daemon.path), loop.client(daemon.path)
    lock = client.lock("k")
    await lock.acquire()
    os.unlink(daemon.path)
    with pytest.raises(locksidecar.Unavailable, match="no daemon at") as e:
        await late.ping()
    assert type(e.value) is locksidecar.Unavailable
    async with client.lock("other"):
        assert lock.owned()
    await lock.release()
    end(daemon)
    await aio.until("it is noticed", lambda: client._live() is None)
    with pytest.raises(locksidecar.Unavailable, match="no daemon at"):
        await client.lock("k").acquire(blocking=False)
    daemon.start()
    for c in (client, late):
        async with c.lock("k", timeout=60) as held:
            assert held.owned()


async def said(kind: str, path: str, timeout: float = 5) -> str:
    """Return the error of a client at a socket where it cannot use the daemon."""
    if kind == "threads":
        with Client(path, timeout=timeout) as client, pytest.raises(locksidecar.LockError) as e:
            await asyncio.to_thread(client.ping)
    else:
        async with locksidecar.asyncio.Client(path, timeout=timeout) as aclient:
            with pytest.raises(locksidecar.LockError) as e:
                await aclient.ping()
    return str(e.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_socket_is_named_where_no_daemon_is(kind: str, loop: Loop, daemon: Daemon) -> None:
    path = os.path.join(daemon.dir, "none")
    assert (await said(kind, path)).startswith(f"no daemon at {path}: [Errno 2] No such file or directory; start one")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.bind(path)
    assert (await said(kind, path)).startswith(
        f"no daemon at {path}: [Errno {errno.ECONNREFUSED}] Connection refused; start one"
    )
    until("the admin socket is there", lambda: os.path.exists(f"{daemon.path}.admin"))
    os.unlink(daemon.path)
    assert (await said(kind, daemon.path)).endswith(f"; only an admin socket is there, {daemon.path}.admin")


@pytest.mark.parametrize("kind", KINDS)
async def test_the_admin_socket_is_named_as_such(kind: str, loop: Loop, daemon: Daemon) -> None:
    path = f"{daemon.path}.admin"
    until("the admin socket is there", lambda: os.path.exists(path))
    hint = f"; it has the name of an admin socket, beside {daemon.path} for locks"
    text = await said(kind, path)
    assert text.startswith("the other end speaks HTTP, as the admin socket does")
    assert text.endswith(hint)
    text = await said(kind, f"{path}.admin")
    assert text.startswith(f"no daemon at {path}.admin")


@pytest.mark.parametrize("kind", KINDS)
async def test_the_other_end_speaks_http(kind: str, loop: Loop, peer: Peer) -> None:
    asked = asyncio.create_task(said(kind, peer.path))
    await asyncio.to_thread(peer.accept)
    peer.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert (await asked).startswith("the other end speaks HTTP, as the admin socket does")


def test_other_failures_to_connect_name_the_socket() -> None:
    denied = str(unreachable("/s", PermissionError(errno.EACCES, "Permission denied")))
    assert denied == f"this user (uid {os.geteuid()}) may not connect to /s: [Errno 13] Permission denied"
    assert str(unreachable("/s", OSError("AF_UNIX path too long"))) == "cannot connect to /s: AF_UNIX path too long"
    closed = unreachable("/s", locksidecar.ConnectionLost("the daemon closed the connection"))
    assert type(closed) is locksidecar.ConnectionLost
    assert str(closed) == "the daemon closed the connection, at /s"
