"""The transaction log: operations of a run and their ends, as notes.

A transaction is two notes with one id: its start, and its end in success, failure or rollback. One
without an end was cut off by the death of its process. Names and statuses are in the notes'
headers; details and errors are in their bodies, and encrypted where the run is.

>>> from surehold import CheckpointManager, State
>>> manager = CheckpointManager("memory://")
>>> _ = manager.save_checkpoint(State.new({}, run_id="agent-3"))
>>> begun = Begun("deploy")
>>> manager.append_notes("agent-3", [begun.note({"host": "a"})])
>>> manager.append_notes("agent-3", [begun.note(status="success")])
>>> [(one.operation, one.status) for one in transactions(manager, "agent-3")]
[('deploy', 'success')]
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import Any, Literal

import msgspec

from surehold.core.records import Header, new_id
from surehold.engine.journal import Note
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs.effects import describe, failure_text
from surehold.errors import CorruptError, EncodeError, UsageError
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


def transactions(
    manager: CheckpointManager,
    run_id: str,
    status: TransactionStatus | None = None,
    limit: int | None = None,
) -> list[Transaction]:
    """The transactions of a run, the last started first.

    They reach back to the oldest checkpoint of the run: pruning removes older notes too.
    """
    ends: dict[str, Header] = {}
    found: list[Transaction] = []
    query = RecordQuery(run_id=run_id, kind=_KIND, notes=True)
    for header in manager.storage.headers(query):
        if header.frame != "note":
            continue
        facts = header.metadata
        if facts["status"] != "started":
            ends.setdefault(facts["transaction"], header)
            continue
        end = ends.get(facts["transaction"])
        if status is not None and status != (end or header).metadata["status"]:
            continue
        if limit is not None and len(found) >= limit:
            break
        found.append(_read(manager, header, end))
    return found


def _read(manager: CheckpointManager, start: Header, end: Header | None) -> Transaction:
    body = _body(manager, start)
    last = _body(manager, end) if end is not None else {}
    return Transaction(
        id=start.metadata["transaction"],
        operation=start.metadata["operation"],
        status=(end or start).metadata["status"],
        started_at=start.saved_at,
        ended_at=end.saved_at if end is not None else None,
        details={**body.get("details", {}), **last.get("details", {})},
        error=last.get("error", ""),
    )


def _body(manager: CheckpointManager, header: Header) -> dict[str, Any]:
    for record in manager.reader.records(header.run_id, header.seq, header.seq):
        return msgspec.json.decode(manager.reader.sealer.open(record), type=dict[str, Any])
    raise CorruptError(
        f"record {header.seq} of run {header.run_id!r} is missing",
        run_id=header.run_id,
        seq=header.seq,
    )
