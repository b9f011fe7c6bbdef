"""The board of load.NewBoard: who is inside each key's lock, who was last, with which fence."""

from __future__ import annotations

import mmap

SLOT = 256 // 8
INSIDE, LAST, FENCE, EXCLUSIVE = 0, 8, 16, 17


class Board:
    """Whoever holds a lock alone writes alone. Readers only look: there are no atomic steps here."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as f:
            self._words = memoryview(mmap.mmap(f.fileno(), 0)).cast("Q")

    def enter(self, key: int, me: int, fence: int, shared: bool) -> tuple[bool, bool, bool]:
        """Handoff, overlap, fence fault. A fence of 0 is none."""
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
        """Whether somebody has come in beside us."""
        w, at = self._words, key * SLOT
        if shared:
            return w[at + INSIDE] != 0
        overlap = w[at + INSIDE] != me
        w[at + INSIDE] = 0
        return overlap
