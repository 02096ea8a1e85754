"""The events of durable functions: streamed, called back, and read from the journal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import surehold
from surehold import Event, MemoryStorage


@surehold.step(retries=2, backoff=0.001, in_doubt="retry")
def fetch(page: str) -> str:
    surehold.emit("model.text", text=page)
    if page == "b" and not failed:
        failed.append(page)
        raise ConnectionError("no network")
    return page.upper()


@surehold.workflow
def collect(pages: list[str]) -> str:
    return "".join(fetch(page) for page in pages)


@surehold.workflow
async def collect_async(pages: list[str]) -> str:
    texts = "".join([await asyncio.to_thread(fetch, page) for page in pages[:0]])
    who = await surehold.wait_for("approval")
    return texts + str(who)


failed: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    failed.clear()


async def test_a_plain_workflow_streams_its_calls_and_text() -> None:
    storage = MemoryStorage()
    stream = collect.stream(["a", "b"], run_id="r", storage=storage)
    events = [event async for event in stream]
    assert [event.type for event in events] == [
        *("effect.start", "model.text", "effect.complete"),
        *("effect.start", "model.text", "effect.retry", "model.text", "effect.complete"),
        "run.completed",
    ]
    assert stream.result.value == "AB"
    assert {event.source for event in events} == {"collect"}
    told = [*surehold.events("r", storage=storage)]
    assert [event.type for event in told if event.type.startswith(("effect", "run"))] == [
        *("effect.complete", "effect.retry", "effect.complete", "run.completed"),
    ]
    assert told[-1].seq == events[-1].seq


def test_a_blocking_caller_is_called_with_every_event() -> None:
    seen: list[Event] = []
    collect.run(["a"], run_id="r", storage=MemoryStorage(), on_event=seen.append)
    assert [event.type for event in seen][-1] == "run.completed"
    assert sum(event.data.get("seconds", 0) > 0 for event in seen) == 1


async def test_an_async_workflow_tells_what_it_waits_for() -> None:
    storage = MemoryStorage()
    stream = collect_async.stream([], run_id="r", storage=storage, wait=False)
    events = [event async for event in stream]
    assert [event.type for event in events] == ["run.waiting"]
    assert [one["name"] for one in events[0].data["waiting"]] == ["approval"]
    assert stream.result.status == "waiting"
    surehold.answer("r", "approval", "Ann", storage=storage)
    seen: list[Event] = []
    done: Any = await collect_async.resume("r", storage=storage, on_event=seen.append)
    assert (done.value, [event.type for event in seen]) == ("Ann", ["run.completed"])


def test_an_event_outside_a_run_goes_nowhere() -> None:
    surehold.emit("model.text", text="x")
    with pytest.raises(surehold.errors.UsageError, match="needs a type"):
        surehold.emit("")
