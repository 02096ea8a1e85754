"""The list of requests: the address, the role it takes, what it reads and gives."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from surehold.views.documents import Document
from surehold.views.queues import QueueList, WorkerList
from surehold.views.run import Accepted, CodeList, RunOutcome
from surehold.views.runs import RunList
from surehold.views.waiting import Pending
from surehold.web.service.tokens import Role


class StartRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A run to be started."""

    arguments: dict[str, Any] = {}
    """The arguments of a workflow by name, the first state of a graph, or the ``task``."""
    run_id: str | None = None
    """Its id, which begins it once however often the request is sent."""
    queue: str = "default"
    priority: int = 0
    key: str | None = None
    """Ready runs of different keys take turns."""
    delay: float | None = None
    """Seconds to wait before it begins."""


class AnswerRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An answer, an event, or the outcome of an effect: value, error or repeat."""

    id: str | None = None
    """The id or name of what waits; not needed if only one thing does."""
    value: Any = msgspec.UNSET
    error: str | None = None
    repeat: bool = False


class MessageRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to a run."""

    topic: str
    value: Any = None


class CancelRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A run to be ended."""

    cleanup: float | None = None
    """Seconds that its cleanup may take."""


class RequeueRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Nothing more is needed to queue a run again."""


class Endpoint(NamedTuple):
    """A request and its answer."""

    name: str
    method: Literal["GET", "POST"]
    path: str
    role: Role | None
    """The least role; None for anybody."""
    about: str
    answer: type[Document] | None = None
    body: type[msgspec.Struct] | None = None
    query: tuple[tuple[str, Literal["string", "integer"]], ...] = ()

    @property
    def status(self) -> int:
        """The status of a success."""
        return 202 if self.method == "POST" else 200


_PAGE: Any = (("limit", "integer"), ("before", "integer"))
_LIST: Any = (("name", "string"), ("status", "string"), ("search", "string"), *_PAGE)
ENDPOINTS = (
    Endpoint("code", "GET", "/code", "read", "The code that can be started.", CodeList),
    Endpoint(
        "start",
        "POST",
        "/start/{code}",
        "operate",
        "Start a run; its first record is stored before the answer.",
        Accepted,
        StartRequest,
    ),
    Endpoint("runs", "GET", "/runs", "read", "The runs, newest first.", RunList, None, _LIST),
    Endpoint(
        "events",
        "GET",
        "/runs/{run}/events",
        "read",
        "The events of a run as server-sent events, until it is over.",
    ),
    Endpoint(
        "answer",
        "POST",
        "/runs/{run}/answer",
        "answer",
        "Settle what a run waits for.",
        Accepted,
        AnswerRequest,
    ),
    Endpoint(
        "send",
        "POST",
        "/runs/{run}/messages",
        "answer",
        "Send a message to a run.",
        Accepted,
        MessageRequest,
    ),
    Endpoint(
        "cancel",
        "POST",
        "/runs/{run}/cancel",
        "operate",
        "Ask for a run to end at its next step.",
        Accepted,
        CancelRequest,
    ),
    Endpoint(
        "requeue",
        "POST",
        "/runs/{run}/requeue",
        "operate",
        "Queue a dead letter, or a cancelled or waiting run, again.",
        Accepted,
        RequeueRequest,
    ),
    Endpoint("run", "GET", "/runs/{run}", "read", "The outcome of a run.", RunOutcome),
    Endpoint(
        "pending",
        "GET",
        "/pending",
        "read",
        "What runs wait for, newest runs first.",
        Pending,
        None,
        (("limit", "integer"),),
    ),
    Endpoint("queues", "GET", "/queues", "read", "The queues and their limits.", QueueList),
    Endpoint("workers", "GET", "/workers", "read", "The workers of the storage.", WorkerList),
    Endpoint("metrics", "GET", "/metrics", "read", "Figures for Prometheus."),
    Endpoint("openapi", "GET", "/openapi.json", "read", "This document."),
    Endpoint("health", "GET", "/healthz", None, "200 while the storage answers."),
)
KEYED = ("start", "send")
"""Requests that take the header ``Idempotency-Key``."""
