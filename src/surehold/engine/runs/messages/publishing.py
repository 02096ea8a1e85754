"""The values that a run shows to others while it works."""

from __future__ import annotations

from typing import Any

import msgspec

from surehold.core.records import Published
from surehold.core.values import decode
from surehold.engine.managers import CheckpointManager, opened
from surehold.errors import NotFoundError
from surehold.storage.base import RecordQuery, Storage


def status_of(
    run_id: str, *, storage: CheckpointManager | Storage | str | None = None
) -> dict[str, Any]:
    """The values that a run has published last, by name; none if it published none."""
    with opened(storage) as manager:
        reader = manager.reader
        query = RecordQuery(run_id=run_id, kind="published", notes=True, limit=1)
        newest = next(iter(reader.storage.headers(query)), None)
        if newest is None:
            if reader.run(run_id) is None:
                raise NotFoundError(f"no run {run_id!r}", hint="surehold runs", run_id=run_id)
            return {}
        (record,) = reader.storage.read(run_id, first=newest.seq, last=newest.seq)
        content = msgspec.json.decode(reader.sealer.open(record), type=Published)
        values: dict[str, Any] = decode(bytes(content.values))
        return values
