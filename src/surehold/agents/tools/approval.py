"""Approvals: a person is asked before an operation is done.

The run waits with the question in its journal, and no process has to wait. A fleet's question
says since when it is open, for how long, and what happens then.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from types import CodeType
from typing import Any, TypeAlias

import msgspec

from surehold.agents.tools.definition import Tool
from surehold.core.records import digest_of
from surehold.engine.runs import Waiting, interrupt
from surehold.errors import UsageError

PLAN_REVIEW = "plan_review"
"""Operation type of a plan that is up for review."""
TIMED_OUT = "no answer came in time"
"""Reason of an automatic rejection on timeout."""


class Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A person's answer. A bare true or false is the short form."""

    approved: bool
    arguments: dict[str, Any] | None = None
    """Arguments to use instead of those that the model chose."""
    reason: str = ""


class _AnswerSchema:
    """Schema of answers to an approval, as a pydantic model for `interrupt`."""

    def __init__(self, tool: Tool | None) -> None:
        self._tool = tool

    def model_json_schema(self) -> dict[str, Any]:
        """The JSON schema, with that of the tool's arguments in it."""
        approval = msgspec.json.schema(Approval)["$defs"]["Approval"]
        definitions: dict[str, Any] = {}
        if self._tool is not None:
            parameters = dict(self._tool.parameters)
            definitions = parameters.pop("$defs", {})
            approval["properties"]["arguments"]["anyOf"] = [parameters, {"type": "null"}]
        made = {"anyOf": [{"type": "boolean"}, approval]}
        return {**made, "$defs": definitions} if definitions else made

    def model_validate(self, answer: Any) -> Approval:
        """Convert an answer, or raise a `ValueError` that says why it does not fit."""
        said = Approval(answer) if isinstance(answer, bool) else msgspec.convert(answer, Approval)
        if self._tool is not None and said.approved and said.arguments is not None:
            try:
                self._tool.read(said.arguments)
            except UsageError as error:
                raise ValueError(error.message) from error
        return said


async def ask_approval(
    operation: str,
    arguments: Mapping[str, Any],
    *,
    tool: Tool | None = None,
    function: Callable[..., Any] | None = None,
    key: str | None = None,
    timeout: float | None = None,
    **terms: Any,
) -> Approval:
    """Make the run wait until a person approves *operation*; return the answer.

    The answer is bound to the operation, its arguments, and the code of *function* or *tool*: if
    one of them is another by then, the question is asked again. Edited arguments must fit *tool*.
    *terms* are added to the question. Without an answer within *timeout* seconds it is a
    rejection.
    """
    question = {
        "approve": operation,
        "arguments": dict(arguments),
        "answers": "true, false, or {approved, arguments, reason}",
        **terms,
    }
    code = code_version(tool.call if tool is not None and function is None else function)
    bound = {"tool": operation, "arguments": dict(arguments), "code": code}
    schema = _AnswerSchema(tool)
    try:
        said: Approval = await interrupt(
            question, schema=schema, key=key, timeout=timeout, bound_to=bound
        )
    except TimeoutError:
        return Approval(False, reason=TIMED_OUT)
    return said


def code_version(function: Any) -> str:
    """A digest of a function's own code; empty if it has none that is known."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    return digest_of(_shape(code).encode()) if code is not None else ""


def _shape(code: Any) -> str:
    """The text of code that is the same in every process of one version of Python."""
    if isinstance(code, CodeType):
        consts = [_shape(one) for one in code.co_consts]
        return repr((code.co_code.hex(), code.co_names, code.co_varnames, consts))
    return repr(sorted(map(repr, code))) if isinstance(code, frozenset) else repr(code)


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An approval that a run waits for."""

    workflow_id: str
    request_id: str
    operation_type: str
    agent_name: str
    operation: str
    """The tool; for a plan, ``plan``."""
    details: dict[str, Any]
    """The tool's arguments; for a plan, the task, the facts and the plan. An approval may bring
    others: for a plan, ``{"plan": ...}``."""
    asked_at: datetime | None = None
    expires_at: datetime | None = None
    """End of the time to answer; None if there is none."""
    reject_when_expired: bool = False


ApprovalHandler: TypeAlias = Callable[[ApprovalRequest], Awaitable[Approval | bool]]
"""Asks a person at once. It is cancelled when the time to answer ends."""


def requests_in(waiting: Iterable[Waiting]) -> list[ApprovalRequest]:
    """The approvals among *waiting*, of a fleet or of an agent in one."""
    return [
        _request(one)
        for one in waiting
        if one.kind == "question"
        and isinstance(one.question, Mapping)
        and "approve" in one.question
    ]


def _request(waiting: Waiting) -> ApprovalRequest:
    asked = waiting.question
    asked_at = expires_at = None
    if "asked_at" in asked:
        asked_at = datetime.fromisoformat(asked["asked_at"])
        expires_at = asked_at + timedelta(seconds=asked["timeout_seconds"])
    return ApprovalRequest(
        workflow_id=waiting.run_id,
        request_id=waiting.id,
        operation_type=asked.get("operation_type", asked["approve"]),
        agent_name=asked.get("agent_name", ""),
        operation=asked["approve"],
        details=dict(asked["arguments"]),
        asked_at=asked_at,
        expires_at=expires_at,
        reject_when_expired=asked.get("reject_when_expired", False),
    )


def expired(requests: Iterable[ApprovalRequest], now: datetime) -> dict[str, Any]:
    """Rejections, by id, of the requests whose time to answer has ended."""
    return {
        request.request_id: msgspec.to_builtins(Approval(False, reason=TIMED_OUT))
        for request in requests
        if request.reject_when_expired
        and request.expires_at is not None
        and request.expires_at <= now
    }
