"""Effects that do not wait for their record: it is there before anything that is written later."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from surehold import CheckpointConfig, GraphConfig, SQLiteStorage, State, StateGraph, effect
from surehold.engine.runs.effects.effect_call import CallPolicy, effect_by
from surehold.errors import StepError, StorageError
from surehold.storage.base import Batch


async def effect_behind(name: str, fn: Any, *args: Any) -> Any:
    return await effect_by(CallPolicy(name=name, in_doubt="retry"), fn, *args)


def graph_of(storage: Any, node: Any) -> StateGraph:
    config = CheckpointConfig(store=storage, interval=1, preserve=True)
    graph = StateGraph(GraphConfig(checkpoint=config))
    graph.add_node("work", node)
    graph.set_entry_point("work")
    graph.set_exit_point("work")
    return graph


def kinds(storage: SQLiteStorage) -> list[str]:
    """What the journal holds, in order: effects by name, checkpoints by kind."""
    import msgspec

    from surehold import CheckpointManager

    sealer = CheckpointManager(storage).reader.sealer
    found = []
    for record in storage.read("r"):
        header = record.header
        entry = msgspec.json.decode(sealer.open(record)) if header.kind == "effect" else {}
        found.append(f"{entry['name']} {entry.get('done', False)}" if entry else header.kind)
    return found


async def test_it_is_recorded_and_not_repeated(tmp_path: Path) -> None:
    looked: list[str] = []

    def look(what: str) -> str:
        looked.append(what)
        return what.upper()

    async def work(state: State) -> dict[str, str]:
        found = await effect_behind("look", look, "kelp")
        if not state.secrets:
            raise ConnectionError("later")
        return {"found": found}

    with SQLiteStorage(tmp_path / "runs.db") as storage:
        async with graph_of(storage, work) as graph:
            with pytest.raises(StepError):
                await graph.execute(State.new({}, run_id="r"))
            final = await graph.resume("r", secrets={"mended": True})
    assert (final["found"], looked) == ("KELP", ["kelp"])


async def test_outside_a_run_it_is_just_called() -> None:
    assert await effect_behind("look", lambda: 3) == 3


async def test_it_goes_on_while_the_record_is_written(tmp_path: Path) -> None:
    held, order = threading.Event(), []

    async def work(state: State) -> None:
        await effect_behind("look", lambda: "found")
        order.append("went on")
        held.set()
        await effect("pay", lambda: "paid")
        order.append("paid")

    with SQLiteStorage(tmp_path / "runs.db") as storage:
        append = storage.append

        def slow(batches: Sequence[Batch]) -> Any:
            names = [r.header.kind for batch in batches for r in batch.records]
            if "effect" in names and "recorded" not in order:
                held.wait(300)  # for the node, which does not wait for this
                order.append("recorded")
            return append(batches)

        storage.append = slow  # type: ignore[method-assign]
        async with graph_of(storage, work) as graph:
            await graph.execute(State.new({}, run_id="r"))
        assert order == ["went on", "recorded", "paid"]
        assert kinds(storage) == ["routine", "look True", "pay False", "pay True", "final"]


async def test_a_call_that_may_be_repeated_begins_after_the_record_too(tmp_path: Path) -> None:
    told, order = threading.Event(), []

    def tell(what: str) -> None:
        order.append(what)
        told.set()

    async def work(state: State) -> None:
        await effect_behind("tell", tell, await effect_behind("look", lambda: "found"))

    with SQLiteStorage(tmp_path / "runs.db") as storage:
        append = storage.append

        def slow(batches: Sequence[Batch]) -> Any:
            if any(r.header.kind == "effect" for b in batches for r in b.records) and not order:
                told.wait(0.5)  # the call would come meanwhile if it did not wait
                order.append("recorded")
            return append(batches)

        storage.append = slow  # type: ignore[method-assign]
        async with graph_of(storage, work) as graph:
            await graph.execute(State.new({}, run_id="r"))
    assert order == ["recorded", "found"]


async def test_what_failed_to_be_written_is_raised_before_the_next_effect_is_begun(
    tmp_path: Path,
) -> None:
    called: list[str] = []

    async def work(state: State) -> None:
        await effect_behind("look", lambda: "found")
        await effect("pay", lambda: called.append("pay"))

    with SQLiteStorage(tmp_path / "runs.db") as storage:
        append, failing = storage.append, [True]

        def broken(batches: Sequence[Batch]) -> Any:
            if failing and any(r.header.kind == "effect" for b in batches for r in b.records):
                failing.clear()
                raise StorageError("the disk is away")
            return append(batches)

        storage.append = broken  # type: ignore[method-assign]
        async with graph_of(storage, work) as graph:
            with pytest.raises(StorageError, match="the disk is away"):
                await graph.execute(State.new({}, run_id="r"))
    assert called == []


async def test_several_at_once_are_all_there_when_the_step_is(tmp_path: Path) -> None:
    async def work(state: State) -> dict[str, int]:
        found = await asyncio.gather(
            *(effect_behind(f"look{n}", lambda n=n: n) for n in range(20)),
            *(effect(f"read{n}", lambda n=n: n, in_doubt="retry") for n in range(20)),
        )
        return {"sum": sum(found)}

    with SQLiteStorage(tmp_path / "runs.db") as storage:
        async with graph_of(storage, work) as graph:
            final = await graph.execute(State.new({}, run_id="r"))
        assert final["sum"] == 380
        journal = kinds(storage)
        assert len(journal) == 42 and journal[-1] == "final"
