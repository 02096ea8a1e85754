"""`workflow.yaml`: read, checked, and built into a fleet.

An error names the line, also one that appears only when the fleet is built, and for an unknown key
the nearest known one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgspec

from surehold.agents.fleet.execution import Backoff
from surehold.agents.fleet.fleet import Fleet
from surehold.agents.fleet.participants import ROLES, ModelParticipant, Participant, Role
from surehold.agents.fleet.settings import (
    AgentSettings,
    ApprovalSettings,
    CheckpointSettings,
    Defaults,
    FleetSettings,
    ManagerSettings,
    ParticipantSettings,
    Settings,
    ToolSettings,
    WorkflowSettings,
)
from surehold.agents.models import VARIABLE, Model, open_model
from surehold.agents.tools import ApprovalHandler, Tool, read_tool
from surehold.core.policy import Rules
from surehold.doors.events import Observer
from surehold.errors import UsageError
from surehold.lazy import extra
from surehold.storage.base import Storage
from surehold.storage.registry import checkpoint_stores, open_storage

if TYPE_CHECKING:
    import yaml

T = TypeVar("T", bound=msgspec.Struct)

_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "workflow": WorkflowSettings,
    "checkpointing": CheckpointSettings,
    "human_in_the_loop": ApprovalSettings,
    "fleet": FleetSettings,
    "defaults": Defaults,
}
_STORAGES = ("file", "memory", "sqlite")
_INSIDE_WORKFLOW = ("checkpointing", "human_in_the_loop")
"""Sections that may stand under ``workflow`` as well."""
_WHERE = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)


# Reading


class _Read(Settings, frozen=True, kw_only=True):
    """The settings of a file, with the line of each key."""

    places: dict[str, str]
    """File and line of each key, by its path; of the file itself, by no path."""


def read_workflow(path: str | os.PathLike[str] = "workflow.yaml") -> Settings:
    """Read the settings of a workflow file."""
    file = _File(Path(path))
    top = file.root
    file.check_keys(top, [*_SECTIONS, "agents"], "the file")
    told: dict[str, Any] = {}
    workflow = file.value_of(top, "workflow")
    for name, cls in _SECTIONS.items():
        node = file.value_of(top, name)
        if name in _INSIDE_WORKFLOW and workflow is not None:
            inner = file.value_of(workflow, name)
            if inner is not None and node is not None:
                raise file.error(
                    inner,
                    f"{name} is a duplicate of line {node.start_mark.line + 1}",
                    hint="keep it at the top or under workflow, not both",
                )
            node = inner or node
        if node is not None:
            skipped = _INSIDE_WORKFLOW if name == "workflow" else ()
            told[name] = file.section(node, cls, name, skipped)
    agents = file.value_of(top, "agents")
    if agents is not None:
        told["agents"] = _agents(file, agents)
    return _Read(**told, places={**file.places, "": f"{file.path}:1"})


def _agents(file: _File, node: yaml.Node) -> dict[str, ParticipantSettings]:
    """The participants: in place, or each in another file beside this one."""
    found: dict[str, ParticipantSettings] = {}
    if not file.is_mapping(node) or not node.value:
        raise file.error(node, "agents names no participant", hint="write name: {agent: ...}")
    for key, value in file.pairs(node):
        name = str(key.value)
        source, inner = file, value
        if file.is_text(value):
            source = _File(file.path.parent / value.value, asked_for=file.place(value))
            inner = source.root
        made = source.section(inner, ParticipantSettings, f"agents.{name}")
        file.places |= {f"agents.{name}": file.place(key), **source.places}
        if made.agent.name not in (None, name):
            raise source.error(
                source.value_of(source.value_of(inner, "agent") or inner, "name") or inner,
                f"agent {made.agent.name!r} is listed under the name {name!r}",
                hint="give it one name",
            )
        found[name] = made
    return found


class _File:
    """A YAML file as nodes, each of which knows its line."""

    def __init__(self, path: Path, asked_for: str = "") -> None:
        with extra("fleet", "a workflow file needs PyYAML"):
            import yaml

        self.path = path
        self.places: dict[str, str] = {}
        """File and line of the keys that were read, by their paths."""
        self._yaml = yaml
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            where = f"{asked_for}: " if asked_for else ""
            raise UsageError(
                f"{where}{path} cannot be read: {error}", hint="check the path", path=str(path)
            ) from error
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            line = mark.line + 1 if mark is not None else 1
            raise self._error(line, f"this is not YAML: {error.problem}") from error
        self.root: yaml.Node = root or yaml.compose("{}")

    def is_mapping(self, node: yaml.Node) -> bool:
        return isinstance(node, self._yaml.MappingNode)

    def is_text(self, node: yaml.Node) -> bool:
        return isinstance(node, self._yaml.ScalarNode) and node.tag.endswith(":str")

    def pairs(self, node: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
        return node.value if self.is_mapping(node) else []

    def value_of(self, node: yaml.Node, key: str) -> yaml.Node | None:
        return next((value for one, value in self.pairs(node) if one.value == key), None)

    def place(self, node: yaml.Node) -> str:
        return f"{self.path}:{node.start_mark.line + 1}"

    def error(self, node: yaml.Node, what: str, *, hint: str = "") -> UsageError:
        return self._error(node.start_mark.line + 1, what, hint)

    def _error(self, line: int, what: str, hint: str = "") -> UsageError:
        return UsageError(f"{self.path}:{line}: {what}", hint=hint, path=str(self.path), line=line)

    def check_keys(self, node: yaml.Node, known: Sequence[str], where: str) -> None:
        """Refuse anything but a mapping, duplicate keys, and unknown keys."""
        if not self.is_mapping(node):
            raise self.error(node, f"{where} is not a mapping", hint=f"write {known[0]}: ...")
        seen: dict[str, yaml.Node] = {}
        for key, _ in self.pairs(node):
            if key.value in seen:
                first = seen[key.value].start_mark.line + 1
                raise self.error(key, f"{key.value!r} is a duplicate of line {first}")
            if key.value not in known:
                raise self.unknown(key, str(key.value), known, where)
            seen[key.value] = key

    def unknown(self, node: yaml.Node, key: str, known: Sequence[str], where: str) -> UsageError:
        near = get_close_matches(key, known, n=1) or [one for one in known if key in one]
        hint = f"did you mean {near[0]!r}?" if near else f"it can have: {', '.join(known)}"
        return self.error(node, f"{where} has no key {key!r}", hint=hint)

    def section(self, node: yaml.Node, cls: type[T], where: str, skipped: Sequence[str] = ()) -> T:
        """The mapping *node* as a *cls*, without the keys that are *skipped*."""
        self._check_names(node, cls, where, skipped)
        tree = self._tree(node)
        told = {key: value for key, value in tree.items() if key not in skipped}
        if cls is CheckpointSettings:
            self._check_storage(node)
            retention = self.value_of(node, "retention")
            if retention is not None:
                self._check_rules(retention, told["retention"])
        try:
            return msgspec.convert(told, cls)
        except msgspec.ValidationError as error:
            raise self._invalid(node, cls, str(error), where) from None

    def _tree(self, node: yaml.Node) -> Any:
        loader = self._yaml.SafeLoader("")
        try:
            return loader.construct_document(node)
        except self._yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise self._error(line, f"{error.problem}") from error
        finally:
            loader.dispose()

    def _check_names(
        self, node: yaml.Node, cls: type[Any], where: str, skipped: Sequence[str] = ()
    ) -> None:
        """Check the keys of a section and of those inside it."""
        fields = {one.name: one.type for one in msgspec.structs.fields(cls)}
        self.check_keys(node, [*fields, *skipped], where)
        for key, value in self.pairs(node):
            self.places[f"{where}.{key.value}"] = self.place(key)
            inner = fields.get(key.value)
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                self._check_names(value, inner, f"{where}.{key.value}")
            elif key.value == "tools" and isinstance(value, self._yaml.SequenceNode):
                for number, one in enumerate(value.value):
                    self._check_names(one, ToolSettings, f"{where}.tools[{number}]")

    def _check_storage(self, node: yaml.Node) -> None:
        kind = self.value_of(node, "storage_type")
        if kind is None or not self.is_text(kind) or ":" in kind.value:
            return
        known = [*_STORAGES, *checkpoint_stores()]
        if kind.value not in known:
            near = get_close_matches(kind.value, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            there = f"there are {', '.join(_STORAGES)}, and URLs such as sqlite:///runs.db"
            raise self.error(kind, f"no storage_type {kind.value!r}", hint=f"{hint}{there}")

    def _check_rules(self, node: yaml.Node, tree: Any) -> None:
        try:
            Rules.from_mapping(tree)
        except UsageError as error:
            named = str(error.facts.get("name") or error.facts.get("value") or "")
            keys = (key for key, _ in self.pairs(node))
            at = next((key for key in keys if str(key.value).replace("-", "_") == named), node)
            raise self.error(at, f"retention: {error.message}", hint=error.hint) from None

    def _invalid(self, node: yaml.Node, cls: Any, message: str, where: str) -> UsageError:
        """The error for a value, with its line."""
        match = _WHERE.fullmatch(message)
        assert match is not None
        for word, index in re.findall(r"\.(\w+)|\[(\d+)\]", match["path"] or ""):
            inner = node.value[int(index)] if index else self.value_of(node, word)
            node, where = inner or node, f"{where}.{word}" if word else f"{where}[{index}]"
            if word and isinstance(cls, type):
                cls = {one.name: one.type for one in msgspec.structs.fields(cls)}.get(word)
        choices = [one for kind in get_args(cls) for one in get_args(kind)]
        hint = f"one of {', '.join(choices)}" if "enum" in match["what"] else ""
        return self.error(node, f"{where}: {match['what'].replace('`', '')}", hint=hint)


# Building


def create_checkpoint_storage(
    settings: Settings | CheckpointSettings | str | os.PathLike[str] = "workflow.yaml",
) -> Storage | None:
    """Open the storage that the settings name; None if checkpointing is not enabled.

    *settings* are those of `read_workflow`, or the path of a workflow file.

    >>> create_checkpoint_storage(CheckpointSettings(enabled=False)) is None
    True
    """
    if isinstance(settings, str | os.PathLike):
        settings = read_workflow(settings)
    chosen: object = settings.checkpointing if isinstance(settings, Settings) else settings
    if not isinstance(chosen, CheckpointSettings):
        what = f"the settings are a {type(settings).__name__}"
        raise UsageError(what, hint="give the path of a workflow.yaml, or read_workflow(path)")
    if not chosen.enabled:
        return None
    path = Path(chosen.storage_path)
    if chosen.storage_type == "memory":
        return open_storage("memory://")
    if chosen.storage_type == "file":
        from surehold.storage.files import FilesystemStorage

        return FilesystemStorage(path)
    if chosen.storage_type == "sqlite":
        from surehold.storage.sqlite import SQLiteStorage

        return SQLiteStorage(path if path.suffix in (".db", ".sqlite") else path / "surehold.db")
    return open_storage(chosen.storage_type)


def build_fleet(
    settings: Settings,
    *,
    tools: Mapping[str, Any],
    checkpoint_storage: Storage | str | None = None,
    approval_handler: ApprovalHandler | None = None,
    observer: str | Observer | Sequence[str | Observer] = "noop",
) -> Fleet:
    """Build the fleet that *settings* describe; see `Fleet.from_yaml`."""
    saved = settings.checkpointing
    participants = _participants(settings, tools)
    manager = _manager(settings)
    storage = checkpoint_storage
    opened = storage is None or not saved.enabled
    if opened:
        storage = create_checkpoint_storage(saved)
    return Fleet(
        manager,
        participants,
        storage,
        instructions=settings.fleet.manager.instructions,
        limits=settings.limits,
        approvals=settings.human_in_the_loop,
        approval_handler=approval_handler,
        plan_review=settings.fleet.plan_review,
        callbacks=settings.fleet.callbacks,
        auto_resume=Backoff() if saved.auto_resume_on_failure else None,
        retention=saved.rules,
        cleanup_after_days=saved.cleanup_after_days,
        observer=observer,
        owns_storage=opened and saved.storage_type not in checkpoint_stores(),
    )


def _manager(settings: Settings) -> Model:
    own: ManagerSettings = settings.fleet.manager
    more = {"thinking": own.reasoning.effort} if own.reasoning.effort is not None else {}
    name = own.model or settings.defaults.model
    with _told_of(settings, "fleet.manager.model", "defaults.model"):
        return _model(name, settings.defaults, AgentSettings(), **more)


@contextmanager
def _told_of(settings: Settings, *paths: str) -> Iterator[None]:
    """Add to an error inside the line of the first of these keys that the file has."""
    try:
        yield
    except UsageError as error:
        places = settings.places if isinstance(settings, _Read) else {}
        place = next((places[path] for path in (*paths, "") if path in places), None)
        if place is None:
            raise
        file, _, line = place.rpartition(":")
        facts = {**error.facts, "path": file, "line": int(line)}
        raise type(error)(f"{place}: {error.message}", hint=error.hint, **facts) from error


def _participants(settings: Settings, tools: Mapping[str, Any]) -> dict[str, Participant]:
    described = settings.agents or dict.fromkeys(ROLES, ParticipantSettings())
    defaults = settings.defaults
    made: dict[str, Participant] = {}
    for name, one in described.items():
        role = ROLES.get(name, Role(name, ""))
        at = f"agents.{name}"
        with _told_of(settings, f"{at}.tools", at):
            its_tools = [_tool(each, name, tools) for each in one.tools if each.enabled]
        usual = "tool_model" if its_tools and defaults.tool_model else "model"
        keys = (f"{at}.agent.model", f"defaults.{usual}", at, "fleet.manager.model")
        with _told_of(settings, *keys):
            chosen = one.agent.model or getattr(defaults, usual)
            model = _model(chosen, defaults, one.agent, who=name)
        made[name] = ModelParticipant(
            model,
            description=one.agent.description or role.description,
            instructions=one.system_prompt or role.instructions,
            tools=its_tools,
            operations={each.name: each.operation for each in one.tools if each.operation},
            stream=one.runtime.stream,
            remembers=one.runtime.store,
            records=one.runtime.checkpoint,
        )
    return made


def _model(
    name: str | None,
    defaults: Defaults,
    own: AgentSettings,
    *,
    who: str = "the manager",
    **more: Any,
) -> Model:
    """The model of that name; without one, that of the environment."""
    if not name and not os.environ.get(VARIABLE):
        raise UsageError(
            f"no model is set for {who}",
            hint=f"write defaults: {{model: ...}} for all, or set {VARIABLE}; ollama:llama3.2 is"
            " one, for example",
        )
    for key in ("temperature", "max_tokens", "top_p"):
        chosen = getattr(own, key)
        chosen = getattr(defaults, key) if chosen is None else chosen
        if chosen is not None:
            more[key] = chosen
    return open_model(model=name, **more) if name and ":" in name else open_model(name, **more)


def _tool(described: ToolSettings, agent: str, given: Mapping[str, Any]) -> Tool:
    found = given.get(described.name)
    if found is None and described.function is not None:
        found = _imported(described.function)
    if not isinstance(found, Tool) and not callable(found):
        raise UsageError(
            f"the tool {described.name!r} of {agent!r} has no function",
            hint="give from_yaml(tools={name: function}), or write function: module:name",
        )
    return msgspec.structs.replace(read_tool(found), name=described.name)


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"the function {name!r} cannot be imported: {error}", hint="write package.module:name"
        ) from error
