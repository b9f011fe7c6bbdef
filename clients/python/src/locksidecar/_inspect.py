"""The state of a lock or a semaphore as the daemon sees it, and its holders on any host. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

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
    """

    kind: Literal["here", "daemon", "unregistered", "foreign", "unknown"]
    """here: a client on this host, or, if session is None, this host without a client. daemon: another daemon.
    unregistered: a daemon of a version that does not register itself in the store. foreign: another program."""
    host: str
    """The name of the daemon's host; empty if unknown, as are version, name, note and client."""
    version: str
    """The version of the daemon."""
    daemon: int | None
    """The process id of the daemon on its host."""
    started: float | None
    """The start of that process by its host's clock, as time.time() counts."""
    held: float | None
    """The time since it was granted."""
    left: float | None
    """The time until the lease ends unless it is renewed."""
    name: str
    """The holder's name in the store."""
    note: str
    """A remark for people, such as the Redlock nodes that disagree."""
    session: int | None
    """The client's session. This and the following fields are known only for clients on this host."""
    pid: int | None
    """The client's process id."""
    uid: int | None
    """The client's user id."""
    client: str
    """The client's name and label."""
    fence: int | None
    """The fencing token; 0 for a degraded grant, which has none."""

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
    """The state of a lock or a semaphore when the daemon was asked. It may have changed since."""

    held: bool
    """The lock, or a permit of the semaphore, is held on any host, according to the store."""
    here: bool
    """Clients of this daemon hold it."""
    shared: bool
    """It is held shared."""
    holders_here: int
    """How many clients hold it on this host."""
    waiters_here: int
    """How many clients wait for it on this host."""
    left: float | None
    """The seconds until the present lease ends unless it is renewed; None if unknown, or free."""
    fence: int | None
    """The newest fencing token on this host; None if it is not held here."""
    holders: tuple[Holder, ...]
    """The holders on any host that the daemon can name, at most 64. An older daemon names none."""


def inspection(m: w.Message) -> Inspection:
    """Read the reply to an inspect."""
    held, mode, holders, waiters, left, fence = _numbers(m[2:8], 6)
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
    kind, daemon, started, held, left, session, pid, uid, fence = _numbers((row[0], *row[3:7], *row[9:12], row[13]), 9)
    return Holder(
        kind=KINDS.get(kind, "unknown"),  # type: ignore[arg-type]
        host=host,
        version=version,
        daemon=daemon or None,
        started=started / 1000 if started else None,
        held=_seconds(held),
        left=_seconds(left),
        name=name,
        note=note,
        session=session or None,
        pid=pid or None,
        uid=uid if uid >= 0 else None,
        client=client,
        fence=fence if session else None,
    )


def _numbers(fields: w.Message, count: int) -> w.Message:
    """Return fields after a check: there must be count of them, all numbers from -1 on."""
    if len(fields) != count or any(type(v) is not int or not -1 <= v <= w.MAX_INT for v in fields):
        raise ProtocolError("field is not a number in range")
    return fields


def _seconds(ms: int) -> float | None:
    return ms / 1000 if ms >= 0 else None
