"""A store of the kind that other systems have."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from surehold import State


class Shelf:
    """A store with four methods, of the kind that other systems have: a JSON file for each run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fails = 0

    def _path(self, run_id: str) -> Path:
        return self.directory / f"{sha256(run_id.encode()).hexdigest()}.json"

    def save(self, state: State) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError("the shelf is full")
        text = json.dumps({"run_id": state.run_id, "values": state.to_dict()})
        self._path(state.run_id).write_text(text)

    def load(self, run_id: str) -> State:
        kept = json.loads(self._path(run_id).read_text())
        return State.new(kept["values"], run_id=run_id)

    def delete(self, run_id: str) -> None:
        self._path(run_id).unlink(missing_ok=True)

    def list(self) -> list[str]:
        return [json.loads(path.read_text())["run_id"] for path in self.directory.glob("*.json")]
