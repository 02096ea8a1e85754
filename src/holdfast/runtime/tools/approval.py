"""Approvals: a person is asked before a tool is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.checkpoint.effects import interrupt
from holdfast.errors import UsageError
from holdfast.runtime.tools.definition import Tool

__all__ = ["Approval", "ask_approval"]


class Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person said to a call of a tool. A bare true or false is the same in short."""

    approved: bool
    arguments: dict[str, Any] | None = None
    """Other arguments than the model chose."""
    reason: str = ""


class _Fitting:
    """The answers that fit a call of a tool; `interrupt` takes it as it takes a pydantic model."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    def model_json_schema(self) -> dict[str, Any]:
        """The schema, with that of the tool's arguments in it."""
        parameters = dict(self._tool.parameters)
        definitions = parameters.pop("$defs", {})
        approval = msgspec.json.schema(Approval)["$defs"]["Approval"]
        approval["properties"]["arguments"]["anyOf"] = [parameters, {"type": "null"}]
        made = {"anyOf": [{"type": "boolean"}, approval]}
        return {**made, "$defs": definitions} if definitions else made

    def model_validate(self, answer: Any) -> Approval:
        """The answer, or a `ValueError` that says why it does not fit."""
        said = Approval(answer) if isinstance(answer, bool) else msgspec.convert(answer, Approval)
        if said.approved and said.arguments is not None:
            try:
                self._tool.read(said.arguments)
            except UsageError as error:
                raise ValueError(error.message) from error
        return said


async def ask_approval(tool: Tool, arguments: Mapping[str, Any], key: str) -> Approval:
    """Park the run until someone says whether *tool* may be called with *arguments*."""
    question = {
        "approve": tool.name,
        "arguments": dict(arguments),
        "answers": "true, false, or {approved, arguments, reason}",
    }
    said: Approval = await interrupt(question, schema=_Fitting(tool), key=key)
    return said
