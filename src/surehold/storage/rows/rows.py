"""Rows read as records and heads; one that does not fit is a `CorruptError`."""

from __future__ import annotations

from typing import Any

import msgspec

from surehold.core.records import Header, Record, open_header, with_body
from surehold.errors import CorruptError
from surehold.storage.base import RunInfo
from surehold.storage.shared import Head, misplaced, missing, run_info


class Listing(msgspec.Struct, frozen=True):
    """A query in SQL; a page of it is asked for with *bound* and *size*.

    Its rows are place, seq, digest, run id and header; place is the next bound.
    """

    sql: Any
    values: dict[str, Any]
    by_seq: bool = False
    """The place is the seq, not the place among all commits."""
    whole: bool = False
    """Every record of the run has a row; unwanted ones have no header."""

    def page(self, bound: int, size: int) -> dict[str, Any]:
        """The values for the page of *size* rows below *bound*."""
        return {**self.values, "bound": bound, "size": size}


def open_row(run_id: str, seq: int, digest: Any, text: Any) -> Header:
    """The header of the record that the row claims to be."""
    if not isinstance(digest, bytes) or not isinstance(text, bytes):
        raise misplaced(run_id, seq)
    try:
        header = open_header(text, digest.hex())
    except CorruptError as error:
        raise CorruptError(
            f"record {seq} of run {run_id!r} is damaged: {error.message}",
            hint=error.hint,
            run_id=run_id,
            seq=seq,
        ) from error
    if (header.run_id, header.seq) != (run_id, seq):
        raise misplaced(run_id, seq)
    return header


def record_of(run_id: str, seq: int, digest: Any, text: Any, body: Any) -> Record:
    """The record that the row claims to be."""
    header = open_row(run_id, seq, digest, text)
    if not isinstance(body, bytes):
        raise CorruptError(
            f"the body of record {seq} of run {run_id!r} is missing", run_id=run_id, seq=seq
        )
    return with_body(header, text, body)


def head_of_row(
    head: Head, stored: bytes | None, digest: bytes | None, text: bytes | None
) -> tuple[RunInfo, Header | None]:
    """A head and the checkpoint it describes, if both fit the records.

    *stored* is the digest of the record at `head.seq`, None if there is none; *digest* and
    *text* are those of the record at `head.latest`.
    """
    run_id = head.run_id
    if stored is None or stored.hex() != head.digest:
        raise misplaced(run_id, head.seq)
    newest: Header | None = None
    if head.latest is not None:
        if digest is None or text is None:
            raise missing(run_id, head.latest)
        newest = open_row(run_id, head.latest, digest, text)
        if (newest.name, newest.status, newest.scope) != (head.name, head.status, ""):
            raise misplaced(run_id, head.latest)
    return run_info(head, newest), newest
