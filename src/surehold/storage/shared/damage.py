"""Errors for records that are not what their place in a medium claims."""

from __future__ import annotations

import logging

from surehold.errors import CorruptError, SchemaError

logger = logging.getLogger("surehold.storage")


def about_record(run_id: str, seq: int, problem: str) -> str:
    """Return *problem* with its record named once.

    >>> about_record("r", 5, "the body of record 5 of run 'r' does not match its digest")
    "the body of record 5 of run 'r' does not match its digest"
    >>> about_record("r", 5, "its line is gone")
    "record 5 of run 'r': its line is gone"
    """
    named = f"record {seq} of run {run_id!r}"
    return problem if named in problem else f"{named}: {problem}"


def check_format(where: str, found: bytes | None, known: int) -> None:
    """Raise a `SchemaError` if the layout *found* is newer than the *known* one.

    None is a layout from before it was marked: the first.
    """
    if found is None or (found.isdigit() and int(found) <= known):
        return
    told = found.decode("ascii", "replace")
    raise SchemaError(
        f"{where} was written by a newer Surehold (format {told}, this one knows {known})",
        hint="update surehold",
        version=int(found) if found.isdigit() else None,
    )


def missing(run_id: str, seq: int) -> CorruptError:
    """The error for a record that is not there, although no prune took it."""
    return CorruptError(f"record {seq} of run {run_id!r} is missing", run_id=run_id, seq=seq)


def run_missing(run_id: str) -> CorruptError:
    """The error for a run that was stored and not deleted, and is not there."""
    return CorruptError(
        f"run {run_id!r} is missing, although records of it were acknowledged",
        hint="bring it back from a copy, or give it up with: surehold repair",
        run_id=run_id,
    )


def misplaced(run_id: str, seq: int) -> CorruptError:
    """The error for a record that is not the one its place is for."""
    return CorruptError(
        f"another record stands at seq {seq} of run {run_id!r}", run_id=run_id, seq=seq
    )


class Sparing:
    """Passes over a damaged run in a block of a listing; if *strict*, raises."""

    def __init__(self, run_id: str, *, strict: bool = False) -> None:
        self._run_id = run_id
        self._strict = strict

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if self._strict or not isinstance(error, CorruptError):
            return False
        passed_over(self._run_id, error)
        return True


def passed_over(run_id: str, error: CorruptError) -> None:
    """Log that a listing of many runs leaves out what is damaged in one of them.

    A query that names the run raises the error instead.
    """
    logger.warning("run %r is damaged and left out of the listing: %s", run_id, error.message)
