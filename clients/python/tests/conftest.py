from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from daemon import Daemon, Script
from peer import Peer

import locksidecar

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


@pytest.fixture(scope="session")
def binary() -> str:
    """The daemon's program: what LOCKSIDECAR_BIN names, else what make build makes."""
    if named := os.environ.get("LOCKSIDECAR_BIN"):
        return os.path.abspath(named)
    built = os.path.join(ROOT, "bin", "locksidecar")
    if not os.path.exists(built):
        if shutil.which("go") is None:
            pytest.fail("no daemon to test with: set LOCKSIDECAR_BIN, or install Go")
        subprocess.run(["go", "build", "-o", built, "./cmd/locksidecar"], cwd=ROOT, check=True)
    return built


@pytest.fixture
def idle(binary: str) -> Iterator[Daemon]:
    """A daemon that has not been started."""
    daemon = Daemon(binary)
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
