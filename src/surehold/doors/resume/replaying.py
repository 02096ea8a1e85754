"""Replays of stored runs with other code: the first step whose state differs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from surehold.core.context import during
from surehold.core.records import OPEN_FROM, Header, gaps_between
from surehold.doors.resume.entry_points import Resumable
from surehold.doors.resume.progress import read_progress
from surehold.engine.journal import Change, Loaded, changes_between
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager
from surehold.engine.runs import StopScope
from surehold.engine.runs.effects import REPLAY_ONLY
from surehold.errors import ConflictError, NotFoundError, Signal
from surehold.storage.base import Batch, RecordQuery
from surehold.storage.memory import MemoryStorage


class ReplayVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a replay of a run's steps."""

    run_id: str
    steps: int
    """Steps that were executed again, up to the first that differs."""
    of: int
    """Steps that the journal holds."""
    step: int | None = None
    """The first step that differs; None if none does."""
    node: str | None = None
    detail: str = ""
    changes: tuple[Change, ...] = ()
    """What turns the recorded state of that step into the state of the replay."""
    recorded: Loaded | None = None
    """The recorded state of that step, if the states differ."""


def replay_run(
    manager: CheckpointManager,
    resumable: Resumable,
    run_id: str,
    *,
    refusals: tuple[type[BaseException], ...] = (),
) -> ReplayVerdict:
    """Execute each step of a run again, and compare the states.

    Calls have their recorded outcomes.

    Each step begins with the recorded state before it, in a copy in memory; the run stays as it
    is. A workflow is executed as a whole. Calls without a record are refused: there the replay
    differs. *refusals* are exceptions with which others refuse a call.
    """
    steps = _Steps(manager, resumable, run_id, refusals)
    for number, (before, wanted) in enumerate(steps.pairs, 1):
        found = steps.differs(before, wanted)
        if found is not None:
            return ReplayVerdict(
                run_id=run_id,
                steps=number,
                of=len(steps.pairs),
                step=wanted.step,
                node=wanted.node,
                **found,
            )
    return ReplayVerdict(run_id=run_id, steps=len(steps.pairs), of=len(steps.pairs))


_Difference = dict[str, Any]
_MEASURED = {"fleet": re.compile(r"/elapsed|/rounds/\d+/seconds")}
"""The places in a state that hold measured times, by door."""
_NOWHERE = re.compile("(?!)")
_ALWAYS = ("key", "branch", "message", "answer")
"""Notes that a step may need, however long before it they were written."""


class _Steps:
    """The steps of a run that can be executed again."""

    def __init__(
        self,
        manager: CheckpointManager,
        resumable: Resumable,
        run_id: str,
        refusals: tuple[type[BaseException], ...],
    ) -> None:
        self._manager, self._resumable, self._run_id = manager, resumable, run_id
        self._failures: tuple[type[BaseException], ...] = (Exception, *refusals)
        query = RecordQuery(run_id=run_id, notes=True)
        self._headers = [*manager.storage.headers(query)][::-1]
        own = [one for one in self._headers if one.frame != "note" and not one.scope]
        if not own:
            raise NotFoundError(
                f"there is no run {run_id!r}", hint="surehold runs lists them", run_id=run_id
            )
        self._keys = [one.seq for one in own if one.frame == "key"]
        door = manager.reader.door(own[0])
        self._by_nodes = door.has_nodes
        self._measured = _MEASURED.get(door.kind, _NOWHERE)
        self._is_open = not door.has_nodes and own[-1].status not in ("completed", "failed")
        """True for a workflow that has not ended: it is executed up to its first live call."""
        self.pairs = [(own[0], own[-1])]
        """The checkpoint before and after each step."""
        if self._by_nodes:
            self.pairs = [(one, other) for one, other in pairwise(own) if other.step > one.step]

    def differs(self, before: Header, wanted: Header) -> _Difference | None:
        """The difference that a step makes; None if it makes none."""
        scope, met, failure = StopScope(), list[str](), ""
        with _Copy(self._run_id, wanted.step, scope) as memory:
            self._fill(memory, before, wanted)
            with CheckpointManager.on(memory, self._manager.settings) as copied:
                mine = self._resumable.over(AsyncCheckpointManager.of(copied.face))
                with during(REPLAY_ONLY, met), scope.entered():
                    try:
                        mine.resume_sync(self._run_id, force=self._by_nodes)
                    except Signal:
                        pass
                    except self._failures as error:  # whatever the code raises
                        failure = str(getattr(error, "message", ""))
                        failure = failure or f"{type(error).__name__}: {error}"
                made = [one for one in memory.made if one.step == wanted.step]
                return self._compared(copied, wanted, made, met, failure)

    def _fill(self, memory: _Copy, before: Header, wanted: Header) -> None:
        """Copy what the step began with, and what its calls recorded."""
        first = 1
        if self._by_nodes:
            key = max((seq for seq in self._keys if seq <= before.seq), default=1)
            first = min(key, before.metadata.get(OPEN_FROM, key))
        kept = {
            one.seq
            for one in self._headers
            if one.seq < wanted.seq
            and (one.seq >= first or one.kind in _ALWAYS)
            # What is nested in the step is executed again too.
            and (one.seq <= before.seq or (one.frame == "note" and one.kind != "item"))
        }
        read = self._manager.reader.records(self._run_id, min(kept), max(kept))
        records = [record for record in read if record.header.seq in kept]
        gaps = frozenset(gaps_between([record.header.seq for record in records], after=0))
        batch = Batch(run_id=self._run_id, records=tuple(records), erased=gaps)
        conflict = memory.append([batch])[0]
        if conflict is not None:
            raise conflict
        memory.is_filled = True

    def _compared(
        self,
        copied: CheckpointManager,
        wanted: Header,
        made: list[Header],
        met: list[str],
        failure: str,
    ) -> _Difference | None:
        if self._is_open and not failure:
            return None
        if met:
            return {"detail": f"the call {met[0]} was not recorded"}
        if not made:
            return {"detail": failure or "the step does not end"}
        then, now = self._manager.reader.load(wanted), copied.reader.load(made[0])
        found = changes_between(then, now)
        changes = tuple(one for one in found if not self._measured.fullmatch(one.path))
        if changes:
            return {"detail": "the state differs", "changes": changes, "recorded": then}
        if made[0].node != wanted.node:
            return {"detail": f"node {made[0].node!r} was executed"}
        if self._by_nodes and _next(then) != _next(now):
            return {"detail": f"it continues with {_next(now)!r}, not {_next(then)!r}"}
        return None


def _next(loaded: Loaded) -> str | None:
    """The node after the step; None at the end."""
    return read_progress(loaded).next if "now" in loaded.extra else None


class _Copy(MemoryStorage):
    """Keeps one step of a run, and stops the run when it saves the next."""

    def __init__(self, run_id: str, step: int, scope: StopScope) -> None:
        super().__init__()
        self._run_id, self._step, self._scope = run_id, step, scope
        self.is_filled = False
        self.made: list[Header] = []
        """The checkpoints that the replay saved."""

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        """Append, and look at it."""
        done = super().append(batches)
        self._look(batches)
        return done

    def append_all(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        """Append all or nothing, and look at it."""
        done = super().append_all(batches)
        self._look(batches)
        return done

    def _look(self, batches: Sequence[Batch]) -> None:
        for record in (one for batch in batches for one in batch.records if self.is_filled):
            header = record.header
            own = header.run_id == self._run_id and header.frame != "note" and not header.scope
            if own:
                self.made.append(header)
                if header.step >= self._step:
                    self._scope.stop("the step was replayed")
