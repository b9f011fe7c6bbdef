from __future__ import annotations

import inspect
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import ports
import pytest
from aio import LOOPS, Loop
from daemon import BOUND, SRC, Daemon, Script, until
from peer import Peer

import locksidecar
import locksidecar.asyncio

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))


@pytest.fixture(scope="session")
def binary() -> str:
    """The daemon's program: the one in LOCKSIDECAR_BIN, or else the one of make build."""
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
def server() -> Iterator[str]:
    """A Redis of its own."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server")
    with ports.reserved() as port:
        process = subprocess.Popen(
            [program, "--port", str(port), "--save", "", "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL
        )

        def answers() -> bool:
            assert process.poll() is None, "redis-server has ended"
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0

        try:
            until("redis-server answers", answers)
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(BOUND)


@pytest.fixture
def connect(daemon: Daemon) -> Iterator[Callable[..., locksidecar.Client]]:
    """Make clients of the daemon, which are closed at the end."""
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
    """A daemon that sends what the test chooses."""
    p = Peer()
    yield p
    p.close()


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Loop:
    """The runner of coroutine tests."""
    return Loop(request.param)


@pytest.fixture(scope="session")
def resident(binary: str) -> Iterator[Daemon]:
    """A daemon for many tests, none of which may end it."""
    daemon = Daemon(binary)
    daemon.start()
    yield daemon
    daemon.close()


@pytest.fixture
def shared(resident: Daemon) -> Iterator[Daemon]:
    """The daemon for many tests. Nothing is held on it when a test begins."""
    yield resident
    until("nothing is held or waited for", lambda: not resident.keys())


@pytest.fixture
def aconnect(loop: Loop, shared: Daemon) -> Callable[..., locksidecar.asyncio.Client]:
    """Make asyncio clients of the shared daemon, which are closed at the end."""
    return lambda **more: loop.client(shared.path, **more)


@pytest.fixture
def aclient(aconnect: Callable[..., locksidecar.asyncio.Client]) -> locksidecar.asyncio.Client:
    return aconnect()


@pytest.fixture(scope="session")
def runners(request: pytest.FixtureRequest, binary: str) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The conformance runner with each kind of client, both at once; none if no test uses them."""
    adapter = os.path.join(os.path.dirname(os.path.abspath(__file__)), "conformance_client.py")
    command = [binary, "conformance", "--json", "--timeout", "60s", "--client", sys.executable, adapter]
    running = {
        kind: subprocess.Popen(
            [*command, *flags], env={**os.environ, "PYTHONPATH": SRC}, stdout=subprocess.PIPE, text=True
        )
        for kind, flags in {"threads": (), "asyncio": ("--asyncio",)}.items()
        if any(map(conformance, request.session.items))
    }
    yield running
    for ran in running.values():
        with ran:
            ran.kill()


def conformance(item: pytest.Item) -> bool:
    return item.path.name == "test_conformance.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of the conformance runner last, because the runner starts together with the restarts."""
    items.sort(key=conformance)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every coroutine test a loop, of either kind."""
    if inspect.iscoroutinefunction(metafunc.function) and "loop" not in metafunc.fixturenames:
        metafunc.fixturenames.append("loop")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    loop = pyfuncitem.funcargs["loop"]
    assert isinstance(loop, Loop)
    loop.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
