"""`holdfast.run`: a durable run for people who have their own loop."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Self

import msgspec

from holdfast.checkpoint.effects import describe, failure_in, failure_text
from holdfast.checkpoint.journal import CheckpointDraft, Reader
from holdfast.checkpoint.leases import LEASE_SECONDS, RunLease
from holdfast.checkpoint.manager import CheckpointManager
from holdfast.core.policy import Clockwork, Triggers
from holdfast.core.records import check_run_id
from holdfast.core.state import Lineage, Place, State, read_metadata
from holdfast.core.values import Nature
from holdfast.errors import ConflictError, EncodeError, UsageError
from holdfast.storage.base import Storage

__all__ = ["Run", "run"]

_NOT_SAVED = "holdfast: the state at this point was not saved"


def run(
    run_id: str,
    *,
    storage: CheckpointManager | Storage | str | None = None,
    name: str = "",
    checkpoint_frequency: int | None = None,
    checkpoint_interval: float | None = None,
    lease_seconds: float = LEASE_SECONDS,
) -> Run:
    """A run that goes on where it was when it is started again.

    Use it with ``with`` or ``async with``. Inside, `Run.state` is an ordinary dict that holds
    what was last saved, and `Run.checkpoint` ends a step: it is saved at once or, with
    *checkpoint_frequency* (steps) or *checkpoint_interval* (seconds), when one of them is due.

    An exception saves a checkpoint with status failed, which keeps its text, and is raised again
    (with the last state that was saved, if the one at this point holds what cannot be stored);
    ctrl-C saves one with status interrupted; the end of the block saves the final one, with status
    completed. A run that is completed says so in `Run.completed`, and its state is the final one.

    >>> with run("nightly", storage="memory://") as job:
    ...     for page in ["a", "b", "c"][job.state.get("done", 0):]:
    ...         _ = job.checkpoint(done=job.state.get("done", 0) + 1)
    >>> job.step, job.status, job.state
    (3, 'completed', {'done': 3})
    """
    return Run(
        check_run_id(run_id),
        storage=storage,
        name=name,
        triggers=Triggers(frequency=checkpoint_frequency, interval=checkpoint_interval),
        lease_seconds=lease_seconds,
    )


class Run:
    """One durable execution of a loop; made by `holdfast.run`."""

    def __init__(
        self,
        run_id: str,
        *,
        storage: CheckpointManager | Storage | str | None,
        name: str,
        triggers: Triggers,
        lease_seconds: float,
    ) -> None:
        self.run_id = run_id
        self.name = name
        self.state: dict[str, Any] = {}
        self.step = 0
        self.status = "running"
        self.resumed = False
        """Whether an earlier start of this run had saved something."""
        self.attempt = 1
        """How often the run was started, this time included."""
        self.checkpoint_id: str | None = None
        """The newest checkpoint."""
        self._storage = storage
        self._triggers = triggers
        self._lease_seconds = lease_seconds
        self._manager: CheckpointManager | None = None
        self._held: RunLease | None = None
        self._clock = Clockwork(triggers)
        self._lineage = Lineage()

    @property
    def completed(self) -> bool:
        """Whether the run had ended well; its state is then the final one."""
        return self.status == "completed"

    def checkpoint(
        self, *, node: str | None = None, metadata: dict[str, Any] | None = None, **values: Any
    ) -> str | None:
        """End a step with these values set in the state; save if that is due.

        Returns the checkpoint's id, or None if it was not due. Values that cannot be stored are an
        `EncodeError`: the step has then not ended, and the state is what it was before the call.
        """
        if self._held is None:
            raise UsageError("this run is not open", hint="use it inside its with block")
        if self.completed:
            raise UsageError(
                f"run {self.run_id!r} is completed", hint="start a new one with another run id"
            )
        before = {key: self.state[key] for key in values if key in self.state}
        self.state.update(values)
        self.step += 1
        if self._clock.due(self.step, time.monotonic(), node=node) is None:
            return None
        try:
            return self._save("routine", "running", node, metadata)
        except EncodeError:
            for key in values:
                self.state.pop(key, None)
            self.state.update(before)
            self.step -= 1
            raise

    def _save(
        self,
        kind: str,
        status: str,
        node: str | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        error: str = "",
    ) -> str | None:
        assert self._manager is not None and self._held is not None
        if self._held.lost is not None:
            raise ConflictError(
                f"run {self.run_id!r} was taken over by another process",
                hint="this process was away for longer than the lease; let the other go on",
                run_id=self.run_id,
            ) from self._held.lost
        place = Place(
            run_id=self.run_id,
            name=self.name,
            step=self.step,
            node=node,
            kind=kind,
            status=status,
            metadata=read_metadata(metadata or {}),
        )
        values = dict(self.state)
        natures = dict.fromkeys(values, Nature.LIVE)
        draft = CheckpointDraft("", place, values, natures, self._lineage)
        force = False
        if error:
            beside = msgspec.json.encode({"error": error})
            draft = msgspec.structs.replace(draft, extra=lambda _: beside)
            # The same state may fail again, with another text.
            force = error != self._told_before(self._manager.reader)
        self.checkpoint_id = self._manager.save_draft(draft, force=force)
        self._clock.saved(self.step, time.monotonic())
        self.status = status
        return self.checkpoint_id

    def _open(self) -> Self:
        if self._held is not None:
            raise UsageError("this run is open already")
        given = self._storage
        manager = given if isinstance(given, CheckpointManager) else CheckpointManager(given)
        held = RunLease(manager.engine.journal, self.run_id, seconds=self._lease_seconds)
        try:
            held.acquire()
            self._manager, self._held = manager, held
            self._restore(manager)
        except BaseException:
            held.release()
            self._held = None
            if manager is not given:
                manager.close()
            raise
        return self

    def _restore(self, manager: CheckpointManager) -> None:
        assert self._held is not None
        self.attempt = max(self._held.epoch, 1)
        found = manager.reader.run(self.run_id)
        state = manager.resume_from_latest(self.run_id) if found is not None else None
        if state is not None:
            if not isinstance(state, State):
                raise UsageError(
                    f"run {self.run_id!r} holds an agent's state", hint="resume it with its agent"
                )
            self.state = state.to_dict()
            self.step, self.name = state.step, state.name or self.name
            self.checkpoint_id = state.checkpoint_id
            self.status = "completed" if state.status == "completed" else "running"
            self._lineage = state.lineage
            self.resumed = True
        self._clock = Clockwork(self._triggers, step=self.step, now=time.monotonic())

    def _close(self, error: BaseException | None) -> None:
        manager, held = self._manager, self._held
        assert manager is not None and held is not None
        try:
            if not self.completed and held.lost is None:
                self._end(error)
        finally:
            self._held = None
            held.release()
            if not isinstance(self._storage, CheckpointManager):
                manager.close()

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._save_broken_off(error)
            return
        try:
            self._save("final", "completed")
        except EncodeError as unstorable:
            self._save_broken_off(unstorable)
            raise

    def _save_broken_off(self, error: BaseException) -> None:
        """Save the state and why the run ended here; the last good state, if this one cannot be
        stored."""
        stopped = isinstance(error, KeyboardInterrupt | SystemExit | asyncio.CancelledError)
        kind, status = ("interrupt", "interrupted") if stopped else ("recovery", "failed")
        manager = self._manager
        assert manager is not None
        text = "" if stopped else failure_text(describe(error), manager.hook_manager)
        told = {"error": type(error).__name__}
        try:
            try:
                self._save(kind, status, metadata=told, error=text)
            except EncodeError as unstorable:
                if not isinstance(error, EncodeError):
                    error.add_note(f"{_NOT_SAVED}: {unstorable}")
                self._go_back(manager.reader)
                self._save(kind, status, metadata=told, error=text)
        except Exception as failure:  # whatever it is, it must not hide the user's error
            error.add_note(f"{_NOT_SAVED}: {failure}")

    def _go_back(self, reader: Reader) -> None:
        """Take the last state that was saved; an empty one, if there is none."""
        run = reader.run(self.run_id)
        newest = reader.newest(run) if run is not None else None
        saved = reader.load(newest).graph_state() if newest is not None else None
        self.state = saved.to_dict() if saved is not None else {}
        self.step = saved.step if saved is not None else 0

    def _told_before(self, reader: Reader) -> str:
        """What the newest checkpoint says that the run failed with."""
        run = reader.run(self.run_id)
        newest = reader.newest(run) if run is not None else None
        return failure_in(newest, reader.load(newest).extras[-1]) if newest is not None else ""

    def __enter__(self) -> Self:
        return self._open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(error)

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self._open)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._close, error)

    def __repr__(self) -> str:
        return f"<Run {self.run_id} {self.status} at step {self.step}>"
