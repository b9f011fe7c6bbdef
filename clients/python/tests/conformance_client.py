"""The adapter for ``locksidecar conformance``, on the public API: with threads, or with --asyncio on tasks.

It reads commands from standard input, one JSON object per line, and answers on standard output.
docs/contribute/client.md describes all commands.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import locksidecar

ASYNCIO: Final = "--asyncio" in sys.argv[1:]
if ASYNCIO:  # The runner starts this program for every scenario, and the import takes a third of its time.
    import asyncio

    import locksidecar.asyncio

ERRORS: Final[dict[type[Exception], str]] = {
    locksidecar.Canceled: "canceled",
    locksidecar.Upgrade: "upgrade",
    locksidecar.NotHeld: "not_held",
    locksidecar.Unconfirmed: "unknown",
    locksidecar.ConnectionLost: "closed",
    locksidecar.Draining: "draining",
    locksidecar.Unavailable: "unavailable",
    locksidecar.Limit: "limit",
    locksidecar.Invalid: "invalid",
    locksidecar.Unsupported: "unsupported",
    locksidecar.Denied: "denied",
}
CAN: Final = [
    "concurrent",
    "owners",
    "reentrant",
    "shared",
    "downgrade",
    "ttl",
    "fixed",
    "renew",
    "many",
    "any",
    "keep",
    "quiet",
    "unlock",
    "permits",
    "events",
    "exec",
]

Command = dict[str, Any]


def name(e: BaseException) -> str:
    """Return the protocol's name for an exception. An exception without a name of its own begins with it."""
    for kind, named in ERRORS.items():
        if isinstance(e, kind):
            return named
    first = str(e).partition(":")[0]
    if isinstance(e, locksidecar.ProtocolError):
        return first if first == "bad_version" else "bad_frame"
    if isinstance(e, ValueError):
        return "invalid"
    return first.replace(" ", "_") if isinstance(e, locksidecar.LockError) else repr(e)


def say(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def fences(lock: Any) -> dict[str, str]:
    """Return the fences of a handle by their keys."""
    if hasattr(lock, "fences"):
        return {key: str(fence) for key, fence in lock.fences.items()}
    return {lock.key: str(lock.fence)}


class Adapter:
    """The common part of both kinds of client: the locks by owner and fence."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.locks: dict[tuple[int, str, str], Any] = {}

    def lock(self, q: Command) -> Any:
        """Return a new handle for the keys of an acquire or an acquire_many."""
        if q["mode"] == "permit":
            return self.semaphore(q)
        make = {"acquire": self.client.lock, "acquire_many": self.client.lock_many, "acquire_any": self.client.lock_any}
        return make[q["do"]](
            q["keys"] if "keys" in q else q["key"],
            ttl=q["ttl_ms"] / 1000 if q["ttl_ms"] else None,
            renew=not q.get("fixed"),
            shared=q["mode"] == "shared",
            owner=q["owner"],
            on_lost=lambda e: say(event="lost", key=e.key, owner=e.owner, fence=str(e.fence), reason=e.reason),
            **({"keep": q["keep_ms"] / 1000} if q.get("keep_ms") else {}),
        )

    def semaphore(self, q: Command) -> Any:
        """Return a new handle for a permit, because the client chooses the owner of a permit."""
        return self.client.semaphore(
            q["key"],
            q["permits"],
            ttl=q["ttl_ms"] / 1000 if q["ttl_ms"] else None,
            renew=not q["fixed"],
            owner=q["owner"],
            on_lost=lambda e: say(event="lost", key=e.key, owner=q["owner"], fence=str(e.fence), reason=e.reason),
        )

    def granted(self, q: Command, lock: Any, got: bool) -> Command:
        if not got:
            return {"error": "timeout" if q["wait_ms"] else "busy"}
        by_key = fences(lock)
        for key, fence in by_key.items():
            self.locks[q["owner"], key, fence] = lock
        if q["do"] == "acquire_many":
            return {"ok": True, "fences": list(by_key.values())}
        return {"ok": True, "key": lock.key, "fence": by_key[lock.key]}

    def known(self, q: Command) -> Any:
        """Return the lock that a command is about. Its owner may hold the key again, with another fence."""
        lock = self.locks.get((q["owner"], q["key"], q["fence"]))
        if lock is None or fences(lock).get(q["key"]) != q["fence"]:
            raise locksidecar.NotHeld("no such hold")
        return lock

    def known_many(self, q: Command) -> Any:
        """Return the locks that were acquired together and are to be released together."""
        if not q["keys"] or len(q["keys"]) != len(q["fences"]):
            raise locksidecar.Invalid("no keys, or not as many fences")
        found = [self.known({**q, "key": k, "fence": f}) for k, f in zip(q["keys"], q["fences"], strict=True)]
        if any(lock is not found[0] for lock in found) or list(found[0].keys) != q["keys"]:
            raise locksidecar.Unsupported("they were not acquired together")
        return found[0]

    def release(self, lock: Any, q: Command) -> Any:
        if q.get("now"):
            return lock.release(now=True)
        return lock.release(wait=not q.get("quiet"))

    def held(self, q: Command) -> Command:
        try:
            return {"ok": True, "held": self.known(q).owned()}
        except locksidecar.NotHeld:
            return {"ok": True, "held": False}

    def change(self, q: Command) -> Any:
        """Do what needs no more than a call; the result must be awaited with asyncio."""
        do: dict[str, Callable[[], Any]] = {
            "connect": self.client.ping,
            "close": self.client.close,
            "release": lambda: self.release(self.known(q), q),
            "release_detached": lambda: self.client.release_detached(q["key"], int(q["fence"])),
            "release_many": lambda: self.known_many(q).release(),
            "renew": lambda: self.known(q).extend(q["ttl_ms"] / 1000 if q["ttl_ms"] else None),
            "downgrade": lambda: self.known(q).downgrade(),
        }
        return do[q["do"]]()


def fork(a: Adapter, q: Command) -> Command:
    """Fork a child that stays, and return whether it believes that it holds the lock."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, b"1" if a.held(q)["held"] else b"0")
        time.sleep(600)
        os._exit(0)
    os.close(write)
    held = os.read(read, 1)
    os.close(read)
    return {"ok": True, "pid": pid, "held": held == b"1"}


def threads() -> None:
    a = Adapter(locksidecar.Client(name="conformance"))

    def answer(q: Command) -> None:
        try:
            if q["do"] in ("acquire", "acquire_many", "acquire_any"):
                lock, wait = a.lock(q), q["wait_ms"]
                got = lock.acquire(timeout=wait / 1000) if wait > 0 else lock.acquire(blocking=wait < 0)
                done = a.granted(q, lock, got)
            elif q["do"] == "fork":
                done = fork(a, q)
            elif q["do"] == "force_unlock":
                done = {"ok": True, "ended": a.client.force_unlock(q["key"], fence=int(q["fence"]))}
            else:
                a.change(q)
                done = {"ok": True}
        except Exception as e:
            done = {"error": name(e)}
        say(id=q["id"], **done)

    say(event="ready", client="Python", can=[*CAN, "fork"])
    for line in sys.stdin:
        q = json.loads(line)
        if q["do"] == "held":
            say(id=q["id"], **a.held(q))
        else:
            threading.Thread(target=answer, args=(q,), daemon=True).start()


async def tasks() -> None:
    a = Adapter(locksidecar.asyncio.Client(name="conformance"))
    running: dict[int, asyncio.Task[None]] = {}

    async def answer(q: Command) -> None:
        try:
            if q["do"] in ("acquire", "acquire_many", "acquire_any"):
                lock, wait = a.lock(q), q["wait_ms"]
                got = await (lock.acquire(timeout=wait / 1000) if wait > 0 else lock.acquire(blocking=wait < 0))
                done = a.granted(q, lock, got)
            elif q["do"] == "force_unlock":
                done = {"ok": True, "ended": await a.client.force_unlock(q["key"], fence=int(q["fence"]))}
            else:
                await a.change(q)
                done = {"ok": True}
        except asyncio.CancelledError:
            done = {"error": "canceled"}
        except Exception as e:
            done = {"error": name(e)}
        say(id=q["id"], **done)

    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    say(event="ready", client="Python asyncio", can=[*CAN, "cancel"])
    while line := await lines.readline():
        q = json.loads(line)
        if q["do"] == "held":
            say(id=q["id"], **a.held(q))
        elif q["do"] == "cancel":
            running[q["target"]].cancel()
            say(id=q["id"], ok=True)
        else:
            running[q["id"]] = loop.create_task(answer(q))


if __name__ == "__main__":
    if ASYNCIO:
        asyncio.run(tasks())
    else:
        threads()
