"""Finding threads' checkpoints in a journal, and reading them back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from langgraph.checkpoint.base import PendingWrite
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME

from surehold.core.records import Header
from surehold.engine.commit import Face
from surehold.integrations.branching import LATE, by_id, in_order
from surehold.integrations.journal_text import Reading
from surehold.integrations.langgraph.progress import interrupts, with_answers
from surehold.integrations.langgraph.records import Address, fold, tasks_writing
from surehold.storage.base import RecordQuery

_NEAR = 64
"""The distance of notes up to which they are read with all that is between them."""


class ThreadReading(Reading):
    """Reads the threads of one storage."""

    def __init__(self, face: Face, name: str) -> None:
        super().__init__(face, by_id)
        self._name = name

    def find(self, address: Address) -> Header | None:
        """The checkpoint that *address* names, or the one with the greatest id."""
        if address.checkpoint_id is None:
            return self.newest(address.thread_id, address.scope)
        return self.with_id(address.thread_id, address.scope, address.checkpoint_id)

    def written(self, header_or_address: Header | Address, checkpoint_id: str) -> list[bytes]:
        """The notes of writes to a checkpoint, oldest first."""
        return [text for _, text in self.write_records(header_or_address, checkpoint_id)]

    def write_records(
        self, place: Header | Address, checkpoint_id: str
    ) -> list[tuple[Header, bytes]]:
        run_id = place.run_id if isinstance(place, Header) else place.thread_id
        headers = self.write_headers(run_id, place.scope, checkpoint_id)
        return self.opened_notes(run_id, (header.seq for header in headers))

    def write_headers(self, run_id: str, scope: str, checkpoint_id: str) -> list[Header]:
        """The notes of writes to a checkpoint without what they say, oldest first."""
        query = RecordQuery(run_id=run_id, scope=scope, tag=checkpoint_id, notes=True)
        found = [header for header in self._storage.headers(query) if header.kind == "writes"]
        return found[::-1]

    def writes(self, header: Header, read: Any) -> list[PendingWrite]:
        """The pending writes of a checkpoint."""
        notes = [(note.seq, text) for note, text in self.write_records(header, header.id)]
        found: list[PendingWrite] = [
            (task, channel, read(text)) for task, channel, text in fold(text for _, text in notes)
        ]
        asked = tasks_writing(INTERRUPT, notes, first=True)
        answers = list(self._answers(header.run_id, min(asked.values()), read)) if asked else []
        if not answers:
            return found
        inside = self._asked_inside(header, asked, read)
        own = [answer for answer in answers if answer[1] not in inside]
        return with_answers(found, tasks_writing(RESUME, notes), own)

    def _asked_inside(self, header: Header, tasks: Iterable[str], read: Any) -> set[str]:
        """Ids of what subgraphs of these tasks ask: the answers are theirs."""
        within = tuple(f":{task}" for task in tasks)
        query = RecordQuery(run_id=header.run_id, kind="writes", notes=True)
        seqs = [
            note.seq
            for note in self._storage.headers(query)
            if note.scope != header.scope and any(task in note.scope for task in within)
        ]
        return {
            one.id
            for _, text in self._opened(header.run_id, seqs)
            for _, channel, value in fold([text])
            for one in interrupts(channel, read(value) if channel == INTERRUPT else None)
        }

    def asked(self, address: Address, task: str, read: Any) -> set[str]:
        """The ids of the questions that a task has asked at a checkpoint."""
        notes = self.written(address, address.checkpoint_id or "")
        return {
            one.id
            for text in notes
            for writer, channel, value in fold([text])
            if (writer, channel) == (task, INTERRUPT)
            for one in interrupts(channel, read(value))
        }

    def _answers(self, run_id: str, after: int, read: Any) -> Iterator[tuple[int, str, Any]]:
        """Answers after the record *after*: seq, question and value, oldest first."""
        from surehold.core.records import Answer

        query = RecordQuery(run_id=run_id, kind="answer", notes=True)
        seqs = [note.seq for note in self._storage.headers(query) if note.seq > after]
        for note, text in self._opened(run_id, reversed(seqs)):
            answer = msgspec.json.decode(text, type=Answer)
            yield note.seq, answer.id, read(bytes(answer.value))

    def notes_of(self, headers: Sequence[Header]) -> list[int]:
        """Seqs of the writes to these checkpoints, of questions, answers and effects."""
        run_id = headers[0].run_id
        found = [
            note.seq
            for header in headers
            for note in self.write_headers(run_id, header.scope, header.id)
        ]
        for kind in ("question", "answer", "effect"):
            query = RecordQuery(run_id=run_id, kind=kind, notes=True)
            found += [note.seq for note in self._storage.headers(query)]
        return sorted(found)

    def opened_notes(self, run_id: str, seqs: Iterable[int]) -> list[tuple[Header, bytes]]:
        """The notes with these seqs, and what they say."""
        return list(self._opened(run_id, seqs))

    def _opened(self, run_id: str, seqs: Iterable[int]) -> Iterator[tuple[Header, bytes]]:
        wanted = sorted(seqs)
        near = bool(wanted) and wanted[-1] - wanted[0] < _NEAR
        spans = [(wanted[0], wanted[-1])] if near else [(seq, seq) for seq in wanted]
        for first, last in spans:
            for record in self._storage.read(run_id, first=first, last=last):
                if record.header.seq in wanted:
                    yield record.header, self._reader.sealer.open(record)

    def listing(
        self,
        address: Address | None,
        metadata: Mapping[str, Any],
        before: str | None,
    ) -> Iterator[Header]:
        """Checkpoints, newest first, in each namespace by falling id."""
        if address is None:
            headers = self._storage.headers(RecordQuery(name=self._name, metadata=metadata or None))
        elif address.checkpoint_id is not None:
            found = self._storage.find(address.checkpoint_id)
            headers = iter([one for one in found if _is_in(one, address)])
        else:
            query = RecordQuery(
                run_id=address.thread_id, scope=address.ns, metadata=metadata or None
            )
            headers = self._from(query, before)
        ordered = in_order(headers, by_id)
        if before is None:
            return ordered
        return (header for header in ordered if header.id < before)

    def _from(self, query: RecordQuery, before: str | None) -> Iterator[Header]:
        """The headers that *query* selects, without those known to be newer than *before*."""
        if before is None or query.scope is None:
            return self._storage.headers(query)
        start = self.with_id(query.run_id or "", query.scope, before)
        if start is None or LATE in start.tags:
            return self._storage.headers(query)
        late = self._storage.headers(msgspec.structs.replace(query, tag=LATE))
        after = (header for header in late if header.seq > start.seq)
        rest = self._storage.headers(msgspec.structs.replace(query, before=before))
        return chain(after, rest)

    def ancestors(self, header: Header, most: int) -> list[Header]:
        """The checkpoints that this one came from, nearest first, at most *most*."""
        found: list[Header] = []
        seen = {header.id}
        while header.parent is not None and header.parent not in seen and len(found) < most:
            parent = self.with_id(header.run_id, header.scope, header.parent)
            if parent is None:
                break
            seen.add(parent.id)
            found.append(parent)
            header = parent
        return found


def _is_in(header: Header, address: Address) -> bool:
    return (
        header.id == address.checkpoint_id
        and header.run_id == address.thread_id
        and address.ns in (None, header.scope)
    )
