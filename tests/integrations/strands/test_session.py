"""Agents, graphs and swarms of Strands in Surehold's journals."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("strands")

from hypothesis import given
from hypothesis import strategies as st
from strands import Agent, tool
from strands.multiagent import GraphBuilder, Swarm
from strands.session import SnapshotSessionManager
from strands.types.exceptions import StorageError
from tests.crash.media import spread
from tests.integrations.model_server import ModelServer
from tests.integrations.strands.support_agent import CALLS, ScriptedModel, live, make_agent

import surehold
from surehold import State
from surehold.engine.managers import CheckpointManager
from surehold.integrations.item_lists import NOTHING
from surehold.integrations.strands import SureholdSessionManager, SureholdStorage
from surehold.integrations.strands.snapshots import _overlap
from surehold.storage.base import RunQuery
from surehold.storage.registry import open_storage

SAID = "done search orders, done pay 1, done pay 2, done refund 3"
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.integrations.strands.support_agent"])


@pytest.fixture
def server() -> Iterator[ModelServer]:
    made = ModelServer(lambda _: {})
    yield made
    made.close()


@pytest.mark.parametrize("fatal", spread(range(1, len(CALLS) + 1), 4))
def test_killed_at_any_call_the_agent_ends_the_same_and_repeats_the_calls_in_flight(
    server: ModelServer, fatal: int, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    server.fatal = fatal
    process = CONTEXT.Process(target=live, args=(server.url, storage))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    killed_at = server.calls[fatal - 1]

    assert live(server.url, storage) == SAID
    again = {call for call, count in Counter(server.calls).items() if count > 1}
    at_once = {"pay 1", "pay 2"}
    assert set(server.calls) == set(CALLS)
    assert max(Counter(server.calls).values()) <= 2
    assert killed_at in again
    assert again <= (at_once if killed_at in at_once else {killed_at})


def test_a_second_process_continues_a_conversation_that_ended(
    server: ModelServer, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    assert live(server.url, storage) == SAID
    assert sorted(server.calls) == sorted(CALLS)
    assert len(make_agent(server.url, storage).messages) == 8


def _message(number: int, text: str) -> Any:
    return {"role": "user" if number % 2 else "assistant", "content": [{"text": text}]}


def _agent(session: Any) -> Agent:
    return Agent(model=ScriptedModel(""), session_manager=session, callback_handler=None)


@pytest.mark.parametrize(("medium", "most"), [("sqlite:///{}/runs.db", 3), ("file://{}/runs", 3.6)])
async def test_200_messages_of_1_kb_store_at_most_3_times_their_content(
    medium: str, most: float, tmp_path: Path
) -> None:
    chance = random.Random(7)
    with open_storage(medium.format(tmp_path)) as storage:
        with SureholdSessionManager("s", storage) as session:
            agent = _agent(session)
            for number in range(200):
                text = "".join(chance.choices("abcdefghijklmnop ", k=1000))
                await agent._append_messages(_message(number, text))
        (run,) = storage.runs(RunQuery())
    used = sum(one.stat().st_size for one in tmp_path.rglob("*") if one.is_file())
    print(f"{medium}: {used / 200_000:.2f} times the content on disk, {run.stored / 200_000:.2f}")
    assert used <= most * 200_000


async def test_a_window_that_slides_stores_what_is_added(tmp_path: Path) -> None:
    with SureholdStorage(f"sqlite:///{tmp_path}/runs.db") as storage:
        session = SureholdSessionManager("s", storage)
        agent = _agent(session)
        for number in range(100):
            agent.messages.append(_message(number, f"{number} " + "x" * 1000))
            del agent.messages[:-20]
            await session.save_snapshot(agent, is_latest=True)
            assert _agent(SureholdSessionManager("s", storage)).messages == agent.messages
        (run,) = storage.manager.storage.runs(RunQuery())
        assert run.checkpoints == 100
        whole = sum(min(20, n) for n in range(100)) * 1000
        assert run.stored < whole / 4


async def test_immutable_snapshots_are_tagged_checkpoints_of_the_same_run() -> None:
    with SureholdStorage("memory://") as storage:
        session = SureholdSessionManager("s", storage, snapshot_trigger=lambda **_: True)
        agent = _agent(session)
        made = []
        for number in range(3):
            agent.messages.append(_message(number, f"n{number}"))
            made.append(await session.save_snapshot(agent, is_latest=False))
        agent.messages.append(_message(3, "n3"))
        await session.save_snapshot(agent, is_latest=True)
        late = await session.save_snapshot(agent, is_latest=False)
        agent.messages.append(_message(4, "not saved"))
        assert await session.list_snapshot_ids(agent) == [*made, late]
        assert len(_agent(SureholdSessionManager("s", storage)).messages) == 4
        for count, one in enumerate(made, 1):
            assert await session.restore_snapshot(agent, snapshot_id=one)
            assert len(agent.messages) == count
        (run,) = storage.manager.storage.runs(RunQuery())
        assert run.run_id == "strands/session/s/scopes/agent/default"
        await session.delete_session()
        assert not [*storage.manager.storage.runs(RunQuery())]
        assert await storage.list() == []


@pytest.mark.parametrize("kind", ["graph", "swarm"])
async def test_graphs_and_swarms_continue_after_the_last_node(
    kind: str, server: ModelServer, address: str
) -> None:
    class Once(ScriptedModel):
        async def stream(self, messages: Any, *_: Any, **__: Any) -> Any:
            await asyncio.sleep(0)
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": f"said {len(messages)}"}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    def made(storage: SureholdStorage) -> Any:
        nodes = [
            Agent(model=Once(""), agent_id=name, name=name, callback_handler=None)
            for name in ("first", "second")
        ]
        session = SureholdSessionManager("team", storage)
        if kind == "swarm":
            return Swarm(nodes, session_manager=session, id="swarm")
        builder = GraphBuilder()
        for node in nodes:
            builder.add_node(node, node.name)
        builder.add_edge("first", "second")
        builder.set_entry_point("first")
        builder.set_graph_id("graph")
        builder.set_max_node_executions(5)
        builder.set_session_manager(session)
        return builder.build()

    with SureholdStorage(address) as storage:
        result = await made(storage).invoke_async("begin")
        (key,) = await storage.list("session/team/")
        saved = json.loads(await storage.read(key) or b"")
        assert saved["scope"] == "multiAgent"
        assert result.status.value == "completed"
        (run,) = storage.manager.storage.runs(RunQuery())
        assert run.checkpoints >= 2


KEYS = ("a", "a/b", "context/s/x", "context/s/y", "session/s/scopes/agent/d/snapshots/other.json")


async def test_any_bytes_are_read_as_they_were_written(address: str) -> None:
    latest = "session/s/scopes/agent/d/snapshots/snapshot_latest.json"
    odd = [
        b"",
        b"\x00\xff",
        b'{"data": {"messages": [1, 1.0]}}',
        b'{"data":{"messages":[]}}',
        b'{"data": {"messages": {"a": NaN}}, "x": 1}',
        b'{"data": {"items": 1, "messages": []}}',
        '{"data": {"messages": ["\u2028", {"$t": "x"}], "first": 1}}'.encode(),
    ]
    with SureholdStorage(address) as storage:
        for key in (*KEYS, latest):
            for data in odd:
                await storage.write(key, data)
                assert await storage.read(key) == data
        assert await storage.list() == sorted((*KEYS, latest))
        assert await storage.list("context/s/") == ["context/s/x", "context/s/y"]
        assert await storage.list("session/s") == sorted((KEYS[-1], latest))
        for key in (*KEYS, latest, "absent"):
            await storage.delete(key)
            assert await storage.read(key) is None
        assert await storage.list() == []
        for key in ("", "/", "a/../b", "a\\b"):
            with pytest.raises(StorageError):
                await storage.write(key, b"")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.lists(_json, max_size=6), max_size=4), st.dictionaries(st.text(), _json))
def test_random_snapshots_come_back_byte_for_byte(histories: Any, more: Any) -> None:
    async def check() -> None:
        with SureholdStorage("memory://") as storage:
            for messages in histories:
                whole = {"scope": "agent", "data": {**more, "messages": messages}, "app": more}
                try:
                    data = json.dumps(whole, ensure_ascii=False).encode()
                except UnicodeEncodeError:
                    continue
                await storage.write("session/s/snapshots/snapshot_latest.json", data)
                assert await storage.read("session/s/snapshots/snapshot_latest.json") == data

    asyncio.run(check())


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ([], [b"a"], (0, 0)),
        ([b"a", b"b"], [b"a", b"b", b"c"], (0, 2)),
        ([b"a", b"b", b"c"], [b"b", b"c", b"d"], (1, 2)),
        ([b"a", b"b"], [b"a", b"x"], (0, 1)),
        ([b"a"], [], (0, 0)),
        ([b"a"], [b"x", b"a"], (0, 0)),
    ],
)
def test_what_a_snapshot_shares_with_the_one_before(old: Any, new: Any, found: Any) -> None:
    assert _overlap(old, new) == found
    assert NOTHING.count == 0


def test_event_loops_one_after_the_other_may_use_a_storage(tmp_path: Path) -> None:
    with SureholdStorage(f"sqlite:///{tmp_path}/runs.db") as storage:
        session = SnapshotSessionManager("s", storage=storage)
        agent = _agent(session)
        for number in range(3):
            agent.messages.append(_message(number, "n"))
            session.sync_agent(agent)
        assert len(_agent(SnapshotSessionManager("s", storage=storage)).messages) == 3


async def test_a_run_of_something_else_is_a_storage_error(tmp_path: Path) -> None:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as manager:
        run_id = "strands/session/s/scopes/agent/default"
        manager.save_checkpoint(State.new({"done": 1}, run_id=run_id))
        with pytest.raises(StorageError, match="is not a snapshot"):
            await SureholdStorage(manager).read(
                "session/s/scopes/agent/default/snapshots/snapshot_latest.json"
            )


def test_the_example_is_killed_and_continues(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "examples" / "frameworks" / "strands_agent.py"

    def run(*arguments: str) -> list[str]:
        command = [sys.executable, "-W", "ignore", str(example), *arguments]
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
        return [*done.stdout.splitlines(), str(done.returncode)]

    first = ["model is asked", "paying order 1", "model is asked", "paying order 2"]
    assert run("crash") == [*first, str(-signal.SIGKILL)]
    assert run() == ["paying order 2", "model is asked", "Both orders are paid.", "0"]


async def test_a_step_inside_a_tool_is_recorded_in_the_run_around_it(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    charged: list[int] = []

    @surehold.step
    def charge(order: int) -> str:
        charged.append(order)
        return f"charged {order}"

    @tool
    def pay(order: int) -> str:
        """Pay."""
        return charge(order)

    class Pays(ScriptedModel):
        async def stream(self, messages: Any, *_: Any, **__: Any) -> Any:
            said = sum(one["role"] == "assistant" for one in messages)
            yield {"messageStart": {"role": "assistant"}}
            if not said:
                use = {"toolUse": {"name": "pay", "toolUseId": "call"}}
                yield {"contentBlockStart": {"start": use}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"order": 1}'}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn" if said else "tool_use"}}

    for _ in range(2):
        async with surehold.run("case-7", storage=address):
            agent = Agent(model=Pays(""), tools=[pay], callback_handler=None)
            await agent.invoke_async("help")
    assert charged == [1]
