"""The events of a run as its journal tells them, in any process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from surehold.core.records import Header, Record
from surehold.core.state import Event
from surehold.engine.journal import Reader
from surehold.engine.managers import CheckpointManager, Target, opened
from surehold.engine.runs import UNDER_WAY, status_of_run, view_note
from surehold.engine.runs.positions import call_context
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RunInfo
from surehold.storage.shared import RunWatch

_AT_ONCE = 500
"""Records that are read before their events are given."""
_PATIENCE = 1.0
_EFFECT = {"done": "effect.complete", "failed": "effect.complete", "repeat": "effect.retry"}


def emit(type: str, **data: Any) -> None:
    """Send an event from inside a run to its observers; elsewhere do nothing.

    ``surehold.emit("model.text", text=chunk)`` streams what a model of your own writes. The journal
    does not keep it.
    """
    if not type:
        raise UsageError("an event needs a type", hint='emit("model.text", text=chunk)')
    context = call_context()
    if context is not None:
        context.say(type, **data)


def events(
    run_id: str,
    *,
    since: int = 0,
    follow: bool = False,
    storage: Target = None,
) -> RunEvents:
    """The recorded events of a run after record *since*, for a reconnecting client.

    Give the `seq` of the last event that was seen, of this or of a stream in another process. The
    journal keeps checkpoints, effects with their costs, questions and answers; a model's text as
    it came is not kept. With *follow* the events that come are given too, until the run is at
    rest: completed, failed, waiting, or without a process. A client that was cut off may get an
    event again, and misses none. Iterate with ``for`` or ``async for``.

    >>> import surehold
    >>> storage = surehold.MemoryStorage()
    >>> with surehold.run("loop-2026-11-16", storage=storage) as run:
    ...     length = run.effect("length", len, "kelp")
    >>> seen = [*surehold.events("loop-2026-11-16", storage=storage)]
    >>> [event.type for event in seen if event.type.startswith(("effect", "run"))]
    ['effect.start', 'effect.complete', 'run.completed']
    """
    if type(since) is not int or since < 0:
        raise UsageError(f"since is {since!r}", hint="give the seq of an event, or 0")
    return RunEvents(run_id, since, follow, storage)


@dataclass(frozen=True, eq=False, repr=False)
class RunEvents:
    """The recorded events of one run; made by `surehold.events`."""

    _run_id: str
    _since: int
    _follow: bool
    _storage: Target

    def __iter__(self) -> Iterator[Event]:
        for page in self._pages():
            yield from page

    async def __aiter__(self) -> AsyncIterator[Event]:
        pages = self._pages()
        try:
            while (page := await asyncio.to_thread(next, pages, None)) is not None:
                for event in page:
                    yield event
        finally:
            await asyncio.to_thread(pages.close)

    def _pages(self) -> Generator[list[Event], None, None]:
        with opened(self._storage) as manager:
            yield from self._read(manager)

    def _read(self, manager: CheckpointManager) -> Iterator[list[Event]]:
        reader, last = manager.reader, self._since
        if reader.run(self._run_id) is None:
            raise NotFoundError(f"no run {self._run_id!r}", run_id=self._run_id)
        with RunWatch(manager.storage, self._run_id) as changes:
            while True:
                run = reader.run(self._run_id)
                if run is None:
                    return
                while last < run.seq:
                    upto = min(run.seq, last + _AT_ONCE)
                    yield [*_told(reader, reader.records(self._run_id, last + 1, upto))]
                    last = upto
                if not self._follow or status_of_run(manager.storage, run) not in UNDER_WAY:
                    return
                changes.wait(_PATIENCE)
                yield []  # a closed iteration ends here


def events_after(reader: Reader, run: RunInfo, seen: str) -> list[tuple[str, Event]]:
    """The recorded events of *run* after the one with the id *seen*, with their ids.

    An id is unique in its run and the same in every process: the number of a record, and of the
    event in its record. They are the events of 500 records at most; an empty list is the end.
    """
    seq, dot, number = seen.partition(".")
    if seen and not (seq.isdecimal() and number.isdecimal() and dot):
        raise UsageError(f"{seen!r} is the id of no event", hint="give one that was sent")
    first, told = (int(seq), int(number)) if seen else (1, 0)
    at = max(first, 1)
    while at <= run.seq:
        upto = min(run.seq, at + _AT_ONCE)
        found = [
            (f"{record.header.seq}.{one}", event)
            for record in reader.records(run.run_id, at, upto)
            for one, event in enumerate(_events_of(reader, record), 1)
            if (record.header.seq, one) > (first, told)
        ]
        if found:
            return found
        at = upto + 1  # these were dropped
    return []


def _told(reader: Reader, records: Iterable[Record]) -> Iterator[Event]:
    """The events of *records*: what a run waits for is told before the run waits.

    A client may be cut off between two events of one commit. Whoever continues after the `seq` of
    the last event gets the next commit; after an earlier event, the whole commit again.
    """
    commit: list[Event] = []
    for record in records:
        asks = record.header.frame == "note" and record.header.kind == "question"
        if not asks:
            yield from _settled(commit)
            commit = []
        found = [*_events_of(reader, record)]
        commit = [*commit[:-1], *found, *commit[-1:]] if asks and len(commit) > 1 else found
    yield from _settled(commit)


def _settled(commit: list[Event]) -> Iterator[Event]:
    first, last = min((e.seq for e in commit), default=0), max((e.seq for e in commit), default=0)
    for event in commit:
        seq = last if event is commit[-1] else first - 1
        yield msgspec.structs.replace(event, seq=seq)


def _events_of(reader: Reader, record: Record) -> Iterator[Event]:
    header = record.header
    facts: dict[str, Any] = {"step": header.step, "node": header.node, "scope": header.scope}
    if header.frame == "note":
        yield _note_event(reader, record, facts)
        return
    told = {**facts, "kind": header.kind, "checkpoint_id": header.id}
    yield _event(header, "checkpoint.save", {**told, "status": header.status})
    if header.status != "running" and not header.scope:
        yield _event(header, f"run.{header.status}", facts)


def _note_event(reader: Reader, record: Record, facts: dict[str, Any]) -> Event:
    header, note = record.header, view_note(reader, record)
    if header.kind == "effect":
        kind = _EFFECT.get(note.state, "effect.start")
        facts |= {"effect": note.id, "name": note.name}
        if kind == "effect.complete":
            facts["error"] = note.error.partition(":")[0] or None
            facts |= {name: getattr(note, name) for name in ("seconds", "tokens", "dollars")}
        return _event(header, kind, facts)
    if header.kind == "question":
        return _event(header, "run.asked", {**facts, "id": note.id, "question": note.value})
    if header.kind == "answer":
        return _event(header, "run.answered", {**facts, "question": note.id})
    return _event(header, f"note.{header.kind}", facts)


def _event(header: Header, kind: str, facts: dict[str, Any]) -> Event:
    return Event(
        type=kind,
        source=header.name,
        timestamp=header.saved_at,
        data={"run_id": header.run_id, **facts},
        seq=header.seq,
    )
