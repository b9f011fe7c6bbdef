"""A worker of the chaos runner in Python, with the same orders and the same events as load.go.

Its owners are threads that share one client. If the client itself acquires a hold again, for example on a new
connection, that is one acquire here.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import threading
import time
from typing import Literal

import locksidecar

OUT = threading.Lock()
STOP = threading.Event()
ACQUIRES = threading.Lock()
acquires = 0
SHARED, PERMIT = 1, 2


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def note(e: str, **fields: object) -> None:
    """Write one event, at the time t if that is among the fields."""
    line = json.dumps({"e": e, "t": now()} | fields) + "\n"
    with OUT:
        sys.stdout.write(line)
        sys.stdout.flush()


def note_all(e: str, ns: list[int], **fields: object) -> None:
    """Write one event for each."""
    for n in ns:
        note(e, n=n, **fields)


def number() -> int:
    global acquires
    with ACQUIRES:
        acquires += 1
        return acquires


def word(e: BaseException) -> str:
    """Return the result of a request, as one word."""
    if isinstance(e, locksidecar.LostError):
        return e.reason
    return type(e).__name__


class Owner(threading.Thread):
    def __init__(self, orders: dict[str, str], client: locksidecar.Client, no: int) -> None:
        super().__init__(name=f"owner {no}")
        self.orders, self.client, self.no = orders, client, no
        self.rnd = random.Random(f"{orders['seed']}/{orders['worker']}/{no}")
        self.ttl = int(orders["ttl"]) / 1000
        host, port = orders["register"].rsplit(":", 1)
        self.register = socket.create_connection((host, int(port))).makefile("rw", newline="\n")

    def run(self) -> None:
        while not STOP.is_set():
            if not self.turn():
                time.sleep(self.rnd.uniform(0, 0.1))
            time.sleep(self.rnd.uniform(0, int(self.orders["pause"]) / 1000))

    def turn(self) -> bool:
        section = self.choose()
        n = self.rnd.randrange(20)
        got = section.acquire(0 if n < 4 else -1 if n < 7 else self.rnd.uniform(0.2, 2.2), None)
        if got is None:
            return True
        if not got:
            return False
        section.look()
        section.inside()
        section.leave()
        return True

    def choose(self) -> Section:
        """Acquire a permit, one lock or several.

        Each owner has one handle for each, as a program has. It names itself, so that another acquire is a re-entry. A
        permit has no owner's name: the thread that acquired it releases it.
        """
        kind, shared = self.rnd.randrange(10), self.rnd.randrange(5) == 0
        semaphores, keys = int(self.orders["semaphores"]), int(self.orders["keys"])
        if kind < 2 and semaphores:
            i = self.rnd.randrange(semaphores)
            return Section(self, self.client.semaphore(self.key(i), 2 + i), [self.key(i)], 2, 2 + i)
        some = self.rnd.sample(range(keys), self.rnd.randint(2, 3) if kind < 4 else 1)
        names = [self.key(i) for i in some]
        if len(names) > 1:
            return Section(self, self.client.lock_many(names, shared=shared, owner=self.no), names, int(shared))
        return Section(self, self.client.lock(names[0], shared=shared, owner=self.no), names, int(shared))

    def key(self, i: int) -> str:
        return f"{self.orders['prefix']}{i}"

    def ask(self, line: str) -> int | None:
        self.register.write(line + "\n")
        self.register.flush()
        answer = self.register.readline().split()
        if not answer or answer[0] != "ok":
            return None
        return int(answer[1]) if len(answer) > 1 else 0


class Section:
    """The time inside one hold, or several that were taken together."""

    def __init__(
        self,
        owner: Owner,
        lock: locksidecar.Lock | locksidecar.Locks | locksidecar.Semaphore,
        keys: list[str],
        mode: int,
        permits: int = 0,
    ) -> None:
        self.owner, self.lock, self.keys, self.mode, self.permits = owner, lock, keys, mode, permits
        self.ns: list[int] = []
        self.fences: list[int] = []
        self.said = 0
        self.last: tuple[int, int] | None = None  # the last check that found it valid, unless it is recorded already
        self.gone = False

    def acquire(self, wait: float, of: int | None) -> list[int] | Literal[False] | None:
        """Record everything. Return the numbers; None if it was not granted, False if there was no answer."""
        ns = [number() for _ in self.keys]
        terms: dict[str, int] = {"o": self.owner.no, "m": self.mode, "wait": -1 if wait < 0 else int(wait * 1000)}
        if self.permits:
            terms["p"] = self.permits
        if len(ns) > 1:
            terms["g"] = ns[0]
        if of:
            terms["of"] = of
        for n, key in zip(ns, self.keys, strict=True):
            note("ask", n=n, k=key, **terms)
        try:
            ok = self.lock.acquire(blocking=wait != 0, timeout=-1 if wait <= 0 else wait)
        except locksidecar.LockError as e:
            note_all("got", ns, r=word(e))
            return False
        if not ok:
            note_all("got", ns, r="timeout" if wait else "busy")
            return None
        at = now()
        left = self.lock.remaining
        try:
            fences = self.fences_now()
        except locksidecar.NotHeld:
            note_all("got", ns, r="late")  # lost before its fence could be read
            with contextlib.suppress(locksidecar.LockError):
                self.lock.release()
            return None
        for n, fence in zip(ns, fences, strict=True):
            note("got", t=at, n=n, r="ok", f=fence, u=at + int(left * 1e9))
        if of is None:
            self.ns, self.fences = ns, fences
        return ns

    def fences_now(self) -> list[int]:
        if isinstance(self.lock, locksidecar.Locks):
            return [self.lock.fences[key] for key in self.keys]
        return [self.lock.fence]

    def look(self) -> bool:
        """Check whether it is still held, and record what has become known."""
        at = now()
        left = int(self.lock.remaining * 1e9)
        if left == 0:
            if not self.gone:
                self.gone = True
                self.tell()
                note_all("lost", self.ns, r="lost")
            return False
        if at + left > self.said + 10_000_000:
            note_all("state", self.ns, t=at, u=at + left)
            self.said, self.last = at + left, None
        else:
            self.last = at, at + left
        return not self.gone

    def tell(self) -> None:
        if self.last:
            note_all("state", self.ns, t=self.last[0], u=self.last[1])
            self.last = None

    def inside(self) -> None:
        rnd = self.owner.rnd
        some = rnd.randrange(5) == 0
        if self.mode == PERMIT:
            self.beside(some)
            return
        if self.mode == SHARED:
            self.stay()
            return
        again = self.acquire(1, self.ns[0]) if some and len(self.ns) == 1 else None
        self.write()
        if again:
            self.release(again)
        if rnd.randrange(5) == 0 and isinstance(self.lock, locksidecar.Lock):
            self.lower(self.lock)
            self.stay()
            again = self.acquire(1, self.ns[0]) if some else None  # this is refused
            if again:
                self.release(again)

    def beside(self, another: bool) -> None:
        """Hold a permit for a while, or another one beside it."""
        key, owner = self.keys[0], self.owner
        more = Section(owner, owner.client.semaphore(key, self.permits), self.keys, PERMIT, self.permits)
        if another and more.acquire(0.2, None):
            more.look()
            more.stay()
            more.leave()
        self.stay()

    def lower(self, lock: locksidecar.Lock) -> None:
        """Make it a shared one."""
        self.look()
        self.tell()
        note("lower", n=self.ns[0])
        try:
            lock.downgrade()
            how = "ok"
        except locksidecar.LockError as e:
            how = word(e)
        try:
            note("low", n=self.ns[0], r=how, f=lock.fence)
        except locksidecar.NotHeld:
            note("low", n=self.ns[0], r=how, f=self.fences[0])

    def write(self) -> None:
        """Increment each register of each key. Some time passes between the read and the write."""
        ask = self.owner.ask
        all_ = []
        for n, key, fence in zip(self.ns, self.keys, self.fences, strict=True):
            who = f"{key} {fence} {self.owner.orders['worker']}/{n}"
            all_.append((key, who, ask(f"fr {who}"), ask(f"ur {key}") or 0))
        self.stay()
        for key, who, value, plain in all_:
            if value is not None:
                ask(f"fw {who} {value + 1}")
            if self.look():
                ask(f"uw {key} {plain + 1}")

    def stay(self) -> None:
        rnd, ttl = self.owner.rnd, self.owner.ttl
        n, d = rnd.randrange(100), rnd.uniform(0, 0.01)
        long = 25 if int(self.owner.orders["worker"]) % 4 == 3 and len(self.ns) == 1 else 2
        if n < long:
            d = ttl * 1.5
        elif n < long + 13:
            d = rnd.uniform(0, ttl / 5)
        end = now() + int(d * 1e9)
        while self.look() and now() < end:
            time.sleep(max(0, min((end - now()) / 1e9, 0.005)))

    def leave(self) -> None:
        self.look()
        self.tell()
        self.release(self.ns)

    def release(self, ns: list[int]) -> None:
        note_all("give", ns)
        try:
            self.lock.release()
        except locksidecar.LockError as e:
            note_all("gave", ns, r=word(e))
        else:
            # The end of the connection also releases, but the daemon has not said so.
            note_all("gave", ns, r="gone" if self.gone else "ok")


def main() -> None:
    orders = dict(a.split("=", 1) for a in sys.argv[1:])
    client = locksidecar.Client(orders["socket"], "chaos python", label=f"worker {orders['worker']}")
    note("up")
    owners = [Owner(orders, client, i + 1) for i in range(int(orders["owners"]))]
    for o in owners:
        o.start()
    sys.stdin.read()  # the end of the input tells the worker to stop
    STOP.set()
    for o in owners:
        o.join()
    client.close()
    note("bye")


main()
