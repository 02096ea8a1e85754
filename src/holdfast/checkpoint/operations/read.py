"""Looking: what there is, what changed, who changed it, and whether it is sound."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.checkpoint.inspect import Change, CheckpointMetadata, HistoryEntry
from holdfast.checkpoint.inspect import changes as views
from holdfast.checkpoint.journal import Saveable
from holdfast.checkpoint.manager import Steps, Work
from holdfast.checkpoint.operations.save import Saving
from holdfast.checkpoint.repair import RepairReport, RunVerdict, verify_run
from holdfast.core.records import Header, check_run_id, read_status
from holdfast.core.state import StateSnapshot
from holdfast.errors import NotFoundError, UsageError
from holdfast.storage.base import RecordQuery, RunInfo, RunQuery

__all__ = ["Looking", "no_run"]


class Looking(Saving):
    """The steps of everything that only reads."""

    def _standing(self, name_or_run_id: str, scope: str) -> tuple[RunInfo | None, Header | None]:
        """The run that a resume would take, and its newest checkpoint."""
        run = self.reader.to_resume(name_or_run_id)
        return self.reader.standing(run, scope) if run is not None else (None, None)

    def latest(self, name_or_run_id: str) -> Steps[CheckpointMetadata | None]:
        """The newest checkpoint that a resume would take, without its state."""
        _, header = yield Work(lambda: self._standing(check_run_id(name_or_run_id, "name"), ""))
        yield from self._tell_repairs()
        return None if header is None else views.metadata_of(self.retention.with_tags(header))

    def exists(self, checkpoint_id: str) -> Steps[bool]:
        """Whether there is a checkpoint with exactly that id."""
        found = yield Work(lambda: self.storage.find(checkpoint_id) if checkpoint_id else [])
        return any(header.id == checkpoint_id for header in found)

    def checkpoints(
        self,
        name_or_run_id: str | None,
        *,
        scope: str | None,
        kind: str | None,
        status: str | None,
        tag: str | None,
        metadata: Mapping[str, Any] | None,
        since: datetime | None,
        until: datetime | None,
        before: str | None,
        limit: int | None,
    ) -> Steps[list[CheckpointMetadata]]:
        """Checkpoints, newest first."""
        query = RecordQuery(
            scope=scope,
            kind=kind,
            status=None if status is None else read_status(status),
            tag=tag,
            metadata=metadata,
            since=_aware(since, "since"),
            until=_aware(until, "until"),
            before=before,
            limit=limit,
        )
        headers = yield Work(lambda: self.retention.listed(self._about(name_or_run_id, query)))
        return [views.metadata_of(header) for header in headers]

    def _about(self, name_or_run_id: str | None, query: RecordQuery) -> RecordQuery:
        if name_or_run_id is None:
            return query
        if self.reader.run(name_or_run_id) is not None:
            return msgspec.structs.replace(query, run_id=name_or_run_id)
        return msgspec.structs.replace(query, name=name_or_run_id)

    def snapshot(self, state: Saveable, reason: str = "manual") -> StateSnapshot:
        """A copy of *state* as it is now, with a summary. It is not stored."""
        return StateSnapshot(copy.deepcopy(state), self._clock(), reason)

    def diff(self, a: str, b: str) -> Steps[tuple[Change, ...]]:
        """What turns the state of checkpoint *a* into that of *b*."""

        def work() -> tuple[Change, ...]:
            first, second = (self.reader.load(self.reader.resolve(one)) for one in (a, b))
            return views.changes_between(first, second)

        return (yield Work(work))  # type: ignore[no-any-return]

    def tree(self, name_or_run_id: str) -> Steps[dict[str | None, list[str]]]:
        """The ids of each checkpoint's children, by the id of their parent."""
        query = yield Work(lambda: self._about(name_or_run_id, RecordQuery()))
        return (yield Work(lambda: views.tree(self.storage.headers(query))))  # type: ignore[no-any-return]

    def history(self, name_or_run_id: str, scope: str = "") -> Steps[list[HistoryEntry]]:
        """The checkpoints of a run, oldest first, with what each changed."""
        run = yield from self._run(name_or_run_id)
        return (yield Work(lambda: list(views.history(self.reader, run, scope))))  # type: ignore[no-any-return]

    def blame(
        self, name_or_run_id: str, path: str, scope: str = ""
    ) -> Steps[CheckpointMetadata | None]:
        """The checkpoint that last wrote the value at *path*."""
        run = yield from self._run(name_or_run_id)
        return (yield Work(lambda: views.blame(self.reader, run, path, scope)))  # type: ignore[no-any-return]

    def verify(self, name_or_run_id: str | None = None) -> Steps[list[RunVerdict]]:
        """Recompute the digests of one run, the runs of a name, or all."""

        def work() -> list[RunVerdict]:
            if name_or_run_id is None:
                runs = self.storage.runs(RunQuery())
            else:
                runs = self.reader.runs_of(name_or_run_id)
            return [verify_run(self.reader, run) for run in runs]

        verdicts: list[RunVerdict] = yield Work(work)
        if name_or_run_id is not None and not verdicts:
            raise no_run(name_or_run_id)
        for _ in range(sum(len(verdict.problems) for verdict in verdicts)):
            self.metrics.integrity_error()
        return verdicts

    def repair(self, run_id: str | None, *, dry_run: bool) -> Steps[RepairReport]:
        """Put aside what is damaged in one run, or in all and in the medium."""
        if run_id is not None:
            check_run_id(run_id)
        report: RepairReport = yield Work(lambda: self.repairer.repair(run_id, dry_run=dry_run))
        yield from self._tell_repairs()
        return report

    def _run(self, name_or_run_id: str) -> Steps[RunInfo]:
        run = yield Work(lambda: next(iter(self.reader.runs_of(name_or_run_id)), None))
        if run is None:
            raise no_run(name_or_run_id)
        return run  # type: ignore[no-any-return]


def no_run(name: str) -> NotFoundError:
    return NotFoundError(f"no run or name {name!r}", hint="check the spelling", run_id=name)


def _aware(moment: datetime | None, what: str) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise UsageError(f"{what} has no time zone", hint="give datetime.now(UTC)")
    return moment
