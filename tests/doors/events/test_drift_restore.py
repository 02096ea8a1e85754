"""Going back because of drift: what was recorded beyond the checkpoint is done anew, and paid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import Counted, build, call, manager_in
from tests.builders.fleets import ledger, team
from tests.builders.fleets import manager as fleet_manager
from tests.builders.graphs import Heard

import surehold
from surehold import (
    CheckpointConfig,
    GraphConfig,
    MemoryStorage,
    State,
    StateGraph,
    StateManager,
    tool,
)
from surehold.agents.agent.result import AgentResult
from surehold.agents.fleet.fleet import Fleet, FleetResult
from surehold.agents.models.model import Message, Reply
from surehold.compat import BaseAutonomousAgent
from surehold.doors.events.drift_watch import DriftWatch
from surehold.doors.events.observers import Event
from surehold.engine.runs.positions import CURRENT_STEP
from surehold.errors import DriftError, InDoubtError, Interrupted, StepError


class Killed(BaseException):
    """The process ends here."""


class Looked(Counted):
    """Work that may be done again."""

    @tool(read_only=True)
    def search(self, query: str) -> str:
        """Search for something."""
        return super().search(query)


class Second:
    """A model that repeats itself from its third cycle on, until it is asked there once more."""

    def __init__(self, stuck: int = 3, last: int = 8) -> None:
        self.asked: Counter[int] = Counter()
        self.stuck = stuck
        self.last = last

    def __call__(self, messages: Sequence[Message]) -> Reply | str:
        done = sum(message["role"] == "assistant" for message in messages)
        self.asked[done] += 1
        if done >= self.last:
            return "done"
        again = done >= self.stuck and max(self.asked.values()) < 2
        return call("search", query="kelp" if again else f"page {done}")


async def guarded(
    watch: DriftWatch, agent: BaseAutonomousAgent, manager: StateManager, task: str = "find kelp"
) -> AgentResult:
    return await watch.guard(
        lambda: agent.run(task), lambda one: agent.run(checkpoint=one), manager
    )


def watched(script: Any, manager: StateManager, watch: DriftWatch, **more: Any) -> Any:
    """An agent that is saved after each cycle."""
    settings = {"checkpoint_frequency": 1, "max_cycles": 40, **more.pop("settings", {})}
    return build(script, manager, more={"observer": watch}, **settings, **more)


def spent_in(manager: StateManager, run_id: str) -> list[dict[str, float]]:
    """What each call cost, by the journal."""
    reader = manager.reader
    run = reader.run(run_id)
    assert run is not None
    headers = [record.header for record in reader.records(run_id, 1, run.seq)]
    return [header.metadata["spent"] for header in headers if "spent" in header.metadata]


# Agents


async def test_the_model_is_asked_anew_after_an_agent_was_taken_back(tmp_path: Path) -> None:
    script, used = Second(), Looked()
    manager, watch = manager_in(tmp_path), DriftWatch(policy="restore")
    result = await guarded(watch, watched(script, manager, watch, tools=[used.search]), manager)
    assert (result.status, result.answer) == ("completed", "done")
    # The first kelp is still good; those after it were answered anew, and the ones before not.
    assert used.calls == [
        *(f"page {n}" for n in range(3)),
        *["kelp"] * 4,
        *(f"page {n}" for n in range(4, 8)),
    ]
    assert [script.asked[n] for n in range(9)] == [1, 1, 1, 1, 2, 2, 2, 1, 1]
    (back,) = await manager.list_checkpoints(result.run_id, kind="recovery")
    assert (back.step, back.status) == (4, "running")
    await manager.close()


async def test_what_the_abandoned_cycles_cost_stays_spent(tmp_path: Path) -> None:
    script, used = Second(), Looked()
    manager, watch = manager_in(tmp_path), DriftWatch(policy="restore")
    said: list[str] = []
    agent = watched(script, manager, watch, tools=[used.search], report=said.append)
    result = await guarded(watch, agent, manager)
    spent = spent_in(manager, result.run_id)
    assert len(spent) == result.budget.model_calls == sum(script.asked.values()) == 12
    assert result.budget.tokens == sum(one["tokens"] for one in spent)
    assert result.budget.spent_usd == pytest.approx(sum(one["dollars"] for one in spent))
    assert result.cycles_used == 12, "what may be used of cycles is used up by them as well"
    (line,) = said
    assert "at cycle 8 of 40: 4 model calls not repeated" in line, "the other three are"
    await manager.close()


async def test_accounts_stay_true_when_a_person_goes_back_over_a_branch(tmp_path: Path) -> None:
    script, used = Second(), Looked()
    manager, watch = manager_in(tmp_path), DriftWatch(policy="restore")
    first = await guarded(watch, watched(script, manager, watch, tools=[used.search]), manager)
    saved = await manager.list_checkpoints(first.run_id, kind="routine")
    before, given_up = [one for one in reversed(saved) if one.step in (2, 6)][:2]
    agent = build(script, manager, tools=[used.search], checkpoint_frequency=1, max_cycles=40)
    again = await agent.resume(first.run_id, checkpoint_id=before.checkpoint_id)
    assert (again.run_id, again.status) == (first.run_id, "completed")
    assert again.cycles_used == first.cycles_used and sum(script.asked.values()) == 12
    assert again.budget.model_calls == 12
    assert again.budget.spent_usd == pytest.approx(first.budget.spent_usd)
    # Where it had drifted, one recorded cycle is replayed, and two are new.
    other = await agent.resume(first.run_id, checkpoint_id=given_up.checkpoint_id)
    spent = spent_in(manager, first.run_id)
    assert (other.run_id, other.status) == (first.run_id, "completed")
    assert other.budget.model_calls == len(spent) == sum(script.asked.values()) == 14
    assert other.budget.spent_usd == pytest.approx(sum(one["dollars"] for one in spent))
    await manager.close()


async def test_a_budget_ends_a_run_that_drifts_at_its_cost(tmp_path: Path) -> None:
    script = Second(stuck=1, last=30)
    manager, watch = manager_in(tmp_path), DriftWatch(policy="restore")
    limit = {"budget_usd": 0.0125}
    agent = watched(script, manager, watch, tools=[Looked().search], settings=limit)
    result = await guarded(watch, agent, manager)
    assert result.status == "budget_exhausted"
    dollars = sum(one["dollars"] for one in spent_in(manager, result.run_id))
    assert result.budget.spent_usd == pytest.approx(dollars) and dollars <= 0.0125
    assert await manager.list_checkpoints(result.run_id, kind="recovery", status="running")
    await manager.close()


async def test_a_crash_in_the_second_attempt_resumes_the_second_attempt(tmp_path: Path) -> None:
    script, used = Second(), Looked()
    dies = [True]

    @tool(idempotent=True)
    def search(query: str) -> str:
        """Search for something."""
        if query == "page 6" and dies:
            dies.pop()
            raise Killed
        return used.search(query)

    settings: dict[str, Any] = {"settings": {"checkpoint_frequency": 4}, "tools": [search]}
    manager, watch = manager_in(tmp_path), DriftWatch(policy="restore")
    with pytest.raises(Killed):
        await guarded(watch, watched(script, manager, watch, **settings), manager)
    assert used.calls[-2:] == ["page 4", "page 5"]
    await manager.close()

    before, calls = script.asked.copy(), len(used.calls)
    manager, watch = manager_in(tmp_path), DriftWatch(policy="restore")
    result = await guarded(watch, watched(script, manager, watch, **settings), manager, task="")
    assert result.status == "completed"
    assert used.calls[calls:] == ["page 6", "page 7"]
    assert script.asked - before == Counter({7: 1, 8: 1})
    await manager.close()


async def test_drift_that_comes_again_goes_further_back_and_ends(tmp_path: Path) -> None:
    asked: Counter[int] = Counter()

    def stubborn(messages: Sequence[Message]) -> Reply:
        done = sum(message["role"] == "assistant" for message in messages)
        asked[done] += 1
        return call("search", query="kelp" if done >= 3 else f"page {done}")

    manager, watch = manager_in(tmp_path), DriftWatch(policy="restore", max_restores=9)
    agent = watched(stubborn, manager, watch, tools=[Looked().search])
    with pytest.raises(DriftError, match="nothing left to go back to"):
        await guarded(watch, agent, manager)
    back = await manager.list_checkpoints("researcher", kind="recovery")
    assert [one.step for one in back] == [0, 1, 2, 3, 4]
    assert asked[0] == 2 and asked[4] == 6
    await manager.close()


async def test_a_tool_that_must_be_approved_is_asked_about_anew(tmp_path: Path) -> None:
    """What a person allowed was another call: an old yes must not cover a new one."""
    charged: list[int] = []

    @tool(approval=True, idempotent=True)
    def charge(amount: int) -> str:
        """Charge a card."""
        charged.append(amount)
        return "charged"

    asked: Counter[int] = Counter()

    def script(messages: Sequence[Message]) -> Reply | str:
        done = sum(message["role"] == "assistant" for message in messages)
        asked[done] += 1
        if done >= 5:
            return "done"
        return call("charge", amount=5 if max(asked.values()) < 2 else 1000 + done)

    manager, watch = manager_in(tmp_path), DriftWatch(policy="restore")
    agent = watched(script, manager, watch, tools=[charge])
    result = await guarded(watch, agent, manager)
    for _ in range(4):
        result = await watch.guard(
            lambda: agent.run(answer=True), lambda one: agent.run(checkpoint=one), manager
        )
    assert charged == [5, 5, 5, 5] and result.status == "waiting"
    (asks,) = result.waiting
    assert asks.question["arguments"] == {"amount": 1001}
    await manager.close()


@pytest.mark.parametrize("deep", [False, True])
async def test_where_something_may_not_be_done_twice_an_agent_does_not_go_back(
    tmp_path: Path, deep: bool
) -> None:
    """Nor where an agent inside it did that."""
    paid: list[str] = []

    @tool
    def pay(invoice: str) -> str:
        """Pay an invoice."""
        paid.append(invoice)
        return "paid"

    def once(messages: Sequence[Message]) -> Reply | str:
        done = any(message["role"] == "assistant" for message in messages)
        return "paid" if done else call("pay", invoice="seven")

    child = build(once, tools=[pay])
    child.agent_id = "child"
    script = Second()

    def paying(messages: Sequence[Message]) -> Reply | str:
        reply = script(messages)
        if sum(message["role"] == "assistant" for message in messages) == 5:
            return call("child", task="pay seven") if deep else call("pay", invoice="seven")
        return reply

    def action(state: State) -> str:
        return "stuck" if state.step > 3 else f"step {state.step}"

    manager, watch = manager_in(tmp_path), DriftWatch(policy="restore", action=action)
    agent = watched(paying, manager, watch, tools=[Looked().search, pay, child.as_tool()])
    with pytest.raises(DriftError, match=r"cannot go back because .*pay@.* would be done again"):
        await guarded(watch, agent, manager)
    assert paid == ["seven"]
    (newest, *_) = await manager.list_checkpoints(agent.agent_id)
    assert "drift" in newest.tags and newest.kind != "recovery", "nothing was changed"
    await manager.close()


async def test_a_tool_that_failed_is_called_again_whatever_it_is(tmp_path: Path) -> None:
    up: list[str] = []
    called: list[str] = []

    @tool
    def send(text: str) -> str:
        """Send a message."""
        called.append(text)
        if not up:
            raise ConnectionError("the line is dead")
        return "sent"

    def script(messages: Sequence[Message]) -> Reply | str:
        done = any(message["content"] == "sent" for message in messages)
        return "done" if done else call("send", text="hello")

    class Line:
        def on_event(self, event: Event) -> None:
            up.extend(["up"] * (event.type == "checkpoint.resume"))

    manager, watch = manager_in(tmp_path), DriftWatch(policy="restore")
    agent = watched(script, manager, watch, tools=[send])
    agent.observer = [watch, Line()]
    result = await guarded(watch, agent, manager)
    assert result.status == "completed" and len(called) > 1
    await manager.close()


async def test_a_child_is_begun_anew_and_not_answered_by_the_one_before(tmp_path: Path) -> None:
    asked: Counter[int] = Counter()
    answers = iter(range(100))

    def parent(messages: Sequence[Message]) -> Reply | str:
        done = sum(message["role"] == "assistant" for message in messages)
        asked[done] += 1
        if done >= 5:
            return "done"
        return call("child", task="dive" if max(asked.values()) < 3 else f"dive {done}")

    manager, watch = manager_in(tmp_path), DriftWatch(policy="restore")
    child = BaseAutonomousAgent(
        build(lambda messages: f"fish {next(answers)}").config,
        agent_id="child",
        model=build(lambda messages: f"fish {next(answers)}")._model,
        report=lambda line: None,
    )
    agent = watched(parent, manager, watch, tools=[child.as_tool()])
    result = await guarded(watch, agent, manager)
    assert result.status == "completed"
    told = [one["content"] for one in agent.state.conversation_history if one["role"] == "tool"]
    assert len(told) == len(set(told)), "each child was a run of its own"
    await manager.close()


# Graphs


class Asking:
    """A graph whose node asks outside where to go on, and is told the same until asked anew."""

    def __init__(self, policy: str = "retry") -> None:
        self.policy: Any = policy
        self.keys: list[tuple[int, str]] = []
        self.asked: Counter[int] = Counter()
        self.dies_at: int | None = None
        self.fails_at: int | None = None

    def answer(self, step: int, idempotency_key: str) -> str:
        if self.dies_at == step:
            raise Killed
        self.asked[step] += 1
        self.keys.append((step, idempotency_key))
        fresh = step < 4 or self.asked[step] > 1 or step > 7
        return f"page {step}" if fresh else "kelp"

    async def look(self, state: State) -> dict[str, Any]:
        step = state.step + 1
        if self.fails_at == step:
            raise ConnectionError("the line is dead")
        how: dict[str, Any] = {"in_doubt": self.policy, "usage": lambda _: {"tokens": 1}}
        said = await surehold.effect("answer", self.answer, step, **how)
        return {"said": said, "seen": [*state.get("seen", []), said]}

    def graph(self, *observers: Any, store: str = "memory://", interval: int = 1) -> StateGraph:
        checkpoint = CheckpointConfig(store=store, interval=interval, preserve=True)
        graph = StateGraph(GraphConfig(name="asking", observer=observers, checkpoint=checkpoint))
        graph.add_node("look", self.look)
        graph.add_node("done", lambda state: None)
        graph.add_edge("look", "done", lambda state: len(state["seen"]) >= 10)
        graph.add_edge("look", "look")
        graph.set_entry_point("look")
        graph.set_exit_point("done")
        return graph


def said(state: State) -> str:
    return str(state.get("said"))


GOOD = ["page 1", "page 2", "page 3", "kelp", *(f"page {n}" for n in range(5, 11))]


async def test_effects_of_a_graph_are_made_anew_with_new_keys(store: str) -> None:
    asking, heard = Asking(), Heard()
    watch = DriftWatch(policy="restore", action=said)
    graph = asking.graph(watch, heard, store=store)
    final = await watch.execute(graph, State.new(run_id="r"))
    assert list(final["seen"]) == GOOD
    assert [asking.asked[n] for n in range(1, 11)] == [1, 1, 1, 1, 2, 2, 2, 1, 1, 1]
    keys = [key for _, key in asking.keys]
    assert len(keys) == len(set(keys)), "what is discarded must not be given back from outside"
    assert not heard.of("effect.reused")
    await graph.close()


async def test_what_was_recorded_before_the_checkpoint_stays_recorded(db: str) -> None:
    """With an interval above one the good checkpoint has recorded effects before and after it."""
    asking = Asking()
    watch = DriftWatch(policy="restore", action=said)
    graph = asking.graph(watch, store=db, interval=2)
    final = await watch.execute(graph, State.new(run_id="r"))
    assert list(final["seen"]) == GOOD
    assert all(asking.asked[n] == 1 for n in range(1, 5))
    await graph.close()


@pytest.mark.parametrize("interval", [1, 3])
async def test_a_graph_killed_in_its_second_attempt_goes_on_with_it(db: str, interval: int) -> None:
    asking = Asking("retry")

    class Dies:
        backs = 0

        def on_event(self, event: Event) -> None:
            self.backs += event.type == "checkpoint.resume"
            if self.backs and event.type == "node.start" and event.data["iteration"] == 6:
                asking.dies_at = 6

    watch = DriftWatch(policy="restore", action=said)
    graph = asking.graph(watch, Dies(), store=db, interval=interval)
    with pytest.raises(Killed):
        await watch.execute(graph, State.new(run_id="r"))
    await graph.close()
    asking.dies_at = None
    before = asking.asked.copy()
    heard = Heard()
    graph = asking.graph(heard, store=db, interval=interval)
    final = await graph.resume("r")
    made = asking.asked - before
    assert set(made) == {6, 7, 8, 9, 10} and set(made.values()) == {1}
    assert all(one["effect"] == "answer@5" for one in heard.of("effect.reused"))
    assert list(final["seen"])[4:] == GOOD[4:]
    assert len({key for _, key in asking.keys}) == len(asking.keys)
    await graph.close()


async def test_an_effect_that_nobody_knows_the_outcome_of_is_still_asked_about(db: str) -> None:
    """A node that got over an effect in doubt comes to the same place again."""
    asking = Asking()
    told: list[str] = []

    def ship(idempotency_key: str) -> None:
        told.append(idempotency_key)
        raise InDoubtError("the shop did not say")

    async def look(state: State) -> dict[str, Any]:
        if state.step == 5:
            with suppress(InDoubtError):
                await surehold.effect("ship", ship)
        return await Asking.look(asking, state)

    asking.look = look  # type: ignore[method-assign]
    watch = DriftWatch(policy="restore", action=said)
    graph = asking.graph(watch, store=db)
    with pytest.raises(Interrupted) as caught:
        await watch.execute(graph, State.new(run_id="r"))
    (waits,) = caught.value.waiting
    assert waits.id == "ship@6" and len(told) == 1
    surehold.answer("r", "ship@6", "shipped", storage=db)
    assert list((await watch.resume(graph, "r"))["seen"]) == GOOD
    assert len(told) == 1
    await graph.close()


class FailsAtSix:
    """Lets the second attempt fail at its sixth step."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking

    def on_event(self, event: Event) -> None:
        if event.type == "checkpoint.resume":
            self.asking.fails_at = 6


async def test_a_later_resume_at_an_earlier_step_takes_what_the_run_went_on_with(db: str) -> None:
    """What was given up is not mixed with what took its place, not even beyond its end."""
    asking = Asking()
    watch = DriftWatch(policy="restore", action=said)
    graph = asking.graph(watch, FailsAtSix(asking), store=db)
    with pytest.raises(StepError):
        await watch.execute(graph, State.new(run_id="r"))
    await graph.close()
    asking.fails_at, before = None, asking.asked.copy()
    graph = asking.graph(store=db)
    assert list((await graph.resume("r", step=2))["seen"]) == GOOD
    assert asking.asked - before == Counter(range(6, 11)), "the others are recorded"
    assert len({key for _, key in asking.keys}) == len(asking.keys)
    await graph.close()


async def test_who_thinks_that_it_was_no_drift_goes_on_where_it_was_stopped(db: str) -> None:
    asking = Asking()
    watch = DriftWatch(policy="restore", action=said)
    async with asking.graph(watch, store=db) as graph:
        await watch.execute(graph, State.new(run_id="r"))
    graph = asking.graph(store=db)
    (drifted,) = await graph.manager.list_checkpoints("r", tag="drift")
    steps = {one.step: one for one in await graph.manager.list_checkpoints("r", kind="routine")}
    before, keys = asking.asked.copy(), len(asking.keys)
    final = await graph.resume("r", checkpoint_id=drifted.checkpoint_id)
    assert list(final["seen"]) == [*GOOD[:4], "kelp", "kelp", "kelp", *GOOD[7:]]
    assert asking.asked - before == Counter({8: 1, 9: 1, 10: 1})
    assert len({key for _, key in asking.keys}) == keys + 3
    # And from then on that is what the run went on with.
    before = asking.asked.copy()
    again = await graph.resume("r", checkpoint_id=steps[2].checkpoint_id)
    assert again["seen"] == final["seen"] and asking.asked == before
    await graph.close()


async def test_who_goes_back_to_a_way_that_was_left_is_told_what_may_be_done_again(
    db: str, caplog: pytest.LogCaptureFixture
) -> None:
    asking = Asking()

    class Strict:
        def on_event(self, event: Event) -> None:
            if event.type == "checkpoint.resume":
                asking.policy = "ask"

    watch = DriftWatch(policy="restore", action=said)
    async with asking.graph(watch, Strict(), store=db) as graph:
        await watch.execute(graph, State.new(run_id="r"))
        (drifted,) = await graph.manager.list_checkpoints("r", tag="drift")
        await graph.resume("r", checkpoint_id=drifted.checkpoint_id)
    assert "effects recorded since then may be repeated: answer@5, answer@6" in caplog.text


async def test_a_checkpoint_that_was_given_up_is_not_gone_back_to(db: str) -> None:
    """Even if it is newer, and the run has saved nothing good since it was taken back."""
    attempts: list[int] = []

    async def look(state: State) -> dict[str, Any]:
        step, attempt = state.step + 1, len(attempts)
        kelp = (step > 4, step > 13, False)[attempt]
        return {"said": "kelp" if kelp else f"page {step}", "save": not attempt, "n": step}

    class Backs:
        def on_event(self, event: Event) -> None:
            if event.type == "checkpoint.resume":
                attempts.append(1)

    watch = DriftWatch(policy="restore", action=said, window=8)
    checkpoint = CheckpointConfig(store=db, when=lambda state: state["save"], preserve=True)
    graph = StateGraph(GraphConfig(observer=(watch, Backs()), checkpoint=checkpoint))
    graph.add_node("look", look)
    graph.add_node("done", lambda state: None)
    graph.add_edge("look", "done", lambda state: state["n"] >= 20)
    graph.add_edge("look", "look")
    graph.set_entry_point("look")
    graph.set_exit_point("done")
    await watch.execute(graph, State.new({"save": True}, run_id="r"))
    back = await graph.manager.list_checkpoints("r", kind="recovery")
    assert [one.step for one in back] == [5, 5]
    await graph.close()


async def test_what_a_resume_saves_does_not_count_what_was_given_up(db: str) -> None:
    asking = Asking()
    watch = DriftWatch(policy="restore", action=said)
    graph = asking.graph(watch, FailsAtSix(asking), store=db)
    with pytest.raises(StepError):
        await watch.execute(graph, State.new(run_id="r"))
    assert sum(asking.asked.values()) == 8
    assert graph.explain_resume("r").saves.tokens == 5
    await graph.close()


async def test_the_secrets_of_a_run_go_back_with_it() -> None:
    asking = Asking()
    seen: list[Any] = []

    async def look(state: State) -> dict[str, Any]:
        seen.append(state.secrets["token"])
        return await Asking.look(asking, state)

    asking.look = look  # type: ignore[method-assign]
    watch = DriftWatch(policy="restore", action=said)
    state = State.new(run_id="r").with_secrets({"token": "s3"})
    await watch.execute(asking.graph(watch), state)
    assert set(seen) == {"s3"}


async def test_where_something_may_not_be_done_twice_a_graph_does_not_go_back(db: str) -> None:
    asking = Asking("ask")
    watch = DriftWatch(policy="restore", action=said)
    graph = asking.graph(watch, store=db)
    with pytest.raises(DriftError) as caught:
        await watch.execute(graph, State.new(run_id="r"))
    assert caught.value.done == ("answer@5", "answer@6", "answer@7")
    assert "answer@5, answer@6, answer@7 would be done again" in str(caught.value)
    assert set(asking.asked.values()) == {1}
    newest = await graph.manager.latest("r")
    assert newest is not None and newest.step == 7, "nothing was changed"
    await graph.close()


# Fleets


async def test_a_fleet_is_taken_back_in_its_own_run_and_what_it_cost_stays_spent() -> None:
    judged: Counter[int] = Counter()
    log: list[float] = []

    def judge(done: int, messages: Sequence[Message]) -> str:
        judged[done] += 1
        fresh = done < 2 or max(judged.values()) > 1
        part = f"write part {done}" if fresh else "write the same part"
        return ledger("coder", part, satisfied=done >= 8)

    class Priced:
        def on_event(self, event: Event) -> None:
            if event.type == "effect.complete":
                log.append(event.data["dollars"])

    watch = DriftWatch(policy="restore")
    storage = MemoryStorage()
    async with Fleet(
        fleet_manager(8, judge=judge),
        team(),
        checkpoint_storage=storage,
        observer=[watch, Priced()],
    ) as fleet:
        runs: list[FleetResult] = []

        async def go_back(one: str) -> FleetResult:
            runs.append(await fleet.run(resume_from_checkpoint=one))
            return runs[-1]

        fleet.set_workflow_id("boat")
        result = await watch.guard(lambda: fleet.run("build a boat"), go_back, fleet.graph.manager)
    assert (result.status, result.run_id, len(runs)) == ("completed", "boat", 1)
    assert sum(count == 2 for count in judged.values()) == 3
    assert result.usage["calls"] == len(log)
    assert result.usage["cost_usd"] == pytest.approx(sum(log))


async def test_a_fleet_forks_from_a_checkpoint_that_its_run_has_given_up() -> None:
    backs: list[str] = []

    def judge(done: int, messages: Sequence[Message]) -> str:
        part = f"write part {done}" if done < 2 or backs else "write the same part"
        return ledger("coder", part, satisfied=done >= 6)

    class Stops:
        def on_event(self, event: Event) -> None:
            here = CURRENT_STEP.get()
            ended = event.type == "node.complete" and backs and here is not None
            if ended and here.outer.state.step == 6:
                here.outer.stop.request("user", "")

    watch = DriftWatch(policy="restore")
    storage = MemoryStorage()
    model = fleet_manager(6, judge=judge)
    async with Fleet(model, team(), checkpoint_storage=storage, observer=[watch, Stops()]) as fleet:

        async def go_back(one: str) -> FleetResult:
            backs.append(one)
            return await fleet.run(resume_from_checkpoint=one)

        fleet.set_workflow_id("boat")
        manager = fleet.graph.manager
        stopped = await watch.guard(lambda: fleet.run("build a boat"), go_back, manager)
        assert stopped.status == "interrupted"
        now, given_up = [one for one in await manager.list_checkpoints("boat") if one.step == 6]
    async with Fleet(model, team(), checkpoint_storage=storage) as fleet:
        forked = await fleet.run(resume_from_checkpoint=given_up.checkpoint_id)
        assert forked.run_id != "boat"
        result = await fleet.run(resume_from_checkpoint=now.checkpoint_id)
        assert (result.run_id, result.status) == ("boat", "completed")
