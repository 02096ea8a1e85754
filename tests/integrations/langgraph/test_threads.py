"""LangGraph threads as runs: what the engine does with them, and what the saver does to them."""

from __future__ import annotations

import ast
import copy
import dataclasses
import os
import pickle
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel
from tests.integrations.langgraph.conftest import Side, thread

from surehold.core.policy.rules import Rules
from surehold.core.state.position import Lineage, Place
from surehold.core.state.state import State
from surehold.core.values.codec import UnknownTypeWarning
from surehold.engine.hooks.events import HookEvent, HookResult
from surehold.engine.hooks.manager import HookManager
from surehold.engine.managers.blocking import CheckpointManager
from surehold.errors import DecodeError, EncodeError, UsageError
from surehold.integrations.langgraph.message_cache import value_of
from surehold.integrations.langgraph.records import Address
from surehold.integrations.langgraph.saver import SureholdSaver
from surehold.integrations.langgraph.threads import draft_of
from surehold.storage.base import RecordQuery


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]


def _chat(saver: SureholdSaver) -> Any:
    def answer(state: Chat) -> dict[str, Any]:
        count = len(state["messages"])
        return {"messages": [AIMessage(f"answer {count}", id=f"a{count}")]}

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def _say(graph: Any, text: str, name: str = "t", **metadata: Any) -> Any:
    config = {"configurable": {"thread_id": name}, "metadata": metadata}
    return graph.invoke({"messages": [HumanMessage(text, id=text)]}, config, durability="sync")


def test_everything_that_works_on_runs_works_on_threads(address: str, tmp_path: Path) -> None:
    with SureholdSaver(address) as saver:
        graph = _chat(saver)
        for text in ("one", "two"):
            _say(graph, text)
        manager = saver.manager
        listed = manager.list_checkpoints("t")
        assert [(one.step, one.kind, one.name) for one in listed[:3]] == [
            *((4, "routine", "langgraph"), (3, "routine", "langgraph"), (2, "input", "langgraph"))
        ]
        changed = manager.history("t")[-1].changes
        assert ("add", "/messages/-") in [(change.op, change.path) for change in changed]
        blamed = manager.blame("t", "messages")
        assert blamed is not None and blamed.checkpoint_id == listed[0].checkpoint_id
        first, last = listed[-1].checkpoint_id, listed[0].checkpoint_id
        assert {change.path for change in manager.diff_checkpoints(first, last)} >= {"/messages"}
        state = manager.load_checkpoint(last)
        assert isinstance(state, State) and state["messages"][-1].content == "answer 3"
        assert all(manager.verify("t"))
        manager.export_run("t", tmp_path / "t.surehold")
        assert manager.import_run(tmp_path / "t.surehold", run_id="again") == "again"
        assert [m.content for m in _values(graph, "again")] == [
            "one",
            "answer 1",
            "two",
            "answer 3",
        ]


def test_a_thread_that_was_forked_by_the_manager_goes_on_as_a_thread(address: str) -> None:
    with SureholdSaver(address) as saver:
        graph = _chat(saver)
        _say(graph, "one")
        saver.manager.fork_from_checkpoint(
            saver.manager.list_checkpoints("t")[0].checkpoint_id, run_id="fork"
        )
        _say(graph, "three", "fork")
        assert [m.content for m in _values(graph, "fork")] == [
            *("one", "answer 1", "three", "answer 3")
        ]
        assert len(_values(graph, "t")) == 2


def _values(graph: Any, name: str) -> list[Any]:
    return graph.get_state({"configurable": {"thread_id": name}}).values["messages"]


def test_retention_rules_apply_to_threads(address: str) -> None:
    manager = CheckpointManager(address, retention=Rules(keep_last=2, group_by="run"))
    saver = SureholdSaver(manager)
    graph = _chat(saver)
    for n in range(20):
        _say(graph, f"message {n}")
    assert len(manager.list_checkpoints("t")) == 2
    assert len(list(saver.list(thread()))) == 2
    assert len(_values(graph, "t")) == 40
    assert all(manager.verify("t"))
    manager.close()


class Log(TypedDict):
    log: Annotated[list[Any], DeltaChannel(lambda state, writes: [*state, *writes])]
    count: int


def _delta_graph(saver: SureholdSaver) -> Any:
    builder = StateGraph(Log)
    builder.add_node("step", lambda s: {"log": f"entry {s['count']}", "count": s["count"] + 1})
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda s: END if s["count"] % 7 == 0 else "step")
    return builder.compile(checkpointer=saver)


async def test_prune_keeps_what_a_delta_channel_is_rebuilt_from(side: Side) -> None:
    graph = _delta_graph(side.saver)
    for n in range(3):
        graph.invoke({"count": n * 7}, thread(), durability="sync")
    before = graph.get_state(thread()).values
    assert before["log"] == [f"entry {n}" for n in range(21)]
    many = len(list(side.saver.list(thread())))
    await side("prune", ["t"])
    assert graph.get_state(thread()).values == before
    graph.invoke({"count": 21}, thread(), durability="sync")
    assert len(graph.get_state(thread()).values["log"]) == 28
    assert all(side.saver.manager.verify("t"))
    plain = _chat(side.saver)
    for n in range(3):
        _say(plain, f"{n}", "plain")
    await side("prune", ["plain"])
    assert many > 20 and len(list(side.saver.list(thread("plain")))) == 1
    assert len(_values(plain, "plain")) == 6


def test_retention_and_a_delta_channel_are_refused_together() -> None:
    manager = CheckpointManager("memory://", retention=Rules(keep_last=1, group_by="run"))
    with pytest.raises(UsageError, match="DeltaChannel"):
        _delta_graph(SureholdSaver(manager)).invoke({"count": 0}, thread(), durability="sync")


async def test_pruning_frees_the_space(tmp_path: Path) -> None:
    with SureholdSaver(f"sqlite:///{tmp_path}/t.db") as saver:
        side = Side(saver, True)
        config = thread()
        messages: list[Any] = []
        for n in range(60):
            messages = [*messages, HumanMessage(Random(n).randbytes(2000).hex(), id=str(n))]
            config = await side.step(config, {"messages": messages})
            await side("put_writes", config, [("messages", messages[-1])], "task")
        await side("prune", ["t"])
        found = await side("get_tuple", thread())
        assert found.checkpoint["channel_values"]["messages"] == messages
        assert found.pending_writes == [("task", "messages", messages[-1])]
        assert len(list(saver.manager.storage.read("t"))) <= 4
        await side("prune", ["t"], strategy="delete")
        assert await side("get_tuple", thread()) is None
    with pytest.raises(UsageError, match="strategy"):
        SureholdSaver("memory://").prune(["t"], strategy="some")


async def test_a_copied_thread_has_it_all_and_goes_its_own_way(side: Side) -> None:
    graph = _delta_graph(side.saver)
    graph.invoke({"count": 0}, thread(), durability="sync")
    await side.step(thread(ns="sub:1"), {"n": 1})
    await side("copy_thread", "t", "copy")
    original = [(one.metadata, one.pending_writes) for one in side.saver.list(thread())]
    copied = [(one.metadata, one.pending_writes) for one in side.saver.list(thread("copy"))]
    assert original == copied
    assert await side.values(thread("copy", "sub:1")) == {"n": 1}
    graph.invoke({"count": 7}, thread("copy"), durability="sync")
    assert len(graph.get_state(thread("copy")).values["log"]) == 14
    assert len(graph.get_state(thread()).values["log"]) == 7


async def test_what_a_langgraph_run_made_can_be_deleted(side: Side) -> None:
    config = await side.step(thread(), {"n": 0}, run_id="keep")
    for n in range(3):
        config = await side.step(config, {"n": n}, run_id="gone")
        await side("put_writes", config, [("n", n)], "task")
    await side("delete_for_runs", ["gone", "never"])
    assert [one.metadata["run_id"] for one in await side("list", thread())] == ["keep"]
    storage = side.saver.manager.storage
    assert not list(storage.headers(RecordQuery(run_id="t", kind="writes", notes=True)))
    await side("delete_thread", "t")
    await side("delete_thread", "t")
    assert await side("get_tuple", thread()) is None


class Colour(Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    tags: set[str]


class Pair(NamedTuple):
    left: Any
    right: Any


class Plan(BaseModel):
    steps: list[str]
    point: Point | None = None


VALUES: dict[str, Any] = {
    "tuple": (1, (2, "three")),
    "big": 1 << 80,
    "nested": {"set": {1, 2}, "bytes": b"\x00\xff", ("a", 1): 1.5},
    "times": [datetime(2026, 1, 2, tzinfo=UTC), timedelta(seconds=3), Decimal("1.10")],
    "enum": Colour.RED,
    "pair": Pair(Plan(steps=["a"], point=Point(1, {"x"})), [Colour.RED]),
    "containers": [deque([1, 2], 5), defaultdict(list, a=[1]), Counter("aab"), bytearray(b"x")],
    "ordered": OrderedDict(b=1, a=2),
    "ip": ip_address("10.0.0.1"),
    "surrogate": "\ud800",
    "messages": [
        HumanMessage("hi", id="1", custom="extra"),
        AIMessage(
            "",
            id="2",
            tool_calls=[{"name": "f", "args": {"n": 1, "t": "$t"}, "id": "c", "type": "tool_call"}],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        ),
        ToolMessage("x", tool_call_id="c", artifact=(1, {"a": Decimal(1)}), id="3"),
        RemoveMessage(id="1"),
        *(HumanMessage(f"{n} \x01 \u2028", id=f"h{n}") for n in range(10)),
    ],
    "document": Document(page_content="text", metadata={"page": 1}, id="d"),
    "langgraph": [
        Send("node", {"a": (1,)}),
        Command(update={"a": 1}, goto="x"),
        Interrupt(value={"q": 1}, id="i"),
        Overwrite([1]),
    ],
}


async def test_every_value_comes_back_as_the_type_it_was(side: Side) -> None:
    config = await side.step(thread(), VALUES)
    await side("put_writes", config, list(VALUES.items()), "task")
    side.saver.threads.reading.forget("t")
    found = await side("get_tuple", config)
    listed = (await side("list", thread()))[0].checkpoint["channel_values"]
    for values in (found.checkpoint["channel_values"], dict(listed), {**listed}):
        assert values == VALUES
        assert _types(values) == _types(VALUES)
    assert listed == VALUES and listed == VALUES and listed.copy() == VALUES
    assert {write[1]: write[2] for write in found.pending_writes} == VALUES
    assert found.checkpoint["channel_values"]["messages"][0].custom == "extra"


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value), [(_types(key), _types(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [_types(item) for item in value]
    if isinstance(value, BaseModel):
        return type(value), _types(dict(value)), value.model_fields_set
    return type(value)


async def test_a_message_that_was_changed_in_place_is_saved_as_it_is_now(side: Side) -> None:
    messages = [AIMessage(f"{n}", id=str(n), response_metadata={"n": 1}) for n in range(20)]
    config = await side.step(thread(), {"messages": messages})
    messages[3].content = "changed"
    messages[4].response_metadata["n"] = True
    messages[5].additional_kwargs["new"] = [1]
    del messages[10]
    config = await side.step(config, {"messages": messages})
    side.saver.threads.reading.forget("t")
    found = (await side.values(config))["messages"]
    assert found == messages
    assert found[4].response_metadata["n"] is True


async def test_what_is_equal_and_not_the_same_in_a_message_is_saved_as_it_is_now(
    side: Side,
) -> None:
    config = thread()
    for artifact in (0, False, -0.0, 0.0, None, 1, True, 1.0, [0], [False]):
        messages = [ToolMessage("x", tool_call_id="1", id="t", artifact=artifact)]
        messages += [HumanMessage(f"{n}", id=str(n)) for n in range(12)]
        config = await side.step(config, {"messages": messages})
        side.saver.threads.reading.forget("t")
        found = (await side.values(config))["messages"][0].artifact
        assert repr(found) == repr(artifact)


def test_messages_that_this_process_saved_come_back_as_another_process_reads_them(
    tmp_path: Path,
) -> None:
    address = f"sqlite:///{tmp_path}/threads.db"
    said: list[Any] = [HumanMessage(f"question {n}", id=f"h{n}") for n in range(20)]
    call = {"name": "look", "args": {"at": [1, {"deep": 1.0}]}, "id": "c", "type": "tool_call"}
    said[5] = AIMessage("", id="a5", tool_calls=[call], response_metadata={"cost": 1, "ok": True})
    said[6] = ToolMessage("seen", tool_call_id="c", artifact={"pages": [1, 2]})
    said[7] = HumanMessage([{"type": "text", "text": "hi"}], name="ann")
    with SureholdSaver(address) as saver:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        for count in (9, 12, 20, 15):
            checkpoint: Any = empty_checkpoint()
            checkpoint["channel_values"] = {"messages": said[:count]}
            config = saver.put(config, checkpoint, {"source": "loop", "step": count}, {})
            first, second = (saver.get_tuple(config) for _ in range(2))
            with SureholdSaver(address) as other:
                read = other.get_tuple(config)
            assert first is not None and second is not None and read is not None
            values = [one.checkpoint["channel_values"]["messages"] for one in (first, second, read)]
            assert [[_all_of(m) for m in one] for one in values] == [
                [_all_of(m) for m in said[:count]]
            ] * 3
            values[0][5].tool_calls[0]["args"]["at"].append("changed")
            values[0][1].additional_kwargs["changed"] = True
            values[0][7].content.append("changed")
            assert [_all_of(m) for m in values[1]] == [_all_of(m) for m in said[:count]]
        again = saver.get_tuple(config)
        assert again is not None
        assert [_all_of(m) for m in again.checkpoint["channel_values"]["messages"]] == [
            _all_of(m) for m in said[:15]
        ]


@pytest.mark.parametrize(("size", "kept"), [(10, 16), (20_000, 4), (100_000, 1)])
def test_of_a_thread_the_last_checkpoints_are_kept_in_memory_if_they_are_small(
    size: int, kept: int
) -> None:
    with SureholdSaver("memory://") as saver:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        for step in range(20):
            checkpoint: Any = empty_checkpoint()
            checkpoint["channel_values"] = {"text": f"{step} ".ljust(size, "-")}
            config = saver.put(config, checkpoint, {"source": "loop", "step": step}, {})
        known = saver.threads.reading._recent["t", ""]
        assert [found.header.step for found in known] == [*range(20 - kept, 20)]
        listed = [one.checkpoint["channel_values"]["text"] for one in saver.list(thread())]
        assert listed == [f"{step} ".ljust(size, "-") for step in reversed(range(20))]


@pytest.mark.parametrize(("trimmed", "kept"), [(False, 16), (True, 1)])
def test_lists_that_are_not_shared_are_not_kept_in_memory(trimmed: bool, kept: int) -> None:
    said = [HumanMessage(f"{n} ".ljust(10_000, "-"), id=str(n)) for n in range(40)]
    with SureholdSaver("memory://") as saver:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        for step in range(20):
            first = step if trimmed else 0
            checkpoint: Any = empty_checkpoint()
            checkpoint["channel_values"] = {"messages": said[first : step + 20]}
            config = saver.put(config, checkpoint, {"source": "loop", "step": step}, {})
        assert len(saver.threads.reading._recent["t", ""]) == kept


def test_a_thread_that_another_process_deleted_and_began_anew_can_be_gone_on_with(
    tmp_path: Path,
) -> None:
    address = f"sqlite:///{tmp_path}/threads.db"

    def put(saver: SureholdSaver, config: Any, text: str) -> Any:
        checkpoint: Any = empty_checkpoint()
        checkpoint["channel_values"] = {"text": text}
        return saver.put(config, checkpoint, {"source": "loop", "step": 0}, {})

    with SureholdSaver(address) as ours, SureholdSaver(address) as other:
        first: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        put(ours, put(ours, first, "one"), "two")
        other.delete_thread("t")
        anew = put(other, first, "anew")
        put(ours, anew, "gone on")
        listed = [one.checkpoint["channel_values"]["text"] for one in other.list(thread())]
        assert listed == ["gone on", "anew"]
        other.delete_thread("t")
        put(ours, first, "again")
        assert [one.parent_config for one in other.list(thread())] == [None]


def _all_of(message: Any) -> Any:
    """All that a message is made of, with the kinds of what stands in it."""
    return (
        type(message),
        {name: repr(value) for name, value in message.__dict__.items()},
        message.__pydantic_fields_set__,
        message.__pydantic_extra__,
        message.__pydantic_private__,
    )


async def test_what_cannot_be_stored_is_refused_with_its_path_and_nothing_is_written(
    side: Side,
) -> None:
    class Mystery:
        pass

    config = await side.step(thread(), {"n": 0})
    with pytest.raises(EncodeError, match=r"deep\.a\[1\].*Mystery.*register_type"):
        await side.step(config, {"deep": {"a": [0, Mystery()]}})
    with pytest.raises(EncodeError, match="Mystery"):
        await side("put_writes", config, [("n", Mystery())], "task")
    assert len(await side("list", thread())) == 1


OTHER_PROCESS = """
import sys
import warnings
from surehold.integrations.langgraph.saver import SureholdSaver
from surehold.integrations.langgraph.records import Address
from surehold.integrations.langgraph.message_cache import value_of
from surehold.integrations.langgraph.threads import draft_of
config = {"configurable": {"thread_id": "t"}}
import zstandard
before = set(sys.modules)
with SureholdSaver(sys.argv[1]) as saver:
    before |= set(sys.modules)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        print(saver.get_tuple(config).checkpoint["channel_values"])
    print({str(one.message).partition(";")[0] for one in told})
    print(sorted(name for name in set(sys.modules) - before if not name.startswith("surehold")))
"""


def test_objects_of_classes_that_another_process_does_not_know_are_their_fields(
    tmp_path: Path,
) -> None:
    address = f"sqlite:///{tmp_path}/t.db"
    message = ToolMessage("2 hits", tool_call_id="c", artifact=[Point(1, {"x"})])
    with SureholdSaver(address) as saver:
        _put(saver, {"plan": Plan(steps=["a"]), "deep": [message, Colour.RED, Pair(1, 2)]})
    text, told = _elsewhere(address)
    assert text.startswith("{'plan': {'steps': ['a'], 'point': None}, 'deep': [ToolMessage(")
    assert "artifact=[{'x': 1, 'tags': {'x'}}]), 'RED', [1, 2]]" in text
    names = ("Plan", "Point", "Colour", "Pair")
    assert ast.literal_eval(told) == {f"no type is known as '{__name__}.{one}'" for one in names}
    with SureholdSaver(address, types=[Plan]) as saver:
        found = saver.get_tuple(thread())
        assert found is not None and found.checkpoint["channel_values"]["plan"].steps == ["a"]
    with pytest.raises(UsageError, match="register_type"):
        SureholdSaver("memory://", types=[Path])


@pytest.mark.parametrize("tag", ["antigravity.geohash", "os.system", "builtins.eval"])
def test_a_crafted_record_neither_imports_nor_calls_anything(tag: str, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/t.db"
    crafted = msgspec.json.encode([{"$t": tag, "v": ["touch", {"$t": tag, "v": "x"}]}])
    with SureholdSaver(address) as saver:
        _put(saver, {"n": 0})
        found = saver.threads.reading.find(Address("t", "", None))
        assert found is not None
        loaded = saver.threads.reading.load(found)
        assert loaded is not None
        place = Place(run_id="t", name="langgraph")
        draft = draft_of(place, {"n": crafted}, loaded.beside, found.id, Lineage(None))
        saver.manager.save_draft(draft, force=True)
    text, told = _elsewhere(address)
    assert text == "{'n': [['touch', 'x']]}" and tag in told


@pytest.mark.parametrize(
    "parts", [{}, {"fields": {}}, {"fields": {"content": "x", "other": 1}}, [], 1, {"fields": 1}]
)
def test_a_message_that_is_none_is_a_decode_error(parts: Any) -> None:
    SureholdSaver("memory://")
    text = msgspec.json.encode([{"$t": "langchain_core.HumanMessage", "v": parts}])
    with pytest.raises(DecodeError, match="HumanMessage"):
        value_of(text)


def _elsewhere(address: str) -> list[str]:
    """What a process that knows none of our classes reads of the thread, and its warnings."""
    *read, modules = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, address], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert modules == "[]"
    return read


def _put(saver: SureholdSaver, values: dict[str, Any]) -> Any:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    return saver.put(thread(), checkpoint, {"source": "loop", "step": 0}, {})


def test_threads_can_be_encrypted_even_if_writes_come_first(tmp_path: Path) -> None:
    key = os.urandom(32)
    manager = CheckpointManager(f"sqlite:///{tmp_path}/t.db", encryption_key=key)
    saver = SureholdSaver(manager)
    early = thread(id="1ef00000-0000-6000-8000-000000000001")
    saver.put_writes(early, [("n", "secret word")], "task")
    _say(_chat(saver), "secret word", "chat")
    assert len(_values(_chat(saver), "chat")) == 2
    manager.close()
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"secret word" not in stored


def test_a_run_that_is_no_thread_says_so() -> None:
    with SureholdSaver("memory://") as saver:
        saver.manager.save_checkpoint(State.new({"a": 1}, run_id="t"))
        with pytest.raises(UsageError, match="is not a LangGraph thread"):
            saver.get_tuple(thread())
        with pytest.raises(UsageError, match="names no thread"):
            saver.get_tuple({"configurable": {}})


@pytest.mark.parametrize("compress, most", [("", 800_000), ("?compress=zstd", 420_000)])
def test_a_growing_conversation_is_stored_as_what_was_added(
    compress: str, most: int, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    words = [f"{Random(n).randrange(10**6):x}" for n in range(400)]
    with SureholdSaver(f"sqlite:///{tmp_path}/t.db{compress}") as saver:
        config: Any = thread()
        messages: list[Any] = []
        for n in range(100):
            text = " ".join(Random(n).choices(words, k=170))[:1000]
            messages = [*messages, HumanMessage(text, id=str(n))]
            if n:
                saver.put_writes(config, [("messages", messages[-1])], f"task-{n}")
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"messages": messages}
            config = saver.put(config, checkpoint, {"source": "loop", "step": n}, {})
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    figure(f"100 LangGraph steps of 1 KB each{compress and ', zstd'}: {size:,} bytes")
    assert size < most


def test_the_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['langgraph'] = None\nimport surehold.integrations.langgraph.saver"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    ).stderr
    assert "pip install 'surehold[langgraph]'" in told


async def test_reading_and_writing_inside_a_listing_does_not_block(side: Side) -> None:
    config = thread()
    for n in range(40):
        config = await side.step(config, {"n": n})
    seen = 0
    for found in side.saver.list(thread()):
        assert side.saver.get_tuple(found.config) is not None
        side.saver.put_writes(found.config, [("n", 1)], "task")
        seen += 1
    async for found in side.saver.alist(thread()):
        assert await side.saver.aget_tuple(found.config) is not None
        seen += 1
    assert seen == 80


def test_channels_of_a_listing_are_a_dict_like_any_other() -> None:
    with SureholdSaver("memory://") as saver:
        _put(saver, {"a": (1,), "b": {2}, "c": 3, "d": 4})

        def channels() -> Any:
            return next(saver.list(thread())).checkpoint["channel_values"]

        plain = {"a": (1,), "b": {2}, "c": 3, "d": 4}
        assert [*channels().items()] == [*plain.items()]
        assert [*channels().values()] == [*plain.values()] and repr(channels()) == repr(plain)
        assert channels() | {"e": 5} == {**plain, "e": 5} == {"e": 5} | channels()
        assert channels() != {"a": 1} and channels() == plain
        assert copy.deepcopy(channels()) == plain == pickle.loads(pickle.dumps(channels()))
        found = channels()
        assert (found.pop("a"), found.pop("x", 0), found.popitem()) == ((1,), 0, ("d", 4))
        assert (found.setdefault("b"), found.setdefault("y", 7)) == ({2}, 7)
        assert dict(found) == {"b": {2}, "c": 3, "y": 7} and found.get("z") is None


def test_hooks_see_and_change_what_a_graph_saves() -> None:
    hooks = HookManager()
    seen: list[str] = []

    def redact(context: Any) -> Any:
        state = context.data["state"]
        seen.append(state.run_id)
        return HookResult(success=True, data={"state": state.set("n", "redacted")})

    hooks.register(HookEvent.PRE_CHECKPOINT_SAVE, redact)
    with SureholdSaver(CheckpointManager("memory://", hook_manager=hooks)) as saver:
        _put(saver, {"n": "secret"})
        found = saver.get_tuple(thread())
        assert found is not None and found.checkpoint["channel_values"] == {"n": "redacted"}
    assert seen == ["t"]


class Schema(BaseModel):
    """A class that only the graph's schema tells of."""

    n: int


def test_types_that_langgraph_takes_from_a_schema_can_be_read() -> None:
    with SureholdSaver("memory://") as saver:
        text = b'{"$t":"%b.Schema","v":{"fields":{"n":1},"set":["n"]}}' % __name__.encode()
        with pytest.warns(UnknownTypeWarning, match="Schema"):
            assert saver._value(text.replace(__name__.encode(), b"not.imported")) == {"n": 1}
        assert saver._value(text) == Schema(n=1)
        told = saver.with_allowlist([(__name__, "Schema"), ("no.such.module", "X")])
        assert told._value(text) == Schema(n=1)
