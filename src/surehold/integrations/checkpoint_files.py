"""Checkpoint files of Kaizen and AgenticFleet, imported into a storage."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from surehold.core.state import AgentState, State
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
        return _time(self.path, self.fields.get("timestamp")), step

    def state(self) -> State | AgentState:
        if "workflow_id" not in self.fields:
            return AgentState.from_dict({**self.fields, "run_id": self.run_id})
        metadata = self.fields.get("metadata") or {}
        keys = ("current_round", "stall_count", "last_response", "context")
        state = State.new(
            {key: self.fields.get(key) for key in keys} | {"imported": metadata},
            run_id=self.run_id,
            name="fleet",
        )
        status = metadata.get("status", "running")
        return state.at(step=self.fields["current_round"], status=status)


def import_checkpoint_files(
    directory: str | Path, storage: CheckpointManager | Storage | str | None = None
) -> list[ImportedRun]:
    """Import the checkpoint files in *directory*, one run for each agent or workflow.

    Kaizen's files (``.jsonl``, ``.jsonl.gz``) become `AgentState`s of a run with the agent's id,
    AgenticFleet's (``.json``) become `State`s of a run with the workflow's id, oldest first.
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
        for states in runs.values():
            for state in states:
                manager.save_checkpoint(state, force=True)
    return [ImportedRun(run_id, len(states)) for run_id, states in runs.items()]


def _runs(directory: Path) -> dict[str, list[State | AgentState]]:
    files = sorted(path for pattern in _PATTERNS for path in directory.glob(pattern))
    if not files:
        raise NotFoundError(
            f"there are no checkpoint files in {directory}",
            hint=f"looked for {', '.join(_PATTERNS)}",
        )
    runs: defaultdict[str, list[_File]] = defaultdict(list)
    for file in map(_read, files):
        runs[file.run_id].append(file)
    return {
        run_id: [file.state() for file in sorted(found, key=lambda file: file.order)]
        for run_id, found in runs.items()
    }


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
        raise DecodeError(f"{path} is no checkpoint of Kaizen or AgenticFleet")
    return _File(path, dict(fields))


def _time(path: Path, text: object) -> datetime:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError as error:
        raise DecodeError(f"{path}: timestamp is {text!r}") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)
