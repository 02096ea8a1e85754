"""The doors at which a generated program is executed."""

from __future__ import annotations

import asyncio
import linecache
from collections.abc import Callable
from typing import Any

import surehold
from proof.programs.runtime import RUN, Runtime
from surehold.errors import Signal, StorageError, SureholdError, UsageError

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
        value = asyncio.run(_task(runtime, work)) if runtime.awaited else work()
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


def _loop(runtime: Runtime, body: Callable[..., Any], address: str) -> Callable[[], Any]:
    def work() -> Any:
        with surehold.run(RUN, storage=address) as run:
            runtime.run = run
            body(run)
        return run.state

    return work


def _async_loop(runtime: Runtime, body: Callable[..., Any], address: str) -> Callable[[], Any]:
    async def work() -> Any:
        async with surehold.run(RUN, storage=address) as run:
            runtime.run = run
            await body(run)
        return run.state

    return work


def _node(runtime: Runtime, body: Callable[..., Any], address: str) -> Callable[[], Any]:
    async def first(state: Any) -> dict[str, Any]:
        return {"log": await body(None)}

    async def second(state: Any) -> dict[str, Any]:
        return {"end": len(state["log"])}

    async def work() -> Any:
        graph = surehold.StateGraph("program", storage=address)
        graph.add_node("first", first)
        graph.add_node("second", second)
        graph.add_edge("first", "second")
        graph.set_entry_point("first")
        graph.set_exit_point("second")
        async with graph:
            result = await graph.run({"log": []}, run_id=RUN)
        return result.state.to_dict() if result.status == "completed" else None

    return work


_DOORS: dict[str, Callable[..., Callable[[], Any]]] = {
    "function": _function,
    "async function": _async_function,
    "loop": _loop,
    "async loop": _async_loop,
    "node": _node,
}
