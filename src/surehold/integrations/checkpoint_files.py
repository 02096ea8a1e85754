"""Checkpoint files of Kaizen and AgenticFleet, imported into a storage."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from surehold.agents.fleet import imported_checkpoint
from surehold.core.state import AgentState
from surehold.engine.journal import CheckpointDraft, draft_of
from surehold.engine.managers import CheckpointManager, opened
from surehold.errors import ConflictError, DecodeError, NotFoundError
from surehold.storage.base import Storage

_PATTERNS = ("*.jsonl", "*.jsonl.gz", "*.json")


class ImportedRun(NamedTuple):
    """A run that was imported."""

    run_id: str
    checkpoints: int


class _File(NamedTuple):
    path: Path
    fields: dict[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.fields.get("workflow_id") or self.fields["agent_id"])

    @property
    def order(self) -> tuple[datetime, int]:
        step = self.fields.get("current_round", self.fields.get("step_number", 0))
        return self.time, step

    @property
    def time(self) -> datetime:
        return _time(self.path, self.fields.get("timestamp"))

    def draft(self) -> CheckpointDraft:
        if "workflow_id" in self.fields:
            return imported_checkpoint(self.fields)
        return draft_of(AgentState.from_dict({**self.fields, "run_id": self.run_id}))


def import_checkpoint_files(
    directory: str | Path, storage: CheckpointManager | Storage | str | None = None
) -> list[ImportedRun]:
    """Import the checkpoint files in *directory*, one run for each agent or workflow.

    Kaizen's files (``.jsonl``, ``.jsonl.gz``) become `AgentState`s of a run with the agent's id,
    AgenticFleet's (``.json``) become rounds of a fleet's run with the workflow's id, oldest first;
    times and checkpoint ids stay. It is a run of the fleet named ``fleet``, which plans next.
    All files are read before anything is written: one that cannot be read is a `DecodeError`, an
    agent or workflow that is a run already a `ConflictError`. The files are left as they are.
    Encrypted files cannot be imported.
    """
    runs = _runs(Path(directory))
    with opened(storage) as manager:
        for run_id in runs:
            if manager.reader.run(run_id) is not None:
                raise ConflictError(
                    f"there is a run {run_id!r} already",
                    hint="import into another storage, or delete the run first",
                    run_id=run_id,
                )
        drafts = [(one.time, one.draft()) for files in runs.values() for one in files]
        now, _ = drafts[0]
        settings = msgspec.structs.replace(manager.settings, clock=lambda: now)
        importing = CheckpointManager.on(manager.storage, settings)
        for now, draft in drafts:  # noqa: B007  # the clock tells the time of each file
            importing.save_draft(draft, force=True)
    return [ImportedRun(run_id, len(files)) for run_id, files in runs.items()]


def _runs(directory: Path) -> dict[str, list[_File]]:
    files = sorted(path for pattern in _PATTERNS for path in directory.glob(pattern))
    if not files:
        raise NotFoundError(
            f"there are no checkpoint files in {directory}",
            hint=f"looked for {', '.join(_PATTERNS)}",
        )
    runs: defaultdict[str, list[_File]] = defaultdict(list)
    for file in map(_read, files):
        runs[file.run_id].append(file)
    return {run_id: sorted(found, key=lambda file: file.order) for run_id, found in runs.items()}


def _read(path: Path) -> _File:
    try:
        data = path.read_bytes()
        fields = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (OSError, EOFError, ValueError) as error:
        raise DecodeError(
            f"{path} cannot be read: {error}", hint="encrypted files cannot be imported"
        ) from error
    fleet = {"workflow_id", "current_round"}
    agent = {"agent_id", "step_number"}
    if not isinstance(fields, Mapping) or not (fleet <= fields.keys() or agent <= fields.keys()):
        raise DecodeError(f"{path} is not a checkpoint of Kaizen or AgenticFleet")
    return _File(path, dict(fields))


def _time(path: Path, text: object) -> datetime:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError as error:
        raise DecodeError(f"{path}: timestamp is {text!r}") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)
