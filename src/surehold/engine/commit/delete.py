"""Deleting, pruning, pins, releases and tags."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from surehold.core.records import Header
from surehold.core.state import read_tags
from surehold.engine.commit.face import Face
from surehold.engine.commit.save import append_notes, erase, fire
from surehold.engine.commit.steps import Steps, Work
from surehold.engine.hooks import HookEvent
from surehold.engine.journal import Note, no_run
from surehold.storage.base import RunInfo


def hide(face: Face, run_id: str, name: str, seqs: Sequence[int]) -> Steps[None]:
    """Hide records of a run and free the space of what no visible checkpoint needs."""

    def work() -> None:
        face.storage.delete(run_id, hide=seqs)
        face.journal.invalidate(run_id)
        face.retention.forget(run_id, name)

    yield Work(work)
    yield from erase(face, run_id)


def delete_checkpoint(face: Face, checkpoint_id: str) -> Steps[bool]:
    """Remove one checkpoint; those built on it can still be loaded."""
    header: Header = yield Work(lambda: face.reader.resolve(checkpoint_id))

    def hide_it() -> None:
        face.storage.delete(header.run_id, hide=[header.seq])
        face.retention.forget(header.run_id, header.name)

    yield Work(hide_it)
    yield from erase(face, header.run_id)
    return True


def delete_run(face: Face, run_id: str) -> int:
    """Remove a run and all its records; returns how many there were."""
    count = face.storage.delete(run_id)
    face.journal.invalidate(run_id)
    face.retention.forget_all()
    if not count:
        raise no_run(run_id)
    return count


def cleanup(face: Face, name_or_run_id: str) -> Steps[int]:
    """Apply the retention rules now and free the space; return the checkpoints gone."""
    started = time.perf_counter()
    runs: list[RunInfo] = yield Work(lambda: list(face.reader.runs_of(name_or_run_id)))
    ids = [run.run_id for run in runs]
    data: dict[str, Any] = {
        "agent_id": runs[0].name if runs else name_or_run_id,
        "run_id": ids[0] if len(ids) == 1 else "",
        "run_ids": ids,
        "timestamp": datetime.now(UTC),
    }
    yield from fire(face, HookEvent.PRE_PRUNE, data["agent_id"], data)
    hidden: dict[str, int] = yield Work(lambda: face.retention.hide_now(runs))
    freed = 0
    for run_id in dict.fromkeys([*ids, *hidden]):
        freed += yield from erase(face, run_id)
    yield Work(face.storage.compact)
    count = sum(hidden.values())
    face.metrics.pruned(count)
    milliseconds = (time.perf_counter() - started) * 1000
    data |= {"removed": count, "freed": freed, "duration_ms": milliseconds}
    yield from fire(face, HookEvent.POST_PRUNE, data["agent_id"], data)
    return count


def mark(face: Face, checkpoint_id: str, kind: str, on: bool) -> Steps[str]:
    """Pin or release a checkpoint, or undo that; returns the checkpoint's id."""
    header: Header = yield Work(lambda: face.reader.resolve(checkpoint_id))
    note = mark_note(header, kind, content={"on": on})
    yield from append_notes(face, header.run_id, (note,))
    return header.id


def tag(face: Face, checkpoint_id: str, tags: Sequence[str], remove: Sequence[str]) -> Steps[str]:
    """Add tags to a checkpoint and remove others; returns the checkpoint's id."""
    new, old = read_tags(tags), read_tags(remove)
    header: Header = yield Work(lambda: face.reader.resolve(checkpoint_id))
    note = mark_note(header, "tag", new, {"add": [*new], "remove": [*old]})
    yield from append_notes(face, header.run_id, (note,))
    return header.id


def mark_note(
    header: Header, kind: str, tags: tuple[str, ...] = (), content: dict[str, Any] | None = None
) -> Note:
    """Make the note that pins, releases or tags a checkpoint."""
    return Note(
        kind=kind,
        content={},
        scope=header.scope,
        step=header.step,
        parent=header.id,
        tags=tags,
        metadata={"target": header.seq, **(content or {"on": True})},
    )
