"""The graph of an agent, and the run that it continues."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from surehold.agents.agent.cycle import Cycles
from surehold.core.records import Header
from surehold.core.state import AgentState, State
from surehold.doors.graph import NOTHING, CheckpointConfig, GraphConfig, StateGraph
from surehold.doors.resume import done_for_good, find_target, no_run
from surehold.engine.hooks import redacted
from surehold.engine.journal import Reader, read_notes
from surehold.engine.managers import AsyncCheckpointManager
from surehold.errors import CorruptError, UsageError
from surehold.storage.base import RunInfo, RunQuery

if TYPE_CHECKING:
    from surehold.agents.agent.agent import Agent

logger = logging.getLogger("surehold.agent")

_LOOKED_AT = 20
"""Number of unfinished runs that are searched for a task."""
_NO_LIMIT = 1 << 60
"""An agent counts its cycles itself."""


class AgentGraph(StateGraph):
    """A graph whose checkpoints load as `AgentState`; found through its agent."""

    door = "agent"

    def __init__(
        self, config: GraphConfig, agent: Agent, manager: AsyncCheckpointManager | None
    ) -> None:
        super().__init__(dataclasses.replace(config, checkpoint=CheckpointConfig()))
        # Without triggers the run still has a beginning, an end and questions to save.
        self.config, self._manager, self._owns_manager = config, manager, False
        self.found_as(agent, agent._module)


@dataclasses.dataclass
class Start:
    """The run that an agent is to execute."""

    task: str
    run_id: str
    name: str = ""
    known: bool = False
    """True if the store holds the run."""
    found: RunInfo | None = None
    """The run, if it was looked up by its id."""
    earlier: Header | None = None
    """The checkpoint to fork, if the run has come further."""
    back_to: str | None = None
    """The checkpoint that the run itself goes back to."""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    answer: Any = NOTHING
    answers: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def build_graph(
    agent: Agent, cycles: Cycles, manager: AsyncCheckpointManager | None, name: str
) -> StateGraph:
    """Build the graph: a plan, then cycles until there is an answer."""
    checkpoint = CheckpointConfig()
    if manager is not None:
        due = agent.config.triggers(manager.triggers)
        checkpoint = CheckpointConfig(
            interval=due.frequency or 0, seconds=due.interval, preserve=True
        )
    config = GraphConfig(
        name=name,
        observer=agent.observers(),
        max_iterations=_NO_LIMIT,
        checkpoint=checkpoint,
        signals=False,  # the agent hears them, and its hooks may refuse
    )
    graph = AgentGraph(config, agent, manager)
    graph.add_node("cycle", cycles.cycle)
    graph.add_node("finish", cycles.finish)
    if agent.config.planning_enabled:
        graph.add_node("plan", cycles.plan)
        graph.add_edge("plan", "cycle")
    graph.add_edge("cycle", "finish", _answered, name="answered")
    graph.add_edge("cycle", "cycle", name="continue")
    graph.set_entry_point("plan" if agent.config.planning_enabled else "cycle")
    graph.set_exit_point("finish")
    return graph


def _answered(state: State) -> bool:
    return "answer" in state["extra"]


def check_agent(reader: Reader, header: Header, agent_id: str) -> None:
    """Raise a `UsageError` if a checkpoint is not of that agent."""
    door = reader.door(header)
    if door.kind != "manager":  # an agent's state may have been saved by hand
        door.check("agent", header.run_id, header.name)
    if header.name != agent_id:
        raise UsageError(
            f"checkpoint {header.id} is of agent {header.name!r}, not of {agent_id!r}",
            hint="each agent continues its own runs",
        )


def find_start(
    manager: AsyncCheckpointManager, agent_id: str, checkpoint: str | None, task: str
) -> Start | None:
    """The run to continue: of *checkpoint*, or the newest unfinished with *task*."""
    reader = manager.reader
    if checkpoint is not None:
        header = reader.resolve(checkpoint)
        check_agent(reader, header, agent_id)
        run = reader.run(header.run_id)
        if run is None:
            raise no_run(header.run_id)
        try:
            earlier = None if find_target(reader, run, header.id).is_newest else header
        except CorruptError:
            earlier = header  # its fork needs nothing of what follows
        return Start("", header.run_id, agent_id, known=True, earlier=earlier)
    others: list[str] = []
    for run in reader.storage.runs(RunQuery(name=agent_id, not_status="completed")):
        newest = reader.newest(run) if run.checkpoints else None
        if newest is None:
            continue
        if not task or _is_about(manager, newest, task):
            return Start("", run.run_id, agent_id, known=True)
        others.append(run.run_id)
        if len(others) == _LOOKED_AT:
            break
    if others:
        logger.warning(
            "%s begins a run for a new task; unfinished with another task: %s"
            " (run(checkpoint=...) continues one of them)",
            agent_id,
            ", ".join(others),
        )
    return None


def done_since(reader: Reader, header: Header) -> list[str]:
    """Effects recorded after a checkpoint that must not be repeated."""
    run = reader.run(header.run_id)
    try:
        notes = read_notes(reader, header, run.seq) if run is not None else ()
        return done_for_good(reader, header.run_id, notes)
    except CorruptError:
        return ["unknown, because records are damaged"]


def known_start(
    manager: AsyncCheckpointManager, agent_id: str, run_id: str, task: str
) -> Start | None:
    """The run of that id, to be continued; None if the storage does not hold it."""
    reader = manager.reader
    run, newest = reader.head_and_newest(run_id) or (None, None)
    if newest is None:
        return None
    check_agent(reader, newest, agent_id)
    if task and not _is_about(manager, newest, task):
        raise UsageError(
            f"run {run_id!r} has another task: {_task(reader, newest)!r}",
            hint="choose another run_id, or give checkpoint= to add a text to that run",
            run_id=run_id,
        )
    return Start("", run_id, agent_id, known=True, found=run)


def _task(reader: Reader, header: Header) -> str:
    state = reader.load(header).state()
    return str(state.extra.get("task", "")) if isinstance(state, AgentState) else ""


def _is_about(manager: AsyncCheckpointManager, header: Header, task: str) -> bool:
    """Return whether *task* is that of the run, or a text that was added to it.

    A state that a program saved has no task yet, and takes any.
    """
    state = manager.reader.load(header).state()
    if not isinstance(state, AgentState) or "task" not in state.extra:
        return True
    said = [one.get("content") for one in state.conversation_history if one.get("role") == "user"]
    said.append(state.extra["task"])
    return task in said or redacted(task, manager.hook_manager) in said
