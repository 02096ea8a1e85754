"""The loop: node, decision, checkpoint, next node."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.effects import CURRENT_STEP, Emit, Session, StepContext
from holdfast.checkpoint.effects import error_text as failures
from holdfast.checkpoint.journal import Note
from holdfast.core.policy import Clockwork, Triggers
from holdfast.core.state import Lineage, Place, State
from holdfast.errors import (
    BudgetError,
    ConflictError,
    Drained,
    HoldfastError,
    Interrupted,
    StepError,
)
from holdfast.runtime.graph.edges import describe
from holdfast.runtime.graph.node_result import (
    PASS_THROUGH_ERRORS,
    EndRun,
    applied,
    changed_keys,
    drained,
    edge_facts,
    parked,
    placed,
    uncancel,
)
from holdfast.runtime.graph.shape import Now, Progress, write_progress

if TYPE_CHECKING:
    from holdfast.runtime.graph.compiled import Plan

__all__ = ["Control", "Loop"]


class Control:
    """How a run is asked to stop from outside."""

    __slots__ = ("asked", "heeds_signals", "task")

    def __init__(self) -> None:
        self.asked = 0
        self.heeds_signals = False
        self.task: asyncio.Task[Any] | None = None

    def ask(self) -> None:
        """Stop after the node that is being executed; asked again, stop at once."""
        self.asked += 1
        if self.asked == 2 and self.task is not None:
            self.task.cancel("asked to stop at once")


class Loop:
    """Executes a graph in one scope of a run."""

    def __init__(
        self,
        plan: Plan,
        session: Session | None,
        scope: str,
        emit: Emit | None,
        control: Control,
        triggers: Triggers | None,
    ) -> None:
        self._plan = plan
        self._session = session
        self._scope = scope
        self._emit = emit
        self.control = control
        self.triggers = triggers
        self._clock: Clockwork | None = None
        self._lineage = Lineage()
        self._path: list[str] = []
        self.state: State | None = None
        """The newest state, while observers are told of it."""
        self._in_journal = 0
        self._began = 0.0
        self._before = frozenset(plan.before) if session is not None else frozenset()

    async def go(self, state: State, progress: Progress, lineage: Lineage) -> State:
        """Execute from where *progress* says until an exit point, and return the final state."""
        self._path = progress.path
        self._in_journal = len(self._path)
        self._began = time.monotonic() - progress.elapsed
        self._lineage = lineage
        if self.triggers is not None and self._session is not None:
            self._clock = Clockwork(self.triggers, step=state.step, now=time.monotonic())
        here = StepContext(self._session, self._scope, self._emit, outer=self)
        token = CURRENT_STEP.set(here)
        try:
            following = progress.next
            if following is None:
                following = await self._decided(state)
            return await self._walk(state, following, here)
        except asyncio.CancelledError as error:
            told = self._cancelled(error, state.run_id, here.node)
            if told is error:
                raise
            raise told from error
        finally:
            CURRENT_STEP.reset(token)

    async def begin(self, state: State) -> None:
        """Save the state that a run begins with, before anything is executed."""
        self._began = time.monotonic()
        self._lineage = state.lineage
        await self._save(state, "routine", "running", self._plan.entry)

    async def go_back(self, state: State, progress: Progress, *notes: Note) -> None:
        """Save an earlier state anew, so that it is the one that the run goes on from."""
        await self._save_again(state, progress, "recovery", "running", notes=notes)

    async def mark(self, state: State, progress: Progress) -> str:
        """Save the state of a run that is not being executed once more; gives the id."""
        return await self._save_again(state, progress, "manual", state.status, progress.error)

    async def _save_again(
        self,
        state: State,
        progress: Progress,
        kind: str,
        status: str,
        error: str = "",
        notes: tuple[Note, ...] = (),
    ) -> str:
        self._path = progress.path
        self._in_journal = len(progress.path)
        self._began = time.monotonic() - progress.elapsed
        self._lineage = state.lineage
        return await self._save(state, kind, status, progress.next, error=error, first=notes)

    async def _walk(self, state: State, current: str, here: StepContext) -> State:
        plan, path, emit = self._plan, self._path, self._emit
        run_id, name, scope = state.run_id, state.name or plan.name, self._scope
        visits = Counter(path) if emit is not None else None
        step = state.step
        while True:
            if self.control.asked:
                raise await self._drained(state, current)
            if len(path) >= plan.max_iterations:
                raise await self._exhausted(state, current)
            if current in self._before:
                await self._save(state, "pre_operation", "running", current)
            if visits is not None:
                self._entering(current, state, visits)
            here.enter(step + 1, current)
            try:
                result = plan.nodes[current](state)
                if type(result) is not State and inspect.isawaitable(result):
                    result = await result
                made = applied(state, result, current)
            except BaseException as error:
                stopped = await self._stopped(error, state, current)
                if stopped is error:
                    raise
                raise stopped from error
            step += 1
            path.append(current)
            put = made.place
            place = Place(
                run_id=run_id,
                name=name,
                scope=scope,
                step=step,
                node=current,
                tags=put.tags,
                metadata=put.metadata,
            )
            before, state = state, made.placed(place)
            if emit is not None:
                self._left(current, before, state)
            if current in plan.exits:
                return await self._complete(state, current)
            current = await self._decided(state)
            if self.control.heeds_signals:
                await asyncio.sleep(0)  # a loop that never waits would hear of none
            clock = self._clock
            if clock is None or self.control.asked:
                continue
            if clock.due(step, time.monotonic(), node=state.node, state=state):
                await self._save(state, "routine", "running", current)

    # Deciding

    async def _decided(self, state: State) -> str:
        """The node that follows, or a `StepError` once the completed node is saved."""
        node = state.node
        if node is None:
            return self._plan.entry
        try:
            following = self._decide(node, state)
        except Exception as error:
            raise await self._undecided(node, state, f"fails: {failures.shown(error)}") from error
        if following is None:
            raise await self._undecided(node, state, "matches none of its edges")
        return following

    def _decide(self, node: str, state: State) -> str | None:
        emit = self._emit
        for index, edge in enumerate(self._plan.edges.get(node, ())):
            if emit is not None:
                emit("edge.evaluate", edge_facts(edge, index))
            taken = edge.predicate is None or bool(edge.predicate(state))
            if emit is not None:
                facts = {"predicate_name": describe(edge.predicate), "predicate_result": taken}
                if taken:
                    emit("edge.transition", {**edge_facts(edge, index), **facts})
            if taken:
                return edge.target
        return None

    async def _undecided(self, node: str, state: State, what: str) -> StepError:
        message = f"the decision after node {node!r} {what}"
        error = StepError(
            message,
            hint="mend the edges and resume: the node is not executed again",
            node=node,
            state=state,
            path=tuple(self._path),
            run_id=state.run_id,
        )
        await self._save_after(error, state, "recovery", "failed", None, error=message)
        self._failed(error, node)
        return error

    # Saving

    async def _save(
        self,
        state: State,
        kind: str,
        status: str,
        following: str | None,
        *,
        begun: bool = False,
        error: str = "",
        first: tuple[Note, ...] = (),
    ) -> str:
        """Save *state* and the decision. *begun*: the node that follows is in its middle."""
        session = self._session
        if session is None:
            return ""
        root = not self._scope
        if root:
            session.ledger.clear(None if status == "completed" else state.step)
        notes = session.ledger.carried(failed=status == "failed") if root else ()
        if kind != "routine":
            state = state.placed(placed(state.place, kind, status, error))
        elapsed = round(time.monotonic() - self._began, 6)
        told = failures.failure_text(error, session.manager.hook_manager)
        floor, branch = session.floor, session.branch
        now = Now(next=following, elapsed=elapsed, floor=floor, branch=branch, error=told)
        since = self._in_journal

        def extra(whole: bool) -> bytes:
            path = self._path if whole else self._path[since:]
            shape = self._plan.shape if whole else None
            return write_progress(now, path, shape, self._plan.entry_point)

        checkpoint_id = await session.save(
            state,
            self._lineage,
            fingerprint=self._plan.fingerprint,
            schema=self._plan.version,
            extra=extra,
            notes=(*first, *notes),
        )
        if checkpoint_id:
            if root and session.scopes and not begun:
                await session.end_scopes()
            self._in_journal = len(self._path)
            if self._clock is not None:
                self._clock.saved(state.step, time.monotonic())
            if self._emit is not None:
                facts = {"node": state.node, "step": state.step, "kind": kind}
                self._emit("checkpoint.save", {**facts, "checkpoint_id": checkpoint_id})
        return checkpoint_id

    async def _save_after(
        self,
        failure: BaseException,
        state: State,
        kind: str,
        status: str,
        following: str | None,
        *,
        begun: bool = False,
        error: str = "",
    ) -> None:
        """Save because of *failure*; if that fails too, it is told with it."""
        try:
            await self._save(state, kind, status, following, begun=begun, error=error)
        except HoldfastError as problem:
            failure.add_note(f"holdfast: the state at this point was not saved: {problem}")

    # Ending

    async def _complete(self, state: State, node: str) -> State:
        await self._save(state, "final", "completed", None)
        if self._emit is not None:
            facts = {"exit_point": node, "iterations": len(self._path)}
            self._emit("graph.complete", {**facts, "path_length": len(self._path)})
        return state.placed(placed(state.place, "final", "completed", ""))

    async def _exhausted(self, state: State, current: str) -> BudgetError:
        limit = self._plan.max_iterations
        error = BudgetError(
            f"run {state.run_id!r} has executed {limit} nodes, which is its limit",
            hint="raise max_iterations and resume, or look for a loop that does not end",
            node=current,
            state=state,
            path=tuple(self._path),
            run_id=state.run_id,
            limit=limit,
        )
        await self._save_after(error, state, "recovery", "budget_exhausted", current)
        self._failed(error, current)
        return error

    async def _drained(self, state: State, following: str) -> Drained:
        await self._save(state, "interrupt", "interrupted", following)
        if self._emit is not None:
            self._emit("run.interrupted", {"node": following, "reason": "asked to stop"})
        return drained(state.run_id, following, saved=self._session is not None)

    async def _stopped(self, error: BaseException, state: State, node: str) -> BaseException:
        """Save what is good because *node* did not end well; gives what is to be raised."""
        session, root = self._session, not self._scope
        if session is not None and session.lost is not None:
            ours = isinstance(error, asyncio.CancelledError | ConflictError)
            return error if ours else session.taken_over()
        if isinstance(error, GeneratorExit):
            return error  # the loop is gone, and nothing can be awaited any more
        if isinstance(error, EndRun):
            await self._ended(error, state, node)
            return error
        if not isinstance(error, Exception):
            await self._save_after(error, state, "interrupt", "interrupted", node, begun=True)
            if self._emit is not None:
                self._emit("run.interrupted", {"node": node, "reason": type(error).__name__})
            if not root:
                return error
            if isinstance(error, Interrupted) and session is not None:
                return parked(session, error)
            return error
        told = (
            error if isinstance(error, PASS_THROUGH_ERRORS) else self._failure(error, state, node)
        )
        if not isinstance(error, ConflictError):
            text = failures.describe(error)
            await self._save_after(told, state, "recovery", "failed", node, begun=True, error=text)
        self._failed(error, node, completed=False)
        return told

    async def _ended(self, ending: EndRun, state: State, node: str) -> None:
        ending.state = state = state.merge(ending.leaves)
        if ending.save:
            status, text = ending.status, ending.error
            await self._save(state, ending.kind, status, node, begun=True, error=text)
        if self._emit is not None:
            interrupted = ending.status == "interrupted"
            kind = "run.interrupted" if interrupted else "run.failed"
            self._emit(kind, {"node": node, "error": ending.status})

    async def save_within(self, state: State, node: str) -> str:
        """Save the state that *node*, which is being executed, began with.

        What was recorded since then is saved along.
        """
        return await self._save(state, "pre_operation", "running", node, begun=True)

    def _cancelled(self, error: asyncio.CancelledError, run_id: str, node: str) -> BaseException:
        """What is to be raised: a cancellation of our own is told as what it was for."""
        session = self._session
        if self._scope:
            return error
        if session is not None and session.lost is not None:
            uncancel()
            return session.taken_over()
        if self.control.asked > 1:
            uncancel()
            return drained(run_id, node, saved=session is not None)
        return error

    def _failure(self, error: BaseException, state: State, node: str) -> StepError:
        return StepError(
            f"node {node!r} failed: {failures.shown(error)}",
            hint="resume the run to try the node again",
            node=node,
            state=state,
            path=tuple(self._path),
            run_id=state.run_id,
        )

    # Telling

    def _failed(self, error: BaseException, node: str, *, completed: bool = True) -> None:
        if self._emit is not None:
            if not completed:
                facts = {"node": node, "iteration": len(self._path) + 1}
                self._emit("node.complete", {**facts, "error": type(error).__name__})
            self._emit("run.failed", {"node": node, "error": type(error).__name__})

    def _entering(self, node: str, state: State, visits: Counter[str]) -> None:
        assert self._emit is not None
        visits[node] += 1
        iteration = len(self._path) + 1
        if visits[node] > 1:
            facts = {"node": node, "visit_count": visits[node], "iteration": iteration}
            self._emit("cycle.detected", {**facts, "path_length": len(self._path)})
        facts = {"node": node, "iteration": iteration}
        if self._plan.snapshots:
            facts["input_snapshot"] = state.to_dict()
        self._emit("node.start", facts)

    def _left(self, node: str, before: State, after: State) -> None:
        assert self._emit is not None
        self.state = after
        changed = changed_keys(before, after)
        if len(changed) == 1:
            self._emit("state.set", {"node": node, "key": changed[0]})
        else:
            self._emit("state.merge" if changed else "state.clone", {"node": node, "keys": changed})
        facts: dict[str, Any] = {"node": node, "iteration": len(self._path), "error": None}
        if self._plan.snapshots:
            facts["output_snapshot"] = after.to_dict()
        self._emit("node.complete", facts)
