"""Branches of a race: a wait in one leaves the run only if all of them wait."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surehold.core.records import Message, Timer
    from surehold.engine.runs.effect_log import Spot


class Race:
    """Branches that run at the same time until the first of them ends."""

    def __init__(self, number: int) -> None:
        outer = BRANCH.get()
        self.branches = [Branch(self, outer) for _ in range(number)]
        self.winner: Branch | None = None

    @property
    def waits(self) -> bool:
        """True if every branch that has not ended waits, here and in the races around.

        A branch that has ended otherwise than by leaving the run is about to win.
        """
        outer = self.branches[0].outer
        decided = self.winner is not None
        return all(
            one.waiting or one.left or (one.ended and decided) for one in self.branches
        ) and (outer is None or outer.race.waits)


class Branch:
    """One branch of a race: what it waits for, and what it took."""

    def __init__(self, race: Race, outer: Branch | None) -> None:
        self.race = race
        self.outer = outer
        self.waiting = 0
        """The waits in it that last now."""
        self.ended = False
        self.left = False
        """True if it ended because it waits."""
        self.timers: dict[str, tuple[Timer, Spot]] = {}
        """The waits that are recorded, by position."""
        self.taken: tuple[Message, object] | None = None
        """The message that was taken last, and the value that its receiver got."""

    @property
    def lost(self) -> bool:
        """True if another branch has won, here or in a race around."""
        won = self.race.winner
        return (won is not None and won is not self) or (self.outer is not None and self.outer.lost)

    def wait(self, change: int) -> None:
        """Count a wait that begins or ends."""
        self.waiting += change
        if self.outer is not None:
            self.outer.wait(change)

    def know(self, timer: Timer, spot: Spot) -> None:
        """Remember a recorded wait, to end it if the branch loses."""
        self.timers[timer.id] = timer, spot
        if self.outer is not None:
            self.outer.know(timer, spot)


BRANCH: ContextVar[Branch | None] = ContextVar("surehold_branch", default=None)
"""The branch of a race that the running code is in."""
