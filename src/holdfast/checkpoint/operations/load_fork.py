"""What a manager does, as steps for either kind of manager: see `steps`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.checkpoint.hooks import HookEvent
from holdfast.checkpoint.inspect import resume_cause
from holdfast.checkpoint.journal import CheckpointDraft, Loaded, Note, Request, Saveable, draft_of
from holdfast.checkpoint.manager import Steps, Work
from holdfast.checkpoint.operations.read import Looking, no_run
from holdfast.checkpoint.operations.save import OnSaveFailure, header_data
from holdfast.core.records import Header, check_run_id
from holdfast.core.state import Lineage, read_tags
from holdfast.errors import HoldfastError, StorageError, UsageError
from holdfast.storage.base import RunInfo

__all__ = ["OnSaveFailure", "Operations", "mark_note"]


class Operations(Looking):
    """Every operation over one storage: what `Saving` and `Looking` do, and the rest."""

    def load(self, checkpoint_id: str, *, run_id: str | None = None) -> Steps[Saveable]:
        """The state saved as that checkpoint (or unique prefix of one)."""
        header = yield Work(lambda: self.reader.resolve(checkpoint_id, run_id=run_id))
        return (yield from self._load(header))

    def _load(self, header: Header, run: RunInfo | None = None) -> Steps[Saveable]:
        """Load it; as the newest checkpoint of *run*, or to branch off from wherever it is."""
        started = time.perf_counter()
        data = header_data(header)
        yield from self._fire(HookEvent.PRE_CHECKPOINT_LOAD, header.name, data)
        try:
            state: Saveable = yield Work(lambda: self._go_on_from(header, run))
        except HoldfastError:
            self.metrics.load_failed()
            raise
        seconds = time.perf_counter() - started
        self.metrics.loaded(seconds)
        data |= {"state": state, "duration_ms": seconds * 1000}
        yield from self._fire(HookEvent.POST_CHECKPOINT_LOAD, header.name, data)
        return state

    def _go_on_from(self, header: Header, run: RunInfo | None) -> Saveable:
        loaded = self.reader.load_visible(header)
        state = loaded.upgraded()
        self.journal.resume_from(loaded, state if loaded.is_current else None, run)
        return state

    def resume(self, name_or_run_id: str, *, scope: str = "") -> Steps[Saveable | None]:
        """The newest state of that run, or of the newest run of that name not completed."""
        check_run_id(name_or_run_id, "name_or_run_id")
        run, header = yield Work(lambda: self._standing(name_or_run_id, scope))
        yield from self._tell_repairs()
        if header is None:
            return None
        started = time.perf_counter()
        data = header_data(header)
        yield from self._fire(HookEvent.PRE_RESUME, header.name, data)
        cause = resume_cause(header.status)
        try:
            state = yield from self._load(header, run)
        except HoldfastError:
            self.metrics.resumed(cause, succeeded=False)
            raise
        self.metrics.resumed(cause)
        self._count_save(header)
        data |= {"state": state, "duration_ms": (time.perf_counter() - started) * 1000}
        yield from self._fire(HookEvent.POST_RESUME, header.name, data)
        return state

    def fork(
        self,
        checkpoint_id: str,
        run_id: str | None = None,
        change: Callable[[Loaded, CheckpointDraft], CheckpointDraft] | None = None,
    ) -> Steps[Saveable]:
        """A new run that begins with the state of that checkpoint, or what *change* makes of it."""
        header = yield Work(lambda: self.reader.resolve(checkpoint_id))
        new_id = str(uuid.uuid4()) if run_id is None else check_run_id(run_id)
        if (yield Work(lambda: self.reader.run(new_id))) is not None:
            raise UsageError(f"there is a run {new_id!r} already", hint="fork to another run_id")
        started = time.perf_counter()
        data = {**header_data(header), "new_run_id": new_id}
        yield from self._fire(HookEvent.PRE_FORK, header.name, data)
        loaded: Loaded = yield Work(lambda: self.reader.load_visible(header))
        draft = _forked(loaded, new_id)
        if change is not None:
            draft = change(loaded, draft)
        if (yield from self._commit(Request(run_id=new_id, draft=draft))) is None:
            raise StorageError(f"run {new_id!r} could not be stored", run_id=new_id)
        yield Work(lambda: self.retention.forget(new_id, header.name))
        self.metrics.forked()
        _, first = yield Work(lambda: self._standing(new_id, header.scope))
        made = yield from self._load(first)
        data |= {"state": made, "duration_ms": (time.perf_counter() - started) * 1000}
        yield from self._fire(HookEvent.POST_FORK, header.name, data)
        return made

    def delete(self, checkpoint_id: str) -> Steps[bool]:
        """Remove one checkpoint; what is built on it stays loadable."""

        def hide() -> str:
            header = self.reader.resolve(checkpoint_id)
            self.storage.delete(header.run_id, hide=[header.seq])
            self.retention.forget(header.run_id, header.name)
            return header.run_id

        run_id = yield Work(hide)
        yield from self._erase(run_id)
        return True

    def delete_run(self, run_id: str) -> Steps[int]:
        """Remove a run and all its records; gives how many there were."""

        def work() -> int:
            count = self.storage.delete(run_id)
            self.journal.invalidate(run_id)
            self.retention.forget_all()
            return count

        count: int = yield Work(work)
        if not count:
            raise no_run(run_id)
        return count

    def cleanup(self, name_or_run_id: str) -> Steps[int]:
        """Apply the retention rules now, free the space, and give how many checkpoints went."""
        started = time.perf_counter()
        runs: list[RunInfo] = yield Work(lambda: list(self.reader.runs_of(name_or_run_id)))
        ids = [run.run_id for run in runs]
        data: dict[str, Any] = {
            "agent_id": runs[0].name if runs else name_or_run_id,
            "run_id": ids[0] if len(ids) == 1 else "",
            "run_ids": ids,
            "timestamp": datetime.now(UTC),
        }
        yield from self._fire(HookEvent.PRE_PRUNE, data["agent_id"], data)
        hidden: dict[str, int] = yield Work(lambda: self.retention.hide_now(runs))
        freed = 0
        for run_id in dict.fromkeys([*ids, *hidden]):
            freed += yield from self._erase(run_id)
        yield Work(self.storage.compact)
        count = sum(hidden.values())
        self.metrics.pruned(count)
        milliseconds = (time.perf_counter() - started) * 1000
        data |= {"removed": count, "freed": freed, "duration_ms": milliseconds}
        yield from self._fire(HookEvent.POST_PRUNE, data["agent_id"], data)
        return count

    def mark(self, checkpoint_id: str, kind: str, on: bool) -> Steps[str]:
        """Pin or release a checkpoint, or take that back. Gives the checkpoint's id."""
        header: Header = yield Work(lambda: self.reader.resolve(checkpoint_id))
        return (yield from self._mark(header, kind, (), {"on": on}))

    def tag(self, checkpoint_id: str, tags: Sequence[str], remove: Sequence[str]) -> Steps[str]:
        """Give a checkpoint tags, or take some away. Gives the checkpoint's id."""
        new, old = read_tags(tags), read_tags(remove)
        header: Header = yield Work(lambda: self.reader.resolve(checkpoint_id))
        return (yield from self._mark(header, "tag", new, {"add": [*new], "remove": [*old]}))

    def _mark(
        self, header: Header, kind: str, tags: tuple[str, ...], content: dict[str, Any]
    ) -> Steps[str]:
        yield from self.append_notes(header.run_id, (mark_note(header, kind, tags, content),))
        return header.id


def mark_note(
    header: Header, kind: str, tags: tuple[str, ...] = (), content: dict[str, Any] | None = None
) -> Note:
    """The note that marks a checkpoint: a pin, a release, a tag."""
    return Note(
        kind=kind,
        content={},
        scope=header.scope,
        step=header.step,
        parent=header.id,
        tags=tags,
        metadata={"target": header.seq, **(content or {"on": True})},
    )


def _forked(loaded: Loaded, run_id: str) -> CheckpointDraft:
    header = loaded.header
    draft = draft_of(loaded.state(), new_run_id=run_id)
    origin = {"run_id": header.run_id, "checkpoint_id": header.id, "step": header.step}
    extra = dict(loaded.extra)
    if "now" in extra:  # where it says how far the other run's journal counts
        extra["now"] = {k: v for k, v in extra["now"].items() if k not in ("floor", "branch")}
    place = msgspec.structs.replace(
        draft.place,
        run_id=run_id,
        kind="fork",
        status="running",
        tags=(),
        metadata={"forked_from": origin, **_progress(header)},
    )
    return msgspec.structs.replace(
        draft,
        place=place,
        lineage=Lineage(header.id),
        id=None,
        fingerprint=header.fingerprint,
        schema=header.schema,
        extra=(lambda _: msgspec.json.encode(extra)) if extra else None,
    )


def _progress(header: Header) -> dict[str, Any]:
    """The progress of loops, which the fork continues."""
    return {"each": header.metadata["each"]} if "each" in header.metadata else {}
