from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from daemon import Daemon, Script
from peer import Peer

import locksidecar


@pytest.fixture
def idle() -> Iterator[Daemon]:
    """A daemon that has not been started."""
    binary = os.environ.get("LOCKSIDECAR_BIN")
    if not binary:
        pytest.fail("LOCKSIDECAR_BIN names no daemon: go build -o locksidecar ./cmd/locksidecar")
    daemon = Daemon(os.path.abspath(binary))
    yield daemon
    daemon.close()


@pytest.fixture
def daemon(idle: Daemon) -> Daemon:
    idle.start()
    return idle


@pytest.fixture
def connect(daemon: Daemon) -> Iterator[Callable[..., locksidecar.Client]]:
    """Make clients of the daemon; they are closed at the end."""
    clients: list[locksidecar.Client] = []

    def make(**more: float) -> locksidecar.Client:
        clients.append(locksidecar.Client(daemon.path, "test", **more))  # type: ignore[arg-type]
        return clients[-1]

    yield make
    for c in clients:
        c.close()


@pytest.fixture
def client(connect: Callable[..., locksidecar.Client]) -> locksidecar.Client:
    return connect()


@pytest.fixture
def script(daemon: Daemon) -> Iterator[Callable[..., Script]]:
    """Run Python programs; sys.argv[1] is the daemon's socket."""
    scripts: list[Script] = []

    def run(code: str, *args: str) -> Script:
        scripts.append(Script(code, daemon.path, *args))
        return scripts[-1]

    yield run
    for s in scripts:
        s.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A daemon that says what the test says."""
    p = Peer()
    yield p
    p.close()
