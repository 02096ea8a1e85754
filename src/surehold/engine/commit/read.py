"""Reading: listings, differences, history, verification."""

from __future__ import annotations

from datetime import datetime

import msgspec

from surehold.core.records import Header, check_run_id, read_status
from surehold.engine.commit.face import Face
from surehold.engine.commit.save import tell_repairs
from surehold.engine.commit.steps import Steps, Work
from surehold.engine.journal import Change, CheckpointMetadata, HistoryEntry
from surehold.engine.journal import changes as views
from surehold.engine.repair import RepairReport, RunVerdict, verify_missing, verify_run
from surehold.errors import UsageError
from surehold.storage.base import RecordQuery


def latest(face: Face, name_or_run_id: str) -> Steps[CheckpointMetadata | None]:
    """The newest checkpoint that a resume would take, without its state."""
    check_run_id(name_or_run_id, "name")

    def work() -> Header | None:
        run = face.reader.to_resume(name_or_run_id)
        newest = face.reader.newest(run) if run is not None else None
        return face.retention.with_tags(newest) if newest is not None else None

    header = yield Work(work)
    yield from tell_repairs(face)
    return None if header is None else views.metadata_of(header)


def exists(face: Face, checkpoint_id: str) -> bool:
    """Return True if there is a checkpoint with exactly that id."""
    found = face.storage.find(checkpoint_id) if checkpoint_id else []
    return any(header.id == checkpoint_id for header in found)


def checkpoints(
    face: Face, name_or_run_id: str | None, query: RecordQuery
) -> list[CheckpointMetadata]:
    """Checkpoints that *query* wants, newest first, with the tags they have now."""
    if query.status is not None:
        query = msgspec.structs.replace(query, status=read_status(query.status))
    _check_aware(query.since, "since")
    _check_aware(query.until, "until")
    headers = face.retention.listed(query, name_or_run_id)
    return [views.metadata_of(header) for header in headers]


def diff(face: Face, a: str, b: str) -> tuple[Change, ...]:
    """The changes from the state of checkpoint *a* to that of *b*."""
    first, second = (face.reader.load(face.reader.resolve(one)) for one in (a, b))
    return views.changes_between(first, second)


def tree(face: Face, name_or_run_id: str) -> dict[str | None, list[str]]:
    """The ids of each checkpoint's children, by the id of their parent."""
    return views.tree(face.storage.page(RecordQuery(), about=name_or_run_id).headers)


def history(face: Face, name_or_run_id: str, scope: str) -> list[HistoryEntry]:
    """The checkpoints of a run, oldest first, with what each changed."""
    run = face.reader.known_runs(name_or_run_id)[0]
    return list(views.history(face.reader, run, scope))


def blame(face: Face, name_or_run_id: str, path: str, scope: str) -> CheckpointMetadata | None:
    """The checkpoint that last wrote the value at *path*."""
    run = face.reader.known_runs(name_or_run_id)[0]
    return views.blame(face.reader, run, path, scope)


def verify(face: Face, name_or_run_id: str | None) -> list[RunVerdict]:
    """Recompute the digests of one run, the runs of a name, or all."""
    reader = face.reader
    found = [verify_run(reader, run) for run in reader.known_runs(name_or_run_id)]
    if name_or_run_id is None:
        known = {one.run_id for one in found}
        found += [one for one in verify_missing(reader) if one.run_id not in known]
    for _ in range(sum(len(verdict.problems) for verdict in found)):
        face.metrics.integrity_error()
    return found


def repair(face: Face, run_id: str | None, *, dry_run: bool) -> Steps[RepairReport]:
    """Put aside what is damaged in one run, or in all and in the medium."""
    if run_id is not None:
        check_run_id(run_id)
    report: RepairReport = yield Work(lambda: face.repairer.repair(run_id, dry_run=dry_run))
    yield from tell_repairs(face)
    return report


def _check_aware(moment: datetime | None, what: str) -> None:
    if moment is not None and moment.tzinfo is None:
        raise UsageError(f"{what} has no time zone", hint="give datetime.now(UTC)")
