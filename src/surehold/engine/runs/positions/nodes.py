"""Positions of the calls in a node of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from surehold.engine.runs.effect_log import Spot
from surehold.engine.runs.effects import AwaitsAll
from surehold.engine.runs.positions.context import CURRENT_STEP, CallContext, Emit, place_name

if TYPE_CHECKING:
    from surehold.engine.runs.open_run import OpenRun


class StepContext(CallContext):
    """The position of running code in a graph, for `effect` and `interrupt`."""

    __slots__ = (
        "_within",
        "awaited",
        "children",
        "counts",
        "node",
        "outer",
        "scope",
        "step",
    )
    awaited: bool | None
    """None if it is not known: a plain node may return what is to be awaited."""

    def __init__(
        self,
        run: OpenRun | None,
        scope: str,
        emit: Emit | None,
        *,
        step: int = 0,
        node: str = "",
        outer: Any = None,
        within: str = "",
        awaited: bool | None = None,
    ) -> None:
        super().__init__(emit, run)
        self._within = within
        self.awaited = awaited
        self.scope = scope
        self.step = step
        self.node = node
        self.outer = outer
        """An object of the executing graph, for what is nested in the step."""
        self.counts: dict[str, int] | None = None
        self.children = 0

    def begin(self, step: int, node: str) -> None:
        """Begin a step."""
        self.step = step
        self.node = node
        self.counts = self.begun = self._caller = self._turns = None
        self.children = 0
        if self.failed:
            self.failed.clear()

    def place(self, name: str, key: str | None) -> str:
        """The id of the next call of that name: ``charge@4``, then ``charge@4.1``."""
        stem = f"{self._within}/{place_name(name, self.step)}" if self._within else self.at(name)
        if key is not None:
            return f"{stem}[{key}]"
        counts = self.counts
        if counts is None:
            counts = self.counts = {}
        count = counts.get(name, 0)
        counts[name] = count + 1
        return f"{stem}.{count}" if count else stem

    def child(self) -> str:
        """The scope of the next part of this step that has steps of its own."""
        stem = self.at(self.node)
        if self._within:
            stem = f"{stem}.{self._within.replace('/', '!').replace('@', '!')}"
        self.children += 1
        return stem if self.children == 1 else f"{stem}.{self.children - 1}"

    def at(self, name: str) -> str:
        """The first position of that name in this step."""
        stem = place_name(name, self.step)
        return f"{self.scope}/{stem}" if self.scope else stem

    def inside(self, place: str, awaited: bool | None) -> StepContext:
        made = StepContext(
            self.run,
            self.scope,
            self.emit,
            step=self.step,
            node=self.node,
            outer=self.outer,
            within=place,
            awaited=awaited,
        )
        made.around = self
        return made

    def enter(self) -> None:
        CURRENT_STEP.set(self)

    def active(self) -> AwaitsAll:
        return AwaitsAll(CURRENT_STEP, self)

    @property
    def spot(self) -> Spot:
        return Spot(self.scope, self.step, self.node)
