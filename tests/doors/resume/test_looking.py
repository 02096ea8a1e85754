"""Forks, comparing runs, explaining a resume, and drawing a graph."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.builders.graphs import Counting, line

from surehold import State, StateGraph, effect, interrupt
from surehold.errors import InDoubtError, Interrupted, NotFoundError, StepError, UsageError
from surehold.storage.base import RunQuery


async def completed(graph: StateGraph, run_id: str = "r") -> list[Any]:
    """The checkpoints of a run that was executed, oldest first."""
    await graph.execute(State.new({"n": 0}, run_id=run_id))
    return list(reversed(await graph.manager.list_checkpoints(run_id)))


async def test_a_fork_goes_its_own_way_and_leaves_the_source(store: str) -> None:
    counting = Counting(4)
    async with counting.graph(store=store, interval=1, preserve=True) as graph:
        saved = await completed(graph)
        before = await graph.manager.history("r")
        forked = await graph.fork(saved[2].checkpoint_id, {"n": 10}, "other")
        assert (forked.run_id, forked["n"], forked.step) == ("other", 10, 2)
        final = await graph.resume("other")
        assert (final["n"], final.step, final.state.node) == (10, 3, "done")
        after = await graph.manager.history("r")
        assert [one.checkpoint for one in after] == [one.checkpoint for one in before]
        assert all(await graph.manager.verify())


async def test_a_fork_without_an_edit_takes_the_stored_way(db: str) -> None:
    async with Counting(3).graph(store=db, interval=1, preserve=True) as graph:
        saved = await completed(graph)
        forked = await graph.fork(saved[1].checkpoint_id)
        final = await graph.resume(forked.run_id)
        assert final.to_dict() == {"n": 3, "done": True} and final.run_id != "r"
        found = await graph.manager.list_checkpoints(forked.run_id)
        origin = found[-1].metadata["forked_from"]
        assert origin["run_id"] == "r" and found[-1].kind == "fork"
        assert found[0].metadata == {}
        assert not graph.compare("r", forked.run_id)


async def test_forks_of_forks(db: str) -> None:
    async with Counting(5).graph(store=db, interval=1, preserve=True) as graph:
        saved = await completed(graph)
        await graph.fork(saved[1].checkpoint_id, {"n": 2}, "child")
        await graph.resume("child")
        child = list(reversed(await graph.manager.list_checkpoints("child")))
        await graph.fork(child[1].checkpoint_id, {"extra": True}, "grandchild")
        final = await graph.resume("grandchild")
        assert final.to_dict() == {"n": 5, "extra": True, "done": True}
        await graph.manager.delete_run("r")
        await graph.manager.delete_run("child")
        assert (await graph.resume("grandchild"))["n"] == 5


async def test_a_manager_s_fork_can_be_run_by_the_graph(db: str) -> None:
    async with Counting(3).graph(store=db, interval=1, preserve=True) as graph:
        saved = await completed(graph)
        await graph.manager.fork_from_checkpoint(saved[1].checkpoint_id, "other")
        assert (await graph.resume("other"))["n"] == 3


async def test_a_fork_that_has_nothing_to_go_on_with_is_refused(db: str) -> None:
    async with Counting(2).graph(store=db, interval=1, preserve=True) as graph:
        saved = await completed(graph)
        with pytest.raises(UsageError, match="ends its run"):
            await graph.fork(saved[-1].checkpoint_id)
        with pytest.raises(UsageError, match="already"):
            await graph.fork(saved[0].checkpoint_id, run_id="r")
        with pytest.raises(NotFoundError):
            await graph.fork("ffffffff")
        runs = [run.run_id for run in graph.manager.storage.runs(RunQuery())]
        assert runs == ["r"]


async def test_comparing_says_where_two_runs_part(db: str) -> None:
    async with Counting(4).graph(store=db, interval=1, preserve=True) as graph:
        saved = await completed(graph)
        await graph.fork(saved[2].checkpoint_id, {"n": 9}, "edited")
        await graph.resume("edited")
        parting = graph.compare("r", "edited")
        assert parting and parting.step == 2 and parting.common == ("up",)
        assert [(change.path, change.value) for change in parting.changes] == [("/n", 9)]
        assert "they differ at step 2" in str(parting)
        same = graph.compare("r", "r")
        assert not same and same.step is None and "are equal" in str(same)
        with pytest.raises(NotFoundError):
            graph.compare("r", "nobody")


async def test_comparing_sees_another_way_taken(db: str) -> None:
    async with Counting(2).graph(store=db, interval=1, preserve=True) as graph:
        await graph.execute(State.new({"n": 0}, run_id="short"))
    async with Counting(3).graph(store=db, interval=1, preserve=True) as graph:
        await graph.execute(State.new({"n": 0}, run_id="long"))
        parting = graph.compare("short", "long")
        assert parting.step == 3 and parting.nodes == ("done", "up")
        assert "short executed done, long up" in str(parting)


async def test_explaining_says_what_would_run_and_what_is_saved(db: str) -> None:
    calls: list[str] = []

    async def first(state: State) -> None:
        await effect("think", lambda: "x", in_doubt="retry", usage=lambda _: {"tokens": 10})

    async def second(state: State) -> None:
        await effect("paid", lambda: calls.append("paid"), usage=lambda _: {"dollars": 2})
        await effect("doubtful", ambiguous)

    def ambiguous() -> None:
        calls.append("doubtful")
        raise InDoubtError("the connection broke")

    def end(state: State) -> None:
        return None

    async with line(first, second, end, store=db, interval=1, preserve=True) as graph:
        with pytest.raises(InDoubtError):
            await graph.execute(State.new({}, run_id="r"))
        run = graph.manager.reader.run("r")
        plan = graph.explain_resume("r")
        assert graph.manager.reader.run("r") == run
        assert (plan.status, plan.step, plan.next) == ("failed", 1, "second")
        assert plan.skipped == ("first",) and plan.again == ("second",)
        assert plan.reused == ("paid@2",)
        assert [(one.id, one.policy) for one in plan.in_doubt] == [("doubtful@2", "ask")]
        assert (plan.saves.tokens, plan.saves.dollars) == (10, 2.0)
        text = str(plan)
        assert plan.error.startswith("InDoubtError") and "it had failed: InDoubtError" in text
        assert "with node 'second'" in text and "wait until someone says" in text
        assert "$2.00" in text and plan.problem == ""
    assert calls == ["paid", "doubtful"]


async def test_what_a_graph_failed_with_is_kept_in_part_and_without_secrets(db: str) -> None:
    def fails(state: State) -> None:
        raise OSError(f"postgresql://me:hunter2@db is away {'x' * 5_000}")

    async with line(fails, lambda state: None, store=db, interval=1, preserve=True) as graph:
        with pytest.raises(StepError, match="hunter2"):  # whoever called it is told all
            await graph.execute(State.new({}, run_id="r"))
        error = graph.explain_resume("r").error
        assert error.startswith("OSError: postgresql://me:[redacted:url_password]@db is away xxx")
        assert len(error) == 1_000


async def test_explaining_a_completed_run_says_so(db: str) -> None:
    async with Counting(2).graph(store=db, interval=1, preserve=True) as graph:
        await completed(graph)
        assert "nothing would run" in str(graph.explain_resume("r"))
        with pytest.raises(NotFoundError):
            graph.explain_resume("nobody")


async def test_explaining_says_what_stands_in_the_way(db: str) -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    async def waits(state: State) -> None:
        inside.set()
        await go.wait()

    async with line(waits, lambda state: None, store=db, interval=1) as graph:
        running = asyncio.create_task(graph.execute(State.new({}, run_id="r")))
        await inside.wait()
        assert "held by process" in graph.explain_resume("r").problem
        async with Counting(1).graph(store=db, interval=1) as other:
            assert "another graph" in other.explain_resume("r").problem
        go.set()
        await running


async def test_explaining_names_the_open_question(db: str) -> None:
    async def ask(state: State) -> None:
        await interrupt("really?")

    async with line(ask, lambda state: None, store=db, interval=1) as graph:
        with pytest.raises(Interrupted):
            await graph.execute(State.new({}, run_id="r"))
        plan = graph.explain_resume("r")
        assert [one.question for one in plan.questions] == ["really?"]
        assert "really?" in str(plan)


def test_a_graph_is_drawn_with_its_edges() -> None:
    drawn = Counting(2).graph().to_mermaid()
    assert drawn.startswith("flowchart TD\n")
    assert '    n1["up"]\n' in drawn and '    n0(["done"])\n' in drawn
    assert '    n1 -->|"enough"| n0\n' in drawn and "start(( )) --> n1" in drawn
    assert "class " not in drawn


async def test_a_run_is_drawn_with_its_path_counts_and_where_it_stopped(db: str) -> None:
    counting = Counting(3)
    counting.fails_at = 2
    async with counting.graph(store=db, interval=1, preserve=True) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"n": 0}, run_id="r"))
        drawn = graph.to_mermaid("r")
        assert '["up x2"]' in drawn and '==>|"x1"| n1' in drawn
        assert "class n1 stopped" in drawn and "%% failed at up, step 2" in drawn
        counting.fails_at = None
        await graph.resume("r")
        drawn = graph.to_mermaid("r")
        assert '(["done x1"])' in drawn and '==>|"enough x1"| n0' in drawn
        assert "class n1,n0 done" in drawn or "class n0,n1 done" in drawn
        assert "%% completed at done, step 4" in drawn
        with pytest.raises(NotFoundError):
            graph.to_mermaid("nobody")


def test_names_cannot_break_out_of_a_drawing() -> None:
    graph = StateGraph()
    graph.add_node('a"]; click evil', lambda state: None)
    graph.set_entry_point('a"]; click evil')
    graph.set_exit_point('a"]; click evil')
    assert 'a#quot;]; click evil"' in graph.to_mermaid()
