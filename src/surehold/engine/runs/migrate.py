"""Runs brought to the newest version of their state: saved once more, upgraded.

A state is upgraded each time it is loaded, so this is never needed to resume a run. It makes
stored states independent of migrations that are to be dropped one day, and finds beforehand
the runs that no migration upgrades.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from surehold.core.state import migrations
from surehold.engine.journal import draft_of
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs.waiting import check_not_held, open_notes
from surehold.errors import SureholdError
from surehold.storage.base import RunInfo


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """The migration of one run."""

    run_id: str
    name: str
    found: int
    wanted: int
    outcome: Literal["current", "migrated", "would migrate", "stuck", "completed"]
    problem: str = ""


def migrate_run(manager: CheckpointManager, run: RunInfo, *, dry_run: bool) -> Migrated:
    """Save the newest state of *run* again, in the newest version of `migrations`.

    Open questions and the recorded calls of the open step stay open. Held runs, and runs without
    a migration, stay unchanged and are reported as stuck.
    """
    reader = manager.reader
    newest = reader.newest(run)
    wanted = migrations.latest(run.name)
    found = newest.schema if newest is not None else wanted

    def told(outcome: Any, problem: str = "") -> Migrated:
        return Migrated(
            run_id=run.run_id,
            name=run.name,
            found=found,
            wanted=wanted,
            outcome=outcome,
            problem=problem,
        )

    if newest is None or found == wanted:
        return told("current")
    if newest.status == "completed":
        return told("completed")
    try:
        check_not_held(reader, run.run_id)
        loaded = reader.load(newest)
        loaded.upgraded()
    except SureholdError as error:
        return told("stuck", error.message)
    if dry_run:
        return told("would migrate")
    draft = draft_of(manager.load_checkpoint(newest.id), new_run_id=run.run_id)
    place = msgspec.structs.replace(draft.place, kind="manual", status=newest.status)
    extra = loaded.extra
    manager.save_draft(
        msgspec.structs.replace(
            draft,
            place=place,
            fingerprint=newest.fingerprint,
            extra=(lambda whole: _kept(extra, whole)) if extra else None,
        ),
        force=True,
        notes=open_notes(reader, run).carried(permits=False),
    )
    return told("migrated")


def _kept(extra: dict[str, Any], whole: bool) -> bytes:
    """Data of the door beside the state; the lists of deltas are joined."""
    if not whole:
        extra = {key: [] if isinstance(value, list) else value for key, value in extra.items()}
    return msgspec.json.encode(extra)
