"""The manager that blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, overload

from surehold.core.closing import Closing
from surehold.core.records import Header
from surehold.core.state import Saver, register_saver
from surehold.engine import commit as operations
from surehold.engine import transfer
from surehold.engine.commit import Steps
from surehold.engine.journal import CheckpointDraft, Loaded, Note, Saveable
from surehold.engine.leases import RunLease
from surehold.engine.managers.setup import Manager
from surehold.engine.transfer import LIMITS
from surehold.storage.base import RecordQuery, Storage

if TYPE_CHECKING:  # and what a method works with is loaded when it is called
    from surehold.engine.crypto import Key
    from surehold.engine.journal import Change, CheckpointMetadata, HistoryEntry
    from surehold.engine.repair import RepairReport, RunVerdict
    from surehold.engine.transfer import ImportLimits, Manifest, Redact, Style

P = ParamSpec("P")
T = TypeVar("T")


class CheckpointManager(Manager, Closing):
    """Saves states to a storage and loads them; blocking, thread-safe.

    *storage* is a `Storage`, an address such as ``sqlite:///agents.db``, a registered name, or
    None for the default address. With *retention_count* the newest so many checkpoints of each
    name (or run without one) are kept; *retention* takes any `Rules`.

    >>> from surehold import State
    >>> manager = CheckpointManager("memory://")
    >>> state = State.new({"done": 0}, run_id="nightly")
    >>> checkpoint_id = manager.save_checkpoint(state.set("done", 1).at(step=1))
    >>> manager.resume_from_latest("nightly")["done"]
    1
    """

    def perform(self, steps: Steps[T]) -> T:
        """Carry out an operation, for integrations that write operations of their own."""
        return operations.perform(self.face, steps)

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that only blocks.

        `AsyncCheckpointManager` calls it in its own thread.
        """
        return function(*args, **kwargs)

    # Each method returns what it performs: `AsyncCheckpointManager` awaits the same.

    def save_checkpoint(self, state: Saveable, force: bool = False) -> str:
        """Save *state* and return the checkpoint's id; it is durable when this returns.

        A state that says nothing new is not written again, and the id of the checkpoint that
        said it is returned, unless *force* is given.
        """
        return self.perform(operations.save_state(self.face, state, force=force))

    def save_draft(
        self,
        draft: CheckpointDraft,
        *,
        force: bool = False,
        notes: Sequence[Note] = (),
        epoch: int | None = None,
    ) -> str:
        """Save what stands for a state, and notes, in one atomic append.

        For those who keep a state of their own kind. *epoch* is that of the lease of whoever
        holds the run. Returns the checkpoint's id.
        """
        steps = operations.save_draft(self.face, draft, force=force, notes=notes, epoch=epoch)
        return self.perform(_id_of(steps))

    def append_notes(
        self,
        run_id: str,
        notes: Sequence[Note],
        head: int | None = None,
        *,
        epoch: int | None = None,
    ) -> None:
        """Append notes to a run; whatever the policy for checkpoints, a failure is raised.

        With *head*, only if that is the run's newest record, else a `ConflictError`. *epoch* is
        that of the lease of whoever holds the run.
        """
        return self.perform(operations.append_notes(self.face, run_id, notes, head, epoch))

    @overload
    def load_checkpoint(self, checkpoint_id: str) -> Saveable: ...

    @overload
    def load_checkpoint(self, checkpoint_id: str, *, keys: Sequence[str]) -> dict[str, Any]: ...

    def load_checkpoint(
        self, checkpoint_id: str, *, keys: Sequence[str] | None = None
    ) -> Saveable | dict[str, Any]:
        """The state saved as *checkpoint_id*, or as the one id that begins so.

        With *keys*, only these values of it, as a dict; the rest is not decoded.
        """
        if keys is not None:
            return self.perform(operations.load.load_values(self.face, checkpoint_id, keys))
        return self.perform(operations.load.load(self.face, checkpoint_id))

    def resume_from_latest(self, name_or_run_id: str) -> Any:
        """The newest state of that run, or of the newest unfinished run of that name.

        None if there is nothing to resume.
        """
        return self.perform(operations.load.resume(self.face, name_or_run_id))

    def latest(self, name_or_run_id: str) -> CheckpointMetadata | None:
        """The metadata of the checkpoint that `resume_from_latest` would load."""
        return self.perform(operations.read.latest(self.face, name_or_run_id))

    def exists(self, checkpoint_id: str) -> bool:
        """Return True if there is a checkpoint with exactly this id."""
        return self.call(operations.read.exists, self.face, checkpoint_id)

    def list_checkpoints(
        self,
        name_or_run_id: str | None = None,
        *,
        scope: str | None = None,
        kind: str | None = None,
        status: str | None = None,
        tag: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[CheckpointMetadata]:
        """Checkpoints, newest first. *before* is the id that the last page ended with."""
        return self.call(
            operations.read.checkpoints,
            self.face,
            name_or_run_id,
            RecordQuery(
                scope=scope,
                kind=kind,
                status=status,
                tag=tag,
                metadata=metadata,
                since=since,
                until=until,
                before=before,
                limit=limit,
            ),
        )

    def fork_from_checkpoint(
        self,
        checkpoint_id: str,
        run_id: str | None = None,
        *,
        change: Callable[[Loaded, CheckpointDraft], CheckpointDraft] | None = None,
        before: str | None = None,
    ) -> Saveable:
        """Begin a new run with the state of that checkpoint; the source is left as it is.

        *change* may make something else of what the new run begins with. With *before*, the id of
        a recorded call (``charge@2``), the fork has all calls that began earlier in that run, and
        makes this one anew.
        """
        return self.perform(operations.load.fork(self.face, checkpoint_id, run_id, change, before))

    def get_checkpoint_tree(self, name_or_run_id: str) -> dict[str | None, list[str]]:
        """The ids of each checkpoint's children, oldest first, by the id of their parent."""
        return self.call(operations.read.tree, self.face, name_or_run_id)

    def diff_checkpoints(self, a: str, b: str) -> tuple[Change, ...]:
        """The changes from the state of checkpoint *a* to that of *b*."""
        return self.call(operations.read.diff, self.face, a, b)

    def history(self, name_or_run_id: str, scope: str = "") -> list[HistoryEntry]:
        """The checkpoints of a run, oldest first, each with what it changed and its state."""
        return self.call(operations.read.history, self.face, name_or_run_id, scope)

    def blame(self, name_or_run_id: str, path: str, scope: str = "") -> CheckpointMetadata | None:
        """The checkpoint that last wrote *path* (``plan`` or ``/plan/0/status``)."""
        return self.call(operations.read.blame, self.face, name_or_run_id, path, scope)

    def delete_checkpoint(self, checkpoint_id: str) -> bool:
        """Remove a checkpoint. Those built on it can still be loaded."""
        return self.perform(operations.delete.delete_checkpoint(self.face, checkpoint_id))

    def delete_run(self, run_id: str) -> int:
        """Remove a run with all its records; returns how many there were."""
        return self.call(operations.delete.delete_run, self.face, run_id)

    def verify(self, name_or_run_id: str | None = None) -> list[RunVerdict]:
        """Recompute all digests of a run, the runs of a name, or all; a verdict for each."""
        return self.call(operations.read.verify, self.face, name_or_run_id)

    def repair(self, run_id: str | None = None, *, dry_run: bool = False) -> RepairReport:
        """Put aside what is damaged in a run, or in all of them and in the medium itself.

        What can be read and loaded stays, what cannot is kept apart, and a note in the run tells
        of it; afterwards `verify` finds nothing wrong. The report names each thing that was done;
        with *dry_run*, that would be.
        """
        return self.perform(operations.read.repair(self.face, run_id, dry_run=dry_run))

    def cleanup_old_checkpoints(self, name_or_run_id: str) -> int:
        """Apply the retention rules now and free the space; returns how many went."""
        return self.perform(operations.delete.cleanup(self.face, name_or_run_id))

    def pin(self, checkpoint_id: str) -> str:
        """Keep a checkpoint whatever the retention rules say."""
        return self.perform(operations.delete.mark(self.face, checkpoint_id, "pin", True))

    def unpin(self, checkpoint_id: str) -> str:
        """Let the retention rules decide about a checkpoint again."""
        return self.perform(operations.delete.mark(self.face, checkpoint_id, "pin", False))

    def release(self, checkpoint_id: str) -> str:
        """Let go of a checkpoint that was to be kept until released."""
        return self.perform(operations.delete.mark(self.face, checkpoint_id, "release", True))

    def tag(self, checkpoint_id: str, *tags: str, remove: Sequence[str] = ()) -> str:
        """Give a checkpoint tags, or take some away."""
        return self.perform(operations.delete.tag(self.face, checkpoint_id, tags, remove))

    def export_run(
        self,
        run_id: str,
        path: str | os.PathLike[str],
        *,
        redact: Redact | None = None,
        encryption_key: Key | None = None,
        decrypt: bool = False,
        overwrite: bool = False,
    ) -> Manifest:
        """Write a run to one self-contained ``.surehold`` file.

        Records are copied unchanged; encrypted runs stay encrypted. *encryption_key* encrypts the
        file with another key, *decrypt* with none; *redact* takes secrets out (rules of
        `surehold.core.policy`, or a function). The file appears whole or not at all, readable by
        its owner only. Returns its manifest.
        """
        return self.call(
            transfer.runs.export_run,
            self.face,
            run_id,
            path,
            redact=redact,
            encryption_key=encryption_key,
            decrypt=decrypt,
            overwrite=overwrite,
        )

    def import_run(
        self,
        path: str | os.PathLike[str],
        run_id: str | None = None,
        *,
        encryption_key: Key | None = None,
        limits: ImportLimits = LIMITS,
    ) -> str:
        """Import a run that `export_run` wrote, under *run_id* or its own; return the id.

        The file is not trusted: it is read within *limits*, and every record in it is checked
        before the run is there. What its states and notes say is believed, as if it had been
        saved here. Under another run id its checkpoints get ids of their own. *encryption_key*
        opens a file that another key than ours encrypted.
        """
        return self.call(
            transfer.runs.import_run,
            self.face,
            path,
            run_id,
            encryption_key=encryption_key,
            limits=limits,
        )

    def copy_run(self, run_id: str, to: Storage | str) -> int:
        """Bring a run's copy in another storage up to date; return the records copied.

        Records are copied unchanged, and those in the copy are never rewritten. After an
        interruption, call it again. A copy that differs is a `ConflictError` with the `.seq`.
        """
        return self.call(transfer.runs.copy_run, self.face, run_id, to)

    def export_json(self, run_or_checkpoint_id: str, style: Style = "agent") -> str:
        """A checkpoint as a JSON object, or a run as an array of its checkpoints.

        In an array each checkpoint has its ``changes``, and the newest its whole state too.
        *style* is the form: ``agent``, ``fleet``, ``graph`` or ``resilient``.
        """
        return self.call(transfer.runs.export_json, self.face, run_or_checkpoint_id, style)

    def rotate_keys(self, name_or_run_id: str | None = None) -> int:
        """Bring runs that an old key encrypted under the one of now; returns how many.

        It may be interrupted and called again; *old_keys* are needed until it has ended. Other
        processes that hold a run continue it.
        """
        return self.call(operations.rotation.rotate_keys, self.face, name_or_run_id)

    def encrypt_runs(
        self,
        name_or_run_id: str | None = None,
        *,
        scratch: str | os.PathLike[str] = ".surehold/encrypting",
    ) -> list[str]:
        """Encrypt runs that were begun in the clear, and return their ids.

        Each is written to an encrypted file in *scratch*, validated, replaced and verified. It may
        be interrupted and called again with the same *scratch*.
        """
        place = Path(scratch)
        return self.call(transfer.encrypt_runs, self.face, name_or_run_id, place, RunLease)

    def shred_run(self, run_id: str) -> bool:
        """Erase a run's key: its states can never be read again, headers and metadata can.

        Returns False if that was done before. A process that has the run open still knows the key.
        """
        return self.call(operations.rotation.shred_run, self.face, run_id)

    def close(self) -> None:
        """Close the storage, if it was opened by this manager."""
        if self._owns_storage:
            self.storage.close()


def _id_of(saving: Steps[Header | None]) -> Steps[str]:
    header = yield from saving
    return header.id if header is not None else ""


Target: TypeAlias = CheckpointManager | Storage | str | None
"""A manager, a storage, its address, or None for the default one."""


def manager_for(target: Target) -> CheckpointManager:
    """*target* itself, or a manager over that storage or address."""
    return target if isinstance(target, CheckpointManager) else CheckpointManager(target)


@contextmanager
def opened(target: Target) -> Iterator[CheckpointManager]:
    """*target* itself, or a manager over it that is closed after the block."""
    manager = manager_for(target)
    try:
        yield manager
    finally:
        if manager is not target:
            manager.close()


def _saver_for(target: Any) -> Saver:
    return target if hasattr(target, "save_checkpoint") else CheckpointManager(target)


register_saver(_saver_for)
