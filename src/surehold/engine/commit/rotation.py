"""Changing the key that runs are encrypted with, and throwing a run's key away.

A run's bodies are encrypted with a data key that the journal keeps, wrapped, in a `key` note. So
rotating touches no body: a note with the data key wrapped by the new key is appended, then the
older ones are erased. And erasing them without a new one leaves nothing that could open the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from surehold.core.records import Record, check_run_id
from surehold.engine.crypto import SHREDDED, Keyring, key_notes, read_note, shredding
from surehold.engine.journal import Note, Request
from surehold.errors import ConflictError, SureholdError, UsageError

if TYPE_CHECKING:
    from surehold.engine.commit.face import Face

_TRIES = 16


def rotate_keys(face: Face, name_or_run_id: str | None) -> int:
    """Bring one run, the runs of a name, or all under the key that encrypts now.

    Gives how many runs had to be changed. Interrupted anywhere, it leaves every run readable, by
    the old key or the new, and another call continues. A run whose key is missing is left as it
    is, and reported when all others are done.
    """
    keys = face.reader.sealer.keys
    if keys is None:
        raise UsageError(
            "there is no key to rotate to",
            hint="open the manager with encryption_key=the new one and old_keys=[the old ones]",
        )
    if name_or_run_id is not None:
        check_run_id(name_or_run_id, "name_or_run_id")
    changed = 0
    failure: SureholdError | None = None
    for run in face.reader.known_runs(name_or_run_id):
        try:
            changed += _rotate(face, keys, run.run_id)
        except SureholdError as error:
            failure = failure or error
    if changed:
        face.storage.compact()
    if failure is not None:
        raise failure
    return changed


def _rotate(face: Face, keys: Keyring, run_id: str) -> bool:
    notes = list(key_notes(face.storage, run_id))
    if not notes:
        return False
    newest = read_note(notes[0].body, run_id)
    wrapped = keys.rewrap(newest, run_id) if keys.needs_rotation(newest) else None
    old = notes if wrapped is not None else notes[1:]
    if not old:
        return False
    added = () if wrapped is None else (Note(kind="key", content=wrapped),)
    _replace(face, run_id, old, added, {})
    return True


def shred_run(face: Face, run_id: str) -> bool:
    """Erase a run's key, so that its states cannot be read by anyone any more.

    Gives False if that was done before. Headers, metadata and tags stay.
    """
    face.reader.known(check_run_id(run_id))
    notes = list(key_notes(face.storage, run_id))
    if not notes:
        if any(shredding(face.storage, run_id)):
            return False
        raise UsageError(
            f"run {run_id!r} is not encrypted", hint="delete_run removes it", run_id=run_id
        )
    _replace(face, run_id, notes, (), SHREDDED)
    face.storage.compact()
    return True


def _replace(
    face: Face,
    run_id: str,
    old: Sequence[Record],
    added: Iterable[Note],
    metadata: dict[str, Any],
) -> None:
    """Append *added* and a note that *old* goes, in one batch; then erase it for good."""
    erased = [
        {"first": record.header.seq, "last": record.header.seq, "digest": record.header.digest}
        for record in reversed(old)
    ]
    prune = Note(kind="prune", content={"erased": erased}, metadata=metadata)
    _append(face, Request(run_id=run_id, notes=(*added, prune)))
    face.storage.delete(run_id, erase=[record.header.seq for record in old])
    face.journal.invalidate(run_id)
    face.reader.sealer.forget_key(run_id)
    face.reader.forget_states()


def _append(face: Face, request: Request) -> None:
    """Append notes, whatever else is written to the run meanwhile."""
    for tries_left in reversed(range(_TRIES)):
        outcome = face.engine.commits.commit(face.journal, request)
        if outcome.error is None:
            return
        if not isinstance(outcome.error, ConflictError) or not tries_left:
            raise outcome.error
        # Keys do not depend on what a run's states are: its new head will do.
        face.journal.invalidate(request.run_id)
