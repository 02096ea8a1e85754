"""A client of `surehold serve`: runs of another machine, from plain Python.

It needs nothing beyond Surehold itself. Its answers are the documents of the requests, typed.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from surehold.core.closing import Closing
from surehold.errors import (
    ConflictError,
    NotFoundError,
    StorageFullError,
    StorageUnavailableError,
    SureholdError,
    UsageError,
)
from surehold.views.documents import Document
from surehold.views.run import Accepted, CodeList, RunOutcome
from surehold.views.runs import RunList
from surehold.views.waiting import Pending

T = TypeVar("T", bound=Document)
_ERRORS: dict[int, type[SureholdError]] = {
    **{400: UsageError, 401: UsageError, 403: UsageError, 404: NotFoundError},
    **{409: ConflictError, 413: UsageError, 503: StorageUnavailableError, 507: StorageFullError},
}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class RunEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a run."""

    id: str
    """Unique in its run; `Client.events` continues after it."""
    type: str
    data: dict[str, Any]


class Client(Closing):
    """Starts, follows, answers and cancels runs at the *address* of `surehold serve`.

    A request that cannot do harm twice is sent again while the server is away, for *patience*
    seconds: all that only look, and those with an *idempotency_key* or a *run_id*. An error of the
    server is raised as the error that a local call would raise. Use one client per thread.
    """

    def __init__(
        self, address: str, token: str, *, timeout: float = 30.0, patience: float = 60.0
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{address!r} is not an address", hint="http://HOST:PORT")
        self._is_secure = parts.scheme == "https"
        self._host, self._timeout = parts.hostname, timeout
        self.port = parts.port
        """The port of the server, if its address names one."""
        self.patience = patience
        """Seconds for which a server that is away is waited for."""
        self._path = parts.path.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"}
        self._open: http.client.HTTPConnection | None = None

    def code(self) -> CodeList:
        """The code that can be started."""
        return self._get("/code", CodeList)

    def start(
        self,
        code: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> str:
        """Start a run, and give its id. Its first record is stored when this returns.

        *options* are ``run_id``, ``queue``, ``priority``, ``key`` and ``delay``. Give a ``run_id``
        or an *idempotency_key*, and a call that failed may be made again: it begins one run.
        """
        body = {"arguments": arguments or {}, **options}
        again = idempotency_key is not None or options.get("run_id") is not None
        return self._post(f"/start/{quote(code)}", body, idempotency_key, again=again)

    def get(self, run_id: str) -> RunOutcome:
        """The outcome of a run, or what it waits for."""
        return self._get(f"/runs/{quote(run_id)}", RunOutcome)

    def list(self, **wanted: str | int) -> RunList:
        """The newest runs, of a *name*, a *status* or a *search*, at most *limit*."""
        return self._get(f"/runs?{urlencode(wanted)}", RunList)

    def pending(self, limit: int = 100) -> Pending:
        """The questions, effects, events and times that runs wait for."""
        return self._get(f"/pending?{urlencode({'limit': limit})}", Pending)

    def answer(self, run_id: str, value: Any, *, id: str | None = None) -> None:
        """Answer what a run waits for; *id* if there are several."""
        self._post(f"/runs/{quote(run_id)}/answer", {"id": id, "value": value})

    def send(
        self, run_id: str, topic: str, value: Any = None, *, idempotency_key: str | None = None
    ) -> None:
        """Send a message to a run."""
        body, again = {"topic": topic, "value": value}, idempotency_key is not None
        self._post(f"/runs/{quote(run_id)}/messages", body, idempotency_key, again=again)

    def cancel(self, run_id: str, *, cleanup: float | None = None) -> None:
        """Ask for a run to end at its next step."""
        self._post(f"/runs/{quote(run_id)}/cancel", {"cleanup": cleanup}, again=True)

    def requeue(self, run_id: str) -> None:
        """Queue a dead letter, or a cancelled or waiting run, again."""
        self._post(f"/runs/{quote(run_id)}/requeue", {})

    def events(self, run_id: str, *, after: str = "") -> Iterator[RunEvent]:
        """The events of a run, until it is over; none is missed, none comes twice.

        A connection that breaks is made again. *after* is the id of the last event that was seen.
        """
        waits, path = _Waits(self.patience), f"/runs/{quote(run_id)}/events"
        while True:
            connection = self._connect()
            try:
                answer = self._ask(connection, "GET", path, headers={"last-event-id": after})
                if answer.status == 204:
                    return
                for event in _events_in(answer):
                    waits, after = _Waits(self.patience), event.id
                    yield event
                cut = StorageUnavailableError(f"the events of {run_id!r} were cut off")
            except (OSError, http.client.HTTPException, StorageUnavailableError) as error:
                cut = _away(error)
            finally:
                connection.close()
            waits.wait(cut)

    def close(self) -> None:
        """Close the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _get(self, path: str, kind: type[T]) -> T:
        return msgspec.json.decode(self._text("GET", path, again=True), type=kind)

    def _post(self, path: str, body: Any, key: str | None = None, *, again: bool = False) -> str:
        headers = {"idempotency-key": key} if key is not None else {}
        text = self._text("POST", path, msgspec.json.encode(body), headers, again=again)
        return msgspec.json.decode(text, type=Accepted).run_id

    def _text(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        again: bool,
    ) -> bytes:
        """The body of an answer."""
        waits = _Waits(self.patience if again else 0)
        while True:
            if self._open is None:
                self._open = self._connect()
            try:
                return self._ask(self._open, method, path, body, headers or {}).read()
            except (OSError, http.client.HTTPException, StorageUnavailableError) as error:
                self.close()
                waits.wait(_away(error))

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        return kind(self._host, self.port, timeout=self._timeout)

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        sent = self._headers | {name: text for name, text in (headers or {}).items() if text}
        connection.request(method, f"{self._path}{path}", body, sent)
        answer = connection.getresponse()
        if answer.status < 400:
            return answer
        text = answer.read()
        try:
            told = msgspec.json.decode(text, type=dict[str, str])
        except msgspec.MsgspecError:
            told = {"message": f"the server answered {answer.status}"}
        kind = _ERRORS.get(answer.status, SureholdError)
        raise kind(told.get("message", ""), hint=told.get("hint", ""))


def _away(error: Exception) -> StorageUnavailableError:
    if isinstance(error, StorageUnavailableError):
        return error
    return StorageUnavailableError(f"the server does not answer: {error}")


class _Waits:
    """The pauses between attempts, each longer, up to a time."""

    def __init__(self, patience: float) -> None:
        self._until = time.monotonic() + patience
        self._pause = _FIRST_PAUSE

    def wait(self, error: StorageUnavailableError) -> None:
        """Wait for the next attempt, or raise the error of the last one."""
        if time.monotonic() + self._pause > self._until:
            raise error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def _events_in(answer: http.client.HTTPResponse) -> Iterator[RunEvent]:
    id = ""
    for line in answer:
        name, _, text = line.decode().rstrip("\r\n").partition(": ")
        if name == "id":
            id = text
        elif name == "data":
            told = msgspec.json.decode(text, type=dict[str, Any])
            yield RunEvent(id=id, type=told.pop("type"), data=told)
