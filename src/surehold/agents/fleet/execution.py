"""Execution of a fleet's run: asks people at once, and resumes a run that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from surehold.agents.fleet.nodes import Crew
from surehold.agents.fleet.resume import CheckpointStatus, find_newest
from surehold.agents.tools import ApprovalHandler, ApprovalRequest, expired, requests_in
from surehold.core.policy import may_help
from surehold.core.state import State
from surehold.doors.events import Event, Listener
from surehold.doors.graph import EndRun, StateGraph
from surehold.doors.result import Spent
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager
from surehold.engine.runs import Waiting, answer, pending, waiting_inside, waiting_of
from surehold.errors import Drained, Interrupted, SureholdError, UsageError


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Number of automatic resumes of a failed run, and the seconds before each.

    >>> [Backoff(resumes=4, first=1.0, longest=5.0).wait(number) for number in range(5)]
    [1.0, 2.0, 4.0, 5.0, None]
    """

    resumes: int = 3
    first: float = 1.0
    factor: float = 2.0
    longest: float = 30.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        if self.resumes < 0 or self.first < 0 or self.factor < 1 or self.longest < 0:
            raise UsageError(
                f"{self!r} is not a backoff", hint="counts and seconds from 0, a factor from 1"
            )

    def wait(self, number: int) -> float | None:
        """Seconds before resume *number*, counted from 0; None if there is no such resume."""
        if number >= self.resumes:
            return None
        return float(min(self.longest, self.first * self.factor**number))


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that failed and was resumed."""

    error: str
    round: int
    """Rounds completed by then, none of which is repeated."""
    waited: float
    """Seconds before it was resumed."""
    saved: Spent
    """Time, tokens and dollars that starting over would have cost again."""

    def __str__(self) -> str:
        return (
            f"failed after round {self.round} ({self.error}); resumed after {self.waited:g} s,"
            f" saving {self.saved.tokens:,} tokens, ${self.saved.dollars:.4f}"
        )


class Ended(NamedTuple):
    """The end of an execution."""

    state: State
    attempts: tuple[Attempt, ...]
    error: str = ""
    """The reason that a run ended without an answer."""
    waiting: tuple[Waiting, ...] = ()
    """The approvals that the run waits for."""
    saved: Spent = Spent()
    """The cost of the calls that an earlier execution recorded."""


class FleetExecution(msgspec.Struct, frozen=True):
    """Executes runs of a fleet's graph."""

    _graph: StateGraph
    _crew: Crew
    _backoff: Backoff
    _handler: ApprovalHandler | None

    async def run(
        self,
        run_id: str,
        state: State | None,
        answers: Mapping[str, Any] | None,
        on_event: Callable[[Event], None] | None = None,
        looked: CheckpointStatus | None = None,
    ) -> Ended:
        """Begin with *state*, or continue with *answers*, until the run ends or waits.

        *looked* is the status of the run, if it was just read.

        Raises the failure of a run that no further attempt helps.
        """
        graph, spent = self._graph, [Spent()]
        found = looked.run if looked is not None else None
        tell = spent.append if state is None else None
        if on_event is not None:
            graph = graph.watched_by(Listener(on_event))
        attempts: list[Attempt] = []
        error, waiting = "", ()
        answers = dict(answers or {})
        if state is None:
            answers |= await self._expired(run_id, looked)
        while True:
            try:
                if state is not None:
                    final = await graph.execute(state)
                else:
                    final = await graph.resume_state(
                        run_id, answers=answers, found=found, tell_spent=tell
                    )
                return Ended(final, tuple(attempts), saved=spent[-1])
            except (KeyboardInterrupt, SystemExit):  # also Drained, if a signal asked for it
                raise
            except Interrupted as signal:
                asked = signal.facts.get("waiting", ())
                said = await self._asked(run_id, asked)
                if said is None:
                    waiting = asked
                    break
                answers = said
            except Drained:
                break
            except EndRun as ending:
                error = ending.error
                break
            except SureholdError as failure:
                attempts.append(await self._waited(run_id, failure, len(attempts)))
                answers = {}
            state = found = tell = None
        stored = await stored_state(graph.manager, run_id)
        return Ended(stored, tuple(attempts), error, waiting, spent[-1])

    async def _waited(self, run_id: str, error: SureholdError, number: int) -> Attempt:
        """Wait before the next resume, if there is one; else raise *error*."""
        seconds = self._backoff.wait(number) if may_help(error) else None
        if seconds is None:
            if number:
                error.add_note(f"surehold: resumed {number} times before")
            raise error
        plan = await asyncio.to_thread(self._graph.explain_resume, run_id)
        state = await stored_state(self._graph.manager, run_id)
        await self._backoff.sleep(seconds)
        return Attempt(
            error=plan.error or error.message,
            round=state["current_round"],
            waited=seconds,
            saved=plan.saves,
        )

    async def _expired(self, run_id: str, looked: CheckpointStatus | None) -> dict[str, Any]:
        """Rejections of the requests whose time to answer has ended."""
        reader = self._graph.manager.reader

        def look() -> dict[str, Any]:
            status = looked or find_newest(reader, run_id)
            if status is None or status.completed:
                return {}
            notes = status.waiting
            waiting = requests_in(waiting_of(run_id, note) for note in notes)
            return expired(waiting, datetime.now(UTC))

        return await asyncio.to_thread(look)

    async def _asked(self, run_id: str, waiting: Sequence[Waiting]) -> dict[str, Any] | None:
        """Ask people through the handler; return their answers, None without any."""
        if self._handler is None:
            return None
        answers: dict[str, Any] = {}
        requests = requests_in(waiting)
        for request in requests:
            left = None
            if request.expires_at is not None:
                left = max(0.0, (request.expires_at - datetime.now(UTC)).total_seconds())
            try:
                said = await asyncio.wait_for(self._handler(request), left)
            except TimeoutError:
                answers |= expired([request], datetime.now(UTC))
                continue
            answers[request.request_id] = msgspec.to_builtins(said)
        return await self.distribute(run_id, requests, answers) if answers else None

    async def distribute(
        self, run_id: str, requests: Sequence[ApprovalRequest], answers: dict[str, Any]
    ) -> dict[str, Any]:
        """Write the answers for agents inside the run to their journals; return others."""
        for request in requests:
            if request.workflow_id != run_id and request.request_id in answers:
                said = answers.pop(request.request_id)
                await asyncio.to_thread(self._answer_inside, request, said)
        return answers

    def _answer_inside(self, request: ApprovalRequest, said: Any) -> None:
        """Answer an agent through the manager that saves its run."""
        inside, own = request.workflow_id, self._graph.manager
        others = (one for one in self._crew.managers() if one.reader.run(inside) is not None)
        manager = own if own.reader.run(inside) is not None else next(others, own)
        answer(inside, request.request_id, said, storage=CheckpointManager.of(manager.face))

    def pending(self, run_id: str | None) -> list[ApprovalRequest]:
        """The approvals that a run with the agents inside it, or any run, waits for."""
        manager = self._graph.manager
        found = pending(run_id, storage=CheckpointManager.of(manager.face))
        if run_id is not None:
            others = (one for one in self._crew.managers() if one.storage is not manager.storage)
            found += [one for other in others for one in waiting_inside(other.reader, run_id)]
        return requests_in({(one.run_id, one.id): one for one in found}.values())


async def stored_state(manager: AsyncCheckpointManager, run_id: str) -> State:
    """The newest state of a run."""
    state = await manager.resume_from_latest(run_id)
    assert isinstance(state, State)
    return state
