"""A signal handler may raise anywhere: Ctrl-C, or a time limit of a worker."""

from __future__ import annotations

import contextlib
import ctypes
import dis
import functools
import inspect
import itertools
import signal
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator

import pytest
from daemon import ask, until
from peer import Background

import locksidecar
from locksidecar import (
    Client,
    LockError,
    LostError,
    _base,
    _client,
    _conn,
    _election,
    _handle,
    _hold,
    _lock,
    _many,
    _scope,
    _session,
    _table,
    _term,
    _threads,
    redis_compat,
)
from locksidecar import _wire as w

Connect = Callable[..., Client]
# fmt: off
OURS = (
    _base, _client, _conn, _election, _handle, _hold, _lock, _many, _scope, _session, _table, _term, _threads,
    w, redis_compat.lock, redis_compat._common,
)
# fmt: on
Any = locksidecar.Lock | locksidecar.Locks


class Interrupted(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[None]:
    def ring(_: int, __: types.FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_an_interrupt_withdraws_the_wait(client: Client, connect: Connect) -> None:
    holder = connect().lock("k")
    holder.acquire()
    lock = client.lock("k")
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(Interrupted):
        lock.acquire()
    assert not lock.owned()
    until("nobody waits", lambda: ask(client, w.INSPECT, "k")[5] == 0)
    holder.release()
    assert client.lock("k").acquire(blocking=False)  # and the connection stays open


def test_ctrl_c_withdraws_the_wait(client: Client, connect: Connect) -> None:
    holder = connect().lock("k")
    holder.acquire()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt), client.lock("k"):
            pytest.fail("entered")
    finally:
        signal.signal(signal.SIGALRM, before)
    until("nobody waits", lambda: ask(client, w.INSPECT, "k")[5] == 0)


def interrupted(n: int, run: Callable[[], None]) -> bool:
    """Run f, with a signal at a moment that depends on n. Tell whether the signal came."""
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + (n % 37) * 0.00003)
        try:
            run()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return True
    except LostError:
        pass  # the one before ended the connection, just before this
    return False


def storm(watcher: Client, make: Callable[[str], Any], use: Callable[[Any], None]) -> None:
    """Interrupt use again and again, and check that every lock can be acquired afterwards."""
    keys = [f"k{n}" for n in range(4)]
    count, end = 0, time.monotonic() + 1
    while time.monotonic() < end or count < 100:
        lock = make(keys[count % 4])
        count += interrupted(count, lambda lock=lock: use(lock))  # type: ignore[misc]
    for key in keys:
        assert watcher.lock(key).acquire(timeout=60), f"{key} is left held"


def some(client: Client, many: int) -> Callable[[str], Any]:
    """Return a function that makes a handle for a key, and sometimes one that all threads share."""
    if not many:
        return client.lock
    return lambda key: client.lock_many([*(f"{key}-{n}" for n in range(many)), key, "shared"])


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("many", [0, 3, 200])
def test_interrupts_anywhere_leave_nothing_held(client: Client, connect: Connect, many: int) -> None:
    def use(lock: Any) -> None:
        try:
            for _ in range(5 if many > 3 else 100):
                lock.acquire()
                lock.release()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            try:
                while lock._held:  # interrupted between acquire and release, the lock is held
                    lock.release()
            except locksidecar.NotHeld:
                pass

    storm(connect(), some(client, many), use)


class Point:
    """A signal at an instruction of the client, as the interpreter would handle it there.

    A point is an instruction of one of the functions that the client calls, both counted from 1. Only that function is
    traced: all instructions before it would take many times as long. The trace function of the instruction
    is written in C, so that the handler runs only in the client.
    """

    def __init__(self, call: int, step: int) -> None:
        self.calls, self.steps = call, step  # how many are left until the point
        quiet = (0).__init__  # accepts anything, returns None, and handles no signals
        send = ctypes.PyDLL(None)["raise"]
        send.argtypes, send.restype = [ctypes.c_int] + 3 * [ctypes.py_object], {0: quiet}.get
        self._send = functools.partial(send, signal.SIGALRM)

    def called(self, frame: types.FrameType, _: str, __: object) -> object:
        if self.calls == 0 or not frame.f_globals["__name__"].startswith(w.PACKAGE):
            return None
        self.calls -= 1
        if self.calls > 0:
            return None
        frame.f_trace = self._step  # Python 3.13 needs it before the next step
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, _: types.FrameType, event: str, __: object) -> object:
        if event == "opcode" and self.steps > 0:
            self.steps -= 1
            if self.steps == 0:
                return self._send
        return self._step


def points() -> Iterator[Point]:
    """Yield all points, until the client makes fewer calls than the last one has."""
    call, step = 1, 1
    while True:
        point = Point(call, step)
        yield point
        if point.calls > 0:
            return
        call, step = (call, step + 1) if point.steps == 0 else (call + 1, 1)


@pytest.mark.usefixtures("alarm")
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="instructions are CPython's")
@pytest.mark.parametrize("confirm", [True, False])
def test_an_interrupt_at_each_instruction_leaves_nothing_held(connect: Connect, confirm: bool) -> None:
    client, other = connect(confirm=confirm), connect().lock("k")
    lock = client.lock("k")
    for n, point in enumerate(points(), 1):
        lock.acquire()  # it connects again if necessary, so that the next one takes the shortest path
        lock.release()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 needs it before settrace
        sys.settrace(point.called)  # type: ignore[arg-type]
        with contextlib.suppress(Interrupted):
            try:
                lock.acquire()
                lock.release()
            finally:
                sys.settrace(None)
        with contextlib.suppress(locksidecar.NotHeld):
            lock.release()
        assert other.acquire(timeout=60), f"left held after {n} instructions"
        other.release()
        client.ping()
        assert client._conn is not None
        # The daemon may answer a release after the ping.
        until(f"nothing is pending after {n} instructions", lambda: client.ping() >= 0 and not client._conn._pending)
        assert not client._conn._holds, n
    assert n > 300


@pytest.mark.usefixtures("alarm")
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="instructions are CPython's")
def test_an_election_that_was_interrupted_at_its_start(client: Client, connect: Connect) -> None:
    """It can be stopped, and started again."""
    other = connect().lock("k")
    election = client.election("k", lambda _: None, lambda *_: None)
    client.ping()
    for n, point in enumerate(points(), 1):
        sys._getframe().f_trace_opcodes = True  # Python 3.12 needs it before settrace
        sys.settrace(point.called)  # type: ignore[arg-type]
        with contextlib.suppress(Interrupted):
            try:
                election.start()
            finally:
                sys.settrace(None)
        Background(election.stop).result()
        assert other.acquire(timeout=10), f"left held after {n} instructions"
        other.release()
    assert n > 100


@pytest.mark.usefixtures("alarm")
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="instructions are CPython's")
@pytest.mark.parametrize("kind", ["lock", "many", "any", "permit", "redis"])
def test_an_interrupt_at_each_instruction_before_the_body(connect: Connect, kind: str) -> None:
    client, watcher = connect(), connect()
    lock: typing.Any = {
        "lock": lambda: client.lock("k"),
        "many": lambda: client.lock_many(["k", "other"]),
        "any": lambda: client.lock_any(["k"]),
        "permit": lambda: client.semaphore("k", 1),
        "redis": lambda: redis_compat.Lock(client, "k"),
    }[kind]()
    other = watcher.semaphore("k", 1) if kind == "permit" else watcher.lock("k")
    for n, point in enumerate(points(), 1):
        client.ping()  # it connects again if necessary, so that the next one takes the shortest path
        sys._getframe().f_trace_opcodes = True  # Python 3.12 needs it before settrace
        sys.settrace(point.called)  # type: ignore[arg-type]
        with contextlib.suppress(Interrupted):
            try:
                with lock:
                    sys.settrace(None)
            finally:
                sys.settrace(None)
        assert not lock.owned(), n
        assert other.acquire(timeout=10), f"left held after {n} instructions"
        other.release()
    assert n > 150


def use_pair(pair: locksidecar.ReadWriteLock[locksidecar.Lock]) -> None:
    pair.write.acquire()
    pair.read.acquire()
    pair.write.release()
    pair.read.release()


@pytest.mark.usefixtures("alarm")
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="instructions are CPython's")
@pytest.mark.parametrize("kind", ["pair", "redis"])
def test_whoever_was_interrupted_can_release(connect: Connect, kind: str) -> None:
    client, other = connect(), connect().lock("k")
    pair, compat = client.read_write("k"), redis_compat.Lock(client, "k")
    handles: list[typing.Any] = [compat] if kind == "redis" else [pair.write, pair.read]
    for n, point in enumerate(points(), 1):
        client.ping()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 needs it before settrace
        sys.settrace(point.called)  # type: ignore[arg-type]
        with contextlib.suppress(Interrupted):
            try:
                if kind == "pair":
                    use_pair(pair)
                else:
                    compat.acquire()
                    compat.release()
            finally:
                sys.settrace(None)
        for handle in handles:
            with contextlib.suppress(LockError):
                while True:
                    handle.release()
        assert other.acquire(timeout=10), f"left held after {n} instructions"
        other.release()
    assert n > 1000


def test_an_interrupt_between_acquire_and_the_body(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = client.lock("k")
    acquire = lock.acquire

    def late(blocking: bool = True, timeout: float | None = -1) -> bool:
        assert acquire(blocking, timeout)
        raise Interrupted

    monkeypatch.setattr(lock, "acquire", late)
    with pytest.raises(Interrupted), lock:
        pytest.fail("entered")
    assert client.lock("k").acquire(blocking=False)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("many", [0, 3])
def test_with_that_is_not_entered_leaves_nothing_held(client: Client, connect: Connect, many: int) -> None:
    def use(lock: Any) -> None:
        for _ in range(100):
            entered = False
            try:
                with lock:
                    entered = True
            finally:
                if entered and lock._held:  # interrupted before the first step of the exit
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    with contextlib.suppress(locksidecar.NotHeld):
                        lock.release()

    storm(connect(), some(client, many), use)


def test_no_jump_leaves_a_protected_region() -> None:
    """No jump back, where signals are handled, leaves the with or try around it.

    CPython 3.12 and 3.13 do not protect the jump that they make of a condition at the end of a loop. An interrupt there
    would leave a lock of the client held.
    """
    parse = getattr(dis, "_parse_exception_table", None)
    if sys.version_info < (3, 11) or parse is None:
        return  # blocks are a stack at run time there
    for module in OURS:
        for code in codes(compile(inspect.getsource(module), module.__name__, "exec")):
            if code.co_name == "<genexpr>":
                continue  # all of it is covered, for StopIteration: there is no lock that could stay held
            found = list(dis.get_instructions(code))
            # A coroutine as a whole, and a comprehension in place, have a handler that only restores the stack.
            restores = {i.offset for i in found if i.opname in ("CALL_INTRINSIC_1", "SWAP")}
            table = [e for e in parse(code) if e.target not in restores]

            def covered(at: int, table: list[types.SimpleNamespace] = table) -> bool:
                return any(e.start <= at < e.end for e in table)

            for before, i in itertools.pairwise(found):
                if (
                    i.opname == "JUMP_BACKWARD" and i.positions.lineno and not covered(i.offset)
                ):  # without a line: await
                    inside = covered(before.offset) or covered(i.argval)
                    assert not inside, f"{module.__name__}.{code.co_name}, a loop at line {i.positions.lineno}"


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)
