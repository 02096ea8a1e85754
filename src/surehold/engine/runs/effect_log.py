"""Notes of an uncompleted step: effects, items, questions, answers, timers.

A resume needs the notes after the run's newest checkpoint. A checkpoint that completes a step
settles the notes of that step; one taken in the middle of a step carries them along, or says in
its metadata (`OPEN_FROM`) after which record they begin.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from surehold.core.records import (
    NOTE_KINDS,
    Answer,
    Attributes,
    Effect,
    Item,
    Mailbox,
    Message,
    Published,
    Question,
    Timer,
)
from surehold.engine.commit import WARNED
from surehold.engine.journal import Note
from surehold.engine.runs.messages import Mail
from surehold.errors import StorageError

logger = logging.getLogger("surehold.checkpoint")


Entry = Effect | Item | Question | Answer | Timer | Message | Mailbox | Published
_E = TypeVar("_E", Effect, Item, Question, Answer, Timer, Published)
_NAMES = {kind: name for name, kind in NOTE_KINDS.items()}


class Spot(msgspec.Struct, frozen=True):
    """The position in a run that a note is written at."""

    scope: str
    step: int
    node: str


class Ledger:
    """The open notes of one run.

    *append* writes notes without blocking the event loop; without notes it only waits for those
    before. *append_now* blocks until they are durable. An entry is in the ledger before it is
    written, so that a checkpoint taken meanwhile, after a cancellation or a failing sibling,
    carries it.
    """

    def __init__(
        self,
        append: Callable[[Sequence[Note], bool], Awaitable[None]],
        append_now: Callable[[Sequence[Note]], None],
    ) -> None:
        self._append = append
        self._append_now = append_now
        self.entries: dict[tuple[str, str], Note] = {}
        """The open notes, by kind and id."""
        self._deferred: list[Note] = []
        self._taken: Note | None = None
        """The mailbox, which is deferred once, however many messages were taken since."""
        self._carried: list[Note] = []
        """Deferred notes that the checkpoint being saved carries."""
        self.mail = Mail()
        """Messages to the run; they are not among the entries, and no checkpoint carries them."""
        self.given: dict[str, Any] = {}
        """Answers that came with this resume, by the question's id."""
        self.refused: Exception | None = None
        """The reason why one of them does not fit."""

    def take(self, notes: Iterable[Note]) -> None:
        """Add notes that were read from the journal."""
        for note in notes:
            self._put(note)

    def _put(self, note: Note) -> Note | None:
        """Add *note*; gives the note that it replaces."""
        if note.kind == "message":
            self.mail.add(note.content)
            return None
        if note.kind == "mailbox":
            self.mail.set_taken(note.content)
        before = self.entries.get((note.kind, note.content.id))
        self.entries[note.kind, note.content.id] = note
        if note.kind == "answer":
            self.entries.pop(("question", note.content.id), None)
        elif note.kind == "question":  # asked again: the answer was taken back, or did not fit
            self.entries.pop(("answer", note.content.id), None)
        return before

    def _withdraw(self, note: Note, before: Note | None) -> None:
        """Undo `_put` of a note that could not be written; an outcome stays known."""
        if note.kind == "effect" and note.content.done:
            return
        key = (note.kind, note.content.id)
        if before is not None:
            self.entries[key] = before
        else:
            self.entries.pop(key, None)

    def find(self, kind: type[_E], id: str) -> _E | None:
        """The newest entry of that kind with that id."""
        note = self.entries.get((_NAMES[kind], id))
        return note.content if note is not None else None

    async def write(self, entry: Entry, spot: Spot, *, wait: bool = True) -> None:
        """Append *entry* to the journal; it is durable when this returns.

        Without *wait*, it is durable before anything that is written after it.
        """
        note = _note(entry, spot)
        with self._sending(note, self._put(note)) as notes:
            await self._append(notes, wait)

    def write_now(self, entry: Entry, spot: Spot) -> None:
        """Append *entry* to the journal, blocking until it is durable."""
        note = _note(entry, spot)
        with self._sending(note, self._put(note)) as notes:
            self._append_now(notes)

    async def flush(self) -> None:
        """Make durable what was deferred, and what was written without waiting."""
        with self._sending() as notes:
            await self._append(notes, True)

    def flush_now(self) -> None:
        """Make durable what was deferred, blocking until it is."""
        if self._deferred or self._taken is not None:
            with self._sending() as notes:
                self._append_now(notes)

    @contextmanager
    def _sending(
        self, note: Note | None = None, before: Note | None = None
    ) -> Iterator[tuple[Note, ...]]:
        """Give the deferred notes and *note*; an error in the block takes them back.

        *before* is the note that *note* has replaced.
        """
        deferred = self.deferred()
        try:
            yield deferred if note is None else (*deferred, note)
        except Exception:
            if note is not None:
                self._withdraw(note, before)
            self.defer_again(deferred)
            raise

    def defer(self, entry: Entry, spot: Spot) -> None:
        """Write *entry* together with the next one."""
        note = _note(entry, spot)
        self._put(note)
        self._deferred.append(note)

    def defer_again(self, notes: Sequence[Note]) -> None:
        """Write *notes*, which could not be stored, together with the next one."""
        self._deferred[:0] = notes

    def postpone(self, notes: Sequence[Note], error: StorageError) -> bool:
        """Defer notes whose failure was only logged; False if one of them must not wait.

        An outcome may wait: without it, a crash leaves the call to its `in_doubt` policy. The
        intent of a call, a question, an answer or a timer may not: what follows relies on it.
        """
        if not error.facts.get(WARNED) or not all(map(_may_wait, notes)):
            return False
        self.defer_again(notes)
        return True

    def ask(self, question: Question, spot: Spot) -> None:
        """Have *question* written with the checkpoint that makes the run wait."""
        self._put(_note(question, spot))

    def carried(
        self, *, permits: bool, past: Callable[[Note], bool] | None = None
    ) -> tuple[Note, ...]:
        """The notes that a checkpoint carries along: all that are not *past*.

        If the ending *permits* it, calls that raised are left out: a resume makes them again. Call
        `saved` when the checkpoint is stored.
        """
        self._carried = list(self._deferred)
        if self._taken is not None:
            self._carried.append(self._taken)
        past = _but_kept(past)
        return tuple(
            # The cost of a call is in the record of its outcome.
            msgspec.structs.replace(note, metadata={}) if note.kind == "effect" else note
            for note in self.entries.values()
            if not (past is not None and past(note))
            and not (permits and note.kind == "effect" and note.content.error is not None)
        )

    def saved(self, past: Callable[[Note], bool], run_id: str) -> None:
        """Settle what is *past* now that the checkpoint is stored."""
        warn_in_doubt(run_id, filter(past, self.entries.values()))
        carried, self._carried = {id(note) for note in self._carried}, []
        if id(self._taken) in carried:
            self._taken = None
        self._deferred = [note for note in self._deferred if id(note) not in carried]
        self.settle(past)

    def deferred(self) -> tuple[Note, ...]:
        """The notes that wait to be written with the next one, which they are from now on."""
        deferred, self._deferred = self._deferred, []
        taken, self._taken = self._taken, None
        return (*deferred, taken) if taken is not None else tuple(deferred)

    def renew(self) -> tuple[Note, ...]:
        """Forget the notes of a run that begins anew; give those that stay true."""
        self._deferred, self._taken = [], None
        kept = {key: note for key, note in self.entries.items() if note.kind in KEPT}
        self.entries = kept
        return tuple(kept.values())

    def take_message(self, topic: str, id: str, run_id: str, spot: Spot) -> Message | None:
        """Take the next message of *topic* at the position *id*; None if there is none.

        It is recorded with the next note. A crash before that changes nothing: the same message is
        then the next again.
        """
        message = self.mail.take(topic)
        if message is not None:
            name = f"receive {topic}"
            taken = Effect(id=id, name=name, key="", policy="retry", done=True, value=message.value)
            self.defer(taken, spot)
            self._defer_taken(run_id, spot)
        return message

    def end_wait(self, timer: Timer, spot: Spot) -> None:
        """Have the run wait no more for *timer*, recorded with the next note."""
        note = self.entries.get(("timer", timer.id))
        if note is not None and self._waits(note):
            self.defer(msgspec.structs.replace(timer, expired=True), spot)

    def put_back(self, message: Message, run_id: str, spot: Spot) -> None:
        """Give *message* to the next call that receives of its topic."""
        self.mail.put_back(message)
        self._defer_taken(run_id, spot)

    def _defer_taken(self, run_id: str, spot: Spot) -> None:
        self._taken = _note(Mailbox(id=run_id, taken=dict(self.mail.taken)), spot)
        self.entries["mailbox", run_id] = self._taken

    def settle(self, past: Callable[[Note], bool]) -> None:
        """Remove the notes that are *past*."""
        if self.entries:
            gone = _but_kept(past) or past
            self.entries = {key: note for key, note in self.entries.items() if not gone(note)}
            self._deferred = [note for note in self._deferred if not past(note)]

    def waiting(self) -> list[Note]:
        """Questions without an answer, open timers, and effects in doubt.

        An effect that the resume settles by itself, by a probe or another call, is none of them.
        """
        return [note for note in self.entries.values() if self._waits(note)]

    def _waits(self, note: Note) -> bool:
        if note.kind == "timer":
            timer: Timer = note.content
            if timer.expired or (timer.mail and self.mail.has(timer.name)):
                return False
            return not any((kind, timer.id) in self.entries for kind in ("answer", "effect"))
        if note.kind == "question":
            return not note.content.expired
        return in_doubt(note) and note.content.policy not in SETTLED_BY_RESUME

    def notes(self) -> list[Note]:
        """All open notes, in the order of their first record."""
        return [*self.entries.values()]

    def effects(self) -> list[Note]:
        """All effects of the open steps."""
        return [note for note in self.entries.values() if note.kind == "effect"]


def _note(entry: Entry, spot: Spot) -> Note:
    metadata: dict[str, Any] = {}
    if type(entry) is Effect and (entry.tokens or entry.dollars):
        # The cost of a call is in the header, so that no record is opened for it.
        spent = {"tokens": entry.tokens, "dollars": entry.dollars, "name": entry.name}
        named = {"model": entry.model, "output": entry.output}
        metadata = {"spent": spent | {key: value for key, value in named.items() if value}}
    elif type(entry) is Mailbox:
        metadata = {"taken": entry.taken}  # what retention must keep is decided without a key
    elif type(entry) is Answer and entry.id.startswith("update "):
        metadata = {"answers": entry.id}
    elif type(entry) is Attributes:
        metadata = dict(entry.found_by)
    return Note(
        kind=_NAMES[type(entry)],
        content=entry,
        scope=spot.scope,
        step=spot.step,
        node=spot.node,
        metadata=metadata,
    )


KEPT = ("mailbox", "published", "attributes")
"""Notes that are true of the run and not of a step: every checkpoint carries them."""


def _but_kept(past: Callable[[Note], bool] | None) -> Callable[[Note], bool] | None:
    return None if past is None else lambda note: note.kind not in KEPT and past(note)


def past_step(step: int | None) -> Callable[[Note], bool]:
    """True for the notes of steps up to *step*, or of all of them.

    An effect that is in doubt stays until its outcome is known, unless the run has ended.
    """
    return lambda note: step is None or (_step_of(note) <= step and not in_doubt(note))


def warn_in_doubt(run_id: str, settled: Iterable[Note]) -> None:
    """Log the effects that a completed run leaves in doubt, say after a timeout."""
    ids = [note.content.id for note in settled if in_doubt(note)]
    if ids:
        logger.warning(
            "run %s is completed, and it is not known whether %s happened (surehold log %s)",
            run_id,
            ", ".join(ids),
            run_id,
        )


def _may_wait(note: Note) -> bool:
    return (
        note.kind in ("item", "mailbox")
        or (note.kind == "effect" and note.content.done)
        or (note.kind == "timer" and note.content.expired and not note.content.event)
    )


def _step_of(note: Note) -> int:
    """The step of the run that a note belongs to, in whatever scope it was written."""
    if not note.scope:
        return note.step
    return int(note.scope.partition("/")[0].rpartition("@")[2].partition(".")[0])


SETTLED_BY_RESUME = ("retry", "probe")
"""Policies on effects in doubt that need no person."""


def in_doubt(note: Note) -> bool:
    """True for an effect that began and whose outcome is unknown."""
    return note.kind == "effect" and not note.content.done and not note.content.repeat


def permitted(entry: Effect) -> Effect:
    """*entry*, a call that raised, with permission for one more attempt."""
    return msgspec.structs.replace(
        entry, done=False, repeat=True, error=None, raised=None, failures=0
    )
