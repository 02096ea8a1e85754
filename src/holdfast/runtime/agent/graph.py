"""The graph that an agent is, and finding the run that it goes on with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.manager import StateManager
from holdfast.core.records import Header
from holdfast.core.state import AgentState, State
from holdfast.errors import UsageError
from holdfast.runtime.agent.cycle import Cycles
from holdfast.runtime.graph import NOTHING, CheckpointConfig, GraphConfig, StateGraph
from holdfast.storage.base import RunQuery

if TYPE_CHECKING:
    from holdfast.runtime.agent.agent import BaseAutonomousAgent

__all__ = ["AgentGraph", "Start", "build_graph", "check_name", "find_start"]

_NO_LIMIT = 1 << 60
"""An agent counts its cycles itself."""


class AgentGraph(StateGraph):
    """A graph whose checkpoints managers give out as `AgentState`; it is found by its agent."""

    form = "agent"

    def __init__(
        self, config: GraphConfig, agent: BaseAutonomousAgent, manager: StateManager | None
    ) -> None:
        super().__init__(config, manager=manager)
        self._known_as, self._module = agent, agent._module


@dataclasses.dataclass
class Start:
    """What an agent is to execute."""

    task: str
    run_id: str
    name: str = ""
    known: bool = False
    """Whether the run is in the store."""
    checkpoint_id: str | None = None
    newest: bool = True
    """Whether nothing was saved after that checkpoint."""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    answer: Any = NOTHING
    answers: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def build_graph(
    agent: BaseAutonomousAgent, cycles: Cycles, manager: StateManager | None, name: str
) -> StateGraph:
    """Plan, then cycle after cycle until there is an answer."""
    checkpoint = CheckpointConfig()
    if manager is not None:
        due = agent.config.triggers(manager.triggers)
        checkpoint = CheckpointConfig(
            interval=due.frequency or 0, seconds=due.interval, preserve=True
        )
    config = GraphConfig(
        name=name, observer=agent.observer, max_iterations=_NO_LIMIT, checkpoint=checkpoint
    )
    graph = AgentGraph(config, agent, manager)
    graph.add_node("cycle", cycles.cycle)
    graph.add_node("finish", cycles.finish)
    if agent.config.planning_enabled:
        graph.add_node("plan", cycles.plan)
        graph.add_edge("plan", "cycle")
    graph.add_edge("cycle", "finish", _answered, name="answered")
    graph.add_edge("cycle", "cycle", name="go on")
    graph.set_entry_point("plan" if agent.config.planning_enabled else "cycle")
    graph.set_exit_point("finish")
    return graph


def _answered(state: State) -> bool:
    return "answer" in state["extra"]


def check_name(header: Header, agent_id: str) -> None:
    """Raise a `UsageError` if a checkpoint is another agent's."""
    if header.name != agent_id:
        raise UsageError(
            f"checkpoint {header.id} is of agent {header.name!r}, not of {agent_id!r}",
            hint="each agent goes on with its own runs",
        )


def find_start(
    manager: StateManager, agent_id: str, checkpoint: str | None, resume: bool
) -> Start | None:
    """The run to go on with: that of *checkpoint*, or the newest of the agent's not completed."""
    reader = manager.reader
    if checkpoint is not None:
        header = reader.resolve(checkpoint)
        check_name(header, agent_id)
        run = reader.run(header.run_id)
        last = reader.newest(run) if run is not None else None
        newest = last is not None and last.seq == header.seq
        begun = reader.load(header).state()
        return Start(
            str(begun.extra.get("task", "")) if isinstance(begun, AgentState) else "",
            header.run_id,
            agent_id,
            known=True,
            checkpoint_id=header.id,
            newest=newest,
        )
    if not resume:
        return None
    runs = reader.storage.runs(RunQuery(name=agent_id, not_status="completed"))
    run = next((one for one in runs if one.checkpoints), None)
    return None if run is None else Start("", run.run_id, agent_id, known=True)
