"""A worker of the chaos runner in Python, as load.go is one in Go: the same words, the same lines.

Its owners are threads that share one client. Where the client takes a hold up again by itself, on
a new connection say, that is one acquire here.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import threading
import time

import locksidecar

OUT = threading.Lock()
STOP = threading.Event()
ACQUIRES = threading.Lock()
acquires = 0


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def note(e: str, **fields: object) -> None:
    """Write one event, at the time t if that is among the fields."""
    line = json.dumps({"e": e, "t": now()} | fields) + "\n"
    with OUT:
        sys.stdout.write(line)
        sys.stdout.flush()


def number() -> int:
    global acquires
    with ACQUIRES:
        acquires += 1
        return acquires


def word(e: BaseException) -> str:
    """Return how a request ended, in one."""
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
        key = f"{self.orders['prefix']}{self.rnd.randrange(int(self.orders['keys']))}"
        shared = self.rnd.randrange(5) == 0
        n = self.rnd.randrange(20)
        wait = 0 if n < 4 else -1 if n < 7 else self.rnd.uniform(0.2, 2.2)
        # One owner with one handle a mode, as a program has them; it names itself, so that what it asks for
        # again is a re-entry.
        lock = self.client.lock(key, shared=shared, owner=self.no)
        section = Section(self, lock, key, shared)
        got = section.acquire(wait, None)
        if got is None:
            return True
        if not got:
            return False
        section.look()
        section.inside()
        section.leave()
        return True

    def ask(self, line: str) -> int | None:
        self.register.write(line + "\n")
        self.register.flush()
        answer = self.register.readline().split()
        if not answer or answer[0] != "ok":
            return None
        return int(answer[1]) if len(answer) > 1 else 0


class Section:
    """The time inside one hold."""

    def __init__(self, owner: Owner, lock: locksidecar.Lock, key: str, shared: bool) -> None:
        self.owner, self.lock, self.key, self.shared = owner, lock, key, shared
        self.n = self.fence = self.said = 0
        self.last: tuple[int, int] | None = None  # the last look that found it valid, unless noted
        self.gone = False

    def acquire(self, wait: float, of: int | None) -> int | bool | None:
        """Note it all. Return its number, None when it was not granted, False when there was no answer."""
        n = number()
        ms = -1 if wait < 0 else int(wait * 1000)
        note("ask", n=n, k=self.key, o=self.owner.no, m=int(self.shared), wait=ms, **({"of": of} if of else {}))
        try:
            ok = self.lock.acquire(blocking=wait != 0, timeout=-1 if wait <= 0 else wait)
        except locksidecar.LockError as e:
            note("got", n=n, r=word(e))
            return False
        if not ok:
            note("got", n=n, r="timeout" if wait else "busy")
            return None
        at = now()
        left = self.lock.remaining
        try:
            fence = self.lock.fence
        except locksidecar.NotHeld:
            note("got", n=n, r="late")  # lost before we could ask for its fence
            with contextlib.suppress(locksidecar.LockError):
                self.lock.release()
            return None
        note("got", t=at, n=n, r="ok", f=fence, u=at + int(left * 1e9))
        if of is None:
            self.n, self.fence = n, fence
        return n

    def look(self) -> bool:
        """Ask whether it is still held, and note what has become known."""
        at = now()
        left = int(self.lock.remaining * 1e9)
        if left == 0:
            if not self.gone:
                self.gone = True
                self.tell()
                note("lost", n=self.n, r="lost")
            return False
        if at + left > self.said + 10_000_000:
            note("state", t=at, n=self.n, u=at + left)
            self.said, self.last = at + left, None
        else:
            self.last = at, at + left
        return not self.gone

    def tell(self) -> None:
        if self.last:
            note("state", t=self.last[0], n=self.n, u=self.last[1])
            self.last = None

    def inside(self) -> None:
        if self.shared:
            self.stay()
            return
        again = self.owner.rnd.randrange(5) == 0 and self.acquire(1, self.n)
        self.write()
        if again:
            self.release(again)

    def write(self) -> None:
        """Write one more in each register, with a while between the reading and the writing."""
        who = f"{self.owner.orders['worker']}/{self.n}"
        value = self.owner.ask(f"fr {self.key} {self.fence} {who}")
        plain = self.owner.ask(f"ur {self.key}") or 0
        self.stay()
        if value is not None:
            self.owner.ask(f"fw {self.key} {self.fence} {who} {value + 1}")
        if self.look():
            self.owner.ask(f"uw {self.key} {plain + 1}")

    def stay(self) -> None:
        rnd, ttl = self.owner.rnd, self.owner.ttl
        n, d = rnd.randrange(100), rnd.uniform(0, 0.01)
        long = 25 if int(self.owner.orders["worker"]) % 4 == 3 else 2
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
        self.release(self.n)

    def release(self, n: int) -> None:
        note("give", n=n)
        try:
            self.lock.release()
        except locksidecar.LockError as e:
            note("gave", n=n, r=word(e))
        else:
            # A connection that ended meanwhile is release, too; only that is not what the daemon said.
            note("gave", n=n, r="gone" if self.gone else "ok")


def main() -> None:
    orders = dict(a.split("=", 1) for a in sys.argv[1:])
    client = locksidecar.Client(orders["socket"], "chaos python", label=f"worker {orders['worker']}")
    note("up")
    owners = [Owner(orders, client, i + 1) for i in range(int(orders["owners"]))]
    for o in owners:
        o.start()
    sys.stdin.read()  # its end is the word to stop
    STOP.set()
    for o in owners:
        o.join()
    client.close()
    note("bye")


main()
