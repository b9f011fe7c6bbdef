"""redis-py's own lock tests against the drop-in, where LOCKSIDECAR_REDISPY names an unpacked sdist of redis-py.

    pip download redis --no-deps --no-binary :all: && tar xzf redis-*.tar.gz
    LOCKSIDECAR_REDISPY=redis-8.1.0 pytest tests/test_redispy.py

Needs redis-server, and pytest-asyncio for the half of them that are asyncio's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from daemon import SRC, Daemon

HERE = os.path.dirname(os.path.abspath(__file__))
SDIST = os.environ.get("LOCKSIDECAR_REDISPY", "")

pytestmark = pytest.mark.skipif(not SDIST, reason="LOCKSIDECAR_REDISPY names no sdist of redis-py")

# These test how redis-py waits: it polls by its own clock, and a daemon makes that unnecessary.
POLLS = {"test_blocking_timeout", "test_context_manager_blocking_timeout", "test_high_sleep_small_blocking_timeout"}


@pytest.mark.parametrize("file", ["test_lock.py", "test_asyncio/test_lock.py"])
def test_redis_pys_own(file: str, server: str, idle: Daemon, tmp_path: object) -> None:
    if "asyncio" in file:
        pytest.importorskip("pytest_asyncio")
    idle.start("--upstream", server)
    package = os.path.join(str(tmp_path), "tests")
    os.makedirs(os.path.join(package, os.path.dirname(file)))
    shutil.copy(os.path.join(HERE, "redispy_shim.py"), os.path.join(package, "conftest.py"))
    for folder in {package, os.path.join(package, os.path.dirname(file))}:
        open(os.path.join(folder, "__init__.py"), "w").close()
    shutil.copy(os.path.join(SDIST, "tests", file), os.path.join(package, file))
    with open(os.path.join(str(tmp_path), "pytest.ini"), "w") as f:
        f.write("[pytest]\nasyncio_mode = auto\nmarkers =\n    onlynoncluster: theirs\n")
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"tests/{file}"],
        cwd=str(tmp_path),
        env={**os.environ, "PYTHONPATH": SRC, "SHIM_REDIS": server, "SHIM_SOCKET": idle.path},
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    ends = dict(re.findall(r"::(test_\w+) (PASSED|FAILED|ERROR|SKIPPED)", out))
    assert len(ends) > 25, out
    assert {name for name, end in ends.items() if end != "PASSED"} <= POLLS, out
    print(f"{file}: {sum(end == 'PASSED' for end in ends.values())} of {len(ends)} pass")
