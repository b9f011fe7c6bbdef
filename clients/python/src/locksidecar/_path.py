"""The path of the daemon's socket, and the error when the daemon cannot be reached there."""

from __future__ import annotations

import os
from typing import Final

from ._errors import LockError, Unavailable

_ADMIN: Final = ".admin"  # the admin socket has the path of the socket for locks, plus this


def socket_path(path: str | os.PathLike[str] | None) -> str:
    """Return the daemon's socket, in the order of PROTOCOL.md."""
    if path is not None:
        return os.fspath(path)
    if named := os.environ.get("LOCKSIDECAR_SOCKET"):
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.geteuid() != 0:
        return os.path.join(runtime, "locksidecar", "locksidecar.sock")
    return "/run/locksidecar/locksidecar.sock"


def unreachable(path: str, e: OSError | LockError) -> LockError:
    """Return the error for a failed connect. It names the socket, and the socket that may be meant instead."""
    hint = _hint(path)
    if isinstance(e, LockError):
        return type(e)(f"{e}, at {path}{hint}")  # e first: its text begins with the name of the error
    if isinstance(e, (FileNotFoundError, ConnectionRefusedError)):
        start = "" if hint else "; start one with 'locksidecar serve', or name its socket with LOCKSIDECAR_SOCKET"
        return Unavailable(f"no daemon at {path}: {e}{hint or start}")
    if isinstance(e, PermissionError):
        return Unavailable(f"this user (uid {os.geteuid()}) may not connect to {path}: {e}")
    if isinstance(e, TimeoutError):
        return Unavailable(f"the daemon at {path} has not answered: {e}{hint}")
    return Unavailable(f"cannot connect to {path}: {e}{hint}")


def _hint(path: str) -> str:
    locks = path.removesuffix(_ADMIN)
    if locks != path:
        return f"; it has the name of an admin socket, beside {locks} for locks"
    if not os.path.exists(path) and os.path.exists(path + _ADMIN):
        return f"; only an admin socket is there, {path}{_ADMIN}"
    return ""
