"""Ways to acquire locks, as a Python program would use them: one client per process, which its threads share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Lock(Protocol):
    """One lock. acquire blocks; afterwards the attribute fence has the fence, if the lock has one."""

    def acquire(self) -> bool: ...

    def release(self) -> None: ...


Way = Callable[[str, bool], Lock]  # arguments: the key, and whether it is shared


def sidecar(args: dict[str, Any], confirm: bool = True) -> Way:
    import locksidecar

    client = locksidecar.Client(args["Addr"], confirm=confirm)

    def lock(key: str, shared: bool) -> Lock:
        return client.lock(key, shared=shared)

    return lock


def bare(args: dict[str, Any]) -> Way:
    """The least that a Python program can do: frames on a socket, without a record of holds. For one thread."""
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
            head = sock.recv(65536)  # usually one frame, perhaps after a keepalive
            while head:
                size = int.from_bytes(head[:4], "big") + 4
                reply = unpackb(head[4:size])
                if reply[1] == last:
                    return reply
                head = head[size:]

    ask(1, 1, 1, "bare")

    class Bare:
        def __init__(self, key: str, shared: bool) -> None:
            self.key, self.mode = key, int(shared)

        def acquire(self) -> bool:
            self.fence = ask(2, self.key, 1, self.mode, -1, 0, 0)[2]
            return True

        def release(self) -> None:
            ask(3, self.key, 1, self.fence, 0)

    return Bare


def redis_py(args: dict[str, Any]) -> Way:
    """Has no shared mode: a reader is exclusive, too."""
    import redis

    host, port = args["Addr"].rsplit(":", 1)
    client = redis.Redis(host=host, port=int(port))

    def lock(key: str, _shared: bool) -> Lock:
        return client.lock(key, timeout=args["TTL"] / 1e9, sleep=args["Sleep"] / 1e9)

    return lock


def unconfirmed(args: dict[str, Any]) -> Way:
    return sidecar(args, confirm=False)


WAYS = {"python": sidecar, "python-unconfirmed": unconfirmed, "bare": bare, "redis-py": redis_py}
