"""An agent of Pydantic AI is killed with SIGKILL at each of its calls, and resumed."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.integrations.model_server import ModelServer
from tests.integrations.pydantic_ai.support_agent import (
    CALLS,
    live,
    make_workflow,
    mcp_server,
    script,
)

import surehold

MODELS = {call for call in CALLS if call.startswith("model")}
REPEATED = {"search orders", "expert", "rates 1", *MODELS}
"""Calls that are made again if the process dies during them; about others a person is asked."""
SAID = {
    "said": "done search orders, done pay 1, done pay 2, done refund 3, nine percent,"
    " done book 7, done rates 1",
    "usage": [6, 7, 60],
}
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.integrations.pydantic_ai.support_agent"])


class Servers(ModelServer):
    """The model's server, and an MCP server whose calls are in the same list."""

    mcp = ""


@contextmanager
def serving() -> Iterator[Servers]:
    """Both servers, until the block ends."""
    made = Servers(script)
    config = uvicorn.Config(mcp_server(made.called), port=0, log_level="error", lifespan="on")
    mcp = uvicorn.Server(config)
    thread = threading.Thread(target=mcp.run, daemon=True)
    thread.start()
    while not mcp.started:
        assert thread.is_alive()
        time.sleep(0.01)
    made.mcp = f"http://127.0.0.1:{mcp.servers[0].sockets[0].getsockname()[1]}/mcp"
    try:
        yield made
    finally:
        mcp.should_exit = True
        thread.join(30)
        made.close()


@pytest.fixture
def server() -> Iterator[Servers]:
    with serving() as made:
        yield made


def _life(server: Servers, storage: str, streamed: bool) -> int | None:
    process = CONTEXT.Process(target=live, args=(server.url, server.mcp, storage, streamed))
    process.start()
    process.join(300)
    assert not process.is_alive()
    return process.exitcode


def _settle(server: Servers, storage: str) -> None:
    """Answer as a person who looks into the books of the bank, which are the server's."""
    for one in surehold.pending(storage=storage):
        if one.kind == "question":
            surehold.approve(one.run_id, one.id, storage=storage)
            continue
        order = {"pay@[1.2.call_0]": "pay 1", "pay@[1.2.call_1]": "pay 2"}.get(one.id)
        order = order or ("book 7" if one.name == "book" else "refund 3")
        if order in server.calls:
            surehold.answer(one.run_id, one.id, f"done {order}", storage=storage)
        else:
            surehold.answer(one.run_id, one.id, repeat=True, storage=storage)


async def _finish(server: Servers, storage: str, streamed: bool) -> tuple[Any, list[str]]:
    seen: list[str] = []
    for _ in range(4):
        support, events = make_workflow(server.url, server.mcp, streamed=streamed)
        result = await support.run("help", run_id="case-7", storage=storage)
        seen += events
        if result.status == "completed":
            return result, seen
        assert result.status == "waiting"
        _settle(server, storage)
    raise AssertionError("the run does not end")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fatal", range(1, len(CALLS) + 1))
async def test_killed_at_any_call_the_run_ends_the_same_and_pays_nothing_twice(
    server: Servers, fatal: int, streamed: bool, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    server.fatal = fatal
    while len(server.calls) < fatal:
        code = _life(server, storage, streamed)
        if code != -signal.SIGKILL:
            assert code == 0, "the run waits for the approval"
            _settle(server, storage)
    killed_at = server.calls[fatal - 1]
    result, _ = await _finish(server, storage, streamed)
    assert result.value == SAID
    again = {call: count - 1 for call, count in Counter(server.calls).items() if count > 1}
    assert set(server.calls) == set(CALLS)
    if killed_at == "book 7":
        again.pop("rates 1", None)  # it may have been in flight beside it
    assert again == ({killed_at: 1} if killed_at in REPEATED else {})


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_an_undisturbed_run_makes_each_call_once_and_a_second_start_none(
    server: Servers, streamed: bool, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    result, events = await _finish(server, storage, streamed)
    assert result.value == SAID
    assert sorted(server.calls) == sorted(CALLS)
    assert result.usage.tokens == 7 * 15
    if streamed:
        assert events.count("FunctionToolResultEvent") == 7
        assert events.count("PartStartEvent") == 8
    again, events = await _finish(server, storage, streamed)
    assert again.value == SAID and not events
    assert len(server.calls) == len(CALLS)
