"""What a manager does: save, load, resume, fork and look, as steps for either kind of manager."""

from __future__ import annotations

import copy
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from holdfast.checkpoint import views
from holdfast.checkpoint.hooks import HookEvent, HookManager, HookResult, pre_outcome
from holdfast.checkpoint.journal import Journal, Note, Outcome, Request
from holdfast.checkpoint.keeping import Keeper
from holdfast.checkpoint.metrics import Metrics, resume_cause
from holdfast.checkpoint.reading import Loaded
from holdfast.checkpoint.sealing import Keys, Sealer
from holdfast.checkpoint.steps import Commit, Fire, Pause, Steps, Work
from holdfast.checkpoint.subject import Saveable, Subject, saved, state_of, subject_of
from holdfast.checkpoint.views import Change, CheckpointMetadata, HistoryEntry, Verdict
from holdfast.core.agent_state import StateSnapshot
from holdfast.core.ids import check_run_id
from holdfast.core.record import Header, read_status
from holdfast.core.rules import Rules
from holdfast.core.state import Lineage, read_tags
from holdfast.core.triggers import Clockwork, Triggers
from holdfast.errors import HoldfastError, NotFoundError, StorageError, UsageError
from holdfast.storage.base import RecordQuery, RunInfo, RunQuery, Storage

__all__ = ["Operations"]

logger = logging.getLogger("holdfast.checkpoint")

OnSaveFailure = Literal["fail", "warn", "retry"]
_RETRIES = 5
_FIRST_PAUSE = 0.05


class Operations:
    """The steps of every operation, over one storage."""

    def __init__(
        self,
        storage: Storage,
        *,
        hooks: HookManager | None,
        triggers: Triggers,
        rules: Rules,
        keys: Keys | None,
        on_save_failure: OnSaveFailure,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if on_save_failure not in ("fail", "warn", "retry"):
            raise UsageError(
                f"on_save_failure is {on_save_failure!r}", hint="one of 'fail', 'warn', 'retry'"
            )
        self.storage = storage
        self.hooks = hooks
        self.metrics = Metrics()
        self.journal = Journal(storage, Sealer(storage, keys), clock=clock)
        self.reader = self.journal.reader
        self.keeper = Keeper(self.journal, rules, clock)
        self._triggers = triggers
        self._clocks: dict[str, Clockwork] = {}
        self._on_save_failure = on_save_failure
        self._clock = clock

    # Saving

    def should_checkpoint(
        self, name_or_run_id: str, current_step: int, current_time: float | None = None
    ) -> bool:
        """Whether a trigger says that it is time to save."""
        now = time.monotonic() if current_time is None else current_time
        clock = self._clocks.get(name_or_run_id)
        if clock is None:
            clock = self._clocks[name_or_run_id] = Clockwork(self._triggers)
        return clock.due(current_step, now) is not None

    def _count_save(self, place: Any) -> None:
        """Triggers count from here, whether they are asked by run or by name."""
        now = time.monotonic()
        for key in (place.run_id, place.name):
            if key and not self._triggers.every_step:
                clock = self._clocks.setdefault(key, Clockwork(self._triggers))
                clock.saved(place.step, now)

    def save(self, state: Saveable, *, force: bool = False) -> Steps[str | None]:
        """Save a state; gives the checkpoint's id, or None if a failure was only warned of."""
        subject = subject_of(state)
        header = yield from self.save_subject(subject, state, force=force)
        if header is None:
            return None
        saved(state, header)
        return header.id

    def save_subject(
        self,
        subject: Subject,
        state: Saveable | None = None,
        *,
        force: bool = False,
        notes: tuple[Note, ...] = (),
    ) -> Steps[Header | None]:
        """Hooks, append, hooks, retention. *state* is what hooks are shown; made if not given."""
        started = time.perf_counter()
        shown: Saveable | None = None
        if self._hears(HookEvent.PRE_CHECKPOINT_SAVE, HookEvent.POST_CHECKPOINT_SAVE):
            # Hooks get a state of their own: what they do to it must not reach the live one.
            shown = copy.deepcopy(state) if state is not None else state_of(subject)
        if self._hears(HookEvent.PRE_CHECKPOINT_SAVE):
            data = _save_data(subject, shown)
            results = yield from self._fire(HookEvent.PRE_CHECKPOINT_SAVE, subject.place.name, data)
            outcome = pre_outcome(shown, results)
            if outcome.veto is not None:
                self.metrics.save_failed(vetoed=True)
            new = outcome.unwrap(run_id=subject.place.run_id)
            if new is not shown:
                subject, shown = _replaced(subject, new), new
        request = Request(
            run_id=subject.place.run_id,
            subject=subject,
            force=force,
            notes=notes,
            hide=self.keeper.hide if self.keeper.active else None,
        )
        stored = yield from self._commit(request)
        if stored is None:
            return None
        header = stored.header
        assert header is not None
        seconds = time.perf_counter() - started
        self._count_save(subject.place)
        if stored.written:
            self.metrics.saved(seconds, logical=header.size, stored=header.stored)
            self.keeper.saved(stored)
            for run_id in self.keeper.runs_to_erase() if self.keeper.active else ():
                yield from self._erase(run_id)
        if self._hears(HookEvent.POST_CHECKPOINT_SAVE):
            data = {**_header_data(header), "state": shown, "duration_ms": seconds * 1000}
            yield from self._fire(HookEvent.POST_CHECKPOINT_SAVE, header.name, data)
        return header

    def append_notes(self, run_id: str, notes: Sequence[Note]) -> Steps[None]:
        """Append notes in one batch. What they say must not be lost, so a failure is raised."""
        if (yield from self._commit(Request(run_id=run_id, notes=notes))) is None:
            raise StorageError(
                f"run {run_id!r}: a {notes[0].kind} note could not be stored", run_id=run_id
            )

    def _commit(self, request: Request) -> Steps[Outcome | None]:
        """Commit, and do about a failure of the medium what the policy says."""
        pause = _FIRST_PAUSE
        for attempt in range(_RETRIES + 1):
            try:
                outcome: Outcome = yield Commit(request)
                if outcome.error is not None:
                    raise outcome.error
                return outcome
            except StorageError as error:
                self.metrics.save_failed()
                last = attempt == _RETRIES
                if self._on_save_failure == "retry" and error.retryable and not last:
                    yield Pause(pause)
                    pause *= 2
                    continue
                if self._on_save_failure == "warn":
                    logger.warning("run %s: a checkpoint was not saved: %s", request.run_id, error)
                    return None
                raise
            except HoldfastError:
                self.metrics.save_failed()
                raise
        raise AssertionError("unreachable")

    def _erase(self, run_id: str) -> Steps[int]:
        """Free what was hidden: a note that says so, then the records; an empty run goes whole."""
        if (yield Work(lambda: self.keeper.is_empty(run_id))):
            self.journal.forget(run_id)
            return (yield Work(lambda: self.storage.delete(run_id)))  # type: ignore[no-any-return]
        plan = yield Work(lambda: self.keeper.plan_erasure(run_id))
        if plan is None:
            return 0
        if (yield from self._commit(Request(run_id=run_id, notes=(plan.note,)))) is None:
            return 0
        self.metrics.freed(plan.stored)
        return (yield Work(lambda: self.keeper.erase(run_id, plan)))  # type: ignore[no-any-return]

    # Loading

    def load(self, checkpoint_id: str, *, run_id: str | None = None) -> Steps[Saveable]:
        """The state saved as that checkpoint (or unique prefix of one)."""
        return (yield from self._load(lambda: self.reader.resolve(checkpoint_id, run_id=run_id)))

    def _load(self, find: Callable[[], Header]) -> Steps[Saveable]:
        started = time.perf_counter()
        header = yield Work(find)
        data = _header_data(header)
        yield from self._fire(HookEvent.PRE_CHECKPOINT_LOAD, header.name, data)
        try:
            state: Saveable = yield Work(lambda: self._go_on_from(self.reader.load(header)))
        except HoldfastError:
            self.metrics.load_failed()
            raise
        seconds = time.perf_counter() - started
        self.metrics.loaded(seconds)
        data |= {"state": state, "duration_ms": seconds * 1000}
        yield from self._fire(HookEvent.POST_CHECKPOINT_LOAD, header.name, data)
        return state

    def _go_on_from(self, loaded: Loaded) -> Saveable:
        state = loaded.upgraded()
        self.journal.at(loaded, state if loaded.is_current else None)
        return state

    def resume(self, name_or_run_id: str, *, scope: str = "") -> Steps[Saveable | None]:
        """The newest state of that run, or of the newest run of that name not completed."""
        check_run_id(name_or_run_id, "name_or_run_id")
        header = yield Work(lambda: self._newest(name_or_run_id, scope))
        if header is None:
            return None
        data = _header_data(header)
        yield from self._fire(HookEvent.PRE_RESUME, header.name, data)
        cause = resume_cause(header.status)
        try:
            state = yield from self._load(lambda: header)
        except HoldfastError:
            self.metrics.resumed(cause, succeeded=False)
            raise
        self.metrics.resumed(cause)
        self._count_save(header)
        yield from self._fire(HookEvent.POST_RESUME, header.name, {**data, "state": state})
        return state

    def _newest(self, name_or_run_id: str, scope: str) -> Header | None:
        run = self.reader.to_resume(name_or_run_id)
        return self.reader.newest(run, scope) if run is not None else None

    def latest(self, name_or_run_id: str) -> Steps[CheckpointMetadata | None]:
        """The newest checkpoint that a resume would take, without its state."""
        header = yield Work(lambda: self._newest(check_run_id(name_or_run_id, "name"), ""))
        return None if header is None else views.metadata_of(self.keeper.with_tags(header))

    def exists(self, checkpoint_id: str) -> Steps[bool]:
        """Whether there is a checkpoint with exactly that id."""
        found = yield Work(lambda: self.storage.find(checkpoint_id) if checkpoint_id else [])
        return any(header.id == checkpoint_id for header in found)

    def list(
        self,
        name_or_run_id: str | None,
        *,
        scope: str | None,
        kind: str | None,
        status: str | None,
        tag: str | None,
        metadata: Mapping[str, Any] | None,
        since: datetime | None,
        until: datetime | None,
        before: str | None,
        limit: int | None,
    ) -> Steps[list[CheckpointMetadata]]:
        """Checkpoints, newest first."""
        query = RecordQuery(
            scope=scope,
            kind=kind,
            status=None if status is None else read_status(status),
            tag=tag,
            metadata=metadata,
            since=_aware(since, "since"),
            until=_aware(until, "until"),
            before=before,
            limit=limit,
        )
        headers = yield Work(lambda: self.keeper.listed(self._about(name_or_run_id, query)))
        return [views.metadata_of(header) for header in headers]

    def _about(self, name_or_run_id: str | None, query: RecordQuery) -> RecordQuery:
        if name_or_run_id is None:
            return query
        if self.reader.run(name_or_run_id) is not None:
            return msgspec.structs.replace(query, run_id=name_or_run_id)
        return msgspec.structs.replace(query, name=name_or_run_id)

    # Forking

    def fork(
        self,
        checkpoint_id: str,
        run_id: str | None = None,
        change: Callable[[Loaded, Subject], Subject] | None = None,
    ) -> Steps[Saveable]:
        """A new run that begins with the state of that checkpoint, or what *change* makes of it."""
        header = yield Work(lambda: self.reader.resolve(checkpoint_id))
        new_id = str(uuid.uuid4()) if run_id is None else check_run_id(run_id)
        if (yield Work(lambda: self.reader.run(new_id))) is not None:
            raise UsageError(f"there is a run {new_id!r} already", hint="fork to another run_id")
        data = {**_header_data(header), "new_run_id": new_id}
        yield from self._fire(HookEvent.PRE_FORK, header.name, data)
        loaded: Loaded = yield Work(lambda: self.reader.load(header))
        subject = _forked(loaded, new_id)
        if change is not None:
            subject = change(loaded, subject)
        yield from self._commit(Request(run_id=new_id, subject=subject))
        self.metrics.forked()
        made = yield from self._load(lambda: self._newest(new_id, header.scope) or header)
        yield from self._fire(HookEvent.POST_FORK, header.name, {**data, "state": made})
        return made

    # Looking

    def snapshot(self, state: Saveable, reason: str = "manual") -> StateSnapshot:
        """A copy of *state* as it is now, with a summary. It is not stored."""
        return StateSnapshot(copy.deepcopy(state), self._clock(), reason)

    def diff(self, a: str, b: str) -> Steps[tuple[Change, ...]]:
        """What turns the state of checkpoint *a* into that of *b*."""

        def work() -> tuple[Change, ...]:
            first, second = (self.reader.load(self.reader.resolve(one)) for one in (a, b))
            return views.changes_between(first, second)

        return (yield Work(work))  # type: ignore[no-any-return]

    def tree(self, name_or_run_id: str) -> Steps[dict[str | None, list[str]]]:
        """The ids of each checkpoint's children, by the id of their parent."""
        query = yield Work(lambda: self._about(name_or_run_id, RecordQuery()))
        return (yield Work(lambda: views.tree(self.storage.headers(query))))  # type: ignore[no-any-return]

    def history(self, name_or_run_id: str, scope: str = "") -> Steps[list[HistoryEntry]]:
        """The checkpoints of a run, oldest first, with what each changed."""
        run = yield from self._run(name_or_run_id)
        return (yield Work(lambda: list(views.history(self.reader, run, scope))))  # type: ignore[no-any-return]

    def blame(self, name_or_run_id: str, path: str, scope: str = "") -> Steps[CheckpointMetadata | None]:
        """The checkpoint that last wrote the value at *path*."""
        run = yield from self._run(name_or_run_id)
        return (yield Work(lambda: views.blame(self.reader, run, path, scope)))  # type: ignore[no-any-return]

    def verify(self, name_or_run_id: str | None = None) -> Steps[list[Verdict]]:
        """Recompute the digests of one run, the runs of a name, or all."""

        def work() -> list[Verdict]:
            if name_or_run_id is None:
                runs = self.storage.runs(_ALL_RUNS)
            else:
                runs = self.reader.runs_of(name_or_run_id)
            return [views.verify(self.reader, run) for run in runs]

        verdicts: list[Verdict] = yield Work(work)
        if name_or_run_id is not None and not verdicts:
            raise _no_run(name_or_run_id)
        for _ in range(sum(len(verdict.problems) for verdict in verdicts)):
            self.metrics.integrity_error()
        return verdicts

    def _run(self, name_or_run_id: str) -> Steps[RunInfo]:
        run = yield Work(lambda: next(iter(self.reader.runs_of(name_or_run_id)), None))
        if run is None:
            raise _no_run(name_or_run_id)
        return run  # type: ignore[no-any-return]

    # Deleting and keeping

    def delete(self, checkpoint_id: str) -> Steps[bool]:
        """Remove one checkpoint; what is built on it stays loadable."""

        def hide() -> str:
            header = self.reader.resolve(checkpoint_id)
            self.storage.delete(header.run_id, hide=[header.seq])
            self.keeper.forget(header.run_id, header.name)
            self.journal.forget(header.run_id)
            return header.run_id

        run_id = yield Work(hide)
        yield from self._erase(run_id)
        return True

    def delete_run(self, run_id: str) -> Steps[int]:
        """Remove a run and all its records; gives how many there were."""

        def work() -> int:
            count = self.storage.delete(run_id)
            self.journal.forget(run_id)
            self.keeper.forget_all()
            return count

        count: int = yield Work(work)
        if not count:
            raise _no_run(run_id)
        return count

    def cleanup(self, name_or_run_id: str) -> Steps[int]:
        """Apply the retention rules now, free the space, and give how many checkpoints went."""
        runs: list[RunInfo] = yield Work(lambda: list(self.reader.runs_of(name_or_run_id)))
        data = {"agent_id": name_or_run_id, "run_ids": [run.run_id for run in runs]}
        yield from self._fire(HookEvent.PRE_PRUNE, name_or_run_id, data)
        count: int = yield Work(lambda: self.keeper.hide_now(runs))
        for run in runs:
            yield from self._erase(run.run_id)
        yield Work(self.storage.compact)
        self.metrics.pruned(count)
        yield from self._fire(HookEvent.POST_PRUNE, name_or_run_id, {**data, "removed": count})
        return count

    def mark(self, checkpoint_id: str, kind: str, on: bool) -> Steps[str]:
        """Pin or release a checkpoint, or take that back. Gives the checkpoint's id."""
        header: Header = yield Work(lambda: self.reader.resolve(checkpoint_id))
        return (yield from self._mark(header, kind, (), {"on": on}))

    def tag(
        self, checkpoint_id: str, tags: Sequence[str], remove: Sequence[str]
    ) -> Steps[str]:
        """Give a checkpoint tags, or take some away. Gives the checkpoint's id."""
        new, old = read_tags(tags), read_tags(remove)
        header: Header = yield Work(
            lambda: self.keeper.with_tags(self.reader.resolve(checkpoint_id))
        )
        after = tuple(t for t in dict.fromkeys((*header.tags, *new)) if t not in old)
        return (yield from self._mark(header, "tag", after, {"tags": list(after)}))

    def _mark(
        self, header: Header, kind: str, tags: tuple[str, ...], content: dict[str, Any]
    ) -> Steps[str]:
        note = Note(
            kind=kind,
            content={},
            scope=header.scope,
            step=header.step,
            parent=header.id,
            tags=tags,
            metadata={"target": header.seq, **content},
        )
        yield from self._commit(Request(run_id=header.run_id, notes=(note,)))
        yield Work(lambda: self.keeper.forget(header.run_id, header.name))
        return header.id

    def _hears(self, *events: HookEvent) -> bool:
        return self.hooks is not None and any(self.hooks.has(event) for event in events)

    def _fire(
        self, event: HookEvent, agent_id: str, data: Mapping[str, Any]
    ) -> Steps[list[HookResult]]:
        if not self._hears(event):
            return []
        results: list[HookResult] = yield Fire(event, agent_id, data)
        failed = sum(not result.success for result in results)
        if failed:
            self.metrics.hook_failed(failed)
        return results


def _save_data(subject: Subject, state: Saveable | None) -> dict[str, Any]:
    place = subject.place
    return {
        "agent_id": place.name,
        "run_id": place.run_id,
        "step_number": place.step,
        "status": place.status,
        "timestamp": datetime.now(UTC),
        "state": state,
    }


def _header_data(header: Header) -> dict[str, Any]:
    return {
        "agent_id": header.name,
        "run_id": header.run_id,
        "checkpoint_id": header.id,
        "step_number": header.step,
        "status": header.status,
        "timestamp": header.saved_at,
        "kind": header.kind,
        "size": header.size,
        "stored": header.stored,
    }


def _replaced(old: Subject, state: Saveable) -> Subject:
    """What a hook made of the state; run, step and lineage stay what they were."""
    new = subject_of(state, new_run_id=old.place.run_id)
    place = msgspec.structs.replace(old.place, metadata=new.place.metadata, tags=new.place.tags)
    return msgspec.structs.replace(old, place=place, values=new.values, natures=new.natures)


def _forked(loaded: Loaded, run_id: str) -> Subject:
    header = loaded.header
    subject = subject_of(loaded.state(), new_run_id=run_id)
    origin = {"run_id": header.run_id, "checkpoint_id": header.id, "step": header.step}
    place = msgspec.structs.replace(
        subject.place,
        run_id=run_id,
        kind="fork",
        status="running",
        tags=(),
        metadata={"forked_from": origin},
    )
    return msgspec.structs.replace(
        subject,
        place=place,
        lineage=Lineage(header.id),
        id=None,
        fingerprint=header.fingerprint,
        schema=header.schema,
        extra=(lambda _: msgspec.json.encode(loaded.extra)) if loaded.extra else None,
    )


def _no_run(name: str) -> NotFoundError:
    return NotFoundError(f"no run or name {name!r}", hint="check the spelling", run_id=name)


def _aware(moment: datetime | None, what: str) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise UsageError(f"{what} has no time zone", hint="give datetime.now(UTC)")
    return moment


_ALL_RUNS = RunQuery()
