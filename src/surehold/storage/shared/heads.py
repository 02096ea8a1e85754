"""Head accounting: how the head entry of a run changes with its records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

import msgspec

from surehold.core.records import OPEN_FROM, OVER, Header, Record
from surehold.storage.base import RunInfo

SAVED_BY_HAND = '"door":["manager"'
"""In the text of a header: nothing here executes the run."""


class Head(msgspec.Struct, frozen=True):
    """The head entry of a run, as a medium stores it beside the run's records."""

    run_id: str
    ordinal: int
    started_at: datetime
    saved_at: datetime
    seq: int = 0
    digest: str = ""
    name: str = ""
    status: str = "running"
    latest: int | None = None
    """The seq of the newest visible checkpoint in scope ""; name and status are its."""
    checkpoints: int = 0
    stored: int = 0


def first_head(first: Header, ordinal: int) -> Head:
    """The head of a run that is about to get its *first* record."""
    return Head(first.run_id, ordinal, first.saved_at, first.saved_at, name=first.name)


def after_append(head: Head, records: Sequence[Record]) -> Head:
    """The head once *records*, none of them hidden, are stored."""
    latest, name, status = head.latest, head.name, head.status
    checkpoints, stored = head.checkpoints, head.stored
    for record in records:
        header = record.header
        stored += len(record.body)
        if header.frame != "note":
            checkpoints += 1
            if not header.scope:
                latest, name, status = header.seq, header.name, header.status
    last = records[-1].header
    return Head(
        head.run_id,
        head.ordinal,
        head.started_at,
        last.saved_at,
        last.seq,
        last.digest,
        last.name if latest is None else name,
        status,
        latest,
        checkpoints,
        stored,
    )


def after_removal(
    head: Head,
    gone: Collection[int],
    look: Callable[[], tuple[Header | None, Header]],
    *,
    checkpoints: int,
    stored: int = 0,
) -> Head:
    """The head once the records at the seqs *gone* are hidden, or erased.

    *checkpoints* is how many of them were visible checkpoints, *stored* the bytes of bodies that
    were erased. *look* reads the newest visible checkpoint of the run itself and the newest
    record, as they are then; it is called only if the head describes one that is gone.
    """
    counts = {"checkpoints": head.checkpoints - checkpoints, "stored": head.stored - stored}
    if head.latest not in gone:
        return msgspec.structs.replace(head, **counts)
    newest, last = look()
    return msgspec.structs.replace(
        head,
        latest=newest.seq if newest else None,
        name=(newest or last).name,
        status=newest.status if newest else "running",
        **counts,
    )


def rebuilt_head(head: Head, records: Sequence[Record], hidden: Collection[int]) -> Head:
    """The head of a run that is rewritten as just these records."""
    began = Head(head.run_id, head.ordinal, head.started_at, head.saved_at)
    shown = [record for record in records if record.header.seq not in hidden]
    whole = after_append(began, records)
    visible = after_append(began, shown) if shown else began
    return msgspec.structs.replace(
        whole,
        latest=visible.latest,
        name=whole.name if visible.latest is None else visible.name,
        status=visible.status,
        checkpoints=visible.checkpoints,
    )


def run_info(head: Head, newest: Header | None) -> RunInfo:
    """The head entry as callers see it; *newest* is the checkpoint at `head.latest`."""
    facts = msgspec.structs.asdict(head)
    del facts["latest"]
    return RunInfo(
        **facts,
        step=newest.step if newest else 0,
        node=newest.node if newest else None,
        kind=newest.kind if newest else "routine",
        door=newest.door.kind if newest and newest.door else "",
        open=head.status not in OVER
        and (newest is None or head.seq > newest.seq or OPEN_FROM in newest.metadata),
    )
