"""A scripted daemon: the test reads each request and sends each reply."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from daemon import BOUND

from locksidecar import _wire as w

FENCE = 1795000000000000 << 10


class Peer:
    """A daemon that listens, and talks to the client that connected last."""

    def __init__(self) -> None:
        self.dir = tempfile.mkdtemp(prefix="ls-")
        self.path = os.path.join(self.dir, "s")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen()
        self.listener.settimeout(BOUND)
        self.sock: socket.socket | None = None
        self.data = b""
        self.session = 0

    def close(self) -> None:
        self.hang_up()
        self.listener.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def hang_up(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def accept(self) -> None:
        self.hang_up()
        self.sock, _ = self.listener.accept()
        self.sock.settimeout(BOUND)
        self.data = b""
        self.session += 1

    def welcome(self, ahead: int = 0, *, max_frame: int = 65536, before: bytes = b"") -> None:
        """Accept and answer hello. The daemon's clock is so many milliseconds ahead."""
        self.accept()
        op, number, low, high, *_ = self.read()
        assert (op, number, low, high) == (w.HELLO, 1, 1, 1)
        self.raw(before)
        spaces = [["", "embedded", "linearizable"]]
        self.say(0, 1, 1, self.session, ms() + ahead, max_frame, 100, 30000, 86400000, 1, spaces, "test")

    def read(self) -> w.Message:
        """Return the next request; () at the end."""
        assert self.sock is not None
        while True:
            for message, after in w.cut(self.data, 65536):
                self.data = self.data[after:]
                return message
            more = self.sock.recv(65536)
            if not more:
                return ()
            self.data += more

    def expect(self, op: int) -> w.Message:
        """Return the next request, which must have this op. Answers pings, which a waiting client sends."""
        while (message := self.read()) and message[0] == w.PING != op:
            self.say(0, message[1], ms())
        assert message, f"the connection has ended; op {op} was expected"
        assert message[0] == op, message
        return message

    def say(self, *values: object) -> None:
        self.raw(w.frame(*values))

    def raw(self, data: bytes) -> None:
        assert self.sock is not None
        self.sock.sendall(data)

    def grant(self, left: int, *, fence: int = FENCE, end: int = 0, ahead: int = 0) -> w.Message:
        """Answer an acquire with a grant that is valid for left milliseconds."""
        q = self.expect(w.ACQUIRE)
        self.say(0, q[1], fence, left, ms() + ahead + left, 1, end, 0)
        return q

    def grant_many(self, *lefts: int, fence: int = FENCE) -> w.Message:
        """Answer an acquire-many with grants that are valid for so many milliseconds each, and fences that rise."""
        q = self.expect(w.ACQUIRE_MANY)
        self.say(0, q[1], [[fence + n, left, ms() + left, 1, 0, 0] for n, left in enumerate(lefts)])
        return q

    def released(self) -> w.Message:
        q = self.expect(w.RELEASE)
        self.say(0, q[1], 0)
        return q


def ms() -> int:
    return w.now() // w.MS


class Background:
    """A function that runs in a thread; result waits for it and raises what it raised."""

    def __init__(self, f: Callable[..., Any], *args: Any) -> None:
        self._done: Any = None
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(f, args), daemon=True)
        self.thread.start()

    def _run(self, f: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self._done = f(*args)
        except BaseException as e:
            self._error = e

    @property
    def running(self) -> bool:
        return self.thread.is_alive()

    def result(self, bound: float = BOUND) -> Any:
        self.thread.join(bound)
        assert not self.thread.is_alive(), "still running"
        if self._error is not None:
            raise self._error
        return self._done
