"""Candidates of an election that record what happens to them."""

from __future__ import annotations

import threading

import locksidecar


class Stage:
    """The work of leaders. It checks that there is never more than one, and that their fences rise."""

    def __init__(self) -> None:
        self.mu = threading.Lock()
        self.inside = 0
        self.fences: list[int] = []
        self.overlaps = 0

    def enter(self, fence: int) -> None:
        with self.mu:
            self.inside += 1
            self.overlaps += self.inside > 1 or (bool(self.fences) and fence <= self.fences[-1])
            self.fences.append(fence)

    def leave(self) -> None:
        with self.mu:
            self.inside -= 1


class Candidate:
    """Works on the stage from on_elected until the term is over and the test lets it go."""

    def __init__(self, client: locksidecar.Client, stage: Stage, key: str = "k", ttl: float | None = None) -> None:
        self.stage = stage
        self.events: list[tuple[str, int, str | None]] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.election = client.election(key, self.elected, self.lost, ttl=ttl)

    def elected(self, term: locksidecar.Term) -> None:
        self.stage.enter(term.fence)
        self.events.append(("elected", term.fence, None))
        try:
            assert term.lost.wait(120)
            assert self.may_end.wait(120)
        finally:
            self.events.append(("ended", term.fence, None))
            self.stage.leave()

    def lost(self, term: locksidecar.Term, reason: str | None) -> None:
        assert term.lost.is_set()
        self.events.append(("lost", term.fence, reason))

    def count(self, what: str) -> int:
        return sum(event[0] == what for event in self.events)

    @property
    def leads(self) -> bool:
        """Whether it is the leader, and its work has begun."""
        return self.election.is_leader and self.count("elected") > self.count("ended")

    def reasons(self) -> list[str | None]:
        return [reason for what, _, reason in self.events if what == "lost"]
