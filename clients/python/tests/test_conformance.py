"""The conformance runner, as for a client of any language: both kinds of client pass all that they can."""

from __future__ import annotations

import json
import subprocess

import pytest


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_runner(runners: dict[str, subprocess.Popen[str]], kind: str) -> None:
    said, _ = runners[kind].communicate()
    results = [json.loads(line) for line in said.splitlines()]
    failed = [r for r in results if r["outcome"] == "failed"]
    assert not failed, "\n".join(f"{r['name']}: {r['why']}\n  " + "\n  ".join(r.get("exchange", [])) for r in failed)
    assert runners[kind].returncode == 0
    skipped = {r["name"] for r in results if r["outcome"] == "skipped"}
    # A thread's wait has a timeout in place of a cancel; asyncio's adapter does not fork.
    no_cancel = {"cancel", "cancel-acquire", "cancel-crossed", "acquire-any-crossed"}
    assert skipped == (no_cancel if kind == "threads" else {"fork"})
    assert len(results) > 50
