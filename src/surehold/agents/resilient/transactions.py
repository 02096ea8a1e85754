"""The transaction log: operations of a run and their ends, as notes.

A transaction is two notes with one id: its start, and its end in success, failure or rollback. One
without an end was cut off by the death of its process. Names and statuses are in the notes'
headers; details and errors are in their bodies, and encrypted where the run is.

>>> from surehold import CheckpointManager, State
>>> manager = CheckpointManager("memory://")
>>> _ = manager.save_checkpoint(State.new({}, run_id="agent-3"))
>>> log = TransactionLog(manager, "agent-3")
>>> first, second = log.start("deploy", host="a"), log.start("migrate")
>>> log.success(first)
>>> [(one.operation, one.status) for one in log.list()]
[('migrate', 'started'), ('deploy', 'success')]
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from surehold.core.records import Header, new_id
from surehold.engine.journal import Note
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs.effects import describe, failure_text
from surehold.errors import CorruptError, EncodeError, NotFoundError, UsageError
from surehold.storage.base import RecordQuery

TransactionStatus = Literal["started", "success", "failure", "rollback"]

_KIND = "transaction"


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """One operation in the log."""

    id: str
    operation: str
    status: TransactionStatus
    """Its status; "started" if it has not ended, or was cut off."""
    started_at: datetime
    ended_at: datetime | None = None
    details: dict[str, Any] = {}
    """Details given at its start and at its end."""
    error: str = ""

    @property
    def ended(self) -> bool:
        """True if its outcome is known."""
        return self.status != "started"


class Begun:
    """A transaction on its way into the log: makes the notes of its start and its end."""

    def __init__(self, operation: str, transaction_id: str = "") -> None:
        if not operation:
            raise UsageError("an operation needs a name")
        self.operation = operation
        self.id = transaction_id or new_id(time.time_ns(), os.urandom(8))

    def note(
        self,
        details: dict[str, Any] | None = None,
        status: TransactionStatus = "started",
        error: BaseException | None = None,
    ) -> Note:
        """The note of its start or end, to append together with something else."""
        content: dict[str, Any] = {"details": details} if details else {}
        if error is not None:
            content["error"] = failure_text(describe(error))
        try:
            msgspec.json.encode(content)
        except (TypeError, ValueError, RecursionError) as problem:
            raise EncodeError(
                f"the details of {self.operation!r} cannot be stored: {problem}",
                hint="use strings, numbers, booleans, None, and lists and dicts of them",
            ) from problem
        facts = {"transaction": self.id, "operation": self.operation, "status": status}
        return Note(kind=_KIND, content=content, metadata=facts)


class TransactionLog:
    """The transactions of one run.

    It reaches back to the oldest checkpoint of the run: pruning removes older notes too.
    """

    def __init__(self, manager: CheckpointManager, run_id: str) -> None:
        self._manager = manager
        self._run_id = run_id

    def start(self, operation: str, /, **details: Any) -> str:
        """Log the start of an operation and return the transaction's id."""
        begun = Begun(operation)
        self._manager.append_notes(self._run_id, [begun.note(details)])
        return begun.id

    def success(self, transaction_id: str, /, **details: Any) -> None:
        """Log its success."""
        self._end(transaction_id, "success", details)

    def failure(self, transaction_id: str, error: BaseException, **details: Any) -> None:
        """Log the failure of an operation whose changes are still there."""
        self._end(transaction_id, "failure", details, error)

    def rollback(self, transaction_id: str, error: BaseException | None = None) -> None:
        """Log the failure of an operation whose changes were undone."""
        self._end(transaction_id, "rollback", {}, error)

    def list(
        self, *, status: TransactionStatus | None = None, limit: int | None = None
    ) -> Sequence[Transaction]:
        """List transactions, the last started first."""
        ends: dict[str, Header] = {}
        found: list[Transaction] = []
        for header in self._headers(None):
            facts = header.metadata
            if facts["status"] != "started":
                ends.setdefault(facts["transaction"], header)
                continue
            end = ends.get(facts["transaction"])
            if status is not None and status != (end or header).metadata["status"]:
                continue
            if limit is not None and len(found) >= limit:
                break
            found.append(self._read(header, end))
        return found

    def get(self, transaction_id: str) -> Transaction:
        """Return the transaction with that id, or raise `NotFoundError`."""
        start = end = None
        for header in self._headers({"transaction": transaction_id}):
            if header.metadata["status"] == "started":
                start = header
            else:
                end = header
        if start is None:
            raise NotFoundError(
                f"no transaction {transaction_id!r} in run {self._run_id!r}",
                hint="list() shows all transactions",
            )
        return self._read(start, end)

    def _end(
        self,
        transaction_id: str,
        status: TransactionStatus,
        details: dict[str, Any],
        error: BaseException | None = None,
    ) -> None:
        known = self.get(transaction_id)
        if known.ended:
            raise UsageError(
                f"transaction {transaction_id} ended in {known.status} already",
                hint="start another one",
            )
        note = Begun(known.operation, known.id).note(details, status, error)
        self._manager.append_notes(self._run_id, [note])

    def _headers(self, metadata: dict[str, Any] | None) -> Sequence[Header]:
        query = RecordQuery(run_id=self._run_id, kind=_KIND, notes=True, metadata=metadata)
        return [header for header in self._manager.storage.headers(query) if header.frame == "note"]

    def _read(self, start: Header, end: Header | None) -> Transaction:
        body = self._body(start)
        last = self._body(end) if end is not None else {}
        return Transaction(
            id=start.metadata["transaction"],
            operation=start.metadata["operation"],
            status=(end or start).metadata["status"],
            started_at=start.saved_at,
            ended_at=end.saved_at if end is not None else None,
            details={**body.get("details", {}), **last.get("details", {})},
            error=last.get("error", ""),
        )

    def _body(self, header: Header) -> dict[str, Any]:
        reader = self._manager.reader
        for record in reader.records(self._run_id, header.seq, header.seq):
            return msgspec.json.decode(reader.sealer.open(record), type=dict[str, Any])
        raise CorruptError(
            f"record {header.seq} of run {self._run_id!r} is missing",
            run_id=self._run_id,
            seq=header.seq,
        )
