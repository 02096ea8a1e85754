"""Checkpoints as plain JSON, in the forms of other systems.

========= =========================================================================================
agent     the fields of an `AgentState`, times as ISO text
fleet     checkpoint_id, workflow_id, timestamp, current_round, stall_count, last_response,
          context, metadata with the status as fleets spell it (``in_progress``, ``error``)
graph     run_id, checkpoint_node, timestamp, data
resilient agent_id, timestamp, checkpoint_type, version, state
========= =========================================================================================

Values that JSON lacks become the nearest ones it has: these forms are for other programs, and are
not read back. `export_run` loses nothing.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import Any, Literal, get_args

import msgspec

from surehold.core.records import Header
from surehold.core.values import Opaque, decode
from surehold.engine.journal import Change, Loaded
from surehold.errors import UsageError

Style = Literal["agent", "fleet", "graph", "resilient"]

_FLEET_STATUS = {"running": "in_progress", "failed": "error"}
_FLEET_KEYS = ("current_round", "stall_count", "last_response", "context")


def fleet_status(status: str) -> str:
    """Return *status* as fleets spell it.

    >>> fleet_status("running"), fleet_status("stalled")
    ('in_progress', 'stalled')
    """
    return _FLEET_STATUS.get(status, status)


def form_of(loaded: Loaded, style: Style) -> dict[str, Any]:
    """Return a checkpoint in one of the forms, as JSON values."""
    values = {key: decode(text) for key, text in loaded.texts.items()}
    return _plain(_form(style)(loaded.header, values, loaded.form))  # type: ignore[no-any-return]


def form_of_change(
    header: Header, changes: Iterable[Change], loaded: Loaded | None, style: Style
) -> dict[str, Any]:
    """Return a checkpoint with its changes; with *loaded*, also with its state."""
    form = _form(style)(header, {}, "") if loaded is None else form_of(loaded, style)
    listed = [{"op": one.op, "path": one.path, "value": one.value} for one in changes]
    for one in listed:
        if one["op"] == "remove":
            del one["value"]
    return _plain({**form, "changes": listed})  # type: ignore[no-any-return]


def _form(style: Style) -> Callable[[Header, dict[str, Any], str], dict[str, Any]]:
    if style not in _FORMS:
        raise UsageError(f"style is {style!r}", hint=f"one of {', '.join(get_args(Style))}")
    return _FORMS[style]


def _agent(header: Header, values: dict[str, Any], form: str) -> dict[str, Any]:
    extra = values.pop("extra", {}) if form == "agent" else {}
    return {
        "checkpoint_id": header.id,
        "agent_id": header.name,
        "run_id": header.run_id,
        "timestamp": header.saved_at,
        "step_number": header.step,
        **values,
        **extra,
        "parent_checkpoint_id": header.parent,
        "status": header.status,
        "metadata": values.get("metadata", header.metadata),
    }


def _fleet(header: Header, values: dict[str, Any], form: str) -> dict[str, Any]:
    round_ = values.get("current_round", header.step)
    others = {key: value for key, value in values.items() if key not in _FLEET_KEYS}
    status, context = fleet_status(header.status), values.get("context")
    return {
        "checkpoint_id": header.id,
        "workflow_id": header.run_id,
        "timestamp": header.saved_at,
        "current_round": round_,
        "stall_count": values.get("stall_count", 0),
        "last_response": values.get("last_response"),
        "context": {**others, **(context if isinstance(context, Mapping) else {})},
        "metadata": {**header.metadata, "status": status, "round": round_},
    }


def _graph(header: Header, values: dict[str, Any], form: str) -> dict[str, Any]:
    return {
        "run_id": header.run_id,
        "checkpoint_node": header.node or "",
        "timestamp": header.saved_at,
        "data": values,
    }


def _resilient(header: Header, values: dict[str, Any], form: str) -> dict[str, Any]:
    return {
        "agent_id": header.name or header.run_id,
        "timestamp": header.saved_at,
        "checkpoint_type": header.kind,
        "version": "1.0",
        "state": values,
    }


_FORMS: Mapping[str, Callable[[Header, dict[str, Any], str], dict[str, Any]]] = {
    "agent": _agent,
    "fleet": _fleet,
    "graph": _graph,
    "resilient": _resilient,
}


def _plain(value: Any) -> Any:
    """Return *value* as JSON values."""
    match value:
        case Enum():
            return _plain(value.value)
        case None | bool() | str() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {_plain_key(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return base64.b64encode(value).decode()
        case Opaque():
            return json.loads(value.text)
    return _fields(value)


def _plain_key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _fields(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if hasattr(type(value), "model_fields"):
        return {name: _plain(item) for name, item in value}
    return str(value)
