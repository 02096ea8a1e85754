"""The position of code in `surehold.run`: calls and loops, also of items."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from surehold.engine.commit import in_event_loop
from surehold.engine.runs.effect_log import Spot
from surehold.engine.runs.positions.context import CallContext, place_name
from surehold.errors import Cancelled, ShapeError

if TYPE_CHECKING:
    from surehold.engine.runs.open_run import OpenRun


_PLACE = re.compile(r"(?P<place>[^/\[]*@(?P<base>\d+))(?:\.(?P<count>\d+))?")
"""The id of a call in a block or an item, without the items around; not one with a key."""


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
    digest: str = ""
    """Digest of the items up to the one that the body is for."""


class _Active(msgspec.Struct):
    """A body that is being executed."""

    body: RunBody
    path: str
    counts: dict[str, int] = {}
    entered: int = 0


class RunContext(CallContext):
    """Positions of the calls in a run, for `effect`."""

    __slots__ = ("_blocks", "_recorded", "_stack", "moved", "saved_in", "step")
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
        self._recorded = () if run.over else [one.content.id for one in run.ledger.effects()]
        """The calls that an earlier execution made since its last save."""
        self.saved_in = None if run.over else _last_loop(body)
        """The loop that the newest checkpoint was saved in, until the code is there again."""

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
        return InsideCall(self, place, awaited)

    def check(self) -> None:
        """Begin a recorded call, unless the run is left or lost; raise `Cancelled` once."""
        super().check()
        self.check_cancel("")

    def check_cancel(self, id: str) -> None:
        """Raise `Cancelled`, once in this process, if the run was asked to end."""
        run = self.run
        if run.cancelled_now():
            raise Cancelled(f"run {run.run_id!r} was asked to end", run_id=run.run_id)

    def restart(self) -> None:
        """Begin the positions of the innermost body anew: its calls so far are settled."""
        active = self._stack[-1]
        active.body.base = self.step + 1
        active.body.loops.clear()
        self.moved = len(self._stack) > 1
        self.recount()

    def recount(self) -> None:
        """Count the calls and loops of the innermost body anew, as after `restart`."""
        active = self._stack[-1]
        active.counts.clear()
        active.entered = 0
        self.failed.clear()
        self._caller = self._turns = None

    @property
    def restarted(self) -> bool:
        """True if `checkpoint` has settled calls and loops of the block."""
        return self._stack[0].body.base > 1

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

    def enter_item(self, loop: LoopProgress, number: int, digest: str) -> str:
        """Begin or continue the item after the completed ones; return its path."""
        outer = self._stack[-1].path
        if loop.item is None:
            loop.item = RunBody(base=self.step + 1, digest=digest)
        name = f"each{number}[{loop.done}]"
        self._stack.append(_Active(loop.item, f"{outer}/{name}" if outer else name))
        self.failed.clear()
        self._caller = self._turns = None
        return self._stack[-1].path

    def is_inside(self, body: RunBody | None) -> bool:
        """True if the code is in that item, and in no loop inside of it."""
        return self._stack[-1].body is body

    def leave_item(self, body: RunBody | None) -> None:
        """Return to the code around the loop."""
        for depth, active in enumerate(self._stack):
            if active.body is body:
                del self._stack[depth:]
                self._caller = self._turns = None
                return

    def check_end(self) -> None:
        """Raise a `ShapeError` if the code did not reach a call that was recorded.

        Looks at the body that ends now, the block or an item, and not at what is inside its calls.
        """
        if not self._recorded:
            return
        active = self._stack[-1]
        stem = f"{active.path}/" if active.path else ""
        counts = {place_name(name, active.body.base): n for name, n in active.counts.items()}
        for id in self._recorded:
            found = _PLACE.fullmatch(id.removeprefix(stem)) if id.startswith(stem) else None
            if found is None or found["base"] != str(active.body.base):
                continue
            if counts.get(found["place"], 0) <= int(found["count"] or 0):
                raise self.leave(not_made_again(self.run.run_id, id))

    def left_items(self) -> list[int]:
        """The numbers of the items in which the loops of the block were left."""
        return [loop.done + 1 for loop in self._stack[0].body.loops if loop.item is not None]

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


def _last_loop(body: RunBody | None) -> LoopProgress | None:
    """The loop that the newest checkpoint with this *body* was saved in."""
    found = None
    while body is not None and body.loops:
        found = body.loops[-1]
        body = found.item
    return found


def other_items(run_id: str, done: int, *, over: bool) -> ShapeError:
    """The error of a loop that was resumed with other items than it had completed."""
    hint = (
        "give it the same items in the same order, new ones at the end; if this is another"
        " loop, guard the first with run.state: checkpoint() restarts the count of loops"
    )
    if over:
        hint = "the run is completed: give other items to a run of their own, with another run_id"
    return ShapeError(
        f"each() in run {run_id!r} has completed {done} items, and now begins with other ones",
        hint=hint,
        run_id=run_id,
        done=done,
    )


def more_items(run_id: str, done: int) -> ShapeError:
    """The error of a loop in a completed run that would begin another item."""
    return ShapeError(
        f"run {run_id!r} is completed: its each() has ended after {done} items, and now has more",
        hint="give the new items to a run of their own, with another run_id",
        run_id=run_id,
        done=done,
    )


def not_there_again(run_id: str) -> ShapeError:
    """The error of code that does not return to the loop it was saved in."""
    return ShapeError(
        f"run {run_id!r} was saved in a later loop, and its code does something else before that",
        hint="code before a loop, and an item that was left by break or an exception, are executed"
        " again by a resume and must do the same: let items and recorded calls decide, not what"
        " the same code has put into run.state",
        run_id=run_id,
    )


def not_made_again(run_id: str, id: str) -> ShapeError:
    """The error of code that ends without a call that was recorded."""
    return ShapeError(
        f"run {run_id!r} has recorded the call {id}, and its code now ends without it",
        hint="let runs that began earlier finish on the old code, or give another run_id; what"
        " decides on a call (time, chance, a model) must be recorded too",
        run_id=run_id,
        effect=id,
    )


class InsideCall(CallContext):
    """Positions of the calls that a recorded call makes itself: ``pay@4/charge@1``."""

    __slots__ = ("_counts", "_place", "awaited", "spot")
    awaited: bool | None
    spot: Spot

    def __init__(self, outer: CallContext, place: str, awaited: bool | None) -> None:
        super().__init__(outer.emit, outer.run)
        self.around = outer
        self.awaited = awaited
        self._place = place
        self.spot = outer.spot
        self._counts: dict[str, int] = {}

    def place(self, name: str, key: str | None) -> str:
        count = self._counts[name] = self._counts.get(name, 0) + 1
        stem = f"{self._place}/{place_name(name, count)}"
        return stem if key is None else f"{self._place}/{place_name(name, 0)}[{key}]"

    def inside(self, place: str, awaited: bool | None) -> CallContext:
        return InsideCall(self, place, awaited)
