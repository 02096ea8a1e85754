"""`run` and `stream` of graphs: one result, and events with numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import surehold
from surehold import Event, MemoryStorage, RunResult, State, StateGraph, effect, interrupt
from surehold.engine.runs import status_of_run
from surehold.errors import NotFoundError, StepError, UsageError
from surehold.storage.base import RunQuery


def asking(storage: Any, calls: list[str]) -> StateGraph:
    async def pay(state: State) -> dict[str, Any]:
        calls.append("pay")
        spent = {"tokens": 7, "dollars": 0.5}
        return {"paid": await effect("pay", lambda: 3, in_doubt="ask", usage=lambda _: spent)}

    async def ask(state: State) -> dict[str, Any]:
        return {"said": await interrupt("go?")}

    graph = StateGraph("bill", storage=storage)
    graph.add_node("pay", pay)
    graph.add_node("ask", ask)
    graph.add_edge("pay", "ask")
    graph.set_entry_point("pay")
    graph.set_exit_point("ask")
    return graph


async def test_waiting_is_a_result_and_an_answer_completes_the_run() -> None:
    calls: list[str] = []
    storage = MemoryStorage()
    result = await asking(storage, calls).run({"n": 1}, run_id="r")
    assert isinstance(result, RunResult)
    assert (result.status, result.run_id, result.step) == ("waiting", "r", 1)
    assert [one.question for one in result.waiting] == ["go?"]
    assert (result.usage.calls, result.usage.tokens, result.usage.dollars) == (1, 7, 0.5)
    assert result.saved.calls == 0

    done = await asking(storage, calls).run(run_id="r", answer="yes")  # another process
    assert (done.status, done.state["said"], done.state["n"]) == ("completed", "yes", 1)
    assert (done.step, done.usage.tokens, done.saved.tokens) == (2, 7, 7)
    assert calls == ["pay"]

    again = await asking(storage, calls).run(run_id="r")
    assert (again.status, again.state["said"], again.usage.calls) == ("completed", "yes", 1)


async def test_a_resume_gives_the_same_result_and_reads_as_the_state() -> None:
    calls: list[str] = []
    storage = MemoryStorage()
    waiting = await asking(storage, calls).run({"n": 1}, run_id="r")
    assert waiting.status == waiting.state.status == "waiting"
    again = await asking(storage, calls).resume("r")
    assert (again.status, again.saved.calls, again["n"], "said" in again) == (
        "waiting",
        1,
        1,
        False,
    )
    done = await asking(storage, calls).resume("bill", answer="yes")  # by its name
    assert isinstance(done, RunResult)
    assert (done.run_id, done.status, done.get("said"), done.usage.dollars) == (
        *("r", "completed", "yes", 0.5),
    )
    assert dict(done) == done.to_dict() == done.state.to_dict()
    assert (len(done), [*done]) == (3, [*done.keys()])


def test_runs_that_waited_before_the_status_was_stored_are_waiting() -> None:
    storage = MemoryStorage()
    asking(storage, []).run_sync({"n": 1}, run_id="r")
    (run,) = storage.runs(RunQuery(run_id="r"))
    old = msgspec.structs.replace(run, status="interrupted")
    assert status_of_run(storage, old) == "waiting"
    asking(storage, []).resume_sync("r", answer="yes")
    assert status_of_run(storage, old) == "interrupted"


def test_a_script_gets_the_same_result_and_events() -> None:
    seen: list[Event] = []
    result = asking(MemoryStorage(), []).run_sync(run_id="r", on_event=seen.append)
    assert result.status == "waiting"
    assert {"node.start", "effect.complete", "run.waiting"} <= {event.type for event in seen}


async def test_a_failure_is_raised() -> None:
    graph = StateGraph("bad", storage=MemoryStorage())

    def fail(state: State) -> None:
        raise RuntimeError("no")

    graph.add_node("fail", fail)
    graph.set_entry_point("fail")
    graph.set_exit_point("fail")
    with pytest.raises(StepError, match="no"):
        await graph.run(run_id="r")
    stream = graph.stream(run_id="r")
    types: list[str] = []
    with pytest.raises(StepError, match="no"):
        async for event in stream:
            types.append(event.type)
    assert "run.failed" in types


async def test_wrong_arguments_are_refused() -> None:
    graph = asking(MemoryStorage(), [])
    with pytest.raises(UsageError, match="no run_id"):
        await graph.run(answer=1)
    with pytest.raises(UsageError, match="run_id is 'b'"):
        await graph.run(State.new(run_id="a"), run_id="b")
    with pytest.raises(UsageError, match="does not wait for"):
        await graph.run({}, run_id="r")
        await graph.run(run_id="r", answers={"other": 1})


async def test_a_stream_numbers_its_events_and_gives_them_again() -> None:
    storage = MemoryStorage()
    stream = asking(storage, []).stream({"n": 1}, run_id="r")
    with pytest.raises(UsageError, match="not ended"):
        stream.result  # noqa: B018
    events = [event async for event in stream]
    numbers = [event.seq for event in events]
    (run,) = storage.runs(RunQuery(run_id="r"))
    assert numbers == sorted(numbers) and numbers[-1] == run.seq
    assert stream.result.status == "waiting"
    assert [event async for event in stream.since(2)] == [one for one in events if one.seq > 2]
    with pytest.raises(UsageError, match="being read"):
        aiter(stream)


async def test_another_process_gives_the_recorded_events_after_a_number() -> None:
    storage = MemoryStorage()
    live = [event async for event in asking(storage, []).stream({"n": 1}, run_id="r")]
    seen = next(event for event in live if event.type == "effect.complete")
    assert (seen.data["tokens"], seen.data["dollars"]) == (7, 0.5)
    told = [*surehold.events("r", storage=storage)]
    (same,) = [event for event in told if event.type == "effect.complete"]
    assert (same.seq, same.data["effect"], same.data["dollars"]) == (
        *(seen.seq, seen.data["effect"], 0.5),
    )
    later = [event async for event in surehold.events("r", since=seen.seq, storage=storage)]
    assert later == [event for event in told if event.seq > seen.seq]
    assert [event.type for event in later if event.type.startswith("run.")] == [
        *("run.asked", "run.waiting"),  # what a run waits for is told before the run waits
    ]
    assert [*surehold.events("r", since=told[-1].seq, storage=storage)] == []
    with pytest.raises(NotFoundError):
        [*surehold.events("other", storage=storage)]
    with pytest.raises(UsageError, match="since is -1"):
        surehold.events("r", since=-1)


async def test_events_are_followed_until_the_run_is_at_rest() -> None:
    storage, go = MemoryStorage(), asyncio.Event()

    async def first(state: State) -> None:
        await effect("look", lambda: 1, in_doubt="retry")

    async def second(state: State) -> None:
        await go.wait()

    graph = StateGraph("two", storage=storage)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge("first", "second")
    graph.set_entry_point("first")
    graph.set_exit_point("second")
    running = asyncio.create_task(graph.run(run_id="r"))
    while not [*storage.runs(RunQuery(run_id="r"))]:
        await asyncio.sleep(0.001)
    types: list[str] = []
    async for event in surehold.events("r", follow=True, storage=storage):
        types.append(event.type)
        if event.type == "effect.complete":
            go.set()
    assert types[-1] == "run.completed"
    assert (await running).completed


async def test_a_stream_keeps_so_many_events_and_says_what_it_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("surehold.doors.events.stream._KEPT", 10)

    def chatter(state: State) -> None:
        for number in range(100):
            surehold.emit("model.text", text=str(number))

    graph = StateGraph("chat", storage=MemoryStorage())
    graph.add_node("chatter", chatter)
    graph.set_entry_point("chatter")
    graph.set_exit_point("chatter")
    events = [event async for event in graph.stream(run_id="r")]
    assert sum(event.data["events"] for event in events if event.type == "stream.skipped") > 80
    assert "graph.complete" in {event.type for event in events}
    assert len(events) < 40


async def test_leaving_a_stream_stops_the_run_which_can_be_continued() -> None:
    storage, entered = MemoryStorage(), asyncio.Event()

    async def slow(state: State) -> dict[str, int]:
        if not entered.is_set():
            entered.set()
            await asyncio.Event().wait()
        return {"n": 1}

    def build() -> StateGraph:
        graph = StateGraph("slow", storage=storage)
        graph.add_node("slow", slow)
        graph.set_entry_point("slow")
        graph.set_exit_point("slow")
        return graph

    events = aiter(build().stream(run_id="r"))
    async for event in events:
        if event.type == "node.start":
            break
    await entered.wait()
    await events.aclose()  # type: ignore[attr-defined]
    assert (await build().run(run_id="r")).state["n"] == 1
