"""The ports of the tests' own servers."""

from __future__ import annotations

import os
import random
import socket

import ports
import pytest
from conftest import ROOT

GO = os.path.join(ROOT, "upstream", "testserver", "ports", "ports.go")


def first(monkeypatch: pytest.MonkeyPatch, *tries: int) -> list[int]:
    """Make reserved try these ports first. Return those that are left to try."""
    left, pick = list(tries), random.randrange
    monkeypatch.setattr(random, "randrange", lambda low, high: left.pop(0) if left else pick(low, high))
    return left


def test_a_reserved_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with ports.reserved() as one:
        left = first(monkeypatch, one, one)
        with ports.reserved() as other:
            assert other != one
        assert not left


def test_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        with ports.reserved() as one:
            listener.bind(("127.0.0.1", one))
            listener.listen()
        left = first(monkeypatch, one)
        with ports.reserved() as other:
            assert other != one
        assert not left


@pytest.mark.skipif(not os.path.exists(GO), reason="outside of the repository")
def test_go_reserves_the_same_ports_in_the_same_folder() -> None:
    with open(GO, encoding="utf-8") as f:
        source = f.read()
    assert f"const first, last = {ports.FIRST}, {ports.LAST}\n" in source
    assert 'filepath.Join(os.TempDir(), fmt.Sprint("locksidecar-ports-", os.Getuid()))' in source
    assert "filepath.Join(dir, strconv.Itoa(port))" in source
