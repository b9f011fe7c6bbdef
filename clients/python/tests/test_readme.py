"""What the README shows runs."""

from __future__ import annotations

import os
import re
import sys
from types import SimpleNamespace

import pytest
from daemon import Daemon

import locksidecar
from locksidecar import redis_compat

README = os.path.join(os.path.dirname(__file__), "..", "README.md")


def test_the_examples_run(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", daemon.path)
    charges: list[int] = []

    async def charge_later(order: int, fence: int) -> None:
        charges.append(fence)

    names = SimpleNamespace(order=42, charge=lambda order, fence: charges.append(fence), charge_later=charge_later)
    with open(README, encoding="utf-8") as f:
        blocks = re.findall(r"```python\n(.*?)```", f.read(), re.DOTALL)
    assert len(blocks) == 5
    try:
        for block in blocks:
            if "guard()" not in block or sys.version_info >= (3, 11):
                exec(block, names.__dict__)
        assert 0 < charges[0] < charges[1]
        assert names.db.execute("SELECT balance FROM account").fetchone() == (70,)
        with pytest.raises(RuntimeError):
            names.withdraw(1, charges[0])  # an older fence
        assert isinstance(names.problem, locksidecar.LockError)
    finally:
        names.client.close()
        redis_compat.lock.client_of(None).close()
        redis_compat.lock._default.clear()


def test_the_errors_are_all_there() -> None:
    with open(README, encoding="utf-8") as f:
        text = f.read()
    for name in locksidecar.__all__:
        if name not in ("__version__", "Client", "Lock"):
            assert f"`{name}`" in text or f"`locksidecar.{name}`" in text, name
