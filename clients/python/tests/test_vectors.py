"""The golden frames that all clients read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from peer import FENCE, Background, Peer, ms

import locksidecar
from locksidecar import _wire as w
from locksidecar._errors import CODES, REASONS

DIR = os.path.join(os.path.dirname(__file__), "..", "..", "..", "protocol", "vectors")


def vectors(file: str, which: Callable[[dict[str, Any]], bool] = lambda _: True) -> list[object]:
    return list(_vectors(file, which))


def _vectors(file: str, which: Callable[[dict[str, Any]], bool]) -> Iterator[object]:
    with open(os.path.join(DIR, file), encoding="utf-8") as f:
        for line in f:
            if line.startswith("#") or not line.strip():
                continue
            name, data, fields = line.rstrip("\n").split("\t")
            if which(json.loads(fields)):
                yield pytest.param(bytes.fromhex(data), json.loads(fields), id=name)


def values(v: Any) -> Any:
    """Turn arrays of the JSON into tuples, as they are read."""
    return tuple(values(x) for x in v) if isinstance(v, list) else v


def one(frame: bytes) -> w.Message:
    (message, after) = next(w.cut(frame, w.MAX_FRAME))
    assert after == len(frame)
    return message


@pytest.mark.parametrize(("frame", "fields"), vectors("requests.txt"))
def test_requests(frame: bytes, fields: dict[str, Any]) -> None:
    if "keep" in fields and "traceparent" not in fields:
        fields = {**fields, "traceparent": ""}
        fields["keep"] = fields.pop("keep")  # it comes after
    assert w.frame(*fields.values()) == frame
    assert one(frame) == values(list(fields.values()))


@pytest.mark.parametrize(("frame", "fields"), vectors("replies.txt"))
def test_replies(frame: bytes, fields: dict[str, Any]) -> None:
    fields.pop("to")
    assert one(frame) == values(list(fields.values()))
    assert w.frame(*fields.values()) == frame


@pytest.mark.parametrize(("frame", "fields"), vectors("pushes.txt"))
def test_pushes(frame: bytes, fields: dict[str, Any]) -> None:
    event, *rest = fields.values()
    assert one(frame) == (event, 0, *rest)


def begins(got: object, want: object) -> bool:
    """Tell whether got is want, up to appended fields."""
    if isinstance(got, tuple) and isinstance(want, tuple):
        return len(got) >= len(want) and all(begins(g, x) for g, x in zip(got, want, strict=False))
    return got == want


@pytest.mark.parametrize(("frame", "fields"), [*vectors("replies-accept.txt"), *vectors("pushes-accept.txt")])
def test_what_has_to_be_accepted(frame: bytes, fields: dict[str, Any]) -> None:
    fields.pop("to", None)
    want = list(fields.values())
    if "event" in fields:
        want.insert(1, 0)
    assert begins(one(frame), values(want))


@pytest.mark.parametrize(("frame", "fields"), vectors("requests-accept.txt"))
def test_msgpack_of_every_width_is_read(frame: bytes, fields: dict[str, Any]) -> None:
    message = one(frame)
    assert message[:2] == (fields["op"], fields["id"])


def asked(fields: dict[str, Any]) -> bool:
    """Tell whether a bad reply can be a reply to this client, which does not make every request."""
    return fields.get("to", w.ACQUIRE) in (w.ACQUIRE, w.RELEASE, w.RELEASE_MANY)


@pytest.mark.parametrize(("frame", "fields"), vectors("bad-replies.txt", asked))
def test_bad_replies_end_the_connection(peer: Peer, frame: bytes, fields: dict[str, Any]) -> None:
    client = locksidecar.Client(peer.path, timeout=2)
    to = fields.get("to", w.ACQUIRE)
    lock = client.lock_many(["k"], owner=7) if to == w.RELEASE_MANY else client.lock("k", owner=7)
    calls: list[Callable[[], object]] = [client.ping, lock.acquire] if to == w.ACQUIRE else [lock.acquire, lock.release]
    call = Background(lambda: [c() for c in calls])
    if to == w.ACQUIRE:  # the frames' id is 3
        peer.welcome()
        peer.say(0, peer.expect(w.PING)[1], 1)
    elif to == w.RELEASE_MANY:
        peer.welcome()
        peer.grant_many(60_000)
    else:
        peer.welcome()
        peer.say(0, peer.expect(w.ACQUIRE)[1], FENCE, 60_000, ms() + 60_000, 1, 0, 0)
    assert peer.expect(to)[1] == 3
    conn = client._conn
    assert conn is not None
    peer.raw(frame)
    with pytest.raises(locksidecar.ProtocolError):
        call.result()
    assert conn.dead is not None
    assert not lock.owned()


def test_the_tables_are_those_of_the_protocol() -> None:
    sections: dict[str, dict[str, int]] = {}
    section = ""
    with open(os.path.join(DIR, "..", "PROTOCOL.md"), encoding="utf-8") as f:
        for line in f:
            if line.startswith("### "):
                section = line[4:].strip()
            cells = [c.strip() for c in line.split("|")]
            if len(cells) > 4 and cells[1].isdigit():
                sections.setdefault(section, {})[cells[2]] = int(cells[1])
    codes = {name: code for code, (name, _) in CODES.items()}
    assert {"ok": 0, **codes} == sections["Codes of replies"]
    assert {name: reason for reason, name in REASONS.items()} == sections["Reasons of lost"]
    for name, op in sections["Operations"].items():
        assert getattr(w, name.replace("-", "_").upper(), op) == op
    for name, event in sections["Pushes"].items():
        assert getattr(w, name.replace("-", "_").upper(), event) == event


def test_nesting() -> None:
    """Values down to level 8 are allowed: the message is level 0, entries of a map are one level below it."""
    for tail in (b"\x91" * 7 + b"\x01", b"\x91" * 7 + b"\x90", b"\x81\x01" + b"\x91" * 6 + b"\x01"):
        assert len(w.unpack(b"\x93\x00\x01" + tail)) == 3
    for tail in (b"\x91" * 8 + b"\x01", b"\x81\x01" + b"\x91" * 7 + b"\x01"):
        with pytest.raises(locksidecar.ProtocolError):
            w.unpack(b"\x93\x00\x01" + tail)
