"""Cost of retention, and the size it leaves: 10,000 saves of which ten are kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import Line
from benchmarks.workload import Times, files_size, message, text_of
from surehold import CheckpointManager, SQLiteStorage, State

__all__ = ["kept_of", "measure"]

_SAVES = 10_000
_KEPT = 10
_WINDOW = 64
"""Messages in the state: each save rewrites one of them."""
_ROOM = 1 << 20
_BESIDE = 2000
"""The number of last saves that are also made without retention, in turns."""


class Kept(NamedTuple):
    """The storage after the saves."""

    listed: int
    size: int
    """Bytes of the file, closed."""
    state: int
    """Bytes of one state."""
    times: Times


def kept_of(directory: Path, saves: int = _SAVES, *, beside: int = 0) -> Kept:
    """Save with retention; the last *beside* saves also without it, in turns."""
    messages = [message(number) for number in range(_WINDOW * 2)]
    times = Times()
    storages = {name: SQLiteStorage(directory / f"{name}.db") for name in ("kept", "all")}
    managers = {
        name: CheckpointManager(storage, retention_count=_KEPT if name == "kept" else None)
        for name, storage in storages.items()
    }
    first = {f"slot-{n}": messages[n] for n in range(_WINDOW)}
    states = {name: State.new(first, run_id="run") for name in managers}
    for step in range(1, saves + 1):
        both = step > saves - beside
        for name in ("kept", "all")[:: 1 if step % 2 else -1] if both else ("kept",):
            item = messages[step * 7 % len(messages)]
            state = states[name] = states[name].set(f"slot-{step % _WINDOW}", item).at(step=step)
            save = partial(managers[name].save_checkpoint, state)
            times.time(name, save) if both else save()
    listed = len(managers["kept"].list_checkpoints("run"))
    for storage in storages.values():
        storage.close()
    state_size = len(text_of(states["kept"].to_dict()))
    return Kept(listed, files_size(directory / "kept.db"), state_size, times)


def measure(directory: Path) -> Iterator[Line]:
    """Measure 10,000 saves with and without retention."""
    kept = kept_of(directory, beside=_BESIDE)
    yield Line(f"{_SAVES:,} saves, retention_count={_KEPT}: listed", kept.listed, _KEPT, unit="")
    allowed = 6 * kept.state + _ROOM
    yield Line(
        "SQLite file / (6 states + 1 MB)",
        kept.size / allowed,
        1,
        note=f"{kept.size:,} bytes, one state {kept.state:,}",
    )
    yield Line(
        "median save, with / without",
        kept.times.ratio("kept", "all"),
        1.5,
        note=f"{kept.times.median('kept') * 1e3:.3f} ms",
    )
