"""The state of a lock or a semaphore as the daemon sees it, and its holders on any host. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from . import _wire as w
from ._errors import ProtocolError

HERE: Final = 1  # value of held: a client of this daemon holds it
SHARED: Final = 1  # value of mode
KINDS: Final = {1: "here", 2: "daemon", 3: "unregistered", 4: "foreign"}
_FIELDS: Final = 14  # number of fields of a holder


@dataclass(frozen=True)
class Holder:
    """A holder of a lock, or of a permit, on any host.

    Hosts and clients choose their names, and any program that can write to the store can claim any name. Do not
    base decisions on them. They may contain control characters, which str() of a Holder replaces.

    All times are in seconds. None means that the daemon does not know the value.

    kind: "here" is a client on this host, or, if session is None, this host without a client. "daemon" is another
    daemon, and "unregistered" one of a version that does not register itself in the store. "foreign" is another
    program.
    host: the name of the daemon's host; empty if unknown, as are version, name, note and client.
    version: the version of the daemon.
    daemon: the process id of the daemon on its host.
    started: the start of that process by its host's clock, as time.time() counts.
    held: the time since it was granted.
    left: the time until the lease ends unless it is renewed.
    name: the holder's name in the store.
    note: a remark for people, such as the Redlock nodes that disagree.
    session: the client's session. This and the following fields are known only for clients on this host.
    pid: the client's process id.
    uid: the client's user id.
    client: the client's name and label.
    fence: the fencing token; 0 for a degraded grant, which has none.
    """

    kind: Literal["here", "daemon", "unregistered", "foreign", "unknown"]
    host: str
    version: str
    daemon: int | None
    started: float | None
    held: float | None
    left: float | None
    name: str
    note: str
    session: int | None
    pid: int | None
    uid: int | None
    client: str
    fence: int | None

    def __str__(self) -> str:
        text = _NAMES.get(self.kind, "another host")
        if self.kind == "daemon":
            text = self.host
        elif self.kind == "here" and self.session is not None:
            text = self.client or f"session {self.session}"
            if self.pid is not None:
                text = f"process {self.pid} ({self.client})" if self.client else f"process {self.pid}"
        if self.note:
            text += f" ({self.note})"
        return "".join(c if c.isprintable() else "\ufffd" for c in text)


_NAMES: Final = {"here": "this host", "unregistered": "an unregistered daemon", "foreign": "another program"}


@dataclass(frozen=True)
class Inspection:
    """The state of a lock or a semaphore when the daemon was asked. It may have changed since.

    held: the lock, or a permit of the semaphore, is held on any host, according to the store.
    here: clients of this daemon hold it.
    shared: it is held shared.
    holders_here: how many clients hold it on this host.
    waiters_here: how many clients wait for it on this host.
    left: the seconds until the present lease ends unless it is renewed; None if unknown, or free.
    fence: the newest fencing token on this host; None if it is not held here.
    holders: the holders on any host that the daemon can name, at most 64. An older daemon names none.
    """

    held: bool
    here: bool
    shared: bool
    holders_here: int
    waiters_here: int
    left: float | None
    fence: int | None
    holders: tuple[Holder, ...]


def inspection(m: w.Message) -> Inspection:
    """Read the reply to an inspect."""
    held, mode, holders, waiters, left, fence = w.numbers(m, 6, -1)
    here = held == HERE
    rows = m[8] if len(m) > 8 else ()
    if type(rows) is not tuple:
        raise ProtocolError("the holders are not an array")
    return Inspection(
        held=held != 0,
        here=here,
        shared=held != 0 and mode == SHARED,
        holders_here=holders,
        waiters_here=waiters,
        left=_seconds(left),
        fence=fence if here else None,
        holders=tuple(map(_holder, rows)),
    )


def _holder(row: object) -> Holder:
    if type(row) is not tuple or len(row) < _FIELDS:
        raise ProtocolError("a holder has too few fields")
    host, version, name, note, client = (w.text(row, at) for at in (1, 2, 7, 8, 12))
    fields = 0, 0, row[0], *row[3:7], *row[9:12], row[13]
    kind, daemon, started, held, left, session, pid, uid, fence = w.numbers(fields, 9, -1)
    # in the order of the protocol
    times = started / 1000 if started else None, _seconds(held), _seconds(left)
    ids = session or None, pid or None, uid if uid >= 0 else None
    known: Any = KINDS.get(kind, "unknown")
    return Holder(known, host, version, daemon or None, *times, name, note, *ids, client, fence if session else None)


def _seconds(ms: int) -> float | None:
    return ms / 1000 if ms >= 0 else None
