"""A fleet's run from its start or its resume to where nothing here can take it further."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.checkpoint.effects import open_notes, resolve, waiting_of
from holdfast.checkpoint.manager import StateManager
from holdfast.core.state import State
from holdfast.errors import HoldfastError, Interrupted
from holdfast.runtime.fleet.retrying import Attempt, Backoff, may_help
from holdfast.runtime.graph import EndRun, StateGraph
from holdfast.runtime.tools import (
    ApprovalHandler,
    ApprovalRequest,
    answer_tree,
    expired,
    requests_in,
)

__all__ = ["FleetExecution", "stored_state"]


class FleetExecution:
    """Executes runs of a fleet's graph, asks people, and tries again what failed."""

    def __init__(
        self, graph: StateGraph, backoff: Backoff, handler: ApprovalHandler | None
    ) -> None:
        self._graph = graph
        self._backoff = backoff
        self._handler = handler

    async def to_the_end(
        self, run_id: str, state: State | None, answers: Mapping[str, Any] | None
    ) -> tuple[State, tuple[Attempt, ...]]:
        """Begin with *state*, or go on with *answers*: the state in the end, and what failed.

        A limit that was reached is an end too. Raises what parks the run, or makes it fail for
        good.
        """
        attempts: list[Attempt] = []
        answers = {**(answers or {}), **(await self._late(run_id) if state is None else {})}
        while True:
            try:
                if state is not None:
                    final = await self._graph.execute(state)
                else:
                    final = await self._graph.resume(run_id, answers=answers)
                return final, tuple(attempts)
            except Interrupted as parked:
                answers = await self._asked(run_id, parked)
            except EndRun:
                return await stored_state(self._graph.manager, run_id), tuple(attempts)
            except HoldfastError as error:
                attempts.append(await self._waited(run_id, error, len(attempts)))
                answers = {}
            state = None

    async def _waited(self, run_id: str, error: HoldfastError, number: int) -> Attempt:
        """Wait before the next resume, if there is to be one; else raise *error*."""
        seconds = self._backoff.wait(number) if may_help(error) else None
        if seconds is None:
            if number:
                error.add_note(f"holdfast: resumed {number} times before")
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

    async def _late(self, run_id: str) -> dict[str, Any]:
        """What is to be rejected because its time is over."""
        reader = self._graph.manager.reader

        def look() -> dict[str, Any]:
            run = reader.run(run_id)
            if run is None or run.status == "completed":
                return {}
            notes = open_notes(reader, run).waiting()
            waiting = requests_in(waiting_of(run_id, note) for note in notes)
            return expired(waiting, datetime.now(UTC))

        return await asyncio.to_thread(look)

    async def _asked(self, run_id: str, parked: Interrupted) -> dict[str, Any]:
        """The answers of people who can be asked at once; raises *parked* if there are none."""
        if self._handler is None:
            raise parked
        answers: dict[str, Any] = {}
        requests = requests_in(parked.facts.get("waiting", ()))
        for request in requests:
            left = None
            if request.expires_at is not None:
                left = max(0.0, (request.expires_at - datetime.now(UTC)).total_seconds())
            try:
                said = await asyncio.wait_for(self._handler(request), left)
            except TimeoutError:
                answers |= expired([request], datetime.now(UTC))
                continue
            answers[request.request_id] = answer_tree(said)
        if not answers:
            raise parked
        return await self.told(run_id, requests, answers)

    async def told(
        self, run_id: str, requests: Sequence[ApprovalRequest], answers: dict[str, Any]
    ) -> dict[str, Any]:
        """The answers for the run itself, once those for agents in it are in their journals."""
        storage = self._graph.manager.storage
        for request in requests:
            if request.workflow_id != run_id and request.request_id in answers:
                said = answers.pop(request.request_id)
                where = (request.workflow_id, request.request_id, said)
                await asyncio.to_thread(resolve, *where, storage=storage)
        return answers


async def stored_state(manager: StateManager, run_id: str) -> State:
    """The newest state of a run."""
    state = await manager.resume_from_latest(run_id)
    assert isinstance(state, State)
    return state
