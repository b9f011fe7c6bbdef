"""The programs that the documents show run."""

from __future__ import annotations

import asyncio
import glob
import os
import re
import sqlite3
import sys
import time
from types import SimpleNamespace

import aio
import pytest
from daemon import Daemon, until

import locksidecar
import locksidecar.asyncio
from locksidecar import redis_compat

ROOT = os.path.join(os.path.dirname(__file__), "..", "..", "..")
GUIDE = os.path.join(ROOT, "docs", "guides", "python.md")
PAGES = [
    os.path.join(ROOT, "README.md"),
    *sorted(glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True)),
    *sorted(glob.glob(os.path.join(ROOT, "clients", "*", "README.md"))),
]


def read(page: str) -> str:
    with open(page, encoding="utf-8") as f:
        return f.read()


def shown_in(page: str, language: str) -> list[str]:
    """Return the blocks of a page that no comment excludes, as TestBlocksInDocumentsRun knows them."""
    return re.findall(rf"^(?<! -->\n)```{language}\n(.*?)```", read(page), re.DOTALL | re.MULTILINE)


def test_the_examples_run(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", daemon.path)
    charges: list[int] = []

    async def charge_later(order: int, fence: int) -> None:
        charges.append(fence)

    names = SimpleNamespace(order=42, charge=lambda order, fence: charges.append(fence), charge_later=charge_later)
    leaders: list[int] = []

    def work(fence: int) -> None:
        leaders.append(fence)
        time.sleep(0.001)

    async def work_later(fence: int) -> None:
        leaders.append(fence)
        await asyncio.sleep(0.001)

    async def serve_later(election: locksidecar.asyncio.Election) -> None:
        before = len(leaders)
        await aio.until("it leads", lambda: len(leaders) > before)

    names.transfer = lambda amount, fences: charges.extend(fences.values())
    names.page, names.render = 1, lambda page, token: charges.append(token)
    names.pack, names.report, names.train = lambda number: None, lambda: None, lambda key, fence: None
    names.work, names.serve = work, lambda _: until("it leads", lambda: leaders)
    names.work_later, names.serve_later = work_later, serve_later
    blocks = 0
    try:
        for page in PAGES:
            shown, before = dict(names.__dict__), len(charges)
            for block in shown_in(page, "python"):
                blocks += 1
                if "guard()" not in block or sys.version_info >= (3, 11):
                    exec(block, shown)
            if os.path.samefile(page, GUIDE):
                assert 0 < charges[before] < charges[before + 1]
                assert shown["db"].execute("SELECT balance FROM account").fetchone() == (70,)
                with pytest.raises(RuntimeError):
                    shown["withdraw"](1, charges[before])  # an older fence
            if "problem" in shown:
                assert isinstance(shown["problem"], locksidecar.LockError)
            if "client" in shown:
                shown["client"].close()
        assert blocks == 14
        assert leaders == sorted(leaders)
        assert leaders[0] < leaders[-1]
    finally:
        redis_compat._common.client_of(locksidecar.Client, None).close()
        redis_compat._common._defaults.clear()


def test_the_errors_are_all_there() -> None:
    text = read(GUIDE)
    for name in locksidecar.__all__:
        if name not in ("__version__", "Client", "Lock", "Election", "Term"):
            assert f"`{name}`" in text or f"`locksidecar.{name}`" in text, name


def test_the_statements_refuse_a_smaller_fence() -> None:
    statements = [block for page in PAGES for block in shown_in(page, "sql")]
    assert statements
    for statement in statements:
        db = sqlite3.connect(":memory:")
        db.execute("CREATE TABLE account (id, balance, fence)")
        db.execute("INSERT INTO account VALUES (1, 1000, 0)")
        changed = [db.execute(statement, {"id": 1, "fence": fence}).rowcount for fence in (5, 5, 4, 6)]
        assert changed == [1, 1, 0, 1]
        db.close()
