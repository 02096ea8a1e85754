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


_LIMIT: Any = (("limit", "integer"),)
_LIST: Any = (
    *(("name", "string"), ("status", "string"), ("search", "string")),
    *(*_LIMIT, ("before", "integer")),
)


def _post(name: str, path: str, role: Role, body: type[msgspec.Struct], about: str) -> Endpoint:
    return Endpoint(name, "POST", path, role, about, Accepted, body)


_START = "Start a run; its first record is stored before the answer."
_ANSWER, _SEND = "Settle what a run waits for.", "Send a message to a run."
_CANCEL = "Ask for a run to end at its next step."
_REQUEUE = "Queue a dead letter, or a cancelled or waiting run, again."
_EVENTS = "The events of a run as server-sent events, until it is over."
_PENDING = "What runs wait for, newest runs first."
ENDPOINTS = (
    Endpoint("code", "GET", "/code", "read", "The code that can be started.", CodeList),
    _post("start", "/start/{code}", "operate", StartRequest, _START),
    Endpoint("runs", "GET", "/runs", "read", "The runs, newest first.", RunList, None, _LIST),
    Endpoint("events", "GET", "/runs/{run}/events", "read", _EVENTS),
    _post("answer", "/runs/{run}/answer", "answer", AnswerRequest, _ANSWER),
    _post("send", "/runs/{run}/messages", "answer", MessageRequest, _SEND),
    _post("cancel", "/runs/{run}/cancel", "operate", CancelRequest, _CANCEL),
    _post("requeue", "/runs/{run}/requeue", "operate", RequeueRequest, _REQUEUE),
    Endpoint("run", "GET", "/runs/{run}", "read", "The outcome of a run.", RunOutcome),
    Endpoint("pending", "GET", "/pending", "read", _PENDING, Pending, None, _LIMIT),
    Endpoint("queues", "GET", "/queues", "read", "The queues and their limits.", QueueList),
    Endpoint("workers", "GET", "/workers", "read", "The workers of the storage.", WorkerList),
    Endpoint("metrics", "GET", "/metrics", "read", "Figures for Prometheus."),
    Endpoint("openapi", "GET", "/openapi.json", "read", "This document."),
    Endpoint("health", "GET", "/healthz", None, "200 while the storage answers."),
)
KEYED = ("start", "send")
"""Requests that take the header ``Idempotency-Key``."""
