"""How long a save takes beside a bare commit of the same new bytes, early and late in a run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import MISSING, Peer, open_peers
from benchmarks.report import Line
from benchmarks.work import BareCommits, Times, message, settings_of, text_of
from holdfast import AgentState, CheckpointManager, SQLiteStorage, State

__all__ = ["measure"]

_ROUNDS = 5
_AROUND = 50
_PLACES = (100, 1000)
_PEER_SAVES = 12


def measure(directory: Path) -> Iterator[Line]:
    """Several rounds, each in a new database; the figure is the median of the rounds'."""
    messages = [message(number) for number in range(_PLACES[-1] + _AROUND)]
    frozen: dict[int, list[float]] = {place: [] for place in _PLACES}
    plain: dict[int, list[float]] = {place: [] for place in _PLACES}
    shown: dict[int, list[float]] = {place: [] for place in _PLACES}
    for number in range(_ROUNDS):
        for place, times in _round(directory / f"round-{number}.db", messages).items():
            frozen[place].append(times.ratio("frozen", "bare"))
            plain[place].append(times.ratio("plain", "bare"))
            shown[place].append(times.median("bare"))
    peers = {place: _peer_times(directory / str(place), messages[:place]) for place in _PLACES}
    for place in _PLACES:
        yield Line(
            f"save through State.append around step {place:,} / bare commit",
            median(frozen[place]),
            3,
            peers=peers[place],
            note=_note(frozen[place], shown[place]),
        )
    for place in _PLACES:
        yield Line(
            f"save of a plain list extended in place, around step {place:,} / bare commit",
            median(plain[place]),
            10,
            note=_note(plain[place], shown[place]),
        )


def _note(ratios: list[float], bare: list[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}; bare commit {median(bare) * 1e3:.3f} ms"


def _round(path: Path, messages: list[dict[str, Any]]) -> dict[int, Times]:
    """The times around each place, of a frozen state, a plain one and bare commits in turn."""
    taken = {place: Times() for place in _PLACES}
    with SQLiteStorage(path) as storage:
        manager = CheckpointManager(storage)
        bare = BareCommits(path.with_suffix(".bare"), settings_of(storage))
        state = State.new({"messages": []}, run_id="frozen")
        agent = AgentState(agent_id="plain", run_id="plain")
        for step, item in enumerate(messages, 1):
            near = [times for place, times in taken.items() if abs(step - place) <= _AROUND]
            times = near[0] if near else Times()
            state = times.time("frozen", partial(_append, manager, state, item, step))
            times.time("bare", partial(bare.commit, text_of(item)))
            times.time("plain", partial(_extend, manager, agent, item, step))
        bare.close()
    return taken


def _append(manager: CheckpointManager, state: State, item: dict[str, Any], step: int) -> State:
    state = state.append("messages", item).at(step=step)
    manager.save_checkpoint(state)
    return state


def _extend(manager: CheckpointManager, agent: AgentState, item: dict[str, Any], step: int) -> None:
    agent.conversation_history.append(item)
    agent.step_number = step
    manager.save_checkpoint(agent)


def _peer_times(directory: Path, messages: list[dict[str, Any]]) -> dict[str, str]:
    """How many bare commits a peer's save of these messages takes."""
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
