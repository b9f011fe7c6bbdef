"""A worker of the benchmarks in Python, as harness.serveWorker is one in Go.

Lines of JSON: the spec in, "ready" out, the start time in, the report out. One
process is one caller, which takes and gives up locks: keys of its own (pairs), or
one key that all processes want (hot). The other party is redis-py's Lock.
"""

from __future__ import annotations

import json
import mmap
import re
import resource
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

HIST_BITS = 5
HIST_BUCKETS = 40 << HIST_BITS


def bucket_of(v: int) -> int:
    e = max(0, v.bit_length() - 1 - HIST_BITS)
    return min((e << HIST_BITS) + (v >> e), HIST_BUCKETS - 1)


class Shared:
    """The page of harness.NewShared: who is inside, who was last, with which fence."""

    def __init__(self, path: str) -> None:
        self._f = open(path, "r+b")  # noqa: SIM115
        self._words = memoryview(mmap.mmap(self._f.fileno(), 0)).cast("Q")

    def enter(self, me: int, fence: int | None) -> tuple[bool, bool, bool]:
        """Hand-over, overlap, fence fault. Whoever holds the lock is alone here."""
        w = self._words
        overlap, other = w[0] != 0, w[8] != me
        w[0] = w[8] = me
        if fence is None:  # the peer has none
            return other, overlap, False
        fault = w[16] >= fence
        w[16] = fence
        return other, overlap, fault

    def leave(self, me: int) -> None:
        if self._words[0] == me:
            self._words[0] = 0


class Lock:
    """One way to a lock: acquire returns a fence or None, and blocks."""

    acquire: Callable[[], int | None]
    release: Callable[[], None]


def sidecar(args: dict[str, Any]) -> Callable[[str], Lock]:
    import locksidecar

    client = locksidecar.Client(args["Addr"])

    def lock(key: str) -> Lock:
        inner = client.lock(key)
        out = Lock()

        def acquire() -> int | None:
            inner.acquire()
            return inner.fence

        out.acquire, out.release = acquire, inner.release
        return out

    return lock


def bare(args: dict[str, Any]) -> Callable[[str], Lock]:
    """The least that a program in Python can do: frames on a socket, and no account of what is held."""
    import socket

    from msgpack import packb, unpackb

    sock = socket.socket(socket.AF_UNIX)
    sock.connect(args["Addr"])
    last = 0

    def ask(op: int, *fields: object) -> Any:
        nonlocal last
        last += 1
        payload = packb((op, last, *fields))
        sock.sendall(len(payload).to_bytes(4, "big") + payload)
        while True:
            head = sock.recv(65536)  # a frame mostly; a beat may be in front of it
            while head:
                size = int.from_bytes(head[:4], "big") + 4
                reply = unpackb(head[4:size])
                if reply[1] == last:
                    return reply
                head = head[size:]

    ask(1, 1, 1, "bare")

    def lock(key: str) -> Lock:
        out = Lock()
        fence = 0

        def acquire() -> int | None:
            nonlocal fence
            fence = ask(2, key, 1, 0, -1, 0, 0)[2]
            return fence

        out.acquire, out.release = acquire, lambda: ask(3, key, 1, fence, 0)
        return out

    return lock


def redis_py(args: dict[str, Any]) -> Callable[[str], Lock]:
    import redis

    host, port = args["Addr"].rsplit(":", 1)
    client = redis.Redis(host=host, port=int(port))

    def lock(key: str) -> Lock:
        inner = client.lock(key, timeout=args["TTL"] / 1e9, sleep=args["Sleep"] / 1e9)
        out = Lock()

        def acquire() -> int | None:
            if not inner.acquire():
                raise RuntimeError("not acquired")
            return None

        out.acquire, out.release = acquire, inner.release
        return out

    return lock


WAYS = {"python": sidecar, "bare": bare, "redis-py": redis_py}


def cpu() -> float:
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def when(text: str) -> float:
    """The time that Go writes, with up to nine places of a second."""
    seconds, fraction, zone = re.fullmatch(r"(.{19})(\.\d+)?(Z|.{6})", text).groups()
    at = datetime.fromisoformat(seconds + zone.replace("Z", "+00:00")).timestamp()
    return at + float(fraction or 0)


def main() -> None:
    spec = json.loads(sys.stdin.readline())
    args, me = spec["Args"], spec["Proc"] + 1
    way, _, kind = spec["Load"].partition("/")
    lock_of = WAYS[way](args)
    shared = Shared(args["Shared"]) if kind == "hot" else None
    key = args["Key"]
    lock_of(f"{key}:warm:{me}").acquire()  # the connection is there
    print('"ready"', flush=True)
    start = when(json.loads(sys.stdin.readline()))
    window = spec["Window"] / 1e9
    counts: dict[int, int] = {}
    longest = hand_overs = overlaps = faults = errors = n = 0
    last_error = ""
    hot = lock_of(key)
    clock, wall = time.perf_counter_ns, time.time
    begin_cpu = end_cpu = cpu()
    begin = end = 0
    measuring = False
    turn = 0
    while True:
        now = wall()
        if not measuring and now >= start:
            measuring, begin, begin_cpu = True, clock(), cpu()
        if measuring and now >= start + window:
            end, end_cpu = clock(), cpu()
            break
        turn += 1
        lock = hot if shared else lock_of(f"{key}:{me}:{turn}")
        asked = clock()
        try:
            fence = lock.acquire()
            if shared:
                other, overlap, fault = shared.enter(me, fence)
                got = clock()
                overlaps, faults = overlaps + overlap, faults + fault
                shared.leave(me)
            lock.release()
        except Exception as e:  # noqa: BLE001, PERF203
            errors, last_error = errors + 1, f"{type(e).__name__}: {e}"
            continue
        if not measuring:
            continue
        if shared:
            hand_overs += other
            took = got - asked
        else:
            took = clock() - asked
        b = bucket_of(took)
        counts[b] = counts.get(b, 0) + 1
        longest, n = max(longest, took), n + 1
    json.dump(
        {
            "Tally": {
                "Hist": {"Counts": counts, "Max": longest},
                "HandOvers": hand_overs,
                "Overlaps": overlaps,
                "FenceFaults": faults,
                "Errs": errors,
                "LastErr": last_error,
            },
            "PerCaller": [n],
            "CPU": int((end_cpu - begin_cpu) * 1e9),
            "Window": end - begin,
        },
        sys.stdout,
    )
    sys.stdout.write("\n")
    sys.stdout.flush()


main()
