"""Types in LangGraph states that need care: exceptions, and types of modules not loaded yet."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt
from tests.integrations.langgraph.conftest import Side, thread

from surehold.core.values.codec import UnknownTypeWarning
from surehold.errors import EncodeError
from surehold.integrations.langgraph.saver import SureholdSaver
from surehold.integrations.langgraph.types import decode_value


@dataclasses.dataclass
class Report:
    text: str
    cause: Any = None


def _cycle() -> Any:
    loop: list[Any] = [ValueError("x")]
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [
        ValueError("x"),
        [ValueError("x"), 1],
        {"errors": (ValueError("x"), {"inner": [KeyError("k")]})},
    ],
)
async def test_an_exception_in_a_channel_is_stored_as_langgraph_stores_it(
    side: Side, value: Any
) -> None:
    serde = JsonPlusSerializer()
    expected = serde.loads_typed(serde.dumps_typed(value))
    config = await side.step(thread(), {"value": value})
    await side("put_writes", config, [("value", value)], "task")
    found = await side("get_tuple", thread())
    assert found.checkpoint["channel_values"] == {"value": _with_tuples(expected, value)}
    assert found.pending_writes == [("task", "value", _with_tuples(expected, value))]


def _with_tuples(expected: Any, value: Any) -> Any:
    """*expected* with the tuples of *value*, which LangGraph stores as lists."""
    if isinstance(value, dict):
        return {key: _with_tuples(expected[key], value[key]) for key in value}
    if isinstance(value, list | tuple):
        return type(value)(map(_with_tuples, expected, value))
    return expected


async def test_an_exception_in_a_field_of_an_object_is_stored_as_its_text(side: Side) -> None:
    report = Report("failed", OSError(2, "gone"))
    await side.step(thread(), {"report": report})
    assert await side.values(thread()) == {"report": Report("failed", repr(report.cause))}
    assert isinstance(report.cause, OSError)


async def test_a_cycle_with_an_exception_in_it_is_refused(side: Side) -> None:
    with pytest.raises(EncodeError):
        await side.step(thread(), {"value": _cycle()})


def test_a_new_process_reads_graph_types_without_importing_langgraph_first(tmp_path: Path) -> None:
    """Without a graph, LangGraph's own types are loaded only for a value that needs them."""
    address = f"sqlite:///{tmp_path}/threads.db"
    with SureholdSaver(address) as saver:
        config = saver.put(thread(), _checkpoint({"n": 1}), {}, {})
        saver.put_writes(config, [("__interrupt__", [Interrupt("ask", id="1")])], "task")
        saver.put(thread("plain"), _checkpoint({"n": 1}), {}, {})
    code = f"""
import sys
import textwrap
from surehold.integrations.langgraph import SureholdSaver
with SureholdSaver({address!r}) as saver:
    saver.get_tuple({{"configurable": {{"thread_id": "plain"}}}})
    assert "langgraph.types" not in sys.modules
    found = saver.get_tuple({{"configurable": {{"thread_id": "t"}}}})
    print(found.pending_writes[0][2][0].value, type(found.pending_writes[0][2][0]).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout == "ask Interrupt\n", done.stderr


def test_a_new_process_reads_documents_and_loads_their_models_only_for_them(
    tmp_path: Path,
) -> None:
    address = f"sqlite:///{tmp_path}/threads.db"
    values = {"both": [Interrupt("ask", id="1"), Document("text", id="d")]}
    with SureholdSaver(address) as saver:
        saver.put(thread("plain"), _checkpoint({"messages": [HumanMessage("hi")]}), {}, {})
        saver.put(thread(), _checkpoint(values), {}, {})
    code = f"""
import sys
import textwrap
from surehold.integrations.langgraph import SureholdSaver
with SureholdSaver({address!r}) as saver:
    saver.get_tuple({{"configurable": {{"thread_id": "plain"}}}})
    assert "langchain_core.documents.base" not in sys.modules
    found = saver.get_tuple({{"configurable": {{"thread_id": "t"}}}})
    asked, document = found.checkpoint["channel_values"]["both"]
    print(asked.value, type(asked).__name__, document.page_content, type(document).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout == "ask Interrupt text Document\n", done.stderr


NOT_FOR_READING = (
    *("engine.runs.effect_log", "engine.runs.open_run", "engine.groups.definition"),
    *("doors.graph.graph", "doors.functions.definition", "agents.agent.agent"),
    *("executors.worker", "views.runs", "integrations.langgraph.upkeep"),
)


def test_a_new_process_that_reads_a_thread_loads_only_what_reading_needs(tmp_path: Path) -> None:
    """Loading the rest took longer than the reading."""
    assert all(find_spec(f"surehold.{name}") for name in NOT_FOR_READING)
    address = f"sqlite:///{tmp_path}/threads.db"
    with SureholdSaver(address) as saver:
        saver.put(thread(), _checkpoint({"messages": [HumanMessage("hi")]}), {}, {})
    code = f"""
import sys
import textwrap
from surehold.integrations.langgraph import SureholdSaver
with SureholdSaver({address!r}) as saver:
    assert saver.get_tuple({{"configurable": {{"thread_id": "t"}}}})
print(*[name for name in {NOT_FOR_READING!r} if "surehold." + name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout == "\n", done.stderr


def test_a_type_that_langgraph_does_not_have_is_told_whatever_its_name() -> None:
    for tag in ("langgraph.Unknown", "langchain_core.DocumentOfMine", "langchain_core.Other"):
        with pytest.warns(UnknownTypeWarning, match=tag):
            assert decode_value(b'{"$t":"%b","v":{}}' % tag.encode()) == {}


def _checkpoint(values: dict[str, Any]) -> Any:
    from langgraph.checkpoint.base import empty_checkpoint

    return {**empty_checkpoint(), "channel_values": values}


def test_a_saver_leaves_the_stored_form_of_other_values_as_it_was() -> None:
    """What a process without a saver has stored must not read as something else."""
    program = """
        import sys
        from collections import Counter, OrderedDict, defaultdict, deque
        from surehold.core.values import decode, encode

        value = [deque([1, 2], 5), defaultdict(list, a=[1]), Counter("aab"), OrderedDict(b=1, a=2)]
        if sys.argv[1] == "read":
            from surehold.integrations.langgraph import SureholdSaver
            SureholdSaver("memory://").close()
            stored = sys.stdin.buffer.read()
            assert decode(stored) == value and encode(value) == stored
            assert decode(stored)[0].maxlen == 5
        else:
            sys.stdout.buffer.write(encode(value))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    stored = subprocess.run([*command, "write"], capture_output=True, check=True).stdout
    subprocess.run([*command, "read"], input=stored, check=True)
