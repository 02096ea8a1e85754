"""Surehold on SQLite; `surehold_files` has it on files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from proof.peers.states import MOMENT, Tell, state
from surehold import CheckpointConfig, CheckpointManager, GraphConfig, State, StateGraph, effect
from surehold.errors import LeaseHeldError

SCHEME = "sqlite"


def _store(directory: str, scheme: str) -> str:
    return f"sqlite:///{directory}/runs.db" if scheme == "sqlite" else f"file://{directory}/runs"


def save_for_ever(tell: Tell, directory: str, scheme: str = SCHEME) -> None:
    manager = CheckpointManager(_store(directory, scheme))
    found = manager.resume_from_latest("run")
    values = found if isinstance(found, State) else State.new({"number": 0}, run_id="run")
    while True:
        number = values["number"] + 1
        values = values.merge(state(number)).at(step=number)
        manager.save_checkpoint(values)
        tell("saved", number)


def look(tell: Tell, directory: str, scheme: str = SCHEME) -> None:
    with CheckpointManager(_store(directory, scheme)) as manager:
        latest: Any = manager.resume_from_latest("run")
        tell("latest", latest and latest["number"], latest and latest["text"])
        for entry in manager.list_checkpoints("run"):
            one: Any = manager.load_checkpoint(entry.checkpoint_id)
            tell("found", one["number"], one["text"])


def _graph(tell: Tell, directory: str, scheme: str, seconds: float) -> StateGraph:
    def act() -> None:
        tell("acted")
        time.sleep(seconds)

    async def second(values: State) -> None:
        await effect("act", act, in_doubt="retry")

    config = CheckpointConfig(store=_store(directory, scheme), interval=1, preserve=True)
    graph = StateGraph(GraphConfig(checkpoint=config))
    graph.add_node("first", lambda values: {"first": True})
    graph.add_node("second", second)
    graph.add_edge("first", "second")
    graph.set_entry_point("first")
    graph.set_exit_point("second")
    return graph


def begin(tell: Tell, directory: str, scheme: str = SCHEME) -> None:
    _graph(tell, directory, scheme, 3600).execute_sync(State.new({}, run_id="run"))


def resume(tell: Tell, directory: str, scheme: str = SCHEME) -> None:
    Path(directory).mkdir(exist_ok=True)
    try:
        _graph(tell, directory, scheme, MOMENT).resume_sync("run")
        tell("ended")
    except LeaseHeldError:
        tell("turned away")
