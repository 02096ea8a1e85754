"""The checkpoint that a resume, a rewind or a comparison starts from."""

from __future__ import annotations

import msgspec

from surehold.core.records import Header
from surehold.engine.journal import Reader
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RecordQuery, RunInfo


class Target(msgspec.Struct, frozen=True):
    """A checkpoint of a run, and the run's newest one."""

    run: RunInfo
    newest: Header
    header: Header

    @property
    def is_newest(self) -> bool:
        """True if the run has saved nothing after it."""
        return self.header.seq == self.newest.seq


def no_run(run_id: str, hint: str = "surehold runs lists the runs of a storage") -> NotFoundError:
    """The error for a run that the storage does not hold."""
    return NotFoundError(f"no run {run_id!r} to resume", hint=hint, run_id=run_id)


def find_run(reader: Reader, run_id: str) -> RunInfo:
    """The run with that id, or the newest unfinished run of that name."""
    given: object = run_id  # perhaps of an environment variable that is not set
    if not isinstance(given, str) or not given:
        raise UsageError(f"run_id is {run_id!r}", hint="give the id of a run, or its name")
    run = reader.to_resume(run_id)
    if run is None:
        raise no_run(
            run_id,
            "check the run id and the store; without preserve=True a completed run is deleted",
        )
    return run


def find_target(
    reader: Reader, run: RunInfo, checkpoint_id: str | None = None, step: int | None = None
) -> Target:
    """The checkpoint with that id, the newest up to *step*, or the run's newest."""
    run_id = run.run_id
    found_now = reader.checked_newest(run_id)
    run, newest = found_now if found_now is not None else (run, None)
    if newest is None:
        raise NotFoundError(f"run {run_id!r} has no checkpoint", run_id=run_id)
    if checkpoint_id is not None:
        found = reader.resolve(checkpoint_id, run_id=run_id)
        if found.scope:
            raise UsageError(
                f"checkpoint {found.id} is of the nested scope {found.scope!r}",
                hint="resume from a checkpoint of the run itself",
            )
        return Target(run, newest, found)
    if step is None:
        return Target(run, newest, newest)
    if step > newest.step:
        raise NotFoundError(
            f"run {run_id!r} has only reached step {newest.step}, not step {step}",
            hint="leave step out to continue it",
            run_id=run_id,
            step=step,
        )
    headers = reader.storage.headers(RecordQuery(run_id=run_id, scope=""))
    earlier = next((header for header in headers if header.step <= step), None)
    if earlier is None:
        raise NotFoundError(
            f"run {run_id!r} has no checkpoint at or before step {step}", run_id=run_id
        )
    return Target(run, newest, earlier)
