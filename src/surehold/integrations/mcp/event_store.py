"""Events of MCP servers over streamable HTTP in Surehold's journals.

```python
store = SureholdEventStore("sqlite:///events.db")
app = store.by_session(server.streamable_http_app(event_store=store))
```
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter

from surehold.core.context import during
from surehold.core.records import check_run_id
from surehold.engine.managers import CheckpointManager
from surehold.errors import UsageError
from surehold.integrations.item_lists import ItemList, ItemLists, ListChange
from surehold.integrations.managed import Managed
from surehold.storage.base import Storage

_Message = MutableMapping[str, Any]
_App = Callable[
    [
        _Message,
        Callable[[], Awaitable[_Message]],
        Callable[[_Message], Awaitable[None]],
    ],
    Awaitable[None],
]
_FIRST = "first"
_HEADER = b"mcp-session-id"
_session: ContextVar[str] = ContextVar("surehold_mcp_session", default="")
"""The part of the store for the session that the running code serves."""


class SureholdEventStore(EventStore, Managed):
    """An `EventStore` on any Surehold storage; an event that has an id is durable.

    *storage* is a `Storage`, an address, a registered name, a `CheckpointManager`, or None for
    the default address. The SDK names streams by request ids, which clients share: wrap the
    application with `by_session`, and each session is a run of its own, whose events no other
    session is sent. Without, all streams are one run.

    The newest *most* events of a run are kept, and up to as many older ones.
    """

    def __init__(
        self,
        storage: CheckpointManager | Storage | str | None = None,
        *,
        namespace: str = "mcp-events",
        most: int = 1000,
    ) -> None:
        if type(most) is not int or most < 1:
            raise UsageError(f"most is {most!r}", hint="give the number of events to keep")
        self._namespace = check_run_id(namespace, "namespace")
        self._most = most
        self._manage(storage)
        self._lists = ItemLists(self.manager.face, "a list of MCP events")
        self._sessions: dict[str, str] = {}
        """The parts of this store by the SDK's ids of the sessions that this process serves."""

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Store the next event of a stream; its id is higher than those before."""
        session = _session.get()
        event: dict[str, Any] = {"stream": stream_id, "message": None}
        if message is not None:
            event["message"] = message.model_dump(mode="json", by_alias=True, exclude_none=True)

        def edit(known: ItemList) -> ListChange:
            dropped = known.count - self._most if known.count >= 2 * self._most else 0
            rest = {_FIRST: _first(known) + dropped} if dropped else {}
            return ListChange(added=[event], dropped=dropped, rest=rest, what="event")

        run_id = self._run_id(session)
        made = await self._call(self._lists.change, run_id, self._namespace, edit)
        number = _first(made) + made.count
        return f"{session}-{number}" if session else str(number)

    async def replay_events_after(
        self, last_event_id: EventId, send_callback: EventCallback
    ) -> StreamId | None:
        """Send the events of a stream that came after one; None if that is not known."""
        session, _, number = last_event_id.rpartition("-")
        if session != _session.get() or not (number.isascii() and number.isdecimal()):
            return None
        found = await self._call(self._lists.read, self._run_id(session))
        index = int(number) - 1 - _first(found)
        if not 0 <= index < found.count:
            return None
        last, *later = found.values(index)
        for at, event in enumerate(later, int(number) + 1):
            if event["stream"] == last["stream"] and event["message"] is not None:
                message = jsonrpc_message_adapter.validate_python(event["message"])
                await send_callback(
                    EventMessage(message, f"{session}-{at}" if session else str(at))
                )
        stream: StreamId = last["stream"]
        return stream

    def by_session(self, app: _App) -> _App:
        """An ASGI application that serves *app*, with the events of sessions apart."""

        async def serve(scope: _Message, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            given = dict(scope["headers"]).get(_HEADER, b"").decode("latin-1")
            session = self._sessions.get(given) or uuid4().hex

            async def sent(message: _Message) -> None:
                if message["type"] == "http.response.start" and not given:
                    made = dict(message.get("headers", ())).get(_HEADER)
                    if made:  # the session began with this request
                        self._sessions[made.decode("latin-1")] = session
                await send(message)

            with during(_session, session):
                await app(scope, receive, sent)
            if scope["method"] == "DELETE":
                self._sessions.pop(given, None)

        return serve

    def _run_id(self, session: str) -> str:
        return f"{self._namespace}/{session}" if session else self._namespace


def _first(known: ItemList) -> int:
    """The number of events that came before those in the list."""
    return known.value(_FIRST) or 0
