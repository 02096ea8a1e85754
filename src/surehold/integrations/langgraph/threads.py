"""A saver's operations, as steps for both the blocking and the async side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite

from surehold.core.records import Door, Header, check_run_id
from surehold.core.state import Lineage, Place, State
from surehold.core.values import Items, Lazy, Nature
from surehold.engine import commit as operations
from surehold.engine.commit import Face, Steps, Work
from surehold.engine.journal import CheckpointDraft, Note
from surehold.errors import UsageError
from surehold.integrations.branching import SortedBranches, by_id
from surehold.integrations.journal_text import PAGE, Found, joined, pages
from surehold.integrations.langgraph.progress import (
    answer_notes,
    asks,
    nodes_of,
    question_notes,
    status_of,
    step_of,
)
from surehold.integrations.langgraph.reading import ThreadReading
from surehold.integrations.langgraph.records import (
    Address,
    Channels,
    beside,
    fold,
    kind_of,
    note_of,
    read_beside,
    split_metadata,
    tuple_of,
)

DELTA_CHANNELS = "counters_since_delta_snapshot"
"""Under this key of the metadata stand the channels that are rebuilt from earlier checkpoints."""

Read = Callable[[bytes | Items], Any]
_BRANCHING = SortedBranches(by_id)
_MOST_EARLY = 256


class Threads:
    """Threads in the journals of one storage. Values come and go as text."""

    def __init__(self, face: Face, name: str) -> None:
        self._face = face
        self._name = name
        self.reading = ThreadReading(face, name)
        self._early: dict[tuple[str, str | None], tuple[Note, ...]] = {}
        """Questions to checkpoints that were not stored yet when the question was.

        LangGraph saves in the background, and what a task asks may overtake the checkpoint that
        the task began at. A question waits if it follows its checkpoint: it is stored again.
        """

    def put(
        self,
        address: Address,
        checkpoint: Mapping[str, Any],
        texts: Mapping[str, bytes | Items],
        metadata: Mapping[str, Any],
        *,
        fast_forward_only: bool = False,
        stored: Callable[[], None] | None = None,
        notes: tuple[Note, ...] = (),
    ) -> Steps[None]:
        """Save a checkpoint as a child of the one that *address* names.

        *stored* is called, on whatever thread does the work, as soon as it is durable. *notes*
        are stored in the same commit.
        """
        self._check_retention(metadata)
        plain, rest = split_metadata(metadata)
        place = Place(
            run_id=check_run_id(address.thread_id, "thread_id"),
            name=self._name,
            scope=address.scope,
            step=step_of(metadata),
            node=nodes_of(checkpoint, metadata),
            kind=kind_of(metadata),
            status=status_of(checkpoint),
            metadata=plain,
        )
        said = beside(checkpoint, rest)
        checkpoint_id = check_run_id(checkpoint["id"], "a checkpoint's id")
        draft = draft_of(
            place,
            texts,
            said,
            checkpoint_id,
            Lineage(address.checkpoint_id),
            branching=SortedBranches(by_id, fast_forward_only),
            stored=stored,
        )
        asked = address.thread_id, checkpoint_id
        yield from self.save(
            draft,
            texts,
            said,
            self._named(notes),
            notes_for=lambda header: self._early.get(asked, ()) if not header.scope else (),
        )
        if not address.scope:
            self._early.pop(asked, None)

    def _named(self, notes: Iterable[Note]) -> tuple[Note, ...]:
        return tuple(msgspec.structs.replace(note, name=self._name) for note in notes)

    def save(
        self,
        draft: CheckpointDraft,
        texts: Mapping[str, bytes | Items],
        said: bytes,
        notes: tuple[Note, ...] = (),
        notes_for: Callable[[Header], Sequence[Note]] | None = None,
    ) -> Steps[None]:
        """Save what stands for a checkpoint, and notes, in one commit."""
        shown = None
        if self._face.hooks is not None:
            whole = {key: joined(text) for key, text in texts.items()}
            shown = State.restore(whole, draft.place, datetime.now(UTC), None)
        header = yield from operations.save_draft(
            self._face, draft, shown, force=True, notes=notes, notes_for=notes_for
        )
        # No header: the save failed and the manager only warned. A hook may have changed the state.
        if header is not None and shown is None:
            self.reading.remember(header, texts, said)

    def _check_retention(self, metadata: Mapping[str, Any]) -> None:
        if self._face.retention.active and metadata.get(DELTA_CHANNELS):
            raise UsageError(
                "a DeltaChannel is rebuilt from earlier checkpoints, which retention would take",
                hint="use a manager without retention rules, and the saver's prune()",
            )

    def put_writes(
        self,
        address: Address,
        writes: Sequence[tuple[str, Any]],
        texts: Sequence[bytes],
        task: str,
        path: str,
        read: Read,
    ) -> Steps[None]:
        """Save writes to a checkpoint, perhaps a later one, and the questions in them."""
        thread_id = check_run_id(address.thread_id, "thread_id")
        stored = [(channel, text) for (channel, _), text in zip(writes, texts, strict=True)]
        notes = self._named([note_of(address, stored, task, path)])
        if asks(address, writes):
            before, there = yield Work(
                lambda: (self.reading.asked(address, task, read), self.reading.find(address))
            )
            questions = self._named(question_notes(address, writes, path))
            if there is None:
                self._keep_early(address, questions)
            # An answer that follows these writes is one that they do not hold.
            notes = (*self._named(answer_notes(address, writes, before)), *notes, *questions)
        yield from operations.append_notes(self._face, thread_id, notes)

    def _keep_early(self, address: Address, questions: tuple[Note, ...]) -> None:
        key = address.thread_id, address.checkpoint_id
        self._early[key] = (*self._early.get(key, ()), *questions)
        if len(self._early) > _MOST_EARLY:
            self._early.pop(next(iter(self._early)), None)

    def get(self, address: Address, read: Read) -> CheckpointTuple | None:
        """The checkpoint that *address* names, or the newest."""
        header = self.reading.find(address)
        found = self.reading.load(header) if header is not None else None
        return self._tuple(found, read, lazy=False) if found is not None else None

    def _tuple(self, found: Found, read: Read, *, lazy: bool) -> CheckpointTuple | None:
        said = read_beside(found.beside)
        if said is None:
            raise UsageError(
                f"run {found.header.run_id!r} is not a LangGraph thread",
                hint="use another thread_id, or another storage",
                run_id=found.header.run_id,
            )
        channels: dict[str, Any]
        if lazy:
            channels = Channels(found.texts, read)
        else:
            channels = {key: read(text) for key, text in found.texts.items()}
        writes = self.reading.writes(found.header, read)
        return tuple_of(found.header, channels, said, writes)

    def listing(
        self,
        address: Address | None,
        read: Read,
        *,
        wanted: Mapping[str, Any],
        before: str | None,
        limit: int | None,
    ) -> Iterator[list[CheckpointTuple]]:
        """Checkpoints, newest first, some at a time; nothing is held in between."""
        plain, rest = split_metadata({k: v for k, v in wanted.items() if v is not None})
        rest |= {key: None for key, value in wanted.items() if value is None}
        left = limit
        if left is not None and left <= 0:
            return
        headers = self.reading.listing(address, plain, before)
        for page in pages(headers, PAGE if left is None or rest else min(left, PAGE)):
            found = self.reading.load_many(page)
            made: list[CheckpointTuple] = []
            for header in page:
                one = found.get((header.run_id, header.scope, header.seq))
                tuple_ = self._tuple(one, read, lazy=True) if one is not None else None
                if tuple_ is not None and _has(tuple_, rest):
                    made.append(tuple_)
            made = made[:left]
            yield made
            left = None if left is None else left - len(made)
            if left == 0:
                return

    def delta_history(
        self, address: Address, channels: Sequence[str], read: Read
    ) -> dict[str, DeltaChannelHistory]:
        """Each channel's nearest stored value, and the writes to it since then."""
        history = _History(channels)
        target = self.reading.find(address)
        while target is not None and history.remaining:
            line = self.reading.ancestors(target, PAGE)
            found = self.reading.load_many(line)
            for header in line:
                one = found.get((header.run_id, header.scope, header.seq))
                if one is None or not history.remaining:
                    break
                history.take(one, self.reading.written(header, header.id), read)
            target = line[-1] if len(line) == PAGE else None
        return history.result()


class _History:
    """Collects what channels were written, from the newest ancestor to the oldest."""

    def __init__(self, channels: Sequence[str]) -> None:
        self._writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        self._seeds: dict[str, Any] = {}
        self.remaining = set(channels)

    def take(self, found: Found, notes: Sequence[bytes], read: Read) -> None:
        """Add an ancestor. Writes to the one that holds a channel's value come after it."""
        for task, channel, text in reversed(fold(notes)):
            if channel in self.remaining:
                self._writes[channel].append((task, channel, read(text)))
        for channel in [*self.remaining]:
            if channel in found.texts:
                self._seeds[channel] = read(found.texts[channel])
                self.remaining.discard(channel)

    def result(self) -> dict[str, DeltaChannelHistory]:
        made: dict[str, DeltaChannelHistory] = {}
        for channel, writes in self._writes.items():
            made[channel] = {"writes": writes[::-1]}
            if channel in self._seeds:
                made[channel]["seed"] = self._seeds[channel]
        return made


def draft_of(
    place: Place,
    texts: Mapping[str, bytes | Items],
    said: bytes,
    checkpoint_id: str,
    lineage: Lineage,
    *,
    branching: SortedBranches = _BRANCHING,
    stored: Callable[[], None] | None = None,
) -> CheckpointDraft:
    """The draft of a checkpoint whose parent is the one that *lineage* names."""
    return CheckpointDraft(
        form="",
        place=place,
        values={k: t if isinstance(t, Items) else Lazy(t) for k, t in texts.items()},
        natures=dict.fromkeys(texts, Nature.TAGGED),
        lineage=lineage,
        id=checkpoint_id,
        door=Door("thread"),
        extra=lambda _: said,
        branching=branching,
        on_stored=stored,
    )


def _has(found: CheckpointTuple, wanted: Mapping[str, Any]) -> bool:
    metadata: Mapping[str, Any] = dict(found.metadata)
    return all(metadata.get(key) == value for key, value in wanted.items())
