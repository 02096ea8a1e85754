"""The position of code in `surehold.run`: calls and loops, also of items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from surehold.engine.commit import in_event_loop
from surehold.engine.runs.effect_log import Spot
from surehold.engine.runs.positions.context import CallContext, place_name
from surehold.errors import ShapeError

if TYPE_CHECKING:
    from surehold.engine.runs.open_run import OpenRun


class LoopProgress(msgspec.Struct, omit_defaults=True):
    """The progress of one `Run.each` loop."""

    done: int = 0
    digest: str = ""
    """Digest of the completed items."""
    item: RunBody | None = None
    """The item in progress."""


class RunBody(msgspec.Struct, omit_defaults=True):
    """Code that runs once: the block of the run, or the body of a loop for one item."""

    base: int
    """The step in which its positions began."""
    loops: list[LoopProgress] = []
    """Its loops, in the order in which they were entered."""


class _Active(msgspec.Struct):
    """A body that is being executed."""

    body: RunBody
    path: str
    counts: dict[str, int] = {}
    entered: int = 0


class RunContext(CallContext):
    """Positions of the calls in a run, for `effect`."""

    __slots__ = ("_blocks", "_stack", "moved", "step")
    run: OpenRun

    def __init__(self, run: OpenRun, step: int, saved: Any, *, blocks: bool = False) -> None:
        super().__init__(None, run)
        self._blocks = blocks
        self.step = step
        """The step that was completed last."""
        self.moved = bool(saved)
        """True if the code is in a loop, or has made calls since its positions began anew."""
        body = msgspec.convert(saved, RunBody) if saved else RunBody(base=step + 1)
        self._stack = [_Active(body, "")]

    @property
    def awaited(self) -> bool | None:
        """False in a plain ``with``; None if that stands in async code."""
        if not self._blocks:
            return True
        return None if in_event_loop() else False

    @property
    def path(self) -> str:
        """The loop items around the running code: ``each0[5]``; empty outside of loops."""
        return self._stack[-1].path

    @property
    def spot(self) -> Spot:
        """The position that notes are written at."""
        return Spot("", self.step + 1, self.path)

    def place(self, name: str, key: str | None) -> str:
        """The id of the next call: ``charge@4``, in a loop ``each0[3]/charge@4``."""
        active = self._active()
        stem = place_name(name, active.body.base)
        if active.path:
            stem = f"{active.path}/{stem}"
        if key is not None:
            return f"{stem}[{key}]"
        count = active.counts.get(name, 0)
        active.counts[name] = count + 1
        return f"{stem}.{count}" if count else stem

    def inside(self, place: str, awaited: bool | None) -> CallContext:
        """The positions of the calls that the call at *place* makes itself."""
        return _InsideCall(self, place, awaited)

    def restart(self) -> None:
        """Begin the positions of the innermost body anew: its calls so far are settled."""
        active = self._stack[-1]
        active.body.base = self.step + 1
        active.body.loops.clear()
        active.counts.clear()
        active.entered = 0
        self.failed.clear()
        self.moved = len(self._stack) > 1

    def _active(self) -> _Active:
        """The innermost body, which calls or loops from now on."""
        active = self._stack[-1]
        if not self.moved:
            active.body.base = self.step + 1
            self.moved = True
        return active

    def copy(self) -> tuple[RunBody, dict[str, int], int]:
        """The positions of the innermost body, for `put_back`."""
        active = self._stack[-1]
        body = RunBody(base=active.body.base, loops=[*active.body.loops])
        return body, dict(active.counts), active.entered

    def put_back(self, copied: tuple[RunBody, dict[str, int], int]) -> None:
        """Undo `restart`."""
        active, self.moved = self._stack[-1], True
        body, active.counts, active.entered = copied
        active.body.base, active.body.loops[:] = body.base, body.loops

    def enter_loop(self) -> tuple[LoopProgress, int]:
        """The progress of the next loop in this body, and its number."""
        active = self._active()
        number = active.entered
        active.entered += 1
        if number == len(active.body.loops):
            active.body.loops.append(LoopProgress())
        return active.body.loops[number], number

    def enter_item(self, loop: LoopProgress, number: int) -> int:
        """Begin or continue the item after the completed ones; return the depth."""
        depth, outer = len(self._stack), self._stack[-1].path
        if loop.item is None:
            loop.item = RunBody(base=self.step + 1)
        name = f"each{number}[{loop.done}]"
        self._stack.append(_Active(loop.item, f"{outer}/{name}" if outer else name))
        self.failed.clear()
        return depth

    def path_at(self, depth: int) -> str:
        """The path of the item that was entered at *depth*."""
        return self._stack[depth].path

    def leave_item(self, depth: int) -> None:
        """Return to the body around the loop."""
        del self._stack[depth:]

    def saved(self) -> Mapping[str, Any] | None:
        """The data for a checkpoint; None if a new context at its step is the same."""
        body = self._stack[0].body
        if not self.moved or (body.base == self.step + 1 and not body.loops):
            return None
        made: Mapping[str, Any] = msgspec.to_builtins(body)
        return made


def under(path: str, outer: str) -> bool:
    """True if *path* is *outer* or inside of it."""
    return not outer or path == outer or path.startswith(f"{outer}/")


def other_items(run_id: str, done: int) -> ShapeError:
    """The error of a loop that was resumed with other items than it had completed."""
    return ShapeError(
        f"each() in run {run_id!r} has completed {done} items, and now begins with other ones",
        hint="give it the same items in the same order, new ones at the end; if this is another"
        " loop, guard the first with run.state: checkpoint() restarts the count of loops",
        run_id=run_id,
        done=done,
    )


class _InsideCall(CallContext):
    """Positions of the calls that a recorded call makes itself: ``pay@4/charge@1``."""

    __slots__ = ("_counts", "_place", "awaited", "spot")
    awaited: bool | None
    spot: Spot

    def __init__(self, outer: CallContext, place: str, awaited: bool | None) -> None:
        super().__init__(outer.emit, outer.run)
        self.awaited = awaited
        self._place = place
        self.spot = outer.spot
        self._counts: dict[str, int] = {}

    def place(self, name: str, key: str | None) -> str:
        """The id of the next call."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        stem = f"{self._place}/{place_name(name, count)}"
        return stem if key is None else f"{self._place}/{place_name(name, 0)}[{key}]"

    def inside(self, place: str, awaited: bool | None) -> CallContext:
        """The positions of the calls that the call at *place* makes itself."""
        return _InsideCall(self, place, awaited)
