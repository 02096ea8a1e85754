"""States that users hold: `State`, `AgentState`, their position and migrations."""

from __future__ import annotations

from surehold.core.state.agent_state import AgentState as AgentState
from surehold.core.state.agent_state import StateSnapshot as StateSnapshot
from surehold.core.state.events import Event as Event
from surehold.core.state.events import Observer as Observer
from surehold.core.state.events import deliver as deliver
from surehold.core.state.migration import migrations as migrations
from surehold.core.state.position import NO_METADATA as NO_METADATA
from surehold.core.state.position import Lineage as Lineage
from surehold.core.state.position import Place as Place
from surehold.core.state.position import indexed_metadata as indexed_metadata
from surehold.core.state.position import read_metadata as read_metadata
from surehold.core.state.position import read_tags as read_tags
from surehold.core.state.state import Saver as Saver
from surehold.core.state.state import State as State
from surehold.core.state.state import find_saver as find_saver
from surehold.core.state.state import register_saver as register_saver
