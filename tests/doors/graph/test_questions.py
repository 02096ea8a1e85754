"""Waiting for a person: the run is parked, the process is free, and the answer comes later."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from tests.builders.graphs import line

from surehold import (
    CheckpointManager,
    MemoryStorage,
    ParallelNode,
    SQLiteStorage,
    State,
    StateGraph,
    answer,
    effect,
    interrupt,
    pending,
)
from surehold.engine.journal import Note
from surehold.errors import (
    ConflictError,
    Interrupted,
    NotFoundError,
    StepError,
    StorageError,
    UsageError,
)
from surehold.storage.base import Batch


@dataclasses.dataclass
class Verdict:
    approved: bool
    reason: str = ""


class Form(pydantic.BaseModel):
    approved: bool


def asking(store: str, schema: Any = None, question: Any = "Publish?") -> StateGraph:
    async def approve(state: State) -> dict[str, Any]:
        return {"answer": await interrupt(question, schema=schema)}

    def end(state: State) -> None:
        return None

    return line(approve, end, store=store, interval=1, preserve=True)


async def park(graph: StateGraph, run_id: str = "r") -> Interrupted:
    with pytest.raises(Interrupted) as caught:
        await graph.execute(State.new({}, run_id=run_id))
    return caught.value


async def test_a_question_parks_the_run_and_an_answer_goes_on(store: str) -> None:
    async with asking(store, question={"page": 3, "ask": "Publish?"}) as graph:
        parked = await park(graph)
        (waiting,) = parked.waiting
        assert waiting.question == {"page": 3, "ask": "Publish?"}
        assert (parked.run_id, waiting.id, waiting.node) == ("r", "approve@1", "approve")
        newest = await graph.manager.latest("r")
        assert newest is not None
        assert (newest.kind, newest.status, newest.step) == ("interrupt", "waiting", 0)
        final = await graph.resume("r", answer="yes")
        assert final["answer"] == "yes" and final.status == "completed"


async def test_without_an_answer_it_stays_parked(db: str) -> None:
    async with asking(db) as graph:
        await park(graph)
        for _ in range(2):
            assert (await graph.resume("r")).status == "waiting"
        assert (await graph.resume("r", answer=None))["answer"] is None


async def test_the_answer_may_come_from_another_process(tmp_path: Path) -> None:
    code = f"""
        from surehold import *
        async def approve(state):
            return {{"answer": await interrupt("ok?", schema=bool)}}
        graph = StateGraph(GraphConfig(checkpoint=CheckpointConfig(
            store="sqlite:///{tmp_path}/runs.db", interval=1, preserve=True)))
        graph.add_node("approve", approve)
        graph.set_entry_point("approve"); graph.set_exit_point("approve")
    """
    first = (
        'try: graph.execute_sync(State.new({}, run_id="r"))\n'
        "except errors.Interrupted as parked: print(parked)"
    )
    second = 'print(graph.resume_sync("r", answer=True)["answer"])'
    printed = [
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code) + "\n" + end],
            capture_output=True,
            text=True,
            check=True,
            timeout=500,
        ).stdout
        for end in (first, second)
    ]
    assert "run 'r' waits for: approve@1" in printed[0] and printed[1] == "True\n"


@pytest.mark.parametrize(
    ("schema", "good", "bad", "expected"),
    [
        (bool, True, "yes", True),
        (Literal["yes", "no"], "no", "maybe", "no"),
        (Verdict, {"approved": True}, {"aproved": True}, Verdict(True)),
        (Form, {"approved": True}, {}, Form(approved=True)),
        (list[int], [1, 2], ["a"], [1, 2]),
    ],
)
async def test_an_answer_must_fit_the_schema(
    db: str, schema: Any, good: Any, bad: Any, expected: Any
) -> None:
    seen: list[Any] = []

    async def ask(state: State) -> None:
        seen.append(await interrupt("?", schema=schema))

    async with line(ask, lambda state: None, store=db, interval=1) as graph:
        parked = await park(graph)
        assert parked.waiting[0].schema
        with pytest.raises(UsageError, match="does not fit"):
            await graph.resume("r", answer=bad)
        (still,) = pending("r", storage=db)
        assert still.id == "ask@1"
        await graph.resume("r", answer=good)
    assert seen == [expected]


async def test_an_answer_can_be_left_for_the_next_resume(db: str) -> None:
    async with asking(db, schema=bool) as graph:
        await park(graph)
        with pytest.raises(UsageError, match='"nonsense" is not true or false'):
            answer("r", "approve@1", "nonsense", storage=db)
        assert len(pending("r", storage=db)) == 1
        answer("r", "approve@1", True, storage=db)
        assert (await graph.resume("r"))["answer"] is True


async def test_an_answer_that_only_the_node_can_refuse_is_asked_for_again(db: str) -> None:
    async with asking(db, schema=list[int]) as graph:
        await park(graph)
        answer("r", "approve@1", ["nonsense"], storage=db)
        caught = await graph.resume("r")
        assert caught.status == "waiting"
        assert "Expected `int`" in caught.waiting[0].problem
        answer("r", "approve@1", [1], storage=db)
        assert (await graph.resume("r"))["answer"] == [1]


async def test_an_answer_is_heard_after_one_that_was_left_and_did_not_fit(db: str) -> None:
    async with asking(db, schema=list[int]) as graph:
        await park(graph)
        answer("r", "approve@1", ["nonsense"], storage=db)
        assert (await graph.resume("r")).status == "waiting"
        assert (await graph.resume("r", answer=[1]))["answer"] == [1]


def in_time(store: str, seconds: float) -> StateGraph:
    async def ask(state: State) -> dict[str, Any]:
        try:
            return {"answer": await interrupt("Publish?", timeout=seconds)}
        except TimeoutError as error:
            return {"answer": str(error)}

    return line(ask, lambda state: None, store=store, interval=1, preserve=True)


async def test_a_question_without_an_answer_in_time_is_a_timeout(store: str) -> None:
    async with in_time(store, 0.05) as graph:
        (waiting,) = (await park(graph)).waiting
        assert waiting.until is not None
        await asyncio.sleep(0.06)
        assert "waits" not in graph.explain_resume("r").tell(now=True)
        final = await graph.resume("r")
        assert final.status == "completed"
        assert final["answer"] == "no answer to ask@1 came in time"


async def test_a_question_keeps_the_time_it_was_first_given(db: str) -> None:
    async with in_time(db, 60) as graph:
        (first,) = (await park(graph)).waiting
        (again,) = (await graph.resume("r")).waiting
        assert again.until == first.until
        assert (await graph.resume("r", answer="yes"))["answer"] == "yes"


async def test_an_answer_left_before_anyone_looked_counts(db: str) -> None:
    async with in_time(db, 0.05) as graph:
        await park(graph)
        await asyncio.sleep(0.06)
        answer("r", "ask@1", "late", storage=db)
        assert (await graph.resume("r"))["answer"] == "late"


async def test_a_timeout_is_recorded_and_an_answer_after_it_refused(db: str) -> None:
    async def ask(state: State) -> None:
        await interrupt("Publish?", timeout=0.05)

    async with line(ask, lambda state: None, store=db, interval=1, preserve=True) as graph:
        await park(graph)
        await asyncio.sleep(0.06)
        for _ in range(2):
            with pytest.raises(StepError, match="no answer to ask@1 came in time"):
                await graph.resume("r")
        assert pending("r", storage=db) == []
        with pytest.raises(NotFoundError):
            answer("r", "ask@1", "yes", storage=db)


async def test_an_answer_that_comes_while_the_time_ends_changes_no_replay(tmp_path: Path) -> None:
    heard: list[str] = []
    late = [Note(kind="answer", content={"id": "ask@1", "value": "yes"})]

    async def ask(state: State) -> None:
        try:
            heard.append(await interrupt("Publish?", timeout=0.05))
        except TimeoutError:
            heard.append("timeout")
        if len(heard) == 1:
            raise ConnectionError

    def raced(batches: Sequence[Batch]) -> Any:
        if len(heard) == 1:
            raise StorageError("the process is gone")
        if late and any(record.header.kind == "question" for record in batches[0].records):
            CheckpointManager(beside).append_notes("r", (late.pop(),))
        return append(batches)

    path = tmp_path / "runs.db"
    with SQLiteStorage(path) as storage, SQLiteStorage(path) as beside:
        append, config = storage.append, {"store": storage, "interval": 1, "preserve": True}
        await park(line(ask, lambda state: None, **config))
        await asyncio.sleep(0.06)
        storage.append = raced  # type: ignore[method-assign]
        with pytest.raises(StepError):
            await line(ask, lambda state: None, **config).resume("r")
        storage.append = append  # type: ignore[method-assign]
        await line(ask, lambda state: None, **config).resume("r")
    assert (heard, late) == (["timeout", "timeout"], [])


async def test_a_time_to_wait_is_positive(db: str) -> None:
    async with in_time(db, 0) as graph:
        with pytest.raises(StepError, match="timeout is 0"):
            await graph.execute(State.new({}, run_id="r"))


async def test_two_questions_in_one_node_are_asked_one_after_the_other(db: str) -> None:
    calls: list[str] = []

    async def ask(state: State) -> dict[str, Any]:
        await effect("before", lambda: calls.append("before"))
        first = await interrupt("first?")
        await effect("between", lambda: calls.append("between"))
        second = await interrupt("second?")
        return {"answers": [first, second]}

    async with line(ask, lambda state: None, store=db, interval=1) as graph:
        await park(graph)
        caught = await graph.resume("r", answer=1)
        assert caught.status == "waiting"
        assert [one.question for one in caught.waiting] == ["second?"]
        assert (await graph.resume("r", answer=2))["answers"] == [1, 2]
    assert calls == ["before", "between"]


async def test_several_at_once_in_a_parallel_node_are_told_apart(store: str) -> None:
    done: list[str] = []

    async def review(page: str) -> str:
        if page == "c":
            done.append(page)
            return "plain"
        return f"{page}: {await interrupt(f'publish {page}?')}"

    node = ParallelNode(["a", "b", "c"], review, into="reviews")
    async with line(node, lambda state: None, store=store, interval=1) as graph:
        parked = await park(graph)
        asked = {one.question: one.id for one in parked.waiting}
        assert set(asked) == {"publish a?", "publish b?"}
        with pytest.raises(UsageError, match="waits for 2"):
            await graph.resume("r", answer="yes")
        with pytest.raises(UsageError, match="does not wait for 'x'"):
            await graph.resume("r", answers={"x": 1})
        caught = await graph.resume("r", answers={asked["publish b?"]: "no"})
        assert caught.status == "waiting"
        assert [one.question for one in caught.waiting] == ["publish a?"]
        final = await graph.resume("r", answer="yes")
        assert final["reviews"] == ["a: yes", "b: no", "plain"]
    assert done == ["c"]


async def test_a_question_in_a_nested_graph_parks_the_whole_run(db: str) -> None:
    inner = asking("memory")
    outer = line(lambda state: None, inner, lambda state: None, store=db, interval=1)
    async with outer as graph:
        parked = await park(graph)
        assert parked.waiting[0].id == "node1@2/approve@1"
        assert (await graph.resume("r", answer="go"))["answer"] == "go"


async def test_a_question_needs_a_run_that_can_be_resumed() -> None:
    async def ask(state: State) -> None:
        await interrupt("?")

    with pytest.raises(UsageError, match="resumed"):
        await interrupt("?")
    from surehold.errors import StepError

    with pytest.raises(StepError):
        await line(ask).execute({})


async def test_other_runs_go_on_while_one_is_parked(db: str) -> None:
    async with asking(db) as graph:
        await asyncio.gather(*(park(graph, f"r{n}") for n in range(5)))
        assert len(pending(storage=db)) == 5
        finals = await asyncio.gather(*(graph.resume(f"r{n}", answer=n) for n in range(5)))
        assert [final["answer"] for final in finals] == [0, 1, 2, 3, 4]
        assert pending(storage=db) == []


class Died(BaseException):
    """The storage's process is gone."""


class Mortal(MemoryStorage):
    """A memory that dies at one append, as it begins or when it is done, until it is revived."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.dies_at = 0
        self.after = False
        self.dead = False

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        self.count += 1
        if self.dead:
            raise Died
        self.dead = self.count == self.dies_at
        if self.dead and not self.after:
            raise Died
        result = super().append(batches)
        if self.dead:
            raise Died
        return result


@pytest.mark.parametrize("after", [False, True])
async def test_a_death_at_any_append_loses_no_question_answer_or_effect(after: bool) -> None:
    async def review(page: str) -> str:
        calls.append(page)
        return f"{page}: {await interrupt(page)}"

    async def sign(state: State) -> dict[str, Any]:
        await effect("signed", calls.append, "signed", probe=lambda key: "signed" in calls or None)
        return {"by": await interrupt("by whom?")}

    async def on(storage: Mortal) -> dict[str, Any]:
        """Go on, answering what is asked, until the end."""
        node = ParallelNode(["a", "b"], review, into="reviews", max_workers=1)
        graph = line(node, sign, lambda state: None, store=storage, interval=1, preserve=True)
        answers: dict[str, Any] = {}
        while True:
            result = await graph.run({}, run_id="r", answers=answers)
            if result.completed:
                return dict(result.state.to_dict())
            answers = {one.id: f"yes to {one.question}" for one in result.waiting[:1]}

    calls: list[str] = []
    whole = Mortal()
    expected = await on(whole)
    assert expected["reviews"] == ["a: yes to a", "b: yes to b"]
    for number in range(1, whole.count + 1):
        calls.clear()
        storage = Mortal()
        storage.dies_at, storage.after = number, after
        with pytest.raises(Died):
            await on(storage)
        storage.dead, storage.dies_at = False, 0
        assert await on(storage) == expected
        assert calls.count("signed") == 1
