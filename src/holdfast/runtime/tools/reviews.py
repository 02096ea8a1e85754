"""Approvals: what a fleet may not do before a person has agreed to it.

A run that needs one is parked, with the question in its journal, and no process has to wait. The
question says since when it is open, for how long, and what happens then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from holdfast.checkpoint.effects import Waiting, effect, interrupt
from holdfast.runtime.fleet import ApprovalSettings
from holdfast.runtime.tools.approval import Approval

__all__ = [
    "PLAN_REVIEW",
    "TIMED_OUT",
    "ApprovalHandler",
    "ApprovalRequest",
    "answer_tree",
    "ask_person",
    "expired",
    "requests_in",
]

PLAN_REVIEW = "plan_review"
"""What a plan that is put up for review counts as."""
TIMED_OUT = "nobody answered in time"
"""The reason of a rejection that nobody spoke."""


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Something that waits for a person."""

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
    """When its time is over; None for what waits for as long as it takes."""
    reject_when_expired: bool = False


ApprovalHandler: TypeAlias = Callable[[ApprovalRequest], Awaitable[Approval | bool]]
"""Asks a person at once. It is given up when the request's time is over."""


async def ask_person(
    settings: ApprovalSettings,
    *,
    operation_type: str,
    agent_name: str,
    operation: str,
    details: Mapping[str, Any],
) -> Approval:
    """Park the run until someone answers; gives the answer when the run comes here again."""
    asked_at = await effect("asked", _now, in_doubt="retry")
    question = {
        "approve": operation,
        "operation_type": operation_type,
        "agent_name": agent_name,
        "arguments": dict(details),
        "asked_at": asked_at,
        "timeout_seconds": settings.approval_timeout_seconds,
        "reject_when_expired": settings.auto_reject_on_timeout,
    }
    answer = await interrupt(question, schema=bool | Approval)
    return answer if isinstance(answer, Approval) else Approval(answer)


def _now() -> str:
    return datetime.now(UTC).isoformat()


def requests_in(waiting: Iterable[Waiting]) -> list[ApprovalRequest]:
    """Those of *waiting* that are to be approved: by a fleet, or by an agent in one."""
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
    """The answers that time has given: those to be rejected because nobody said anything."""
    return {
        request.request_id: answer_tree(Approval(False, reason=TIMED_OUT))
        for request in requests
        if request.reject_when_expired
        and request.expires_at is not None
        and request.expires_at <= now
    }


def answer_tree(approval: Approval | bool) -> Any:
    """An answer as a journal keeps it."""
    return msgspec.to_builtins(approval)
