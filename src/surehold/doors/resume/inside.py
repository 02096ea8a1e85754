"""Records inside a run that a rewind needs: agents' runs, failures of tools."""

from __future__ import annotations

from itertools import count

from surehold.core.records import digest_of
from surehold.engine.runs.positions import call_context, idempotency_key

TOOL_FAILED_NAME = "surehold.ToolFailed"
TOOL_FAILED = b'{"$t":"%b"' % TOOL_FAILED_NAME.encode()
"""Beginning of the stored text of a tool's failure."""


def run_inside(run_id: str, key: str) -> str:
    """The run of an agent called inside a run, by the call's idempotency key."""
    return f"{run_id}.{key[:12]}"


class RunHere:
    """The run that the code of another run begins here, the same on every replay.

    Another *task* is another run, and so is another call, unless the one before did not complete:
    calling again continues that. Outside of recorded runs its `run_id` is None.
    """

    def __init__(self, name: str, task: str) -> None:
        self.run_id: str | None = None
        context = call_context()
        if context is None or context.run is None:
            return
        place = context.place(f"run of {name}", digest_of(task.encode())[:12])
        if context.begun is None:
            context.begun = {}
        self._taken = context.begun.setdefault(place, set())
        self._number = next(number for number in count() if number not in self._taken)
        self._taken.add(self._number)
        key = idempotency_key(context.run, f"{place}.{self._number}")
        self.run_id = run_inside(context.run.run_id, key)

    def ended(self, status: str) -> None:
        """Let the next call continue this run, unless it is completed."""
        if self.run_id is not None and status != "completed":
            self._taken.discard(self._number)
