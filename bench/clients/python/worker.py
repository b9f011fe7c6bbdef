"""A worker of the benchmarks in Python, like harness.serveWorker in Go.

It exchanges lines of JSON: it reads the spec, writes "ready", reads the start time, and writes the report. Its callers
are threads, which acquire and release locks as load.WorkArgs say. The load is the name of a way to acquire locks.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import sys
import threading
import time
from datetime import datetime
from typing import Any

from board import Board
from ways import WAYS, Lock

HIST_BITS = 5
HIST_BUCKETS = 40 << HIST_BITS
GRACE = 10  # seconds for which callers may continue after the window
WARMING, MEASURING, STOPPED = range(3)


def bucket_of(v: int) -> int:
    e = max(0, v.bit_length() - 1 - HIST_BITS)
    return min((e << HIST_BITS) + (v >> e), HIST_BUCKETS - 1)


class Tally:
    """The counts of one caller, within the window, except for faults. Durations are counted after the window."""

    def __init__(self) -> None:
        self.took: list[int] = []  # in ns
        self.handoffs = self.overlaps = self.faults = self.errors = 0
        self.last_error = ""

    def error(self, e: Exception) -> None:
        self.errors, self.last_error = self.errors + 1, f"{type(e).__name__}: {e}"


class Worker:
    def __init__(self, spec: dict[str, Any]) -> None:
        args = spec["Args"]
        self.lock_of = WAYS[spec["Load"]](args)
        self.keys, self.prefix = args["Keys"], args["Prefix"]
        self.few = self.keys // 5 if args["Skew"] else 0
        self.readers = args["Readers"]
        self.board = Board(args["Board"]) if self.keys else None
        self.threads = args["Callers"]
        self.first = spec["Proc"] * self.threads + 1
        self.phase = WARMING
        warm = self.lock_of(f"{self.prefix}:warm:{self.first}", False)  # the connection is there
        warm.acquire()
        warm.release()

    def measure(self, start: float, window: float) -> dict[str, Any]:
        tallies = [Tally() for _ in range(self.threads)]
        run = self.wanted if self.keys else self.own
        callers = [threading.Thread(target=run, args=(self.first + i, t), daemon=True) for i, t in enumerate(tallies)]
        for c in callers:
            c.start()
        time.sleep(max(0, start - time.time()))
        begin, begin_cpu = time.perf_counter_ns(), cpu()
        self.phase = MEASURING
        time.sleep(window)
        self.phase = STOPPED
        end, end_cpu = time.perf_counter_ns(), cpu()
        patience = time.monotonic() + GRACE
        for c in callers:
            c.join(max(0, patience - time.monotonic()))
        return report(tallies, int((end_cpu - begin_cpu) * 1e9), end - begin)

    def own(self, me: int, tally: Tally) -> None:
        """Pairs on keys that nothing else uses."""
        clock, turn, lock_of, took = time.perf_counter_ns, 0, self.lock_of, tally.took.append
        prefix = f"{self.prefix}:{me}:"
        while self.phase != STOPPED:
            turn += 1
            lock = lock_of(f"{prefix}{turn}", False)
            asked = clock()
            try:
                acquired = lock.acquire()
                lock.release()
            except Exception as e:
                tally.error(e)
                continue
            if not acquired:
                tally.error(RuntimeError("not acquired"))
            elif self.phase == MEASURING:
                took(clock() - asked)

    def wanted(self, me: int, tally: Tally) -> None:
        """Turns on keys that other callers use, too: the waits are measured."""
        only = self.lock_of(f"{self.prefix}:0000", False) if self.keys == 1 else None
        while self.phase != STOPPED:
            if only:
                self.turn(only, 0, False, me, tally)
                continue
            slot, shared = self.slot(), random.random() < self.readers
            self.turn(self.lock_of(f"{self.prefix}:{slot:04d}", shared), slot, shared, me, tally)

    def turn(self, lock: Lock, slot: int, shared: bool, me: int, tally: Tally) -> None:
        clock = time.perf_counter_ns
        asked = clock()
        try:
            if not lock.acquire():
                raise RuntimeError("not acquired")
            got = clock()
            fence = getattr(lock, "fence", 0)
            other, overlap, fault = self.board.enter(slot, me, fence, shared)
            crossed = self.board.leave(slot, me, shared)
            lock.release()
        except Exception as e:
            tally.error(e)
            return
        tally.overlaps, tally.faults = tally.overlaps + (overlap or crossed), tally.faults + fault
        if self.phase == MEASURING:
            tally.took.append(got - asked)
            tally.handoffs += other

    def slot(self) -> int:
        """Return one of the keys; with a skew, four of five are from the first fifth."""
        if not self.few:
            return random.randrange(self.keys)
        return random.randrange(self.few) if random.random() < 0.8 else random.randrange(self.few, self.keys)


def cpu() -> float:
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def when(text: str) -> float:
    """Parse a time that Go has written, with up to nine decimal places."""
    seconds, fraction, zone = re.fullmatch(r"(.{19})(\.\d+)?(Z|.{6})", text).groups()
    at = datetime.fromisoformat(seconds + zone.replace("Z", "+00:00")).timestamp()
    return at + float(fraction or 0)


def report(tallies: list[Tally], cpu_ns: int, window_ns: int) -> dict[str, Any]:
    counts: dict[int, int] = {}
    for t in tallies:
        for took in t.took:
            b = bucket_of(took)
            counts[b] = counts.get(b, 0) + 1
    return {
        "Tally": {
            "Hist": {"Counts": counts, "Max": max((max(t.took, default=0) for t in tallies), default=0)},
            "Handoffs": sum(t.handoffs for t in tallies),
            "Overlaps": sum(t.overlaps for t in tallies),
            "FenceFaults": sum(t.faults for t in tallies),
            "Errs": sum(t.errors for t in tallies),
            "LastErr": next((t.last_error for t in tallies if t.last_error), ""),
        },
        "PerCaller": [len(t.took) for t in tallies],
        "CPU": cpu_ns,
        "Window": window_ns,
    }


def main() -> None:
    spec = json.loads(sys.stdin.readline())
    worker = Worker(spec)
    print('"ready"', flush=True)
    start = when(json.loads(sys.stdin.readline()))
    print(json.dumps(worker.measure(start, spec["Window"] / 1e9)), flush=True)
    os._exit(0)  # a caller that still waits needs no orderly end


main()
