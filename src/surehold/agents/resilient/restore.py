"""Find the checkpoint an agent is restored to, by its id or in a file."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import msgspec

from surehold.core.records import Header, medium_name
from surehold.core.state import State
from surehold.engine.journal import Loaded
from surehold.engine.managers import CheckpointManager
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RecordQuery, RunQuery, Storage
from surehold.storage.registry import open_storage

PARTIAL = "partial"
"""Tag of a checkpoint that lacks the state of a provider."""

_JOURNAL = re.compile(r"(.+?)(?:\.\d+)?\.jsonl(?:\.gz|\.zst)?")


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A restore that was carried out."""

    checkpoint_id: str
    """The checkpoint that was restored."""
    safety_id: str
    """The checkpoint of the state before, for `undo_restore`; "" if there was no room for it."""
    providers: tuple[str, ...]
    transaction_id: str


class AgentOperation(msgspec.Struct, frozen=True, kw_only=True):
    """A guarded operation that is under way."""

    name: str
    transaction_id: str
    checkpoint_id: str
    """The checkpoint that is restored if it fails."""


class RestoreTarget(msgspec.Struct, frozen=True):
    """A checkpoint of the agent, loaded and checked."""

    header: Header
    state: State
    loaded: Loaded | None = None
    """The base for the next delta; None for a checkpoint from a file."""


def is_path(given: str | os.PathLike[str]) -> bool:
    """Return whether *given* is a file, and not the id of a checkpoint."""
    if not isinstance(given, str):
        return True
    return os.sep in given or given.endswith(".surehold") or os.path.isfile(given)


def find_by_id(manager: CheckpointManager, agent_id: str, checkpoint_id: str) -> RestoreTarget:
    """Load the agent's checkpoint by id or unique prefix; refuse another agent's."""
    reader = manager.reader
    try:
        header = reader.resolve(checkpoint_id, run_id=agent_id)
    except NotFoundError:
        for other in reader.storage.find(checkpoint_id):
            raise _of_another(other, agent_id) from None
        raise
    return target_of(reader.load_visible(header), agent_id)


def target_of(loaded: Loaded, agent_id: str) -> RestoreTarget:
    """Make a loaded checkpoint the base of a restore; refuse another agent's."""
    return RestoreTarget(loaded.header, _state(loaded.header, loaded, agent_id), loaded)


def find_in_file(
    manager_on: Callable[[Storage], CheckpointManager], agent_id: str, path: str | os.PathLike[str]
) -> RestoreTarget:
    """Load the newest complete checkpoint of an exported file or a run's journal."""
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"there is no file {str(file)!r}", hint="check the path", path=path)
    journal = _JOURNAL.fullmatch(file.name)
    with tempfile.TemporaryDirectory(prefix="surehold-") as directory:
        if journal is None:
            with open_storage("memory://") as scratch:
                reading = manager_on(scratch)
                reading.import_run(file)
                return _newest(reading, agent_id)
        # A copy: reading a journal must not change it, and it may be anywhere.
        folder = Path(directory, medium_name(agent_id))
        folder.mkdir()
        for part in file.parent.iterdir():
            if (other := _JOURNAL.fullmatch(part.name)) and other[1] == journal[1]:
                shutil.copy(part, folder)
        with open_storage(f"file://{quote(directory)}") as scratch:
            return _newest(manager_on(scratch), agent_id)


def _newest(reading: CheckpointManager, agent_id: str) -> RestoreTarget:
    storage = reading.storage
    runs = list(storage.runs(RunQuery()))
    if not runs:
        raise NotFoundError("the file holds no run")
    reader = reading.reader
    newest = reader.newest(runs[0])
    if newest is not None and newest.name != agent_id:
        raise _of_another(newest, agent_id)
    for header in storage.headers(RecordQuery(run_id=runs[0].run_id, scope="")):
        if PARTIAL not in header.tags:
            loaded = reader.load(header)
            return RestoreTarget(header, _state(header, loaded, agent_id))
    raise NotFoundError("the file holds no complete checkpoint", run_id=runs[0].run_id)


def _state(header: Header, loaded: Loaded, agent_id: str) -> State:
    state = loaded.upgraded()
    if not isinstance(state, State):
        raise _of_another(header, agent_id)
    return state


def _of_another(header: Header, agent_id: str) -> UsageError:
    return UsageError(
        f"checkpoint {header.id} belongs to run {header.run_id!r} of {header.name!r}, not to"
        f" agent {agent_id!r}",
        hint="restore it with the manager of its own agent",
        run_id=header.run_id,
        agent_id=header.name,
    )
