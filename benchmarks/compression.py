"""Size with `compress=True` relative to plain records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Line
from benchmarks.workload import files_size, message
from surehold import CheckpointManager, FilesystemStorage, SQLiteStorage, State
from surehold.storage.base import Storage

__all__ = ["file_ratios", "measure"]

_STEPS = 200


def _save_all(storage: Storage) -> None:
    manager = CheckpointManager(storage)
    state = State.new({"messages": []}, run_id="run")
    for step in range(1, _STEPS + 1):
        state = state.append("messages", message(step)).at(step=step)
        manager.save_checkpoint(state)


def file_ratios(directory: Path) -> tuple[float, float]:
    """Compressed / plain files: as written, and after the segments are re-packed."""
    with FilesystemStorage(directory / "plain") as plain:
        _save_all(plain)
    whole = files_size(directory / "plain")
    with FilesystemStorage(directory / "gzip", compress=True) as packed:
        _save_all(packed)
        written = files_size(directory / "gzip")
        packed.compact()
    return written / whole, files_size(directory / "gzip") / whole


def measure(directory: Path) -> Iterator[Line]:
    """Measure files, which have limits, and show SQLite."""
    written, packed = file_ratios(directory)
    what = f"files, {_STEPS} x 1 KB text: compress=True / plain"
    yield Line(what, written, 0.65)
    yield Line(f"{what}, re-packed", packed, 0.5)
    sizes = {}
    for name, compress in (("plain", False), ("gzip", True)):
        with SQLiteStorage(directory / f"{name}.db", compress=compress) as storage:
            _save_all(storage)
        sizes[name] = files_size(directory / f"{name}.db")
    yield Line("SQLite, the same", sizes["gzip"] / sizes["plain"])
