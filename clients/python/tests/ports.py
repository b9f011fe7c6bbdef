"""Ports for the servers of tests, reserved by the same file locks as in Go tests (upstream/testserver/ports)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator

# They lie below the ports that Linux and macOS give to outgoing connections.
FIRST, LAST = 20000, 32000


@contextlib.contextmanager
def reserved() -> Iterator[int]:
    """Reserve a port of 127.0.0.1 on which nobody listens. No other test on this machine gets it meanwhile."""
    folder = os.path.join(tempfile.gettempdir(), f"locksidecar-ports-{os.getuid()}")
    os.makedirs(folder, 0o700, exist_ok=True)
    for _ in range(1000):
        port = random.randrange(FIRST, LAST)
        fd = os.open(os.path.join(folder, str(port)), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Go's net.Listen does
                probe.bind(("127.0.0.1", port))
        except OSError:  # another test has reserved it, or another program listens
            os.close(fd)
            continue
        try:
            yield port
        finally:
            os.close(fd)
        return
    raise RuntimeError("all ports that were tried are in use")
