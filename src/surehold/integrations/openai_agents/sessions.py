"""Sessions of the OpenAI Agents SDK in Surehold's journals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from agents.items import TResponseInputItem
from agents.memory import SessionSettings

from surehold.core.records import check_run_id, digest_of
from surehold.engine.managers import CheckpointManager
from surehold.errors import UsageError
from surehold.integrations.item_lists import ItemList, ItemLists, ListChange
from surehold.integrations.managed import Managed
from surehold.integrations.openai_agents.execution import AgentExecution, record
from surehold.storage.base import Storage

_APPLIED = "applied"
_RUNS = 64
"""Runs whose last change of a session is known, so that none of them is made again."""


class SureholdSession(Managed):
    """A `Session` on any Surehold storage; what `add_items` returned is durable.

    *storage* is a `Storage`, an address, a registered name, a `CheckpointManager`, or None for
    the default address. The session is a run with the id *session_id*; every change is a
    checkpoint that stores what was added. Any number of processes may use a session.

    >>> import asyncio
    >>> session = SureholdSession("customer-7", "memory://")
    >>> asyncio.run(session.add_items([{"role": "user", "content": "Hello"}]))
    >>> asyncio.run(session.get_items())
    [{'role': 'user', 'content': 'Hello'}]
    """

    def __init__(
        self,
        session_id: str,
        storage: CheckpointManager | Storage | str | None = None,
        *,
        session_settings: SessionSettings | Mapping[str, Any] | None = None,
        name: str = "openai-agents",
    ) -> None:
        self.session_id = check_run_id(session_id, "session_id")
        if isinstance(session_settings, Mapping):
            wrong = set(session_settings) - {one.name for one in fields(SessionSettings)}
            if wrong:
                raise UsageError(f"unknown session settings: {', '.join(sorted(wrong))}")
            session_settings = SessionSettings(**session_settings)
        self.session_settings = session_settings or SessionSettings()
        self._name = name
        self._manage(storage)
        self._lists = ItemLists(self.manager.face, "a session of the OpenAI Agents SDK")

    def __bool__(self) -> bool:
        """True: a session without items is one, too."""
        return True

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The newest *limit* items, oldest first; None for the limit of the settings."""
        found = await self._awaited.call(self._lists.read, self.session_id)
        return newest(found, self.limit(limit))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add *items*, all or none."""
        await self.add_once(items, None)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it; None if there is none."""
        return await self.pop_once(None)

    async def clear_session(self) -> None:
        """Remove all items. Earlier checkpoints still hold them, until they are pruned."""
        await self.clear_once(None)

    def limit(self, limit: int | None) -> int | None:
        """*limit*, or that of the settings."""
        return limit if limit is not None else getattr(self.session_settings, "limit", None)

    async def position(self) -> str:
        """The id of the newest checkpoint; empty for a session that was never written."""
        found = await self._awaited.call(self._lists.read, self.session_id)
        return found.header.id if found.header is not None else ""

    async def items_at(self, position: str, limit: int | None) -> list[TResponseInputItem]:
        """The items as they were at that checkpoint."""
        if not position:
            return []
        found = await self._awaited.call(self._lists.at, self.session_id, position)
        return newest(found, limit)

    async def add_once(self, items: list[TResponseInputItem], call: OnceCall | None) -> None:
        """`add_items`; a *call* that was made before changes nothing."""
        if not items:
            return

        def edit(known: ItemList) -> ListChange | None:
            if call is not None and call.made(known) is not None:
                return None
            return ListChange(added=items, rest=_noted(known, call), what="add_items")

        await self._change(edit)

    async def pop_once(self, call: OnceCall | None) -> TResponseInputItem | None:
        """`pop_item`; a *call* that was made before returns the same item."""
        popped: list[Any] = []

        def edit(known: ItemList) -> ListChange | None:
            before = call.made(known) if call is not None else None
            popped[:] = before[1:] if before is not None else known.values(known.count - 1)
            if before is not None or not known.count:
                return None
            rest = _noted(known, call, popped[0])
            return ListChange(kept=known.count - 1, rest=rest, what="pop_item")

        await self._change(edit)
        return popped[0] if popped else None

    async def clear_once(self, call: OnceCall | None) -> None:
        """`clear_session`; a *call* that was made before changes nothing."""

        def edit(known: ItemList) -> ListChange | None:
            if not known.count or (call is not None and call.made(known) is not None):
                return None
            return ListChange(kept=0, rest=_noted(known, call), what="clear_session")

        await self._change(edit)

    async def _change(self, edit: Any) -> None:
        await self._awaited.call(self._lists.change, self.session_id, self._name, edit)


class OnceCall:
    """A change of a session that a run makes once, whatever happens to its process."""

    def __init__(self, run_id: str, key: str) -> None:
        self.run = digest_of(run_id.encode())[:16]
        self.key = digest_of(key.encode())[:16]

    def made(self, known: ItemList) -> list[Any] | None:
        """The note of the call, if the list has one."""
        noted: list[Any] | None = (known.value(_APPLIED) or {}).get(self.run)
        return noted if noted is not None and noted[0] == self.key else None


def _noted(known: ItemList, call: OnceCall | None, *popped: Any) -> dict[str, Any]:
    """The note of a *call* that a list keeps beside its items."""
    if call is None:
        return {}
    applied = dict(known.value(_APPLIED) or {})
    applied.pop(call.run, None)
    applied[call.run] = [call.key, *popped]
    return {_APPLIED: dict([*applied.items()][-_RUNS:])}


def newest(found: ItemList, limit: int | None) -> list[Any]:
    """The newest items, oldest first."""
    if limit is None:
        return found.values()
    return found.values(found.count - limit) if limit > 0 else []


def recorded_session(session: Any, execution: AgentExecution) -> Any:
    """A session whose changes the run around it records; other classes are refused."""
    if isinstance(session, _RecordedSession):  # an agent used as a tool was given it
        session = session.inner
    if session is None:
        return None
    if isinstance(session, SureholdSession):
        return _RecordedSession(session, execution)
    raise UsageError(
        f"a session of class {type(session).__name__} cannot be used inside a run: it does not"
        " know what a killed process has written, and every replay would write it again",
        hint="use SureholdSession(session_id, storage), or run the agent outside a run",
    )


class _RecordedSession:
    """A session whose calls the run records: a replay writes nothing twice."""

    def __init__(self, session: SureholdSession, execution: AgentExecution) -> None:
        self.inner = session
        self.session_id = session.session_id
        self.session_settings = session.session_settings
        self._execution = execution
        self._calls = 0

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The items as they were when the run first asked: it records where, and not what."""
        position = await self._record("get_items", lambda _: self.inner.position())
        return await self.inner.items_at(position, self.inner.limit(limit))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add *items* once."""
        await self._record("add_items", lambda call: self.inner.add_once(items, call))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item once."""
        found: TResponseInputItem | None = await self._record("pop_item", self.inner.pop_once)
        return found

    async def clear_session(self) -> None:
        """Remove all items once."""
        await self._record("clear_session", self.inner.clear_once)

    async def _record(self, what: str, make: Any) -> Any:
        self._calls += 1
        here = self._execution.here
        key = f"{here.position}.{self._calls}"
        once = OnceCall(here.run.run_id, f"{here.run.branch} {what} {key}")

        async def call() -> Any:
            return await make(once)

        return await record(f"session.{what}", key, call, self._execution.rules.session)
