"""Drift of graphs, agents and fleets, watched while they run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from surehold.core.policy import (
    Detector,
    DriftMonitor,
    DriftPolicy,
    DriftReport,
    Observation,
    Sensitivity,
    check_policy,
)
from surehold.core.state import Event, Observer, State
from surehold.doors.events.drift_history import (
    Action,
    Progress,
    action_of,
    step_detectors,
    values_of,
)
from surehold.doors.result import GraphResult
from surehold.doors.resume import rewind_run
from surehold.engine.journal import CheckpointMetadata
from surehold.engine.managers import AsyncCheckpointManager
from surehold.engine.runs import StopRequests
from surehold.engine.runs.positions import CURRENT_STEP
from surehold.errors import Drained, DriftError, StepError, UsageError

logger = logging.getLogger("surehold.drift")
T = TypeVar("T")


@runtime_checkable
class _Steps(Protocol):
    """A loop over the steps of a graph."""

    state: State
    stop: StopRequests


class WatchedGraph(Protocol):
    """A graph as a watch executes it: `StateGraph`."""

    @property
    def observers(self) -> Sequence[Observer]: ...
    @property
    def manager(self) -> AsyncCheckpointManager: ...
    async def execute(self, state: State, /) -> State: ...
    async def resume(self, run_id: str, /, *, checkpoint_id: str | None = None) -> GraphResult: ...
    async def resume_state(
        self, run_id: str, /, *, secrets: Any = ..., checkpoint_id: str | None = None
    ) -> State: ...


class DriftWatch:
    """An observer that watches the last steps of each run, and acts on drift.

    *progress* reads from the state how far the run has come, *action* what its last step did; by
    default `last_action` or, for other graphs, the node and what it changed.

    *policy* is ``warn``: the drift is logged and sent to the other observers as ``drift.found``; or
    ``restore`` or ``stop``: the run ends as if it had been asked to stop, saved and tagged
    ``drift``. `execute`, `resume` or `guard`, if it was started through one of them, then goes
    back to the last good checkpoint or raises a `DriftError`. Findings that only warn never do
    more. A failing step ends the run by itself; if such failures repeat until they advise a
    restore, the policy is applied in place of the step's error, which is the cause.

    Records after the checkpoint that a run is rewound to are abandoned: models, tools and other
    effects are called again with new idempotency keys, and what was spent stays spent. If an
    effect succeeded that was not declared safe to repeat (``in_doubt="retry"``, or an idempotent
    tool), a `DriftError` is raised instead.

    >>> import asyncio
    >>> from surehold import CheckpointConfig, GraphConfig, StateGraph
    >>> watch = DriftWatch(policy="stop", progress=lambda state: state["pages"])
    >>> graph = StateGraph(GraphConfig(observer=watch, checkpoint=CheckpointConfig(interval=1)))
    >>> graph.add_node("read", lambda state: {"tries": state["tries"] + 1})
    >>> graph.add_node("done", lambda state: None)
    >>> graph.add_edge("read", "done", lambda state: state["pages"] == 3)
    >>> graph.add_edge("read", "read")
    >>> graph.set_entry_point("read"); graph.set_exit_point("done")
    >>> try:
    ...     asyncio.run(watch.execute(graph, {"pages": 0, "tries": 0}))
    ... except DriftError as error:
    ...     print(error.report)
    stalled: no progress beyond 0 in 6 steps (0.97, restore)
    """

    def __init__(
        self,
        *,
        policy: DriftPolicy = "warn",
        progress: Progress | None = None,
        action: Action | None = None,
        detectors: Iterable[Detector | type[Any]] | None = None,
        sensitivity: Sensitivity | float = "normal",
        window: int = 50,
        max_restores: int = 3,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        check_policy(policy, "policy")
        if max_restores < 1:
            raise UsageError(
                f"max_restores is {max_restores}", hint="give 1 or more, or use policy='stop'"
            )
        self.policy: DriftPolicy = policy
        self.window = window
        self.max_restores = max_restores
        self._progress = progress
        self._action = action
        given = step_detectors() if detectors is None else tuple(detectors)
        self._monitor = partial(DriftMonitor, given, sensitivity=sensitivity, window=window)
        self._monitor()  # so that what is wrong with the settings is said now
        self._monotonic = monotonic
        self._runs: dict[str, _Watched] = {}
        self._lock = threading.Lock()

    def report(self, run_id: str) -> DriftReport:
        """Findings of the detectors in the last steps of a run."""
        return self._watched(run_id).monitor.look()

    def forget(self, run_id: str) -> None:
        """Forget a run."""
        with self._lock:
            self._runs.pop(run_id, None)

    def _watched(self, run_id: str) -> _Watched:
        with self._lock:
            return self._runs.setdefault(run_id, _Watched(self._monitor()))

    # Observing

    def on_event(self, event: Event) -> None:
        """Handle *event*, as an observer does."""
        run_id = event.data.get("run_id")
        if run_id is None or "scope" in event.data:
            return  # what is nested in a step is part of it
        if event.type == "node.start":
            self._watched(run_id).began = self._monotonic()
        elif event.type == "node.complete":
            self._step(run_id, event.data)
        elif event.type == "graph.complete":
            self.forget(run_id)

    def _step(self, run_id: str, facts: Mapping[str, Any]) -> None:
        here = CURRENT_STEP.get()
        loop = here.outer if here is not None else None
        if here is None or not isinstance(loop, _Steps):
            return
        watched = self._watched(run_id)
        failed = facts["error"] is not None
        state = None if failed else loop.state
        seconds = self._monotonic() - watched.began if watched.began is not None else None
        seen = self._observation(facts, state, watched.last, seconds)
        watched.monitor.observe(seen)
        watched.last = seen.values or watched.last
        report = watched.monitor.look()
        policy = self.policy if report else "warn"
        found = {
            (one.detector, one.about, policy != "warn" and one.level == "restore")
            for one in report.findings
            if one.level != "note"
        }
        if found <= watched.found:
            return
        watched.found = found
        logger.warning("run %s drifts (%s): %s", run_id, policy, report)
        here.say("drift.found", policy=policy, since=report.since, report=str(report))
        if policy != "warn":
            watched.stopped_for = report
            if not failed:
                loop.stop.request("drift", str(report))

    def _observation(
        self,
        facts: Mapping[str, Any],
        state: State | None,
        before: Mapping[str, Any] | None,
        seconds: float | None,
    ) -> Observation:
        node: str = facts["node"]
        if state is None:
            step = facts["iteration"]
            return Observation(step=step, action=f"{node}, which failed", failed=True)
        values, progress = values_of(state), self._progress
        return Observation(
            step=state.step,
            action=action_of(self._action, state, node, before, values),
            progress=progress(state) if progress is not None else None,
            seconds=seconds,
            values=values,
        )

    # Acting

    async def execute(self, graph: WatchedGraph, state: State | Mapping[str, Any]) -> State:
        """``graph.execute(state)`` with the policy applied; it must observe the graph."""
        made = state if isinstance(state, State) else State.new(state)
        go_back = partial(graph.resume_state, made.run_id, secrets=made.secrets)
        return await self._guarded(graph, partial(graph.execute, made), go_back)

    async def resume(self, graph: WatchedGraph, run_id: str) -> GraphResult:
        """``graph.resume(run_id)`` with the policy applied."""
        go_back = partial(graph.resume, run_id)
        return await self._guarded(graph, go_back, go_back)

    async def _guarded(
        self,
        graph: WatchedGraph,
        start: Callable[[], Awaitable[T]],
        go_back: Callable[..., Awaitable[T]],
    ) -> T:
        if self not in graph.observers:
            raise UsageError(
                "the graph is not watched",
                hint="pass the watch to the graph: GraphConfig(observer=watch)",
            )
        return await self.guard(start, lambda one: go_back(checkpoint_id=one), graph.manager)

    async def guard(
        self,
        start: Callable[[], Awaitable[T]],
        go_back: Callable[[str], Awaitable[T]],
        manager: AsyncCheckpointManager,
    ) -> T:
        """Apply the policy to anything that runs a watched graph: an agent, a fleet.

        *start* starts it, *go_back* continues from a checkpoint: the last good one, saved again as
        the run's newest. Drift that returns within a window of steps leads further back each time;
        after *max_restores* times, or without an earlier checkpoint, a `DriftError` is raised.
        """
        below: int | None = None
        restores = 0
        attempt = start
        while True:
            cause: BaseException | None = None
            try:
                result = await attempt()
            except (Drained, StepError) as ended:
                run_id: str = getattr(ended, "run_id", "")
                report = self._why_stopped(run_id)
                if report is None:
                    raise
                cause = ended if isinstance(ended, StepError) else None
            else:
                # An agent tells by its result that it was asked to stop.
                run_id = getattr(result, "run_id", "")
                report = self._why_stopped(run_id)
                if report is None:
                    return result
            if report.observations >= self.window:
                below, restores = None, 0
            good = await self._mark(manager, run_id, report, below)
            if good is None or restores == self.max_restores:
                raise self._error(run_id, report, after=restores) from cause
            below, restores = good.step, restores + 1
            refuse = partial(self._error, run_id, report)
            back = await rewind_run(manager, run_id, good.checkpoint_id, refuse)
            logger.warning("run %s is rewound to step %d", run_id, good.step)
            attempt = partial(go_back, back)

    def _why_stopped(self, run_id: str) -> DriftReport | None:
        """The report for which this watch stopped the run, if it did; forgets the run."""
        with self._lock:
            watched = self._runs.get(run_id)
            if watched is None or watched.stopped_for is None:
                return None
            del self._runs[run_id]
            return watched.stopped_for

    async def _mark(
        self, manager: AsyncCheckpointManager, run_id: str, report: DriftReport, below: int | None
    ) -> CheckpointMetadata | None:
        """Tag the drifted checkpoint; find the last good one, before step *below*."""
        newest = await manager.latest(run_id)
        if newest is not None:
            await manager.tag(newest.checkpoint_id, "drift")
        if self.policy != "restore":
            return None
        bounds = [bound for bound in (report.since, below) if bound is not None]
        listed = await manager.list_checkpoints(run_id, scope="")
        ids = {one.checkpoint_id for one in listed}
        line = None
        for one in listed:
            if line not in (None, one.checkpoint_id):
                continue  # on a branch that was abandoned
            if one.kind in ("routine", "fork") and all(one.step < bound for bound in bounds):
                return one
            line = one.parent_checkpoint_id if one.parent_checkpoint_id in ids else None
        return None

    def _error(
        self, run_id: str, report: DriftReport, done: Sequence[str] = (), *, after: int = 0
    ) -> DriftError:
        """The error; *done* are effects that a rewind would repeat and must not."""
        facts: dict[str, Any] = {"run_id": run_id, "report": report}
        if done:
            facts["done"] = tuple(done)
            facts["hint"] = (
                "what is safe to repeat can be declared so (in_doubt='retry', idempotent tools);"
                " or resume from a checkpoint, which repeats nothing"
            )
            why = f", and cannot go back because {', '.join(done)} would be done again"
        elif self.policy != "restore":
            why = ""
        elif after == self.max_restores:
            why = f" again after it went back {after} times"
        else:
            why = ", and there is nothing left to go back to"
        return DriftError(f"run {run_id!r} drifts{why}: {report}", **facts)


class _Watched:
    """Observations of one run."""

    def __init__(self, monitor: DriftMonitor) -> None:
        self.monitor = monitor
        self.began: float | None = None
        self.last: Mapping[str, Any] | None = None
        self.found: set[tuple[str, str, bool]] = set()
        self.stopped_for: DriftReport | None = None
