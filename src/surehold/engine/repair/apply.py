"""Repair of runs: damaged records are put aside, and a note in the run records it.

>>> from surehold import CheckpointManager
>>> print(CheckpointManager("memory://").repair())
nothing is damaged
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from surehold.core.records import Header, Range, Record, check_free, new_id, seal
from surehold.engine.journal import unknown_run
from surehold.engine.repair.plan import RepairPlan, plan_repair
from surehold.errors import ConflictError, CorruptError, NotFoundError, UsageError
from surehold.storage.base import Batch, Repairable, newest_lease, owner_is_dead

if TYPE_CHECKING:
    from surehold.engine.journal import Journal, Reader
    from surehold.engine.metrics import Metrics
    from surehold.engine.retention import RetentionManager
    from surehold.storage.base import Storage

logger = logging.getLogger("surehold.checkpoint")

OnCorrupt = Literal["fail", "fallback"]
_NOTED = 5
"""Number of problems written into the note; the report has them all."""


class RunRepair(msgspec.Struct, frozen=True, kw_only=True):
    """The damage of one run and its repair."""

    run_id: str
    name: str = ""
    problems: tuple[str, ...]
    actions: tuple[str, ...]
    """Actions taken, or that a dry run would take."""
    lost: tuple[Range, ...] = ()
    """Ranges of seqs that cannot be read."""
    orphaned: tuple[Range, ...] = ()
    """Ranges of seqs that can be read, and are built on lost ones."""
    checkpoint_id: str | None = None
    """The newest checkpoint that can be loaded; None if there is none."""
    kept: str | None = None
    """Place of the records that were put aside."""


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings and actions of a repair. As text, one line each."""

    medium: tuple[str, ...] = ()
    """Problems of the medium itself, and actions taken."""
    runs: tuple[RunRepair, ...] = ()
    """The damaged runs."""
    dry_run: bool = False

    @property
    def clean(self) -> bool:
        """True if nothing was damaged."""
        return not self.medium and not self.runs

    def __str__(self) -> str:
        lines = [*self.medium]
        for run in self.runs:
            named = f"run {run.run_id!r}"
            lines += (
                text if named in text else f"{named}: {text}"
                for text in (*run.problems, *run.actions)
            )
        return "\n".join(lines) or "nothing is damaged"


class RepairedFace(Protocol):
    """All that a repair needs of the engine: `engine.commit.Face`."""

    @property
    def storage(self) -> Storage: ...
    @property
    def reader(self) -> Reader: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def retention(self) -> RetentionManager: ...
    @property
    def metrics(self) -> Metrics: ...


class Repairer:
    """Repairs the runs of one storage, when asked or when one is found damaged."""

    def __init__(
        self, face: RepairedFace, on_corrupt: OnCorrupt, clock: Callable[[], datetime]
    ) -> None:
        self._face = face
        self._storage = face.storage
        self._clock = clock
        self.untold: list[dict[str, Any]] = []
        """Events that hooks have not been called with yet."""
        if on_corrupt == "fallback":
            face.reader.recover = self.recover

    def repair(self, run_id: str | None, *, dry_run: bool) -> RepairReport:
        """Repair one run, or the medium and all runs."""
        storage = self._repairable()
        medium: list[str] = []
        if run_id is None:
            medium = storage.check_medium(repair=not dry_run)
            if medium and not dry_run:
                self._face.journal.invalidate_all()
                self._face.retention.forget_all()
        runs: list[RunRepair] = []
        try:
            for one in storage.known_runs() if run_id is None else [run_id]:
                done = self._repaired(storage, one, dry_run=dry_run, only=run_id is not None)
                if done is not None:
                    runs.append(done)
        except CorruptError:
            # The runs can be inspected once the medium is repaired.
            if not (medium and dry_run):
                raise
        return RepairReport(medium=tuple(medium), runs=tuple(runs), dry_run=dry_run)

    def _repaired(
        self, storage: Repairable, run_id: str, *, dry_run: bool, only: bool
    ) -> RunRepair | None:
        """Repair a run; skip one in use by another process, unless it is the only one."""
        try:
            done = self._repair(storage, run_id, dry_run=dry_run)
        except NotFoundError:
            if only:
                raise
            return None  # deleted meanwhile
        except ConflictError as used:
            if only:
                raise
            return RunRepair(run_id=run_id, problems=(f"{used.message}: left alone",), actions=())
        if done is not None and not dry_run:
            self._report(done)
        return done

    def recover(self, error: CorruptError) -> bool:
        """Repair the damaged run that *error* names; True if it is readable again.

        False if no checkpoint can be loaded, another process holds the run, or the damage is not
        in the run's own records.
        """
        run_id = error.facts.get("run_id")
        if run_id is None or not isinstance(self._storage, Repairable):
            return False
        try:
            inspection = self._storage.inspect(run_id)
            plan = plan_repair(inspection) if inspection is not None else None
            if plan is None or not plan.needed or plan.checkpoint is None:
                return False
            done = self._repair(self._storage, run_id, dry_run=False)
        except ConflictError as used:
            error.add_note(f"surehold: the run was not repaired: {used}")
            return False
        if done is not None:
            self._report(done)
        return done is not None

    def _repairable(self) -> Repairable:
        if isinstance(self._storage, Repairable):
            return self._storage
        raise UsageError(
            f"a {type(self._storage).__name__} cannot be repaired from here",
            hint="repair it with its own tools, then verify()",
        )

    def _repair(self, storage: Repairable, run_id: str, *, dry_run: bool) -> RunRepair | None:
        inspection = storage.inspect(run_id)
        if inspection is None:
            raise unknown_run(run_id)
        plan = plan_repair(inspection)
        if not plan.needed:
            return None
        if dry_run:
            return _summary(plan, None)
        self._check_free(run_id)
        note = self._note(plan)
        kept = None
        if plan.rewrites:
            hidden = inspection.hidden & {record.header.seq for record in plan.keep}
            kept = storage.rewrite(run_id, (*plan.keep, *note), hidden, head=inspection.head)
        else:
            batch = Batch(run_id=run_id, records=note, epoch=self._epoch(run_id))
            refused = self._storage.append([batch])[0]
            if refused is not None:
                raise refused
        self._face.journal.invalidate(run_id)
        self._face.retention.forget_all()
        return _summary(plan, kept)

    def _check_free(self, run_id: str) -> None:
        """Refuse a run that a live process holds: it would continue from lost records."""
        lease = newest_lease(self._storage, run_id)
        if lease is None or lease.epoch == self._epoch(run_id):
            return
        check_free(lease, now=time.time(), owner_is_dead=owner_is_dead(lease))

    def _epoch(self, run_id: str) -> int | None:
        return self._face.reader.held.get(run_id)

    def _note(self, plan: RepairPlan) -> tuple[Record, ...]:
        """Return the note about the damage, which follows the kept records."""
        if not plan.keep or not (plan.lost or plan.orphaned):
            return ()
        newest = plan.keep[-1].header
        damage = {
            "lost": [[*span] for span in plan.lost],
            "orphaned": [[*span] for span in plan.orphaned],
            "head": plan.head,
            "problems": [*plan.problems[:_NOTED]],
        }
        header = Header(
            run_id=plan.run_id,
            seq=newest.seq + 1,
            id=new_id(time.time_ns(), os.urandom(8)),
            frame="note",
            saved_at=self._clock(),
            name=newest.name,
            kind="prune",
            metadata={"damage": damage},
            epoch=self._epoch(plan.run_id) or 0,
        )
        body = msgspec.json.encode({"erased": plan.gaps})
        return (seal(header, body, prev=newest.digest),)

    def _report(self, done: RunRepair) -> None:
        for _ in done.problems:
            self._face.metrics.integrity_error()
        logger.warning(
            "run %s was damaged: %s; %s",
            done.run_id,
            "; ".join(done.problems[:_NOTED]) or "records are missing",
            "; ".join(done.actions),
        )
        self.untold.append(
            {
                "agent_id": done.name,
                "run_id": done.run_id,
                "checkpoint_id": done.checkpoint_id,
                "timestamp": self._clock(),
                "problems": done.problems,
                "actions": done.actions,
            }
        )


def _summary(plan: RepairPlan, kept: str | None) -> RunRepair:
    actions: list[str] = []
    if plan.lost:
        actions.append(f"quarantined {_ranges_text(plan.lost)}, which cannot be read")
    if plan.orphaned:
        actions.append(f"quarantined {_ranges_text(plan.orphaned)}, built on what cannot be read")
    if plan.rewrites and not plan.lost and not plan.orphaned:
        actions.append("rebuilt the index")
    if plan.keep and plan.keep[-1].header.seq < plan.head:
        newest = plan.keep[-1].header
        actions.append(f"head set to record {newest.seq} ({newest.digest})")
    if not plan.keep:
        actions.append("no checkpoint is whole, so the whole run is put aside")
    if kept is not None:
        actions.append(f"the records put aside are kept in {kept}")
    return RunRepair(
        run_id=plan.run_id,
        name=plan.keep[-1].header.name if plan.keep else "",
        problems=plan.problems,
        actions=tuple(actions),
        lost=plan.lost,
        orphaned=plan.orphaned,
        checkpoint_id=plan.checkpoint.id if plan.checkpoint else None,
        kept=kept,
    )


def _ranges_text(spans: Iterable[Range]) -> str:
    texts = [f"{a}" if a == b else f"{a} to {b}" for a, b in spans]
    return f"record{'s' if len(texts) > 1 or ' ' in texts[0] else ''} {', '.join(texts)}"
