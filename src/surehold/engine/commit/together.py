"""Saving several runs together: all of their checkpoints are stored, or none."""

from __future__ import annotations

from collections.abc import Sequence

from surehold.core.records import Header
from surehold.engine.commit.face import Face
from surehold.engine.commit.save import ask_hooks, fire, header_data
from surehold.engine.commit.steps import Steps, Work
from surehold.engine.hooks import HookEvent
from surehold.engine.journal import CheckpointDraft, Note, Outcome, Request, Saveable, saved
from surehold.errors import ConflictError
from surehold.storage.base import Atomic


def save_together(
    face: Face,
    requests: Sequence[tuple[Request, Saveable | None]],
    last: CheckpointDraft,
    intent: Note,
    epoch: int | None = None,
) -> Steps[Header]:
    """Store what the requests ask for and the checkpoint *last*, all or none.

    On a storage that is not `Atomic`, *intent* is appended to the run of *last* first, then the
    requests, then *last*, which alone decides whether the others count. *epoch* belongs to the
    lease of its run. Returns the header of *last*.
    """
    asked: list[tuple[Request, Saveable | None]] = []
    for request, state in requests:
        seen = state
        if request.draft is not None:
            request.draft, seen = yield from ask_hooks(face, request.draft, state)
        asked.append((request, seen))
    record = Request(run_id=last.place.run_id, draft=last, force=True, epoch=epoch)
    members = [request for request, _ in asked]
    if isinstance(face.storage, Atomic):
        outcomes = yield from append_together(face, [*members, record])
    else:
        yield from append_together(
            face, [Request(run_id=record.run_id, notes=(intent,), epoch=epoch)]
        )
        outcomes = yield from append_together(face, members)
        outcomes += yield from append_together(face, [record])
    for (_, state), (_, seen), outcome in zip(requests, asked, outcomes, strict=False):
        header = outcome.header
        if header is None or not outcome.written:
            continue
        if state is not None:
            saved(state, header)
        if face.counts_saves:
            face.count_save(header)
        if seen is not None and face.hears(HookEvent.POST_CHECKPOINT_SAVE):
            data = {**header_data(header), "state": seen}
            yield from fire(face, HookEvent.POST_CHECKPOINT_SAVE, header.name, data)
    header = outcomes[-1].header
    assert header is not None
    return header


def append_together(face: Face, requests: list[Request]) -> Steps[list[Outcome]]:
    """Store what several requests ask for: all, or none and a `ConflictError`.

    On a storage that is not `Atomic`, the death of the process may leave only the first ones.
    """
    if not requests:
        return []
    outcomes: list[Outcome] = yield Work(
        lambda: face.engine.commits.together(face.journal, requests)
    )
    for outcome in outcomes:
        if outcome.error is not None:
            if isinstance(outcome.error, ConflictError):
                face.retention.forget_all()
            raise outcome.error
    return outcomes
