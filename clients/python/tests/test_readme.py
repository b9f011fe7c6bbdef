"""What the README shows runs."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace

import pytest
from daemon import Daemon

import locksidecar

README = os.path.join(os.path.dirname(__file__), "..", "README.md")


def test_the_examples_run(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", daemon.path)
    charges: list[int] = []
    names = SimpleNamespace(order=42, charge=lambda order, fence: charges.append(fence))
    with open(README, encoding="utf-8") as f:
        blocks = re.findall(r"```python\n(.*?)```", f.read(), re.DOTALL)
    assert len(blocks) == 2
    try:
        for block in blocks:
            exec(block, names.__dict__)
        assert charges[0] > 0
        assert names.db.execute("SELECT balance FROM account").fetchone() == (70,)
        with pytest.raises(RuntimeError):
            names.withdraw(1, charges[0])  # an older fence
    finally:
        names.client.close()


def test_the_errors_are_all_there() -> None:
    with open(README, encoding="utf-8") as f:
        text = f.read()
    for name in locksidecar.__all__:
        if name not in ("__version__", "Client", "Lock"):
            assert f"`{name}`" in text or f"`locksidecar.{name}`" in text, name
