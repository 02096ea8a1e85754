"""Sessions of the Claude Agent SDK in Surehold's journals.

```python
options = ClaudeAgentOptions(session_store=SureholdSessionStore("sqlite:///sessions.db"))
```
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec
from claude_agent_sdk import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
    fold_session_summary,
)

from surehold.core.records import check_run_id
from surehold.core.values import decode, remember
from surehold.engine.managers import CheckpointManager
from surehold.integrations.item_lists import ItemList, ItemLists, ListChange
from surehold.integrations.managed import Managed
from surehold.storage.base import RunInfo, RunQuery, Storage

_SUMMARY = "summary"
_SESSIONS = 256
"""Transcripts whose entries' uuids are kept."""


class SureholdSessionStore(Managed):
    """A `SessionStore` on any Surehold storage; what `append` returned is durable.

    *storage* is a `Storage`, an address, a registered name, a `CheckpointManager`, or None for
    the default address. A session is a run, the transcript of each of its subagents a scope of
    it, and an append stores what is added. Entries with a uuid that is there are ignored.
    *namespace* keeps the sessions of several applications apart.

    The SDK writes its own files first, and mirrors them here. With
    ``session_store_flush="eager"`` a killed process loses at most the message in progress.
    """

    def __init__(
        self,
        storage: CheckpointManager | Storage | str | None = None,
        *,
        namespace: str = "claude-agent",
    ) -> None:
        self._namespace = _quoted(check_run_id(namespace, "namespace"))
        self._manage(storage)
        self._lists = ItemLists(self.manager.face, "a session of the Claude Agent SDK")
        self._uuids: OrderedDict[tuple[str, str], _Uuids] = OrderedDict()

    def __bool__(self) -> bool:
        """True: an empty store is one, too."""
        return True

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add *entries* to a transcript, all or none; those that are there are ignored."""
        if entries:
            await self._call(self._append, key, entries)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """The whole transcript; None if it was never written."""
        run_id, scope = self._place(key)
        found = await self._call(self._lists.read, run_id, scope)
        return None if found.header is None else found.values()

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project, with the times of their newest entries."""
        return await self._call(self._sessions, project_key)

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The summaries of a project's sessions, which `append` keeps."""
        return await self._call(self._summaries, project_key)

    async def delete(self, key: SessionKey) -> None:
        """Remove a session with its subagents, or the transcript of one subagent."""
        run_id, scope = self._place(key)
        await self._call(self._lists.forget, run_id, scope or None)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of a session's subagents."""
        run_id, _ = self._place(key)
        return await self._call(self._lists.scopes, run_id)

    def _append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        run_id, scope = self._place(key)

        def edit(known: ItemList) -> ListChange | None:
            there = self._uuids_of(run_id, scope, known)
            new: list[SessionStoreEntry] = []
            added: set[str] = set()
            for entry in entries:
                uuid = entry.get("uuid")
                if uuid is not None:
                    if uuid in there or uuid in added:
                        continue
                    added.add(uuid)
                new.append(entry)
            if not new:
                return None
            rest = {}
            if not scope:
                rest[_SUMMARY] = fold_session_summary(known.value(_SUMMARY), key, new)
            return ListChange(added=new, rest=rest, what="append")

        self._lists.change(run_id, self._name(key["project_key"]), edit, scope)

    def _uuids_of(self, run_id: str, scope: str, known: ItemList) -> set[str | None]:
        """The uuids in a list; only entries that are new here are read."""
        seen = self._uuids.get((run_id, scope))
        if seen is None or seen.texts is not known.texts or seen.count > known.count:
            seen = _Uuids(known.texts)
            remember(self._uuids, (run_id, scope), seen, most=_SESSIONS)
        for text in known.texts[seen.count : known.count]:
            seen.uuids.add(_uuid_in(text))
        seen.count = known.count
        return seen.uuids

    def _sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        return [
            {"session_id": self._session_id(run), "mtime": _mtime(run)}
            for run in self._runs(project_key)
        ]

    def _summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        found: list[SessionSummaryEntry] = []
        reader = self.manager.reader
        for run in self._runs(project_key):
            newest = reader.newest_of(run.run_id)
            text = reader.values(newest, [_SUMMARY]).get(_SUMMARY) if newest is not None else None
            if text is not None:
                summary: SessionSummaryEntry = decode(text)
                summary["mtime"] = _mtime(run)
                found.append(summary)
        return found

    def _runs(self, project_key: str) -> list[RunInfo]:
        """The sessions of a project; one that only subagents wrote to is none."""
        runs = self.manager.storage.runs(RunQuery(name=self._name(project_key)))
        return [run for run in runs if run.step]

    def _place(self, key: Any) -> tuple[str, str]:
        project = check_run_id(key["project_key"], "project_key")
        session = check_run_id(key["session_id"], "session_id")
        run_id = f"{self._namespace}/{_quoted(project)}/{_quoted(session)}"
        return run_id, key.get("subpath") or ""

    def _name(self, project_key: str) -> str:
        return f"{self._namespace}/{_quoted(project_key)}"

    def _session_id(self, run: RunInfo) -> str:
        return run.run_id.rpartition("/")[2].replace("%2F", "/").replace("%25", "%")


class _Uuids:
    """The uuids of the first *count* entries of a list."""

    def __init__(self, texts: list[bytes]) -> None:
        self.texts = texts
        self.count = 0
        self.uuids: set[str | None] = set()


class _Entry(msgspec.Struct):
    uuid: str | None = None


_read_entry = msgspec.json.Decoder(_Entry).decode


def _uuid_in(text: bytes) -> str | None:
    if b'"$t"' in text:  # the entry itself may be written as another type
        entry = decode(text)
        return entry.get("uuid") if isinstance(entry, dict) else None
    return _read_entry(text).uuid


def _mtime(run: RunInfo) -> int:
    return int(run.saved_at.timestamp() * 1000)


def _quoted(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")
