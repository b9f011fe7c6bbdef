"""The board of load.NewBoard: for each key, the contender inside, the one that was last inside, and its fence."""

from __future__ import annotations

import mmap

SLOT = 256 // 8
INSIDE, LAST, FENCE, EXCLUSIVE = 0, 8, 16, 17


class Board:
    """Only an exclusive holder writes alone. Readers only look, because there are no atomic steps here."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as f:
            self._words = memoryview(mmap.mmap(f.fileno(), 0)).cast("Q")

    def enter(self, key: int, me: int, fence: int, shared: bool) -> tuple[bool, bool, bool]:
        """Return handoff, overlap and fence fault. A fence of 0 means that there is none."""
        w, at = self._words, key * SLOT
        overlap = w[at + INSIDE] != 0
        if shared:
            return False, overlap, 0 != fence <= w[at + EXCLUSIVE]
        other = w[at + LAST] != me
        w[at + INSIDE] = w[at + LAST] = me
        fault = 0 != fence <= w[at + FENCE]
        w[at + FENCE] = w[at + EXCLUSIVE] = fence
        return other, overlap, fault

    def leave(self, key: int, me: int, shared: bool) -> bool:
        """Whether another contender has entered meanwhile."""
        w, at = self._words, key * SLOT
        if shared:
            return w[at + INSIDE] != 0
        overlap = w[at + INSIDE] != me
        w[at + INSIDE] = 0
        return overlap
