"""What retention costs and leaves: 10,000 saves of which ten are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import Line
from benchmarks.work import Times, files_size, message, text_of
from holdfast import CheckpointManager, SQLiteStorage, State

__all__ = ["kept_of", "measure"]

_SAVES = 10_000
_KEPT = 10
_WINDOW = 64
"""Messages in the state: each save rewrites one of them."""
_ROOM = 1 << 20


class Kept(NamedTuple):
    """What was left after so many saves."""

    listed: int
    size: int
    """Bytes of the file, closed."""
    state: int
    """Bytes of one state."""
    times: Times


def kept_of(directory: Path, saves: int = _SAVES, *, beside: bool = True) -> Kept:
    """Save with retention and, if *beside*, in turn without."""
    messages = [message(number) for number in range(_WINDOW * 2)]
    times = Times()
    names = ("kept", "all") if beside else ("kept",)
    storages = {name: SQLiteStorage(directory / f"{name}.db") for name in names}
    managers = {
        name: CheckpointManager(storage, retention_count=_KEPT if name == "kept" else None)
        for name, storage in storages.items()
    }
    first = {f"slot-{n}": messages[n] for n in range(_WINDOW)}
    states = {name: State.new(first, run_id="run") for name in managers}
    for step in range(1, saves + 1):
        for name in names if step % 2 else names[::-1]:
            state = states[name]
            state = state.set(f"slot-{step % _WINDOW}", messages[step * 7 % len(messages)])
            states[name] = state = state.at(step=step)
            times.time(name, lambda name=name, state=state: managers[name].save_checkpoint(state))
    listed = len(managers["kept"].list_checkpoints("run"))
    for storage in storages.values():
        storage.close()
    state_size = len(text_of(states["kept"].to_dict()))
    return Kept(listed, files_size(directory / "kept.db"), state_size, times)


def measure(directory: Path) -> Iterator[Line]:
    """Ten thousand saves with and without."""
    kept = kept_of(directory)
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
