"""Approvals: a person is asked before a tool is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.checkpoint.questions import interrupt
from holdfast.errors import UsageError
from holdfast.runtime.tools import Tool

__all__ = ["Approval", "ask_approval"]


class Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person said to a call of a tool. A bare ``True`` or ``False`` is the same in short.

    >>> msgspec.convert({"approved": True, "arguments": {"amount": 3}}, Approval).arguments
    {'amount': 3}
    """

    approved: bool
    arguments: dict[str, Any] | None = None
    """Other arguments than the model chose."""
    reason: str = ""


async def ask_approval(tool: Tool, arguments: Mapping[str, Any], key: str) -> Approval:
    """Park the run until someone says whether *tool* may be called with *arguments*."""
    question = {
        "approve": tool.name,
        "arguments": dict(arguments),
        "answers": "true, false, or {approved, arguments, reason}",
    }
    answer = await interrupt(question, schema=bool | Approval, key=key)
    if not isinstance(answer, Approval):
        return Approval(answer)
    if answer.approved and answer.arguments is not None:
        try:
            tool.read(answer.arguments)
        except UsageError as error:
            return Approval(False, reason=f"the edited arguments do not fit: {error.message}")
    return answer
