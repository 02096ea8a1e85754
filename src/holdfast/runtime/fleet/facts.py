"""What a fleet shows of the run that it executed or restored last."""

from __future__ import annotations

from typing import Any

from holdfast.core.state import State
from holdfast.core.values import give_out
from holdfast.runtime.fleet.nodes import history_key

__all__ = ["FleetFacts"]


class FleetFacts:
    """The run as attributes; before there is one, they are empty."""

    _state: State | None = None
    _next_id: str | None = None
    _saves: bool = False

    @property
    def state(self) -> State | None:
        """The state of the run, as it was last executed or restored; None before."""
        return self._state

    @property
    def workflow_id(self) -> str | None:
        """The id of the run; the one that was set, if none was executed since."""
        return self._next_id or (self._state.run_id if self._state is not None else None)

    @property
    def current_checkpoint_id(self) -> str | None:
        """The newest checkpoint of that run that is known here."""
        return self._state.checkpoint_id if self._state is not None and self._saves else None

    @property
    def task(self) -> str:
        """What the run is to do."""
        return str(self._value("task", ""))

    @property
    def current_round(self) -> int:
        """Rounds completed."""
        return int(self._value("current_round", 0))

    @property
    def stall_count(self) -> int:
        """Rounds that brought nothing, less those that did since."""
        return int(self._value("stall_count", 0))

    @property
    def reset_count(self) -> int:
        """How often it began anew with another plan."""
        return int(self._value("reset_count", 0))

    @property
    def last_response(self) -> str | None:
        """What a participant said last; once completed, the answer."""
        response: str | None = self._value("last_response", None)
        return response

    @property
    def context(self) -> dict[str, Any]:
        """The participants and what they are for, and the task as it was given."""
        return dict(self._value("context", {}))

    def history_of(self, participant: str) -> list[dict[str, Any]]:
        """What a participant was told and said since the last reset."""
        return list(self._value(history_key(participant), []))

    def _value(self, key: str, default: Any) -> Any:
        return default if self._state is None else give_out(self._state.get(key, default))
