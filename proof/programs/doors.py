"""The doors at which a generated program is executed."""

from __future__ import annotations

import asyncio
import inspect
import json
import linecache
from collections.abc import Callable
from typing import Any

import surehold
from proof.programs.runtime import RUN, Runtime
from surehold.agents.models import Reply, ToolCall
from surehold.core.values import encode
from surehold.errors import Signal, StorageError, SureholdError, UsageError
from surehold.testing.scripted import ScriptedModel

__all__ = ["execute"]

End = dict[str, Any]


def execute(door: str, source: str, runtime: Runtime, address: str) -> End | None:
    """Start the program; the value or the error it ended with, or None if the run was left."""
    runtime.waits_for_events = door.endswith("function")
    runtime.watch_appends()
    names = runtime.names()
    linecache.cache["program"] = (len(source), None, source.splitlines(keepends=True), "program")
    exec(compile(source, "program", "exec"), names)
    work = _DOORS[door](runtime, names["body"], address)
    try:
        in_loop = inspect.iscoroutinefunction(work)
        value = asyncio.run(_task(runtime, work)) if in_loop else work()
    except (Signal, StorageError):
        return None
    except UsageError as error:
        return {"kind": "refused", "text": str(error)}
    except SureholdError as error:
        cause = error.__cause__
        if isinstance(cause, ConnectionError | ValueError | TimeoutError):
            return {"kind": "error", "type": type(cause).__name__, "text": str(cause)}
        raise
    except Exception as error:
        return {"kind": "error", "type": type(error).__name__, "text": str(error)}
    return None if value is None else {"kind": "value", "value": value}


async def _task(runtime: Runtime, work: Callable[[], Any]) -> Any:
    runtime.task = asyncio.ensure_future(work())
    return await runtime.task


def _value(result: Any) -> Any:
    return result.value if result.status == "completed" else None


def _function(runtime: Runtime, body: Callable[..., Any], address: str) -> Callable[[], Any]:
    @surehold.workflow(name="program")
    def program() -> Any:
        return body(None)

    return lambda: _value(program.run(run_id=RUN, storage=address, wait=False))


def _async_function(runtime: Runtime, body: Callable[..., Any], address: str) -> Callable[[], Any]:
    @surehold.workflow(name="program")
    async def program() -> Any:
        return await body(None)

    async def work() -> Any:
        return _value(await program.run(run_id=RUN, storage=address, wait=False))

    return work


def _readable(run: Any) -> Any:
    return json.loads(encode(run.state))


def _loop(runtime: Runtime, body: Callable[..., Any], address: str) -> Callable[[], Any]:
    def work() -> Any:
        with surehold.run(RUN, storage=address) as run:
            runtime.run = run
            body(run)
        return _readable(run)

    return work


def _async_loop(runtime: Runtime, body: Callable[..., Any], address: str) -> Callable[[], Any]:
    async def work() -> Any:
        async with surehold.run(RUN, storage=address) as run:
            runtime.run = run
            await body(run)
        return _readable(run)

    return work


def _graph(first: Callable[[Any], Any], address: str) -> surehold.StateGraph:
    graph = surehold.StateGraph("program", storage=address)
    graph.add_node("first", first)
    graph.add_node("second", lambda state: {"end": len(state["log"])})
    graph.add_edge("first", "second")
    graph.set_entry_point("first")
    graph.set_exit_point("second")
    return graph


def _node(runtime: Runtime, body: Callable[..., Any], address: str) -> Callable[[], Any]:
    async def first(state: Any) -> dict[str, Any]:
        return {"log": await body(None)}

    async def work() -> Any:
        async with _graph(first, address) as graph:
            result = await graph.run({"log": []}, run_id=RUN)
        return result.state.to_dict() if result.status == "completed" else None

    return work


def _plain_node(runtime: Runtime, body: Callable[..., Any], address: str) -> Callable[[], Any]:
    def work() -> Any:
        with _graph(lambda state: {"log": body(None)}, address) as graph:
            result = graph.run_sync({"log": []}, run_id=RUN)
        return result.state.to_dict() if result.status == "completed" else None

    return work


def _agent(runtime: Runtime, body: Callable[..., Any], address: str) -> Callable[[], Any]:
    async def program() -> Any:
        """Do the work."""
        return await body(None)

    return _agent_of(program if runtime.awaited else lambda: body(None), address)


def _agent_of(program: Callable[[], Any], address: str) -> Callable[[], Any]:
    tool = surehold.tool(name="program", idempotent=True)(program)

    def script(messages: Any) -> Reply:
        if messages[-1]["role"] == "tool":
            return Reply(str(messages[-1]["content"]))
        return Reply(tool_calls=(ToolCall("1", "program", {}),))

    async def work() -> Any:
        model = ScriptedModel(script)
        made = surehold.Agent(
            "agent", model=model, tools=[tool], storage=address, report=lambda line: None
        )
        result = await made.run("work", run_id=RUN)
        return result.answer if result.status == "completed" else None

    return work


def _fleet(runtime: Runtime, body: Callable[..., Any], address: str) -> Callable[[], Any]:
    async def member(instruction: str) -> str:
        return json.dumps(await body(None))

    def judged(*, over: bool) -> str:
        said = {
            "is_request_satisfied": over,
            "is_in_loop": False,
            "is_progress_being_made": True,
            "next_speaker": "member",
            "instruction_or_question": "work",
        }
        return json.dumps({name: {"reason": "so", "answer": one} for name, one in said.items()})

    def script(messages: Any) -> str:
        if "Judge the work" not in str(messages[-1]["content"]):
            return "so"
        return judged(over=any(str(one["content"]).startswith("To ") for one in messages))

    async def work() -> Any:
        boss = ScriptedModel(script)
        async with surehold.Fleet(boss, {"member": member}, storage=address) as made:
            result = await made.run("work", run_id=RUN)
            said = [one["content"] for one in made.history_of("member")]
        return said if result.status == "completed" else None

    return work


_DOORS: dict[str, Callable[..., Callable[[], Any]]] = {
    "function": _function,
    "async function": _async_function,
    "loop": _loop,
    "async loop": _async_loop,
    "node": _node,
    "plain node": _plain_node,
    "agent": _agent,
    "plain agent": _agent,
    "fleet": _fleet,
}
