"""Configuration of a graph, in code or from JSON or YAML."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from msgspec import Meta

from surehold.core.policy import Triggers, check_above_zero
from surehold.core.records import check_run_id
from surehold.core.state import State
from surehold.doors.checks import check_fields, check_keys, is_async, truth_of
from surehold.doors.events import Observer
from surehold.engine.managers import AsyncCheckpointManager
from surehold.errors import UsageError
from surehold.lazy import extra
from surehold.storage.base import Storage

logger = logging.getLogger("surehold.graph")

_OF_THE_MANAGER = ("store", "keep", "on_save_failure", "on_corrupt")
_ONE_OF_THEM = "give one of them; both say where and when to save"


@dataclass(slots=True)
class CheckpointConfig:
    """The settings of a graph's checkpoints: when, where, and which ones it keeps.

    Nothing is saved, and the *store* is not opened, unless one of *interval*, *seconds*, *nodes*,
    *when* and *before* is set. Each may be set later, as in ``config.checkpoint.interval = 5``,
    until a graph is made with it: the graph has a copy.

    >>> CheckpointConfig().enabled, CheckpointConfig(interval=1).enabled
    (False, True)
    """

    store: str | Storage | None = "memory"
    """A registered name, an address such as ``sqlite:///runs.db``, a storage, or None.

    None is the configured storage: ``SUREHOLD_STORAGE``, `surehold.toml`, or the default.
    """
    interval: Annotated[int, Meta(ge=0)] = 0
    """Save after this many nodes; 0: not by count."""
    preserve: bool = False
    """Keep the journal of a completed run. Otherwise it is deleted."""
    seconds: Annotated[float, Meta(gt=0)] | None = None
    """Save after the first node that ends this many seconds after the last save."""
    nodes: Collection[str] = ()
    """Save after these nodes."""
    when: Callable[[State], bool] | None = None
    """Save after a node that leaves a state for which this plain function is true."""
    before: Collection[str] = ()
    """Save also before these nodes, with kind ``pre_operation``."""
    keep: Annotated[int, Meta(ge=1)] | None = None
    """Keep only this many of the newest checkpoints of a run."""
    on_save_failure: Literal["fail", "warn", "retry"] = "fail"
    """Stop the run when a save fails, only warn, or retry and then stop it."""
    on_corrupt: Literal["fail", "fallback"] = "fail"
    """Raise on a damaged newest checkpoint, or set it aside and use the last good one."""
    lease_seconds: Annotated[float, Meta(gt=0)] = 30.0
    """Seconds without a sign of life after which another host may take the run."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("nodes", "before"):
            value = getattr(self, name)
            setattr(self, name, (value,) if isinstance(value, str) else tuple(value))
        given: object = self.when
        if given is not None and (not callable(given) or is_async(given)):
            raise UsageError(
                f"when is {self.when!r}", hint="give a plain function of the state", field="when"
            )
        if self.enabled:
            self.triggers()

    @property
    def enabled(self) -> bool:
        """True if anything is saved at all."""
        return self.has_triggers or bool(self.before)

    @property
    def has_triggers(self) -> bool:
        """True if anything makes a routine save due."""
        return bool(
            self.interval or self.seconds is not None or self.nodes or self.when is not None
        )

    def triggers(self) -> Triggers | None:
        """The triggers of routine saves; None if only saves before a node are wanted."""
        if not self.has_triggers:
            return None
        return Triggers(
            frequency=self.interval or None,
            interval=self.seconds,
            predicate=None if self.when is None else self._is_due,
            nodes=self.nodes,
        )

    def _is_due(self, state: State) -> bool:
        assert self.when is not None
        return truth_of(self.when(state), "when= returned an awaitable", "give a plain function")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Read the configuration from *mapping*; an unknown key is an error."""
        return cls(**check_keys(cls, mapping, "checkpoint"))


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """Name, limits, observers and checkpoints of a graph.

    >>> config = GraphConfig.from_mapping({"name": "report", "checkpoint": {"interval": 1}})
    >>> config.name, config.checkpoint.interval, config.max_iterations
    ('report', 1, 1000)
    """

    name: str = ""
    """The name that its runs share."""
    observer: str | Observer | Sequence[str | Observer] = "noop"
    """A registered name, an observer, or several of them."""
    max_iterations: Annotated[int, Meta(ge=1)] = 1000
    """Number of nodes that a run may execute, resumes included."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    version: Annotated[int, Meta(ge=0)] = 0
    """Version of the state's shape; `surehold.migrations` upgrade older ones."""
    signals: bool | None = None
    """Stop a run on SIGINT and SIGTERM, after the node that is being executed. None: unless the
    program handles them itself. False: never."""
    snapshots: bool = False
    """Put the values of the state into events."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.checkpoint, CheckpointConfig):
            raise UsageError(f"checkpoint is {self.checkpoint!r}", hint="give a CheckpointConfig")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Read the configuration from *mapping*; an unknown key is an error."""
        values = check_keys(cls, mapping, "graph")
        given = values.get("checkpoint")
        if isinstance(given, Mapping):
            values["checkpoint"] = CheckpointConfig.from_mapping(given)
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read the configuration from a JSON or YAML file."""
        text = Path(path).read_text("utf-8")
        if Path(path).suffix == ".json":
            try:
                tree = json.loads(text)
            except ValueError as error:
                raise UsageError(f"{path} is not JSON: {error}") from error
        else:
            with extra("fleet", f"{path} is YAML, which needs PyYAML"):
                import yaml

            try:
                tree = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise UsageError(f"{path} is not YAML: {error}") from error
        if not isinstance(tree, Mapping):
            raise UsageError(f"{path} holds no mapping", hint="write keys such as name: report")
        return cls.from_mapping(tree)


_NO_CHECKPOINTS = CheckpointConfig()


class GraphOptions(NamedTuple):
    """The settings of a `StateGraph`."""

    name: str | GraphConfig | None
    config: GraphConfig | None
    storage: Storage | str | None
    every: int | None
    every_seconds: float | None
    manager: AsyncCheckpointManager | None

    def read(self) -> GraphConfig:
        """The configuration that the arguments mean; a `UsageError` if they contradict."""
        config = self._named()
        durable = config.name != "" and isinstance(self.name, str)
        given = [
            f"{name}="
            for name in ("storage", "every", "every_seconds")
            if getattr(self, name) is not None
        ]
        if config.checkpoint != _NO_CHECKPOINTS:
            if given:
                raise UsageError(f"{given[0]} and a CheckpointConfig are given", hint=_ONE_OF_THEM)
            config = replace(config, checkpoint=replace(config.checkpoint))
            self._check_manager(config.checkpoint)
            return config
        if self.manager is not None and self.storage is not None:
            raise UsageError("storage= and manager= are both given", hint=_ONE_OF_THEM)
        if not given and not durable:
            if self.manager is not None:
                raise UsageError(
                    "a manager is given, and checkpointing is off",
                    hint="name the graph, or set CheckpointConfig(interval=1)",
                )
            return config
        return replace(config, checkpoint=self._checkpoint())

    def _named(self) -> GraphConfig:
        name, config = self.name, self.config
        if isinstance(name, GraphConfig):
            if config is not None:
                raise UsageError("two configurations are given", hint="give the name, then config=")
            return name
        if name is not None:
            check_run_id(name, "a graph's name")
        made = config or GraphConfig()
        return made if name is None else replace(made, name=name)

    def _checkpoint(self) -> CheckpointConfig:
        every = self.every
        if every is None and self.every_seconds is None:
            every = 1
        check_above_zero(every=every, every_seconds=self.every_seconds)
        store = "memory" if self.manager is not None else self.storage
        return CheckpointConfig(
            store=store, interval=every or 0, seconds=self.every_seconds, preserve=True
        )

    def _check_manager(self, checkpoint: CheckpointConfig) -> None:
        if not checkpoint.enabled:
            if self.manager is not None:
                raise UsageError(
                    "a manager is given, and checkpointing is off",
                    hint="set CheckpointConfig(interval=1) or another trigger",
                )
            logger.warning(
                "nothing is saved: CheckpointConfig names no interval, seconds, nodes, when or"
                " before"
            )
            return
        if self.manager is None:
            return
        for name in _OF_THE_MANAGER:
            value = getattr(checkpoint, name)
            if value != getattr(_NO_CHECKPOINTS, name):
                raise UsageError(
                    f"{name} is {value!r}, and a manager is given",
                    hint="set it on the manager, which decides it",
                    field=name,
                )
