"""Agent Framework's checkpoints in our storages."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agent_framework import (
    Content,
    Executor,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    WorkflowEvent,
    handler,
)
from agent_framework._workflows._runner_context import WorkflowMessage
from agent_framework.exceptions import WorkflowCheckpointException

from surehold.engine.managers.blocking import CheckpointManager
from surehold.errors import EncodeError, StorageError
from surehold.integrations.agent_framework.storage import SureholdCheckpointStorage
from surehold.storage.memory.storage import MemoryStorage


@pytest.fixture
async def storage(address: str) -> AsyncIterator[SureholdCheckpointStorage]:
    async with SureholdCheckpointStorage(address) as made:
        yield made


def _made(name: str = "flow", *, minutes: int = 0, **fields: Any) -> WorkflowCheckpoint:
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    return WorkflowCheckpoint(
        workflow_name=name, graph_signature_hash="hash", timestamp=moment.isoformat(), **fields
    )


@dataclasses.dataclass
class Order:
    number: int
    lines: tuple[str, ...] = ()


class Basket:
    """An ordinary object."""

    def __init__(self, orders: list[Order]) -> None:
        self.orders = orders


async def test_a_checkpoint_comes_back_whole_and_is_a_copy(
    storage: SureholdCheckpointStorage,
) -> None:
    event: Any = WorkflowEvent.request_info(
        request_id="r", source_executor_id="a", request_data=Order(1), response_type=list[str]
    )
    message = Message("user", [Content.from_text("hello")], additional_properties={"n": 1})
    saved = _made(
        state={"basket": Basket([Order(1, ("x",))]), "_executor_state": {"a": {"seen": {1, 2}}}},
        messages={"a": [WorkflowMessage(data=message, source_id="b")]},
        pending_request_info_events={"r": event},
        iteration_count=3,
        metadata={"timestamp": "theirs", "when": datetime(2026, 1, 1, tzinfo=UTC)},
    )
    assert await storage.save(saved) == saved.checkpoint_id
    saved.state["basket"].orders.append(Order(2))
    storage._workflows._reading.forget("flow")
    found = await storage.load(saved.checkpoint_id)
    assert [order.lines for order in found.state["basket"].orders] == [("x",)]
    assert found.state["_executor_state"] == {"a": {"seen": {1, 2}}}
    assert found.metadata == saved.metadata and found.timestamp == saved.timestamp
    assert found.messages["a"][0].data.text == "hello"
    asked = found.pending_request_info_events["r"]
    assert (asked.data, asked.response_type, asked.request_type) == (Order(1), list[str], Order)
    assert (found.iteration_count, found.graph_signature_hash) == (3, "hash")
    found.state.clear()
    assert (await storage.load(saved.checkpoint_id)).state


async def test_the_latest_is_the_one_with_the_newest_time_and_of_equals_the_last(
    storage: SureholdCheckpointStorage,
) -> None:
    made = [_made(minutes=minutes) for minutes in (1, 5, 3, 5, 2)]
    for one in made:
        await storage.save(one)
    other = _made("other", minutes=9)
    await storage.save(other)
    latest = await storage.get_latest(workflow_name="flow")
    assert latest is not None and latest.checkpoint_id == made[3].checkpoint_id
    ids = [one.checkpoint_id for one in made]
    assert await storage.list_checkpoint_ids(workflow_name="flow") == ids
    listed = await storage.list_checkpoints(workflow_name="flow")
    assert [one.checkpoint_id for one in listed] == ids
    assert await storage.list_checkpoint_ids(workflow_name="none") == []
    assert await storage.get_latest(workflow_name="none") is None


async def test_many_are_listed_in_the_order_in_which_they_were_saved(
    storage: SureholdCheckpointStorage,
) -> None:
    made = [_made(state={"n": n}) for n in range(20)]
    for one in made:
        await storage.save(one)
    listed = await storage.list_checkpoints(workflow_name="flow")
    assert [one.state["n"] for one in listed] == [*range(20)]


async def test_saving_an_id_again_overwrites_and_deleting_says_whether_it_was_there(
    storage: SureholdCheckpointStorage,
) -> None:
    one = _made(state={"n": 1})
    await storage.save(one)
    one.state["n"] = 2
    await storage.save(one)
    assert (await storage.load(one.checkpoint_id)).state == {"n": 2}
    assert await storage.list_checkpoint_ids(workflow_name="flow") == [one.checkpoint_id]
    assert await storage.delete(one.checkpoint_id) is True
    assert await storage.delete(one.checkpoint_id) is False
    with pytest.raises(WorkflowCheckpointException):
        await storage.load(one.checkpoint_id)


async def test_namespaces_keep_workflows_of_one_name_apart(address: str) -> None:
    manager = CheckpointManager(address)
    ann, bob = (SureholdCheckpointStorage(manager, namespace=name) for name in ("ann", "bob"))
    mine = _made(state={"of": "ann"})
    await ann.save(mine)
    assert await bob.get_latest(workflow_name="flow") is None
    assert await bob.delete(mine.checkpoint_id) is False
    with pytest.raises(WorkflowCheckpointException):
        await bob.load(mine.checkpoint_id)
    assert (await ann.load(mine.checkpoint_id)).state == {"of": "ann"}
    ann.close()
    bob.close()
    manager.close()


def test_an_empty_storage_is_true() -> None:
    assert bool(SureholdCheckpointStorage("memory://")) is True


class Count(Executor):
    """Says a number and the next one to itself, up to five."""

    def __init__(self) -> None:
        super().__init__(id="count")
        self.seen: list[Message] = []

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        self.seen.append(Message("user", [f"number {number}"]))
        if number < 5:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(number)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"seen": self.seen}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.seen = list(state["seen"])


def _workflow(storage: Any) -> tuple[Workflow, Count]:
    count = Count()
    builder = WorkflowBuilder(
        start_executor=count, name="flow", checkpoint_storage=storage, output_from=[count]
    )
    return builder.add_edge(count, count).build(), count


async def test_a_workflow_resumes_where_it_was_and_its_growth_costs_what_was_added(
    storage: SureholdCheckpointStorage,
) -> None:
    workflow, _ = _workflow(storage)
    await workflow.run(1)
    ids = await storage.list_checkpoint_ids(workflow_name="flow")
    assert len(ids) == 6
    again, count = _workflow(storage)
    result = await again.run(checkpoint_id=ids[3])
    assert result.get_outputs() == [5]
    assert [message.text for message in count.seen] == [f"number {n}" for n in range(1, 6)]
    history = storage.manager.history("flow")
    added = [change for entry in history[2:6] for change in entry.changes if change.op == "add"]
    assert any(change.path == "/state/_executor_state/count/seen/-" for change in added)
    assert history[-1].checkpoint.parent_checkpoint_id is not None
    assert all(storage.manager.verify("flow"))


class _Full(MemoryStorage):
    full = False

    def append(self, batches: Any) -> Any:
        if self.full:
            raise StorageError("no room")
        return super().append(batches)


async def test_a_failed_save_leaves_a_trace_though_the_framework_goes_on() -> None:
    from opentelemetry.sdk.trace import TracerProvider

    told: list[str] = []
    medium = _Full()
    storage = SureholdCheckpointStorage(
        medium, on_failure=lambda checkpoint, error: told.append(error.message)
    )
    workflow, _ = _workflow(storage)
    medium.full = True
    assert (await workflow.run(1)).get_outputs() == [5]
    assert told == ["no room"] * 6
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("run") as span:
        with pytest.raises(StorageError, match="no room"):
            await storage.save(_made())
        assert [event.name for event in span.events] == ["surehold.checkpoint_not_saved"]
    with pytest.raises(StorageError, match="no room"):
        storage.raise_failures()
    storage.raise_failures()
    medium.full = False
    await storage.save(_made())
    storage.raise_failures()


async def test_what_cannot_be_stored_is_refused_with_its_path(
    storage: SureholdCheckpointStorage,
) -> None:
    with pytest.raises(EncodeError, match=r"state\.call"):
        await storage.save(_made(state={"call": lambda: None}))
    assert await storage.get_latest(workflow_name="flow") is None
    assert len(storage.failures) == 1


READER = """
import asyncio, sys
from surehold.errors import DecodeError
from surehold.integrations.agent_framework.storage import SureholdCheckpointStorage
async def main():
    async with SureholdCheckpointStorage(sys.argv[1]) as storage:
        print((await storage.get_latest(workflow_name="known")).messages["a"][0].data.text)
        try:
            await storage.get_latest(workflow_name="unknown")
        except DecodeError as error:
            print(error)
asyncio.run(main())
"""


async def test_another_process_reads_the_framework_s_types_and_tells_of_others(
    tmp_path: Path,
) -> None:
    address = f"sqlite:///{tmp_path}/w.db"
    message = WorkflowMessage(data=Message("user", ["hello"]), source_id="b")
    async with SureholdCheckpointStorage(address) as storage:
        await storage.save(_made("known", messages={"a": [message]}))
        await storage.save(_made("unknown", state={"order": Order(1)}))
    text, told = subprocess.run(
        [sys.executable, "-c", READER, address], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert text == "hello" and f"no type is registered as '{__name__}.Order'" in told


async def test_a_namespace_holds_no_checkpoint_of_another_whatever_they_are_called(
    address: str,
) -> None:
    manager = CheckpointManager(address)
    outer, inner, none = (
        SureholdCheckpointStorage(manager, namespace=name) for name in ("a", "a/b", "")
    )
    saved = dataclasses.replace(_made(), workflow_name="c")
    await inner.save(saved)
    for other, name in ((outer, "b/c"), (none, "a/b/c"), (none, "c"), (outer, "c")):
        assert await other.get_latest(workflow_name=name) is None
        with pytest.raises(WorkflowCheckpointException):
            await other.load(saved.checkpoint_id)
    assert (await inner.load(saved.checkpoint_id)).workflow_name == "c"
    manager.close()


async def test_a_save_that_was_only_warned_of_is_a_failure_all_the_same() -> None:
    medium = _Full()
    medium.full = True
    manager = CheckpointManager(medium, on_save_failure="warn")
    storage = SureholdCheckpointStorage(manager)
    saved = _made()
    assert await storage.save(saved) == saved.checkpoint_id
    [failure] = storage.failures
    assert "not stored" in failure.message
