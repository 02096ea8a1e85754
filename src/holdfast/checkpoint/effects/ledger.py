"""What happened inside a step that is not completed yet: effects, items, questions, answers.

Each is a note in the journal. All that counts for a resume stands after the run's newest
checkpoint: a checkpoint that completes a step makes the notes of that step past, and one that is
taken in the middle of a step carries them along.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.checkpoint.journal import Note, Reader
from holdfast.core.records import Header

__all__ = [
    "BRANCH",
    "Answer",
    "Effect",
    "Item",
    "Ledger",
    "Line",
    "Question",
    "Spot",
    "branch_note",
    "read_line",
    "read_notes",
    "spans_to",
]


class Effect(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call to the outside world: that it was begun, and once it has ended, how."""

    id: str
    """Where it stands in the run: unique, the same each time the run comes by."""
    name: str
    key: str
    """The idempotency key that goes with the call."""
    args: str = ""
    """A digest of the arguments."""
    policy: str = "ask"
    began: str = ""
    done: bool = False
    repeat: bool = False
    """Someone said that it did not happen, and that it may be called again."""
    value: msgspec.Raw = msgspec.Raw()
    error: tuple[str, str] | None = None
    """The type and the text of the exception that it ended with."""
    seconds: float = 0.0
    tokens: int = 0
    dollars: float = 0.0


class Item(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A completed item of a parallel node."""

    id: str
    args: str
    value: msgspec.Raw


class Question(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a node waits to be told."""

    id: str
    text: msgspec.Raw
    """The question, as the codec writes it."""
    schema: Any = None
    """The JSON Schema of the answers that fit, if the node said so."""
    problem: str = ""
    """Why the last answer did not fit."""


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a node was told."""

    id: str
    value: msgspec.Raw


Entry = Effect | Item | Question | Answer
_E = TypeVar("_E", Effect, Item, Question, Answer)
_KINDS: dict[str, type[Any]] = {
    "effect": Effect,
    "item": Item,
    "question": Question,
    "answer": Answer,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class Spot(NamedTuple):
    """Where in a run something is noted."""

    scope: str
    step: int
    node: str


class Ledger:
    """The open notes of one run, and the way to write more of them."""

    def __init__(self, append: Callable[[Sequence[Note], bool], Awaitable[None]]) -> None:
        self._append = append
        self._open: dict[tuple[str, str], Note] = {}
        self.given: dict[str, Any] = {}
        """Answers that came with this resume, by the question's id."""
        self.refused: Exception | None = None
        """Why one of them did not fit."""

    def take(self, notes: Iterable[Note]) -> None:
        """Go on with these, read from the journal."""
        for note in notes:
            self._put(note)

    def _put(self, note: Note) -> None:
        self._open[note.kind, note.content.id] = note
        if note.kind == "answer":
            self._open.pop(("question", note.content.id), None)

    def find(self, kind: type[_E], id: str) -> _E | None:
        """The newest entry of that kind with that id."""
        note = self._open.get((_NAMES[kind], id))
        return note.content if note is not None else None

    async def write(self, entry: Entry, spot: Spot, *, wait: bool = True) -> None:
        """Append *entry* to the journal; it is durable when this returns.

        Without *wait*, it is so before anything that is written after it.
        """
        note = _note(entry, spot)
        await self._append((note,), wait)
        self._put(note)

    def ask(self, question: Question, spot: Spot) -> None:
        """Have *question* written with the checkpoint that parks the run."""
        self._put(_note(question, spot))

    def carried(self, *, failed: bool) -> tuple[Note, ...]:
        """What a checkpoint in the middle of a step takes along.

        After a failure, the calls that ended with an exception are left behind, to be made again.
        """
        return tuple(
            msgspec.structs.replace(note, metadata={})  # what it cost was told when it ended
            for note in self._open.values()
            if not (failed and note.kind == "effect" and note.content.error is not None)
        )

    def clear(self, step: int | None) -> None:
        """The run's steps up to *step* are completed; without one, all are."""
        if not self._open:
            return
        if step is None:
            self._open.clear()
            return
        self._open = {key: note for key, note in self._open.items() if _step_of(note) > step}

    def waiting(self) -> list[Note]:
        """Questions without an answer, and effects that no one knows the outcome of."""
        return [note for note in self._open.values() if waits(note)]

    def effects(self) -> list[Note]:
        """All effects of the open steps."""
        return [note for note in self._open.values() if note.kind == "effect"]

    def items(self) -> list[Note]:
        """All completed items of the open steps."""
        return [note for note in self._open.values() if note.kind == "item"]


def _note(entry: Entry, spot: Spot) -> Note:
    return Note(
        kind=_NAMES[type(entry)],
        content=entry,
        scope=spot.scope,
        step=spot.step,
        node=spot.node,
        metadata=_spent(entry),
    )


def _spent(entry: Entry) -> dict[str, Any]:
    """What a call cost, so that what a run cost is known without opening its records."""
    if not isinstance(entry, Effect) or not (entry.tokens or entry.dollars):
        return {}
    return {"spent": {"tokens": entry.tokens, "dollars": entry.dollars}}


def _step_of(note: Note) -> int:
    """The step of the run in whose course it was written, in whatever scope."""
    if not note.scope:
        return note.step
    return int(note.scope.partition("/")[0].rpartition("@")[2].partition(".")[0])


def waits(note: Note) -> bool:
    """Whether someone outside has to say something about it."""
    if note.kind == "effect":
        return not note.content.done and not note.content.repeat
    return note.kind == "question"


# Branches

BRANCH = "branch"
"""The kind of the notes that say that a run goes on from an earlier record."""


def branch_note(after: int, until: int) -> Note:
    """Says that a run goes on from its record *after*, what came then, up to *until*, being left.

    What was recorded there is done anew. Such a note goes with the checkpoint that the branch
    begins with.
    """
    return Note(kind=BRANCH, content={}, metadata={"after": after, "until": until})


def spans_to(branches: Sequence[Header], head: int) -> list[range]:
    """The seqs that lead to the record *head*, newest first; *branches* are notes, oldest first."""
    spans = []
    for note in reversed(branches):
        after, until = note.metadata["after"], note.metadata["until"]
        if until < head:
            spans.append(range(until + 1, head + 1))
            head = after
    return [*spans, range(head + 1)]


class Line(NamedTuple):
    """What was recorded after a checkpoint, on the way that led on from it."""

    notes: list[Note]
    branch: int
    """Where the last branch on that way began; 0 if there is none."""
    end: int
    """The last record on that way: the run's newest, unless it was left meanwhile."""
    others: list[Note]
    """What was recorded on other ways."""


def read_line(reader: Reader, after: Header, head: int) -> Line:
    """What was recorded between a checkpoint and *head*, the run's newest record."""
    found: list[tuple[int, Note]] = []
    branches: list[Header] = []
    for record in reader.records(after.run_id, after.seq + 1, head):
        header = record.header
        if header.frame != "note":
            continue
        if header.kind == BRANCH:
            branches.append(header)
        elif header.kind in _KINDS:
            content = msgspec.json.decode(reader.sealer.open(record), type=_KINDS[header.kind])
            note = Note(
                kind=header.kind,
                content=content,
                scope=header.scope,
                step=header.step,
                node=header.node,
            )
            found.append((header.seq, note))
    for end in (head, *(note.metadata["until"] for note in reversed(branches))):
        spans = spans_to(branches, end)
        if any(after.seq in span for span in spans):
            break
    notes: list[Note] = []
    others: list[Note] = []
    for seq, note in found:
        (notes if any(seq in span for span in spans) else others).append(note)
    began = [span.start - 1 for span in spans if span.start > after.seq]
    return Line(notes, max(began, default=0), end, others)


def read_notes(reader: Reader, after: Header, head: int) -> list[Note]:
    """The notes of a ledger between a checkpoint and the record with seq *head*."""
    return read_line(reader, after, head).notes
