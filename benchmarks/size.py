"""Bytes on disk for 1,000 steps that each append a message of 1 KB, the full history kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers import MISSING, LangGraph, open_peers
from benchmarks.report import Line
from benchmarks.workload import content_of, files_size, message
from surehold import CheckpointManager, SQLiteStorage, State

__all__ = ["STEPS", "journal_sizes", "measure"]

STEPS = 1000


def redundant_size(directory: Path, steps: int = STEPS) -> float:
    """Measure bytes / content, closed, with a second copy of every record."""
    messages = [message(number) for number in range(steps)]
    with CheckpointManager(f"sqlite:///{directory}/runs.db?redundancy=1") as manager:
        state = State.new({"messages": []}, run_id="run")
        for step, item in enumerate(messages, 1):
            state = state.append("messages", item).at(step=step)
            manager.save_checkpoint(state)
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return size / content_of(messages)


def journal_sizes(path: Path, steps: int = STEPS, check_every: int = 1) -> tuple[float, float, int]:
    """Measure bytes / content, open and closed, and count the states that load wrongly.

    Another manager loads every *check_every*-th state and compares it.
    """
    messages = [message(number) for number in range(steps)]
    content = content_of(messages)
    ids = []
    with SQLiteStorage(path) as storage:
        manager = CheckpointManager(storage)
        state = State.new({"messages": []}, run_id="run")
        for step, item in enumerate(messages, 1):
            state = state.append("messages", item).at(step=step)
            ids.append(manager.save_checkpoint(state))
        opened = files_size(path) / content
    closed = files_size(path) / content
    wrong = 0
    with SQLiteStorage(path) as storage:
        manager = CheckpointManager(storage)
        for step in range(check_every, steps + 1, check_every):
            loaded = manager.load_checkpoint(ids[step - 1])
            assert isinstance(loaded, State)
            wrong += loaded.step != step or loaded["messages"] != messages[:step]
    return opened, closed, wrong


def measure(directory: Path) -> Iterator[Line]:
    """Compare the size of the database with the content and with the peers."""
    peers = _peer_sizes(directory)
    opened, closed, wrong = journal_sizes(directory / "surehold.db")
    what = f"{STEPS:,} appends of 1 KB: bytes / content"
    yield Line(f"{what}, closed", closed, 3, peers={name: p[1] for name, p in peers.items()})
    yield Line(
        f"{what}, open, log included", opened, 3.5, peers={name: p[0] for name, p in peers.items()}
    )
    yield Line(f"of all {STEPS:,} states, wrongly loaded", wrong, 0, unit="")
    yield Line(f"{what}, closed, with redundancy=1", redundant_size(directory / "redundant"), 4)


def _peer_sizes(directory: Path) -> dict[str, tuple[str, str]]:
    """Bytes / content of each peer, open and closed."""
    messages = [message(number) for number in range(STEPS)]
    content = content_of(messages)
    sizes = {}
    for name, peer in open_peers(directory).items():
        if peer is None:
            sizes[name] = (MISSING, MISSING)
            continue
        for step, item in enumerate(messages, 1):
            peer.prepare(messages[:step])()
            if isinstance(peer, LangGraph):
                peer.write(item)
        opened = peer.size()
        peer.close()
        sizes[name] = (f"{opened / content:.0f}x", f"{peer.size() / content:.0f}x")
    return sizes
