"""The real daemon as a process of its own, and helpers for tests with it."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import locksidecar
from locksidecar import _wire as w
from locksidecar._handle import run

SRC = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")
BOUND = 30.0  # seconds within which something must happen, even on a busy machine


def until(what: str, condition: Callable[[], object], bound: float = BOUND) -> None:
    """Poll until the condition holds."""
    end = time.monotonic() + bound
    while not condition():
        assert time.monotonic() < end, f"not within {bound} s: {what}"
        time.sleep(0.005)


def drains(client: locksidecar.Client) -> bool:
    """Tell whether the daemon refuses new acquires because it ends."""
    try:
        other = client.lock("other")
        if other.acquire(blocking=False):
            other.release()
        return False
    except locksidecar.Draining:
        return True


def ask(client: locksidecar.Client, op: int, *fields: object) -> w.Message:
    """Send a request, and return its reply."""
    return run(client._asked(op, *fields))


class Daemon:
    """One daemon on the embedded store, with a directory of its own."""

    def __init__(self, binary: str) -> None:
        self.binary = binary
        self.dir = tempfile.mkdtemp(prefix="ls-")
        self.path = os.path.join(self.dir, "s", "locksidecar.sock")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str) -> None:
        log = open(os.path.join(self.dir, "log"), "ab")  # noqa: SIM115
        with log:
            self.process = subprocess.Popen(
                [self.binary, "serve", "--socket", self.path, "--log-level", "warn", *flags], stdout=log, stderr=log
            )
        until("the daemon answers", self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            try:
                s.connect(self.path)
            except OSError:
                return False
        return True

    def keys(self) -> tuple[object, ...]:
        """Return the rows of all holds and waiters."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.connect(self.path)
            s.sendall(w.frame(w.HELLO, 1, 1, 1, "test") + w.frame(11, 2))
            data = b""
            while len(replies := list(w.cut(data, w.MAX_FRAME))) < 2:
                more = s.recv(65536)
                assert more, "the daemon has hung up"
                data += more
            rows = replies[1][0][2]
            assert isinstance(rows, tuple)
            return rows

    def log(self) -> str:
        with open(os.path.join(self.dir, "log")) as f:
            return f.read()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        """Stop the process, and return once it is stopped."""
        assert self.process is not None
        self.signal(signal.SIGSTOP)
        stat = pathlib.Path(f"/proc/{self.process.pid}/stat")
        until("the daemon is stopped", lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self.process is not None
        self.signal(signal.SIGKILL)
        self.process.wait(BOUND)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.thaw()
            self.process.kill()
            self.process.wait(BOUND)
        shutil.rmtree(self.dir, ignore_errors=True)


class Script:
    """A Python program in a process of its own, which is controlled by lines."""

    def __init__(self, code: str, *args: str) -> None:
        env = {**os.environ, "PYTHONPATH": SRC}
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", code, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            text=True,
        )

    def line(self) -> str:
        """Wait for the next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait until it has ended, and return its exit code."""
        try:
            return self.process.wait(BOUND)
        finally:
            self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(BOUND)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
