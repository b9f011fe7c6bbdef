"""The modules that are made from others."""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType

import pytest

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "unasync.py")


@pytest.fixture
def unasync() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unasync", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_made_modules_are_current(unasync: ModuleType) -> None:
    for path, text in unasync.made().items():
        with open(os.path.join(unasync.PACKAGE, path), encoding="utf-8") as f:
            assert f.read() == text, f"{path}: run unasync.py"


def test_no_word_of_tasks_is_left(unasync: ModuleType) -> None:
    for path, text in unasync.made().items():
        if path in unasync.THREADS:
            for line in text.splitlines()[1:]:
                assert "await" not in line, line
                assert "Later" not in line, line
                assert "async" not in line or "asyncio" in line, line


def test_a_text_that_is_no_longer_there(unasync: ModuleType) -> None:
    with pytest.raises(ValueError, match="no longer there"):
        unasync.replace("some text", (("other", "text"),))
