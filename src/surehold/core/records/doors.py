"""The door of a run: the kind of code that executes the run, kept in its headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from surehold.errors import UsageError

DoorKind = Literal["loop", "function", "graph", "agent", "fleet", "thread", "program", "manager"]

_OWNERS = {
    "loop": "loop",
    "function": "workflow",
    "graph": "graph",
    "agent": "agent",
    "fleet": "fleet",
    "thread": "framework thread",
    "program": "recorded program",
}
_RESUMED_BY = {
    "loop": "surehold.run({0!r})",
    "function": "{1}.resume({0!r})",
    "graph": "resume({0!r}) of that graph",
    "agent": "resume({0!r}) of that agent",
    "fleet": "resume({0!r}) of that fleet",
    "thread": "the framework that began it, on the same storage",
    "program": "surehold exec",
    "manager": "the code that saved it",
}


class Door(msgspec.Struct, frozen=True, array_like=True):
    """The kind of code that executes a run, and the place where it is found."""

    kind: str
    """``manager``: the run is saved by hand, and nothing here executes it."""
    version: int = 0
    """The version of the workflow that the run began with."""
    entry_point: str = ""
    """``module:name`` of the code, if it can be found again."""

    @property
    def has_nodes(self) -> bool:
        """True if the run's checkpoints keep the progress in a graph beside the state."""
        return self.kind in ("graph", "agent", "fleet")

    def after(self, before: Door | None) -> Door:
        """This door for a run that had *before*; an entry point that is not known stays."""
        if self.entry_point or before is None or before.kind != self.kind:
            return self
        return msgspec.structs.replace(self, entry_point=before.entry_point)

    def check(self, wanted: str, run_id: str, name: str = "") -> None:
        """Raise a `UsageError` unless code of the *wanted* kind may continue the run.

        *name* is the run's. A loop also continues a run that was saved by hand.

        >>> Door("loop").check("graph", "nightly")
        Traceback (most recent call last):
        ...
        surehold.errors.UsageError: run 'nightly' is of a loop, not of a graph \
(resume it with surehold.run('nightly'), or choose another run id)
        """
        if self.kind == wanted or (self.kind, wanted) == ("manager", "loop"):
            return
        raise self.refusal(run_id, name, _some(_OWNERS[wanted]))

    def refusal(self, run_id: str, name: str, wanted: str) -> UsageError:
        """The error for *wanted* code, such as "a graph", that may not continue the run."""
        owner = _OWNERS.get(self.kind, self.kind)
        whose = f"{owner} {name!r}" if name else _some(owner)
        what = f"is of {whose}, not of {wanted}"
        if self.kind == "manager":
            what = f"was saved by hand and is not of {wanted}"
        how = _RESUMED_BY.get(self.kind, "a newer version of surehold").format(run_id, name)
        return UsageError(
            f"run {run_id!r} {what}",
            hint=f"resume it with {how}, or choose another run id",
            run_id=run_id,
        )


_FLEET_NODES = ["answer", "plan", "replan", "round"]
MANAGER = Door("manager")


def derived_door(form: str, extra: Mapping[str, Any]) -> Door:
    """The door of a checkpoint whose header names none, as older versions saved it.

    It shows in what they kept beside the state, never in the state itself. Loops kept nothing, so
    they look like runs that were saved by hand.

    >>> derived_door("", {"entry_point": "app:nightly"})
    Door(kind='function', version=0, entry_point='app:nightly')
    """
    entry_point = str(extra.get("entry_point") or "")
    if "langgraph" in extra or "agent_framework" in extra:
        return Door("thread")
    if "now" in extra:
        nodes = (extra.get("shape") or {}).get("nodes")
        kind = "agent" if form else "fleet" if nodes == _FLEET_NODES else "graph"
        return Door(kind, entry_point=entry_point)
    return Door("function", entry_point=entry_point) if "entry_point" in extra else MANAGER


def _some(owner: str) -> str:
    return f"an {owner}" if owner[0] in "aeiou" else f"a {owner}"
