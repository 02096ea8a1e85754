"""How a graph is set up: in code, or from JSON or YAML."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from holdfast.core.policy import Triggers
from holdfast.core.state import State
from holdfast.errors import UsageError
from holdfast.runtime.watch import Observer
from holdfast.storage.base import Storage

__all__ = ["CheckpointConfig", "GraphConfig"]


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When a graph saves, where, and what stays.

    Nothing is saved unless one of *interval*, *seconds*, *nodes*, *when* and *before* is set; the
    *store* is not even looked up.

    >>> CheckpointConfig().enabled, CheckpointConfig(interval=1).enabled
    (False, True)
    """

    store: str | Storage = "memory"
    """A registered name, an address such as ``sqlite:///runs.db``, or a storage."""
    interval: int = 0
    """After every so many nodes."""
    preserve: bool = False
    """Keep the journal of a run that was completed. Otherwise it is deleted then."""
    seconds: float | None = None
    """After the first node that ends so many seconds after the last save."""
    nodes: Collection[str] = ()
    """After these nodes."""
    when: Callable[[State], bool] | None = None
    """After a node that leaves a state for which this is true."""
    before: Collection[str] = ()
    """Also before these nodes, with kind ``pre_operation``."""
    keep: int | None = None
    """Only the newest so many checkpoints of a run; with 1, each takes the place of the last."""
    on_save_failure: Literal["fail", "warn", "retry"] = "fail"
    """What a save that fails does: stop the run, only warn, or be tried again and then stop it."""
    on_corrupt: Literal["fail", "fallback"] = "fail"
    """What a damaged newest checkpoint does: raise, or be put aside and the last good one taken."""
    lease_seconds: float = 30.0
    """How long a run stays taken after its process was last heard of from another host."""

    def __post_init__(self) -> None:
        if not _is_count(self.interval, 0):
            raise UsageError(
                f"interval is {self.interval!r}", hint="give 1 or more, or 0 for no checkpoints"
            )
        if self.keep is not None and not _is_count(self.keep, 1):
            raise UsageError(f"keep is {self.keep!r}", hint="give 1 or more, or leave it out")
        if not self.lease_seconds > 0:
            raise UsageError(f"lease_seconds is {self.lease_seconds!r}", hint="give more than 0")
        for name in ("nodes", "before"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if self.enabled:
            self.triggers()

    @property
    def enabled(self) -> bool:
        """Whether anything is saved at all."""
        return self.has_triggers or bool(self.before)

    @property
    def has_triggers(self) -> bool:
        """Whether anything makes a routine save due."""
        return bool(
            self.interval or self.seconds is not None or self.nodes or self.when is not None
        )

    def triggers(self) -> Triggers | None:
        """What makes a routine save due; None if only those before a node are wanted."""
        if not self.has_triggers:
            return None
        return Triggers(
            frequency=self.interval or None,
            interval=self.seconds,
            predicate=self.when,
            nodes=self.nodes,
        )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """The configuration that *mapping* says; an unknown key is an error."""
        return cls(**_checked(cls, mapping, "checkpoint"))


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """What a graph is called and how it is run.

    >>> config = GraphConfig.from_mapping({"name": "report", "checkpoint": {"interval": 1}})
    >>> config.name, config.checkpoint.interval, config.max_iterations
    ('report', 1, 1000)
    """

    name: str = ""
    """What its runs share."""
    observer: str | Observer | Sequence[str | Observer] = "noop"
    """A registered name, an observer, or several of them."""
    max_iterations: int = 1000
    """How many nodes a run may execute, resumes included."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    version: int = 0
    """The version of the state's shape; `holdfast.migrations` lead from older ones to it."""
    signals: bool | None = None
    """Whether SIGINT and SIGTERM end a run after the node that is being executed. None means: in
    `execute_sync` and `resume_sync`, yes; in a program with its own event loop, no."""
    snapshots: bool = False
    """Whether events carry the values of the state."""

    def __post_init__(self) -> None:
        if not _is_count(self.max_iterations, 1):
            raise UsageError(f"max_iterations is {self.max_iterations!r}", hint="give 1 or more")
        if not isinstance(self.name, str):
            raise UsageError(f"a graph's name is a string, not {type(self.name).__name__}")
        if not _is_count(self.version, 0):
            raise UsageError(f"version is {self.version!r}", hint="give a whole number from 0 on")
        if not isinstance(self.checkpoint, CheckpointConfig):
            raise UsageError("checkpoint must be a CheckpointConfig")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """The configuration that *mapping* says; an unknown key is an error."""
        values = _checked(cls, mapping, "graph")
        given = values.get("checkpoint")
        if isinstance(given, Mapping):
            values["checkpoint"] = CheckpointConfig.from_mapping(given)
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """The configuration in a JSON or YAML file."""
        text = Path(path).read_text("utf-8")
        if Path(path).suffix == ".json":
            try:
                tree = json.loads(text)
            except ValueError as error:
                raise UsageError(f"{path} is not JSON: {error}") from error
        else:
            import yaml

            try:
                tree = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise UsageError(f"{path} is not YAML: {error}") from error
        if not isinstance(tree, Mapping):
            raise UsageError(f"{path} holds no mapping", hint="write keys such as name: report")
        return cls.from_mapping(tree)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _checked(cls: Any, mapping: Mapping[str, Any], what: str) -> dict[str, Any]:
    known = [each.name for each in dataclasses.fields(cls)]
    for name in mapping:
        if name not in known:
            raise UsageError(
                f"a {what} configuration has no {name!r}", hint=f"it has: {', '.join(known)}"
            )
    return dict(mapping)
