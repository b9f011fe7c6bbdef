"""Make the modules for threads from those for tasks, and two lists of names from each other.

Usage: python3 unasync.py. A test checks that the made files are current.

The requests of the common core are coroutines, in private methods. A module for tasks awaits or returns them; the one
for threads takes them to their end with run. A public method has a twin for threads, so an await of it is left out.
"""

from __future__ import annotations

import os
import re
from typing import Final

PACKAGE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "src", "locksidecar")

Texts = tuple[tuple[str, str], ...]

# What differs between all modules for tasks and those for threads, besides await.
WORDS: Final[Texts] = (
    ("async def", "def"),
    ("async with", "with"),
    ("__aenter__", "__enter__"),
    ("__aexit__", "__exit__"),
    ("._tasks import", "._threads import"),
)

# By module for threads: what else differs in the one for tasks.
THREADS: Final[dict[str, Texts]] = {
    "_scope.py": (
        ("handles for tasks", "handles for threads"),
        ("import H, One\n", "import H, One, run\n"),
        ("import Later, Owned", "import Owned"),
        (
            "After an exception or a cancellation\n"
            "        nothing is acquired: the wait is withdrawn, and a grant that crosses that is released.",
            "After an exception nothing is acquired.",
        ),
        (
            "        The call itself releases; its result can be awaited for the answer. So nothing that happens to "
            "the task leaves\n        it held, in particular no cancellation.\n\n",
            "",
        ),
        ("self._start_release(self._who())\n            raise", "self.release()\n            raise"),
        ("Decorate a coroutine function", "Decorate a function"),
        ("the handle and the task together", "the handle and the thread together"),
        ("Any task of the client's loop", "Any thread"),
        ("also in a task that", "also in a thread that"),
        (" The task is the one that makes the call, even\n    if another one awaits it.", ""),
    ),
    "_client.py": (
        ("client for tasks", "client for threads"),
        ("import Owner, Terms\n", "import Owner, Terms, run\n"),
        ("number of tasks of one event loop", "number of threads"),
        (
            " It belongs to\n    the loop on which it is first used, until that is closed; on another one everything "
            "is a\n    RuntimeError. All",
            " All",
        ),
        ("        cancel: bool = True,\n", ""),
        ("        cancel: on_elected's task is cancelled when its term is over.\n", ""),
        ("ttl, cancel)", "ttl)"),
    ),
    "redis_compat/lock.py": (
        ("redis.asyncio.lock", "redis.lock"),
        ("from ...asyncio._tasks import Later\n", "from ..._handle import run\n"),
        (
            "\n\n        The call itself releases; its result can be awaited for the answer. So a cancelled release "
            "has released.\n        ",
            "",
        ),
    ),
}

# By module for tasks: what differs in the one for threads. These have no requests.
TASKS: Final[dict[str, Texts]] = {
    "asyncio/__init__.py": (
        (
            "Distributed locks from the locksidecar daemon on this host.",
            "The same locks for asyncio: nothing here blocks the loop.",
        ),
        (">>> client = locksidecar.Client()\n", ">>> async with locksidecar.asyncio.Client() as client:\n"),
        (">>> with client", "...     async with client"),
        ("...     update", "...         await update"),
        ('    "__version__",\n', ""),
    ),
    "redis_compat/asyncio/__init__.py": (
        ("locks: names", "locks with asyncio: names"),
        ("redis_compat import", "redis_compat.asyncio import"),
        (">>> with", ">>> async with"),
        ("import importlib\n", ""),
        ("import exceptions, lock\n", "import exceptions\nfrom . import lock\n"),
        ("import redis as", "import redis.asyncio as"),
        ("from redis import", "from redis.asyncio import"),
        ("from redis.cluster", "from redis.asyncio.cluster"),
        ("from redis.sentinel", "from redis.asyncio.sentinel"),
        ("_Redis):\n", "_Redis):  # type: ignore[misc, unused-ignore]\n"),
        ("_RedisCluster):\n", "_RedisCluster):  # type: ignore[misc, unused-ignore]\n"),
        ("redis.from_url", "redis.asyncio.from_url"),
        ('    if name == "asyncio":\n        return importlib.import_module(f"{__name__}.asyncio")\n', ""),
    ),
}


def threads(source: str, texts: Texts) -> str:
    """Return the module for threads of a module for tasks."""
    source = re.sub(r"\bfrom \.(\.+)(asyncio\.)?", r"from \1", replace(source, (*texts, *WORDS)))
    while (found := re.search(r"await ([\w.]+)", source)) is not None:
        start, name = found.start(), found[1]
        end = call_end(source, found.end())
        call = source[found.start(1) : end]
        private = name.rpartition(".")[2].startswith("_")
        source = source[:start] + (f"run({call})" if private else call) + source[end:]
    later, lines = False, []
    for line in source.splitlines(keepends=True):
        if line.lstrip().startswith("def "):
            later = "-> Later[" in line
        made = re.sub(r"\bLater\[((?:[^][]|\[[^][]*\])*)\]", r"\1", line)
        lines.append(re.sub(r"return (self\._.*)$", r"return run(\1)", made) if later else made)
    return sort_imports("".join(lines))


def tasks(source: str, texts: Texts, target: str) -> str:
    """Return the module for tasks of a module for threads."""
    source = re.sub(r'\n__version__ = ".*"\n', "", replace(source, texts))
    here = os.path.dirname(os.path.join(PACKAGE, target))

    def relative(found: re.Match[str]) -> str:
        twin = found[1] and os.path.exists(os.path.join(here, f"{found[1]}.py"))
        return f"from .{found[1]} " if twin or found[2] == "lock\n" else f"from ..{found[1]} "

    return sort_imports(re.sub(r"\bfrom \.(\w*) (?=import (lock\n)?)", relative, source))


def replace(source: str, texts: Texts) -> str:
    """Replace texts, each of which must occur."""
    for old, new in texts:
        if old not in source and (old, new) not in WORDS:
            raise ValueError(f"no longer there: {old!r}")
        source = source.replace(old, new)
    return source


def call_end(source: str, at: int) -> int:
    """Return the end of the arguments of a call, which begin at a position."""
    depth = 0
    for n in range(at, len(source)):
        depth += (source[n] in "([{") - (source[n] in ")]}")
        if depth == 0:
            return n + 1
    raise ValueError("a call does not end")


def sort_imports(source: str) -> str:
    """Sort the relative imports as ruff does: the farthest first, and then by name."""
    one = r"from \.+\w* import (?:\([^)]*\)|[^(\n]*)\n"

    def ordered(found: re.Match[str]) -> str:
        lines = re.findall(one, found[0])
        return "".join(sorted(lines, key=lambda line: (-line.count(".", 0, line.index(" import")), line.split()[1])))

    return re.sub(rf"(?m)(?:^{one})+", ordered, source)


def made() -> dict[str, str]:
    """Return the made modules by their paths in the package."""
    found = {}
    for target in (*THREADS, *TASKS):
        folder, name = os.path.split(target)
        origin = os.path.join(folder, "asyncio", name) if target in THREADS else target.replace("asyncio/", "")
        with open(os.path.join(PACKAGE, origin), encoding="utf-8") as f:
            source = f.read()
        text = threads(source, THREADS[target]) if target in THREADS else tasks(source, TASKS[target], target)
        found[target] = f"# Made from {origin} by unasync.py: do not edit.\n{text}"
    return found


if __name__ == "__main__":
    for path, text in made().items():
        with open(os.path.join(PACKAGE, path), "w", encoding="utf-8") as f:
            f.write(text)
