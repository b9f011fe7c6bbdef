"""Frames, values and time, as PROTOCOL.md defines them, and the checks of callers' arguments. No I/O."""

from __future__ import annotations

import itertools
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Final

import msgpack

from ._errors import Invalid, ProtocolError

HELLO: Final = 1
ACQUIRE: Final = 2
RELEASE: Final = 3
RENEW: Final = 4
DOWNGRADE: Final = 5
CANCEL: Final = 6
INSPECT: Final = 7
ACQUIRE_MANY: Final = 8
RELEASE_MANY: Final = 9
PING: Final = 10
ACQUIRE_ANY: Final = 13
FORCE_UNLOCK: Final = 14
OK: Final = 0
BUSY: Final = 1
TIMEOUT: Final = 2
NOT_HELD: Final = 3
UNKNOWN: Final = 7

ACQUIRES: Final = ACQUIRE, ACQUIRE_MANY, ACQUIRE_ANY

LOST: Final = 64
KEEPALIVE: Final = 65
FATAL: Final = 67
RELEASE_FAILED: Final = 68

PERMIT: Final = 2  # mode of an acquire
FIXED: Final = 1  # flag of an acquire
ASYNC: Final = 1  # flags of a release
ALL: Final = 2
QUIET: Final = 4
DETACHED: Final = 8
NOW: Final = 16
NAMES: Final = 1  # flag of an inspect: names the holders on any host

VERSION: Final = 1
HEADER: Final = 4
MAX_FRAME: Final = 65536  # before a welcome has stated another limit
MAX_KEYS: Final = 1024  # of an acquire-many, or a release-many
MAX_CHOICE: Final = 64  # keys of an acquire-any
MAX_PERMITS: Final = 10_000  # of a semaphore
MAX_WAIT: Final = 1 << 40  # milliseconds
MAX_INT: Final = (1 << 63) - 1
LEVELS: Final = 8  # of nesting; the message's own array is level 0

PACKAGE: Final = __name__.partition(".")[0] + "."
_HOUR: Final = 3600.0

Message = tuple[Any, ...]

Pack = Callable[[object], bytes]


def packer() -> Pack:
    """Return a function that encodes a message. One thread at a time may use it.

    It keeps its buffer, because to allocate one takes longer than to encode. msgpack's own encoder in Python is not
    kept: an interrupt could leave a part of a message in it.
    """
    whole: Pack = msgpack.Packer().pack if "cmsgpack" in msgpack.Packer.__module__ else msgpack.packb
    return whole


def frame(*values: object, pack: Pack = msgpack.packb) -> bytes:
    """Return one message as a frame."""
    payload = pack(values)
    return len(payload).to_bytes(HEADER, "big") + payload


# A frame with a number in each field: it needs no other checks.
_NUMBER: Final = rb"(?:[\0-\x7f]|\xcc.|\xcd..|\xce....|\xcf[\0-\x7f].......)"
GRANT: Final = re.compile(rb"\0\0\0.\x98\0" + _NUMBER * 7, re.DOTALL).fullmatch
RELEASED: Final = re.compile(rb"\0\0\0.\x93\0" + _NUMBER * 2, re.DOTALL).fullmatch


class Map(tuple[Any, ...]):
    """The keys and values of a map, in turn: its keys may have any type."""

    __slots__ = ()

    def __new__(cls, pairs: Iterable[tuple[Any, Any]]) -> Map:
        return super().__new__(cls, itertools.chain.from_iterable(pairs))


def nested(values: tuple[Any, ...], level: int) -> None:
    """Raise ProtocolError if values are nested too deeply. Keys and values of a map are one level below the map."""
    if values and level > LEVELS:
        raise ProtocolError("nested too deeply")
    for value in values:
        if isinstance(value, tuple):
            nested(value, level + 1)


def unpack(payload: bytes | memoryview) -> Message:
    """Return a payload's values; ProtocolError if it cannot be read.

    The payload's own length bounds all lengths: a header that claims more is refused before anything is allocated.
    Appended fields may be of any type, so maps are no dicts, because their keys may be of any type. For the same
    reason, text that is not UTF-8 is accepted.
    """
    try:
        values = msgpack.unpackb(
            payload,
            use_list=False,
            strict_map_key=False,
            unicode_errors="surrogateescape",
            object_pairs_hook=Map,
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as e:
        raise ProtocolError(f"malformed message: {e}") from None
    if type(values) is not tuple or len(values) < 2:
        raise ProtocolError("message is not an array of code and id")
    code, number = values[0], values[1]
    if type(code) is not int or not 0 <= code <= 255:
        raise ProtocolError("code is not a small number")
    if type(number) is not int or not 0 <= number <= MAX_INT:
        raise ProtocolError("id is not a number")
    nested(values, 1)  # the level of its entries
    return values


def cut(data: bytes, max_frame: int) -> Iterator[tuple[Message, int]]:
    """Yield each complete message at the front of data, and the position of the next one."""
    at, end = 0, len(data)
    while end - at >= HEADER:
        size = int.from_bytes(data[at : at + HEADER], "big")
        if data[at : at + HEADER] == b"HTTP":
            raise ProtocolError("the other end speaks HTTP, as the admin socket does; it is not the socket for locks")
        if not 0 < size <= max_frame:
            raise ProtocolError(f"frame of {size} bytes, the limit is {max_frame}")
        after = at + HEADER + size
        if after > end:
            return
        yield unpack(data[at + HEADER : after]), after
        at = after


def numbers(m: Message, count: int, least: int = 0) -> Message:
    """Return the first count fields after code and id, which must be numbers from least on."""
    fields = m[2 : 2 + count]
    if len(fields) != count:
        raise ProtocolError("message is too short")
    for v in fields:
        if type(v) is not int or not least <= v <= MAX_INT:
            raise ProtocolError("field is not a number in range")
    return fields


def grants(m: Message, count: int) -> list[Message]:
    """Return the grants of an acquire-many, which must be so many."""
    rows = m[2] if len(m) > 2 else ()
    if type(rows) is not tuple or len(rows) != count or any(type(row) is not tuple for row in rows):
        raise ProtocolError(f"there are not {count} grants")
    return [numbers((0, 0, *row), 6) for row in rows]


def codes(m: Message, count: int) -> Message:
    """Return the codes of a release-many, which must be so many."""
    found = m[2] if len(m) > 2 else ()
    if type(found) is not tuple or len(found) != count or any(type(c) is not int or not 0 <= c <= 255 for c in found):
        raise ProtocolError(f"there are not {count} codes")
    return found


def text(m: Message, at: int = 2) -> str:
    """Return the text at an index of a message."""
    if len(m) <= at or type(m[at]) is not str:
        raise ProtocolError("text is missing")
    return str(m[at])


def batches(entries: Sequence[tuple[str, int]], max_frame: int) -> Iterator[list[tuple[str, int]]]:
    """Yield keys and fences in order, as many at a time as one release-many takes."""
    batch: list[tuple[str, int]] = []
    size = 0
    for key, fence in entries:
        more = 16 + len(key.encode())  # the array, the text and the number, at their longest
        if batch and (size + more > max_frame - 64 or len(batch) == MAX_KEYS):
            yield batch
            batch, size = [], 0
        batch.append((key, fence))
        size += more
    if batch:
        yield batch


# Control characters: C0, DEL and C1.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_key(key: str) -> str:
    """Return key if it is valid: 1 to 512 bytes of UTF-8 without control characters."""
    if type(key) is str and key.isascii() and key.isprintable() and 0 < len(key) <= 512:
        return key
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {type(key).__name__}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise Invalid("key cannot be written as UTF-8") from None
    if not 1 <= size <= 512:
        raise Invalid(f"key has {size} bytes; 1 to 512 are allowed")
    if _CONTROL.search(key):
        raise Invalid("key has a control character")
    return key


def check_keys(keys: Iterable[str], most: int = MAX_KEYS) -> tuple[str, ...]:
    """Return keys if one request may name them: 1 to so many of them, each once."""
    if isinstance(keys, str):
        raise TypeError("keys must be a list or another iterable of str; for one key, use lock")
    checked = tuple(map(check_key, keys))
    if not 1 <= len(checked) <= most:
        raise Invalid(f"{len(checked)} keys; 1 to {most} are allowed")
    if len(set(checked)) < len(checked):
        raise Invalid("duplicate key")
    return checked


def check_int(value: int, name: str, least: int = 0, most: int = MAX_INT) -> int:
    """Return an int if it is valid. Others would end the connection, or could not be sent."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is an int, not {value!r}")
    if not least <= value <= most:
        raise Invalid(f"{name} is from {least} to {'2**63 - 1' if most == MAX_INT else most}, not {value}")
    return value


def clip(name: str) -> str:
    """Return the part of a name or label that fits: 128 bytes of UTF-8."""
    return name.encode(errors="replace")[:128].decode(errors="ignore")


class Seconds(float):
    """A duration that is certainly in seconds, however long: check_unit does not warn of it."""


def to_ttl(ttl: float | None, name: str = "ttl") -> int:
    """Return a TTL in milliseconds, 0 for the daemon's own."""
    if ttl is None:
        return 0
    ttl = check_unit(ttl, name)
    if not 0 < ttl < math.inf:
        raise Invalid(f"{name} must be a positive number of seconds")
    return max(1, round(min(MAX_WAIT, ttl * 1000)))


def to_wait(blocking: bool, timeout: float | None) -> int:
    """Return the wait in milliseconds, with the rules of threading.Lock."""
    if timeout is None or timeout == -1:
        return -1 if blocking else 0
    if not blocking:
        raise ValueError("can't specify a timeout for a non-blocking call")
    timeout = check_unit(timeout, "timeout")
    if not timeout >= 0:
        raise ValueError("timeout must be a non-negative number")
    return min(MAX_WAIT, math.ceil(timeout * 1000)) if timeout < math.inf else -1


def number(seconds: float, name: str) -> float:
    """Return a duration as a float; TypeError if it is not a number."""
    if not hasattr(seconds, "__float__"):  # float itself would accept a str
        raise TypeError(f"{name} is a number of seconds, not {seconds!r}")
    return float(seconds)


def check_unit(seconds: float, name: str) -> float:
    """Return a duration. Warns if it is more than an hour: the caller may have meant milliseconds."""
    known = isinstance(seconds, Seconds)
    seconds = number(seconds, name)
    if not known and _HOUR < seconds < math.inf:
        warnings.warn(
            f"{name}={seconds:g} is in seconds: {seconds / _HOUR:.3g} hours. Milliseconds would be {seconds / 1000:g}",
            UserWarning,
            stacklevel=outside()[1],
        )
    return seconds


def check_callback(f: Any, name: str) -> Any:
    """Return f; TypeError if it cannot be called: otherwise that would only come out at the first loss."""
    if not callable(f):
        raise TypeError(f"{name} must be callable, not {f!r}")
    return f


def outside(depth: int = 1) -> tuple[FrameType, int]:
    """Return the first frame outside this package, and its stacklevel for a warnings.warn in the caller.

    depth: how many frames are known to be inside the package.
    """
    frame, level = sys._getframe(depth), depth
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    return frame, level


# The daemon's clock counts the time that a machine sleeps. On systems without CLOCK_BOOTTIME (macOS), CLOCK_MONOTONIC
# does so, too.
CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

MS: Final = 1_000_000  # nanoseconds


def now() -> int:
    """Return the time in nanoseconds of a clock that counts sleep."""
    return time.clock_gettime_ns(CLOCK)


def left(until: int) -> float:
    """Return the seconds until a time in nanoseconds of that clock; 0 if it is past."""
    return max(0.0, (until - now()) / 1e9)


def shift(t0: int, daemon: int, t1: int) -> int:
    """Return the offset from the daemon's times to the times of this process, in milliseconds.

    t0 and t1 are the times of this process before hello and after welcome, and daemon is the time in the welcome. If
    the two clocks may differ, the result is never too late: the daemon's time was read after t0, and was rounded down
    by less than 1.
    """
    if t0 <= daemon <= t1 and t1 - t0 <= 100:
        return 0
    return t0 - daemon - 1
