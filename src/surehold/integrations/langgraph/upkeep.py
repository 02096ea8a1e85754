"""Deletes, prunes and copies threads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import msgspec

from surehold.core.records import Header, check_run_id
from surehold.core.state import Lineage
from surehold.engine.commit import Face, Steps, Work, delete
from surehold.engine.journal import CheckpointDraft, Note, place_of
from surehold.errors import UsageError
from surehold.integrations.journal_text import PAGE, Found, pages
from surehold.integrations.langgraph.records import Address, read_beside, split_metadata
from surehold.integrations.langgraph.threads import DELTA_CHANNELS, Threads, draft_of
from surehold.storage.base import RecordQuery


class Upkeep:
    """Deletes, prunes and copies the threads of one storage; saves through *threads*."""

    def __init__(self, face: Face, name: str, threads: Threads) -> None:
        self._face = face
        self._name = name
        self._threads = threads
        self._reading = threads.reading

    def delete_thread(self, thread_id: str) -> Steps[None]:
        """Remove a thread with all its records, if there is such a thread."""
        run = yield Work(lambda: self._face.reader.run(thread_id))
        if run is not None:
            yield Work(lambda: delete.delete_run(self._face, thread_id))
        self._reading.forget(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> Steps[None]:
        """Remove the checkpoints of LangGraph runs with these ids, and their writes."""

        def find() -> dict[str, list[Header]]:
            gone: dict[str, list[Header]] = {}
            for run_id in run_ids:
                query = RecordQuery(name=self._name, metadata={"run_id": str(run_id)})
                for header in self._face.storage.headers(query):
                    gone.setdefault(header.run_id, []).append(header)
            return gone

        for thread_id, headers in (yield Work(find)).items():
            yield from self._drop(thread_id, headers)

    def _drop(self, thread_id: str, headers: Sequence[Header]) -> Steps[None]:
        """Hide checkpoints and the writes to them, and free what nothing needs any more."""
        if not headers:
            return

        def find() -> list[int]:
            seqs = [header.seq for header in headers]
            for header in headers:
                writes = self._reading.write_headers(thread_id, header.scope, header.id)
                seqs += (note.seq for note in writes)
            return seqs

        yield from delete.hide(self._face, thread_id, self._name, (yield Work(find)))
        self._reading.forget(thread_id)

    def prune(self, thread_id: str, strategy: str) -> Steps[None]:
        """Keep each namespace's newest checkpoint and what rebuilds it; or nothing."""
        if strategy not in ("keep_latest", "delete"):
            raise UsageError(
                f"prune has no strategy {strategy!r}", hint="give 'keep_latest' or 'delete'"
            )
        if strategy == "delete":
            yield from self.delete_thread(thread_id)
            return
        newest, needed, others = yield Work(lambda: self._kept(thread_id))
        for header in newest:
            if header.frame == "delta" and header.seq not in needed:
                yield from self._save_whole(header)
        yield from self._drop(thread_id, others)
        yield Work(self._face.storage.compact)

    def _kept(self, thread_id: str) -> tuple[list[Header], set[int], list[Header]]:
        """The newest of each namespace, which of them need others, and all that may go."""
        address = Address(thread_id, None, None)
        newest: dict[str, Header] = {}
        every = list(self._reading.listing(address, {}, None))
        for header in every:
            newest.setdefault(header.scope, header)
        kept = {header.seq for header in newest.values()}
        needed: set[int] = set()
        for header in newest.values():
            ancestors = self._needed_by(header)
            if ancestors:
                needed.add(header.seq)
                kept |= ancestors
        return [*newest.values()], needed, [one for one in every if one.seq not in kept]

    def _needed_by(self, header: Header) -> set[int]:
        """The ancestors from which the delta channels of a checkpoint are rebuilt."""
        found = self._reading.load(header)
        said = read_beside(found.beside) if found is not None else None
        counters = {**header.metadata, **(said[1] if said else {})}.get(DELTA_CHANNELS)
        missing = set(counters or ()) - set(found.texts if found is not None else ())
        needed: set[int] = set()
        at: Header | None = header
        while at is not None and missing:
            line = self._reading.ancestors(at, PAGE)
            for ancestor, one in zip(line, self._found(line), strict=True):
                if not missing:
                    break
                needed.add(ancestor.seq)
                missing -= set(one.texts if one is not None else ())
            at = line[-1] if len(line) == PAGE else None
        return needed

    def _found(self, headers: Sequence[Header]) -> list[Found | None]:
        found = self._reading.load_many(headers)
        return [found.get((one.run_id, one.scope, one.seq)) for one in headers]

    def _save_whole(self, header: Header) -> Steps[None]:
        """Save a checkpoint again as a keyframe, so that nothing before it is needed."""
        found: Found | None = yield Work(lambda: self._reading.load(header))
        if found is not None:
            draft = msgspec.structs.replace(_again(found, header.run_id), force_keyframe=True)
            yield from self._threads.save(
                draft, found.texts, found.beside, notes_for=lambda _: self._open_notes(header)
            )

    def _open_notes(self, header: Header) -> tuple[Note, ...]:
        """The open questions and the effects of a checkpoint; both must follow it."""
        from surehold.engine.runs import open_notes

        run = self._face.reader.run(header.run_id) if not header.scope else None
        if run is None:
            return ()
        ledger = open_notes(self._face.reader, run)
        asked = [note for note in ledger.waiting() if note.kind == "question"]
        return tuple(
            msgspec.structs.replace(note, parent=note.parent or header.id, name=self._name)
            for note in (*asked, *ledger.effects())
        )

    def copy_thread(self, source: str, target: str) -> Steps[None]:
        """Copy all visible checkpoints of a thread and the writes to them, in their order."""
        check_run_id(target, "target_thread_id")
        address = Address(source, None, None)
        headers: list[Header] = yield Work(
            lambda: sorted(self._reading.listing(address, {}, None), key=lambda one: one.seq)
        )
        if not headers:
            return
        notes: list[int] = yield Work(lambda: self._reading.notes_of(headers))
        ends = [header.seq for header in headers[1:]] + [notes[-1] + 1 if notes else 0]
        for page in pages(zip(headers, ends, strict=True), PAGE):
            copies: list[tuple[Found, tuple[Note, ...]]] = yield Work(
                partial(self._copies, page, notes)
            )
            for found, beside in copies:
                draft = _again(found, target)
                yield from self._threads.save(draft, found.texts, found.beside, beside)

    def _copies(
        self, page: Sequence[tuple[Header, int]], notes: list[int]
    ) -> list[tuple[Found, tuple[Note, ...]]]:
        """Checkpoints with the notes up to the next one, which are taken off *notes*.

        All in the order of the source: an answer counts if it follows what asks.
        """
        copies = []
        for (header, end), found in zip(page, self._found([one for one, _ in page]), strict=True):
            count = bisect_left(notes, end)
            seqs, notes[:count] = notes[:count], []
            if found is not None:
                opened = self._reading.opened_notes(header.run_id, seqs)
                copies.append((found, tuple(self._note(*one) for one in opened)))
        return copies

    def _note(self, note: Header, text: bytes) -> Note:
        return Note(
            kind=note.kind,
            content=msgspec.Raw(text),
            scope=note.scope,
            step=note.step,
            node=note.node,
            parent=note.parent,
            name=self._name,
            tags=note.tags,
            metadata={**note.metadata},
        )


def _again(found: Found, thread_id: str) -> CheckpointDraft:
    """The draft that saves a loaded checkpoint again, in its own or another thread."""
    header = found.header
    metadata = split_metadata(header.metadata)[0]
    place = msgspec.structs.replace(place_of(header), run_id=thread_id, tags=(), metadata=metadata)
    return draft_of(place, found.texts, found.beside, header.id, Lineage(header.parent))
