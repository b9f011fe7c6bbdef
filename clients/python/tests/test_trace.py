"""The trace context of an acquire."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from aio import Loop
from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from peer import Background, Peer

import locksidecar
import locksidecar.asyncio
from locksidecar import _wire as w

HERE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SPAN = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, False, TraceFlags(1))


def in_span(run: Callable[[], object]) -> Callable[[], object]:
    """Run it under a span, in the thread in which it runs."""

    def inside() -> object:
        token = context.attach(trace.set_span_in_context(NonRecordingSpan(SPAN)))
        try:
            return run()
        finally:
            context.detach(token)

    return inside


def asked(peer: Peer, run: Callable[[], object], op: int = w.ACQUIRE) -> w.Message:
    """Return the fields after the flags of an acquire."""
    Background(run)
    peer.welcome()
    return peer.expect(op)[8:]


@pytest.mark.parametrize(
    ("kind", "op", "said"),
    [("lock", w.ACQUIRE, (0, HERE)), ("semaphore", w.ACQUIRE, (4, HERE)), ("many", w.ACQUIRE_MANY, (HERE,))],
)
def test_the_current_span_of_opentelemetry_is_said(peer: Peer, kind: str, op: int, said: w.Message) -> None:
    client = locksidecar.Client(peer.path)
    make: dict[str, Callable[[], locksidecar.Lock | locksidecar.Locks | locksidecar.Semaphore]] = {
        "lock": lambda: client.lock("k"),
        "semaphore": lambda: client.semaphore("k", 4),
        "many": lambda: client.lock_many(["k", "l"]),
    }
    assert asked(peer, in_span(make[kind]().acquire), op) == said


def test_outside_of_a_span_nothing_is_said(peer: Peer) -> None:
    assert asked(peer, locksidecar.Client(peer.path).lock("k").acquire) == ()


def test_a_program_without_opentelemetry_does_not_get_it(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    assert asked(peer, in_span(locksidecar.Client(peer.path).lock("k").acquire)) == ()
    assert "opentelemetry" not in sys.modules


def test_another_may_say_it_or_nobody(peer: Peer) -> None:
    there = HERE.replace("b7ad", "1234")
    assert asked(peer, in_span(locksidecar.Client(peer.path, trace=lambda: there).lock("k").acquire)) == (0, there)


def test_nobody_says_it(peer: Peer) -> None:
    assert asked(peer, in_span(locksidecar.Client(peer.path, trace=None).lock("k").acquire)) == ()


def test_a_task_stands_where_it_was_made(loop: Loop, peer: Peer) -> None:
    async def main() -> None:
        async with locksidecar.asyncio.Client(peer.path) as client:
            with pytest.raises(locksidecar.NotAcquired):
                async with client.lock("k", timeout=0):
                    pass

    def answered() -> None:
        peer.welcome()
        q = peer.expect(w.ACQUIRE)
        assert q[8:] == (0, HERE)
        peer.say(1, q[1], "held", -1)

    answering = Background(answered)
    in_span(lambda: loop.run(main()))()
    answering.result()
