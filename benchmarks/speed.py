"""Time of a save beside a bare commit of the same new bytes, and beside LangGraph's saver."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import MISSING, LangGraph, Peer, open_peers
from benchmarks.report import Line
from benchmarks.workload import BareCommits, Times, message, settings_of, text_of
from surehold import AgentState, CheckpointManager, SQLiteStorage, State

__all__ = ["measure"]

_ROUNDS = 3
_AROUND = 50
_PLACES = (100, 1000)
_PEER_SAVES = 12
_PEER_PLACES = (1, 10, 100, 1000)
_TURNS = 41
"""Saves of each library that are compared at each of these places."""
_RAM_DISK = Path("/dev/shm")
_FRAME = 4096 + 24
"""Bytes of a page in SQLite's log."""

_Save = Callable[[dict[str, Any], int], None]


def measure(directory: Path) -> Iterator[Line]:
    """Measure several rounds in new databases; a figure is the median of the rounds."""
    messages = [message(number) for number in range(_PLACES[-1] + _AROUND)]
    rounds = range(_ROUNDS)
    frozen = [_frozen(directory / f"frozen-{number}.db", messages) for number in rounds]
    plain = [_plain(directory / f"plain-{number}.db", messages) for number in rounds]
    for place in _PLACES:
        peers = _peer_times(directory / str(place), messages[:place])
        yield _line(f"save through State.append, step {place:,}", 2, frozen, place, peers)
    for place in _PLACES:
        yield _line(f"save of a plain list extended in place, step {place:,}", 4, plain, place, {})
    yield from _on_ram(messages)
    yield from _beside_langgraph(directory, messages)
    yield from _first_save(messages[0])


def _on_ram(messages: list[dict[str, Any]]) -> Iterator[Line]:
    """The same on a RAM disk, where a sync is free and only the work counts."""
    if not _RAM_DISK.is_dir():
        yield Line("save on a RAM disk", None, note=f"there is no {_RAM_DISK}")
        return
    with tempfile.TemporaryDirectory(prefix="surehold-bench-", dir=_RAM_DISK) as made:
        rounds = [_frozen(Path(made) / f"{number}.db", messages) for number in range(_ROUNDS)]
    for place in _PLACES:
        yield _line(f"save on a RAM disk, step {place:,}", 6, rounds, place, {})


def _beside_langgraph(directory: Path, messages: list[dict[str, Any]]) -> Iterator[Line]:
    """Our save and LangGraph's of the same step, in turns, each in its own database.

    LangGraph's loop saves a step with `put_writes` and then `put`; `put` is compared alone too.
    """
    for place in _PEER_PLACES:
        what = f"save of step {place:,}: LangGraph's"
        home = directory / f"beside-{place}"
        home.mkdir()
        try:
            peer = LangGraph(home / "theirs.db")
        except ImportError:
            yield Line(f"{what} put", None, 1, at_least=True, note=f"LangGraph is {MISSING}")
            continue
        times = Times()
        with SQLiteStorage(home / "ours.db") as storage:
            manager = CheckpointManager(storage)
            for turn in range(_TURNS):
                state = State.new({"messages": messages[: place - 1]}, run_id=f"run-{turn}")
                if place > 1:
                    manager.save_checkpoint(state.at(step=place - 1))
                state = state.append("messages", messages[place - 1]).at(step=place)
                times.time("ours", partial(manager.save_checkpoint, state))
                times.time("put", peer.prepare(messages[:place]))
                times.time("writes", partial(peer.write, messages[place - 1]))
        peer.close()
        ours, put, writes = map(times.median, ("ours", "put", "writes"))
        note = f"{ours * 1e3:.3f} ms beside {put * 1e3:.3f} ms"
        yield Line(f"{what} put / Surehold", put / ours, 1, at_least=True, note=note)
        note = f"{writes * 1e3:.3f} ms more"
        yield Line(
            f"{what} put_writes and put / Surehold", (writes + put) / ours, 1, True, note=note
        )


def _first_save(item: dict[str, Any]) -> Iterator[Line]:
    """The parts of a run's first save on a RAM disk, and the pages that it writes."""
    if not _RAM_DISK.is_dir():
        return
    times, frames = Times(), []
    with tempfile.TemporaryDirectory(prefix="surehold-bench-", dir=_RAM_DISK) as made:
        path = Path(made) / "first.db"
        with SQLiteStorage(path) as storage:
            pool, manager = storage._pool, CheckpointManager(storage)
            append = pool.append

            def watched(work: Callable[[Any], Any], batches: int = 1) -> Any:
                timed = partial(times.time, "statements")
                return times.time(
                    "transaction", partial(append, lambda db: timed(partial(work, db)), batches)
                )

            pool.append = watched  # type: ignore[method-assign]
            for turn in range(_TURNS):
                storage.compact()  # its log is empty
                state = State.new({"messages": [item]}, run_id=f"run-{turn}").at(step=1)
                times.time("save", partial(manager.save_checkpoint, state))
                frames.append(path.with_name("first.db-wal").stat().st_size // _FRAME)
    save, transaction, statements = map(times.median, ("save", "transaction", "statements"))
    for what, seconds in {
        "the record and its bookkeeping": save - transaction,
        "the statements": statements,
        f"BEGIN and COMMIT of {median(frames):.0f} pages": transaction - statements,
    }.items():
        note = f"{seconds * 1e6:.0f} of {save * 1e6:.0f} us"
        yield Line(f"first save on a RAM disk: {what}", seconds / save, note=note)


_Round = dict[int, Times]
"""The times of saves and of bare commits around each place."""


def _line(what: str, limit: int, rounds: list[_Round], place: int, peers: dict[str, str]) -> Line:
    ratios = [taken[place].ratio("save", "bare") for taken in rounds]
    bare = median(taken[place].median("bare") for taken in rounds)
    return Line(
        f"{what} / bare commit",
        median(ratios),
        limit,
        peers=peers,
        note=f"{min(ratios):.2f} to {max(ratios):.2f}; bare commit {bare * 1e3:.3f} ms",
    )


def _round(
    path: Path, messages: list[dict[str, Any]], saver: Callable[[CheckpointManager], _Save]
) -> _Round:
    """Save every step, each followed by a bare commit; keep the times around the places."""
    taken = {place: Times() for place in _PLACES}
    with SQLiteStorage(path) as storage:
        save = saver(CheckpointManager(storage))
        bare = BareCommits(path.with_suffix(".bare"), settings_of(storage))
        for step, item in enumerate(messages, 1):
            near = [times for place, times in taken.items() if abs(step - place) <= _AROUND]
            times = near[0] if near else Times()
            times.time("save", partial(save, item, step))
            times.time("bare", partial(bare.commit, text_of(item)))
        bare.close()
    return taken


def _frozen(path: Path, messages: list[dict[str, Any]]) -> _Round:
    def saver(manager: CheckpointManager) -> _Save:
        state = State.new({"messages": []}, run_id="frozen")

        def save(item: dict[str, Any], step: int) -> None:
            nonlocal state
            state = state.append("messages", item).at(step=step)
            manager.save_checkpoint(state)

        return save

    return _round(path, messages, saver)


def _plain(path: Path, messages: list[dict[str, Any]]) -> _Round:
    def saver(manager: CheckpointManager) -> _Save:
        agent = AgentState(agent_id="plain", run_id="plain")

        def save(item: dict[str, Any], step: int) -> None:
            agent.conversation_history.append(item)
            agent.step_number = step
            manager.save_checkpoint(agent)

        return save

    return _round(path, messages, saver)


def _peer_times(directory: Path, messages: list[dict[str, Any]]) -> dict[str, str]:
    """Bare commits that each peer's save of these messages takes."""
    directory.mkdir()
    with SQLiteStorage(directory / "settings.db") as storage:
        bare = BareCommits(directory / "bare.db", settings_of(storage))
    times = Times()
    opened = open_peers(directory)
    body = text_of(messages[-1])
    for _ in range(_PEER_SAVES):
        for name, peer in opened.items():
            if isinstance(peer, Peer):
                times.time(name, peer.prepare(messages))
                times.time("bare", partial(bare.commit, body))
    bare.close()
    shown = {}
    for name, peer in opened.items():
        if peer is None:
            shown[name] = MISSING
        else:
            shown[name] = f"{times.ratio(name, 'bare'):.0f}x"
            peer.close()
    return shown
