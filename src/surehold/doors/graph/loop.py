"""The loop that executes a graph: node, decision, checkpoint, next node."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from surehold.core.policy import (
    CANCELLED,
    OF_THE_RUN,
    Clockwork,
    RetryPolicy,
    RunFacts,
    Triggers,
    decisive,
    ending_of,
)
from surehold.core.records import Effect
from surehold.core.state import Lineage, Place, State, read_metadata
from surehold.doors.graph.edges import Predicate, describe
from surehold.doors.graph.node_result import (
    EndRun,
    applied,
    changed_keys,
    drained,
    placed,
    uncancel,
    waiting_facts,
    waiting_signal,
)
from surehold.doors.result import Spent, spent_on
from surehold.doors.resume import Now, Progress, write_progress
from surehold.engine.journal import Note
from surehold.engine.runs import (
    COMPENSATED,
    OpenRun,
    Spot,
    StopRequests,
    draft_of_state,
    past_step,
    permitted,
    taken_over,
    try_again,
)
from surehold.engine.runs.effects import AwaitsAll, calls_behind, error_text, passing
from surehold.engine.runs.positions import CURRENT_STEP, Emit, StepContext
from surehold.errors import BudgetError, Drained, StepError, SureholdError

if TYPE_CHECKING:
    from surehold.doors.graph.compiled import Plan

_replace = msgspec.structs.replace
_LONGEST_REST = 0.2
"""Seconds after which a wait looks whether the run was asked to stop."""
_AGAIN = "resume the run to execute the node again"
_NOT_AGAIN = "fix it and resume: the completed node is not executed again"


class Loop(msgspec.Struct, eq=False):
    """Executes a graph in one scope of a run."""

    _plan: Plan
    _held: OpenRun | None
    _scope: str
    _emit: Emit | None
    stop: StopRequests
    triggers: Triggers | None
    leaves: Mapping[str, Any] = {}
    """Values that the current node adds to the checkpoint saved if it does not complete."""
    doing: str = ""
    """The part of the current node that is at work, for the message of a failure."""
    state: State | None = None
    """The newest state, for observers."""
    _clock: Clockwork | None = None
    _lineage: Lineage = msgspec.field(default_factory=Lineage)
    _path: list[str] = []
    _in_journal: int = 0
    _began: float = 0.0
    _failures: int = 0
    """Failed attempts of the current node."""
    _since: float = 0.0
    """The begin of the first of them."""
    _spent: Spent = Spent()
    """The cost of the calls of completed steps, if this is the run itself."""
    _before: frozenset[str] = frozenset()
    _straight: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if self._held is not None:
            self._before = frozenset(self._plan.before)
        if self._emit is None:
            self._straight = self._plan.straight()

    async def run(self, state: State, progress: Progress, lineage: Lineage) -> State:
        """Execute from where *progress* says to an exit point, and return the final state."""
        self._continue(progress, lineage)
        if self.triggers is not None and self._held is not None:
            self._clock = Clockwork(self.triggers, step=state.step, now=time.monotonic())
        here = StepContext(self._held, self._scope, self._emit, outer=self)
        if self._held is not None and not self._scope:
            self._held.leaving.enter()
        token = CURRENT_STEP.set(here)
        try:
            following = progress.next
            if following is None and state.node in self._plan.exits:
                return await self._complete(state, state.node)  # the fork of a completed run
            if following is None:
                following = await self._decide(state)
            return await self._walk(state, following, here)
        except asyncio.CancelledError as error:
            stopped = self._translated(error, state.run_id, here.node)
            if stopped is error:
                raise
            raise stopped from error
        finally:
            CURRENT_STEP.reset(token)

    def _continue(self, progress: Progress, lineage: Lineage) -> None:
        self._path = progress.path
        self._failures, self._since = progress.failures, progress.since
        self._spent = progress.spent
        self._in_journal = len(progress.path)
        self._began = time.monotonic() - progress.elapsed
        self._lineage = lineage

    async def begin(self, state: State) -> None:
        """Save the first state of a run, before anything is executed."""
        self._continue(Progress(), state.lineage)
        await self._save(state, "routine", "running", self._plan.entry)

    async def rewind(self, state: State, progress: Progress, *notes: Note) -> None:
        """Save an earlier state again, so that the run continues from it."""
        self._continue(progress, state.lineage)
        await self._save(state, "recovery", "running", progress.next, first=notes)

    async def mark(self, state: State, progress: Progress) -> str:
        """Save a run that is not being executed once more; return the checkpoint's id."""
        self._continue(progress, state.lineage)
        return await self._save(state, "manual", state.status, progress.next, error=progress.error)

    async def save_within(self, state: State, node: str) -> str:
        """Save the state that *node* began with, and what it has recorded since."""
        return await self._save(state, "pre_operation", "running", node, begun=True)

    async def _walk(self, state: State, current: str, here: StepContext) -> State:
        plan, path, emit, stop = self._plan, self._path, self._emit, self.stop
        start = Place(run_id=state.run_id, name=state.name or plan.name, scope=self._scope)
        visits = Counter(path) if emit is not None else None
        step = state.step
        while True:
            if self._is_asked_to_stop():
                raise await self._drained(state, current)
            if len(path) >= plan.max_iterations:
                raise await self._exhausted(state, current)
            if current in self._before:
                await self._save(state, "pre_operation", "running", current)
            if visits is not None:
                self._entering(current, state, visits)
            made: State | None = None
            wait: float | None = None
            while made is None:
                here.begin(step + 1, current)
                stop.doing = current
                self.leaves, self.doing = {}, ""
                try:
                    if wait is not None:
                        await self._rest(wait, state.run_id, current)
                    if self._held is not None:
                        self._held.check_lease()
                    with AwaitsAll(), self._span(current, step + 1):
                        if current in plan.policies:
                            self._since = self._since or time.time()
                            result = await self._limited(plan.policies[current], current, state)
                        else:
                            result = plan.nodes[current](state)
                            if type(result) is not State and inspect.isawaitable(result):
                                result = await result
                    made = applied(state, result, current)
                    here.check_left()
                except BaseException as error:
                    made = None
                    wait = self._pause_after(error, current)
                    if wait is not None and await self._failure_kept(error, state, here, wait):
                        continue
                    stopped = await self._stopped(error, state, current)
                    if stopped is error:
                        raise
                    raise stopped from error
            self._failures, self._since = 0, 0.0
            step += 1
            path.append(current)
            put = made.place
            place = _replace(start, step=step, node=current, tags=put.tags, metadata=put.metadata)
            before, state = state, made.placed(place)
            if emit is not None:
                self._left(current, before, state)
            if current in plan.exits:
                return await self._complete(state, current)
            current = self._straight.get(current) or await self._decide(state)
            clock = self._clock
            if clock is None or stop.reason is not None:
                continue
            try:
                due = clock.due(step, time.monotonic(), node=state.node, state=state)
            except Exception as error:
                what = f"the condition of a checkpoint after node {state.node!r} failed"
                raise await self._undecided(state, what, error, current) from error
            if due:
                await self._save(state, "routine", "running", current)

    def _is_asked_to_stop(self) -> bool:
        if self.stop.reason is None and self._held is not None and self._held.is_cancelled:
            self.stop.note("user", CANCELLED)
        return self.stop.reason is not None

    def _span(self, node: str, step: int) -> contextlib.AbstractContextManager[None]:
        """A span around a node, if the run is traced."""
        spans = None if self._held is None else self._held.spans
        return contextlib.nullcontext() if spans is None else spans.step(node, step)

    # Attempts

    async def _limited(self, policy: RetryPolicy, node: str, state: State) -> Any:
        """Execute *node* as its policy allows."""
        async with passing(policy):
            try:
                async with asyncio.timeout(policy.timeout) as limit:
                    result = self._plan.nodes[node](state)
                    return await result if inspect.isawaitable(result) else result
            except TimeoutError:
                if not limit.expired():
                    raise
                raise TimeoutError(f"node {node!r} took over {policy.timeout} s") from None

    def _pause_after(self, error: BaseException, node: str) -> float | None:
        """Seconds before the next attempt of *node*; None if there is none."""
        policy = self._plan.policies.get(node)
        if policy is None or not isinstance(error, Exception):
            return None
        held = self._held
        if held is not None and (
            held.lost is not None
            or held.leaving.signal is not None
            or held.leaving.followed(calls_behind(error))
        ):
            return None
        if isinstance(error, (EndRun, *OF_THE_RUN)):
            return None
        return policy.pause_after(self._failures, error, time.time() - self._since)

    async def _failure_kept(
        self, error: BaseException, state: State, here: StepContext, wait: float
    ) -> bool:
        """Save that an attempt failed; the calls in it that raised are made again.

        False if that cannot be saved.
        """
        self._failures += 1
        held = self._held
        facts = {"error": type(error).__name__, "attempt": self._failures}
        if held is not None:
            held.resumed = True  # graphs in the node continue after their newest checkpoints
            metadata = read_metadata({**state.place.metadata, **facts})
            marked = state.placed(msgspec.structs.replace(state.place, metadata=metadata))
            try:
                await _permit(held, here)
                await self._save(marked, "recovery", "running", here.node, begun=True)
            except SureholdError as problem:
                error.add_note(f"surehold: the failed attempt was not saved: {problem}")
                return False
        if self._emit is not None:
            self._emit("node.retry", {"node": here.node, **facts, "wait": wait})
        return True

    async def _rest(self, seconds: float, run_id: str, node: str) -> None:
        """Wait before an attempt, or until the run is asked to stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._is_asked_to_stop():
            await asyncio.sleep(min(left, _LONGEST_REST))
        if self.stop.reason is not None:
            raise drained(self.stop, run_id, node, saved=self._held is not None)

    # Deciding

    async def _decide(self, state: State) -> str:
        """The next node; without one a `StepError`, once the completed node is saved."""
        node, emit = state.node, self._emit
        if node is None:
            return self._plan.entry
        what = f"the decision after node {node!r}"
        try:
            for index, edge in enumerate(self._plan.edges.get(node, ())):
                if emit is not None:
                    emit("edge.evaluate", edge.facts(index))
                if edge.predicate is not None and not await _is_true(edge.predicate, state):
                    continue
                if emit is not None:
                    facts = {"predicate_name": describe(edge.predicate), "predicate_result": True}
                    emit("edge.transition", {**edge.facts(index), **facts})
                return edge.target
        except Exception as error:
            raise await self._undecided(state, f"{what} failed", error) from error
        raise await self._undecided(state, f"{what} matches none of its edges")

    async def _undecided(
        self, state: State, what: str, cause: Exception | None = None, following: str | None = None
    ) -> StepError:
        """Save the completed node as a failure of the run; return the error to raise."""
        node = state.node or ""
        message = f"{what}: {error_text.shown(cause)}" if cause is not None else what
        error = self._step_error(message, state, node, _NOT_AGAIN, cause)
        with _noted_on(error):
            save = partial(self._save, state, "recovery", "failed", following)
            await save(error=message, cause=cause)
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
        cause: BaseException | None = None,
        permits: bool = False,
        first: tuple[Note, ...] = (),
    ) -> str:
        """Save *state* with the next node; *begun* if that has recorded something."""
        held = self._held
        if held is None:
            return ""
        notes, root, ledger = first, not self._scope, held.ledger
        past, spent = None, self._spent
        if root and ledger.entries:
            past = past_step(None if status == "completed" else state.step)
            notes = (*first, *ledger.carried(permits=permits, past=past))
            spent += spent_on(note.content for note in ledger.effects() if past(note))
        if kind != "routine":
            state = state.placed(placed(state.place, kind, status, error))
        if error:
            error = error_text.failure_text(error, held.manager.hook_manager)
        traceback = ""
        if cause is not None and error:
            traceback = error_text.traceback_text(cause, held.manager.hook_manager)
        now = Now(
            next=following,
            elapsed=round(time.monotonic() - self._began, 6),
            floor=held.floor,
            branch=held.branch,
            error=error,
            traceback=traceback,
            failures=0 if status == "failed" else self._failures,
            since=self._since if self._failures and status != "failed" else 0.0,
            spent=spent,
        )
        plan, path = self._plan, self._path
        draft = draft_of_state(
            state,
            self._lineage,
            door=held.door,
            fingerprint=plan.fingerprint,
            schema=plan.version,
            extra=functools.partial(write_progress, now, path, self._in_journal, plan.shape),
        )
        checkpoint_id = await held.awaited.save(draft, notes=notes)
        if checkpoint_id:
            if past is not None:
                ledger.saved(past, held.run_id)
            if root and held.scopes and not begun:
                await held.awaited.end_scopes()
            self._in_journal, self._spent = len(path), spent
            if self._clock is not None:
                self._clock.saved(state.step, time.monotonic())
            if self._emit is not None:
                facts = {"node": state.node, "step": state.step, "kind": kind}
                self._emit("checkpoint.save", {**facts, "checkpoint_id": checkpoint_id})
        return checkpoint_id

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
        with _noted_on(error):
            await self._save(state, "recovery", "budget_exhausted", current)
        self._failed(error, current)
        return error

    async def _drained(self, state: State, following: str) -> Drained:
        await self._save(state, "interrupt", "interrupted", following)
        if self._emit is not None:
            self._emit("run.interrupted", {"node": following, "reason": "asked to stop"})
        return drained(self.stop, state.run_id, following, saved=self._held is not None)

    async def _stopped(self, error: BaseException, state: State, node: str) -> BaseException:
        """Save the good state because *node* did not complete; return what to raise."""
        held = self._held
        lost, followed = False, False
        if held is not None:
            lost = held.lost is not None
            if not self._scope and not isinstance(error, EndRun):
                error = held.leaving.ended_by(error)
            followed = held.leaving.followed(calls_behind(error))
        facts = RunFacts(run_id=state.run_id, lost=lost, followed=followed)
        ending = ending_of(error, facts)
        if lost and held is not None:
            return taken_over(held.run_id, held.lost) if ending.gives == "lost" else error
        if self.leaves:
            state = state.merge(self.leaves)
        if isinstance(error, EndRun):
            await self._ended(error, state, node)
            return error
        if ending.gives == "result":
            error = decisive(error, facts)
        raised, text = error, ""
        if ending.gives == "failure":
            part = f", {self.doing}," if self.doing else ""
            what = f"node {node!r}{part} failed in run {state.run_id!r}: {error_text.shown(error)}"
            again = try_again(state.run_id, calls_behind(error)) if ending.compensated else _AGAIN
            raised = self._step_error(what, state, node, again, error)
        if ending.kind == "recovery":
            text = error_text.describe(error)
        if ending.compensated:
            told = read_metadata({**state.place.metadata, COMPENSATED: True})
            state = state.placed(msgspec.structs.replace(state.place, metadata=told))
        if ending.saves and not (ending.compensated and held and held.failed_already()):
            save = partial(self._save, state, ending.kind, ending.status, node, begun=True)
            with _noted_on(raised):
                await save(error=text, cause=error, permits=ending.permits)
        if ending.status == "waiting":
            if self._scope:
                return error
            signal = waiting_signal(held, error) if held is not None else error
            if self._emit is not None:
                self._emit("run.waiting", {"node": node, "waiting": waiting_facts(signal)})
            return signal
        if isinstance(error, Exception):
            self._failed(error, node, completed=False)
        elif self._emit is not None and ending.saves:
            self._emit("run.interrupted", {"node": node, "reason": type(error).__name__})
        return raised

    async def _ended(self, ending: EndRun, state: State, node: str) -> None:
        ending.state = state = state.merge(ending.leaves)
        if ending.save:
            save = partial(self._save, state, ending.kind, ending.status, node, begun=True)
            await save(error=ending.error, permits=ending.status == "failed")
        if self._emit is not None:
            interrupted = ending.status == "interrupted"
            kind = "run.interrupted" if interrupted else "run.failed"
            self._emit(kind, {"node": node, "error": ending.status})

    def _translated(self, error: asyncio.CancelledError, run_id: str, node: str) -> BaseException:
        """The exception behind a cancellation by Surehold; else *error* itself."""
        held = self._held
        if self._scope:
            return error
        if held is not None and held.lost is not None:
            uncancel()
            return taken_over(held.run_id, held.lost)
        if self.stop.caused(error):
            return drained(self.stop, run_id, node, saved=held is not None)
        return error

    def _step_error(
        self, what: str, state: State, node: str, again: str, cause: BaseException | None
    ) -> StepError:
        """A `StepError` that keeps the hint of its cause."""
        hint = cause.hint if isinstance(cause, SureholdError) else ""
        if self._held is not None and again not in hint:
            hint = f"{hint}; then {again}" if hint else again
        return StepError(
            what, hint=hint, node=node, state=state, path=tuple(self._path), run_id=state.run_id
        )

    # Events

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


async def _permit(held: OpenRun, here: StepContext) -> None:
    """Permit one more attempt of each call of the current step that raised."""
    inside = here.at(here.node)
    for note in held.ledger.effects():
        entry: Effect = note.content
        own = note.scope == here.scope and note.step == here.step
        nested = note.scope.startswith((f"{inside}/", f"{inside}.")) or note.scope == inside
        if entry.error is not None and (own or nested):
            await held.ledger.write(permitted(entry), Spot(note.scope, note.step, note.node or ""))


@contextlib.contextmanager
def _noted_on(failure: BaseException) -> Iterator[None]:
    """Note on *failure* that the state was not saved, if saving it in the block fails."""
    try:
        yield
    except SureholdError as problem:
        failure.add_note(f"surehold: the state at this point was not saved: {problem}")


async def _is_true(predicate: Predicate, state: State) -> bool:
    with AwaitsAll():
        said = predicate(state)
        return bool(await said if said is not True and inspect.isawaitable(said) else said)
