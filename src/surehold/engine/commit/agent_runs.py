"""The runs of agents whose state is built anew for every save."""

from __future__ import annotations

from collections import OrderedDict

from surehold.core.records import Header
from surehold.core.state import Lineage, State
from surehold.core.values import remember
from surehold.engine.journal import Saveable

_REMEMBERED = 1024


class FreshStateRuns:
    """The newest checkpoint that each agent saved or resumed through one manager.

    An `AgentState` without a run continues the run of the one before it, if its step is later and
    that run is not completed. Otherwise it begins a run.
    """

    def __init__(self) -> None:
        self._newest: OrderedDict[str, Header] = OrderedDict()

    def join(self, state: Saveable) -> None:
        """Give a state without a run the run that it continues, if there is one."""
        if isinstance(state, State) or state.run_id is not None:
            return
        newest = self._newest.get(state.agent_id)
        if newest is None or newest.status == "completed" or state.step_number <= newest.step:
            return
        if state.parent_checkpoint_id is None:
            state.run_id = newest.run_id
            state.__dict__["_lineage"] = Lineage(newest.id)

    def knows(self, agent_id: str) -> bool:
        """Return whether the agent saved or resumed through this manager."""
        return agent_id in self._newest

    def reached(self, state: Saveable, header: Header) -> None:
        """Remember the checkpoint that an agent saved or resumed last."""
        if not isinstance(state, State):
            remember(self._newest, header.name, header, most=_REMEMBERED)
