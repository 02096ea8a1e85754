"""Taking back an answer that no process has read yet."""

from __future__ import annotations

import msgspec

from surehold.core.records import Question
from surehold.engine.journal import Note, Reader, unknown_run
from surehold.engine.managers import Target, opened
from surehold.engine.runs.waiting import Waiting, check_not_held, open_notes, waiting_of
from surehold.errors import NotFoundError
from surehold.storage.base import RecordQuery


def retract(run_id: str, id: str, *, by: str = "", storage: Target = None) -> Waiting:
    """Take back an answer that no process has read yet: the run waits again.

    Both stay in the journal. A run that a live process executes is a `LeaseHeldError`; an answer
    that a resume has used, and one that was never given, are a `NotFoundError`.
    """
    with opened(storage) as manager:
        reader = manager.reader
        run = reader.run(run_id)
        if run is None:
            raise unknown_run(run_id)
        check_not_held(reader, run_id)
        given = open_notes(reader, run).entries.get(("answer", id))
        asked = _question(reader, run_id, id) if given is not None else None
        if given is None or asked is None:
            raise NotFoundError(
                f"no answer to {id!r} can be taken back in run {run_id!r}",
                hint="a resume has used it, or none was given",
                run_id=run_id,
            )
        told = {"retracts": "answer", **({"by": by} if by else {})}
        note: Note = msgspec.structs.replace(given, kind="question", content=asked, metadata=told)
        manager.append_notes(run_id, (note,), head=run.seq)
        return waiting_of(run_id, note)


def _question(reader: Reader, run_id: str, id: str) -> Question | None:
    """The newest question of a run with that id."""
    for header in reader.storage.headers(RecordQuery(run_id=run_id, kind="question", notes=True)):
        for record in reader.storage.read(run_id, first=header.seq, last=header.seq):
            asked = msgspec.json.decode(reader.sealer.open(record), type=Question)
            if asked.id == id:
                return asked
    return None
