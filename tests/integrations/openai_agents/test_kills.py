"""Agents of the OpenAI Agents SDK are killed with SIGKILL at each of their calls, and resumed."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.crash.media import spread
from tests.integrations.model_server import ModelServer
from tests.integrations.openai_agents.support_agent import (
    CALLS,
    WRITES,
    live,
    make_workflow,
    script,
)

import surehold
from surehold.integrations.openai_agents import SureholdSession

ASKED = {"pay 1", "refund 3"}
"""Calls about which a person is asked if the process dies during them; others are made again."""
SAID = {
    "said": 'done search orders, {"assistant": "billing"}, done pay 1, done refund 3, nine percent',
    "agent": "billing",
    "usage": [7, 70],
}
EVENTS = len(CALLS) + 2 * WRITES
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.integrations.openai_agents.support_agent"])


@contextmanager
def serving() -> Iterator[ModelServer]:
    """The model's server, until the block ends."""
    made = ModelServer(script)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving() as made:
        yield made


def _life(server: ModelServer, storage: str, streamed: bool) -> int | None:
    process = CONTEXT.Process(target=live, args=(server.url, storage, streamed))
    process.start()
    process.join(300)
    assert not process.is_alive()
    return process.exitcode


def _settle(server: ModelServer, storage: str) -> None:
    """Answer as a person who looks into the books of the bank, which are the server's."""
    for one in surehold.pending(storage=storage):
        if one.kind == "question":
            surehold.approve(one.run_id, one.id, storage=storage)
            continue
        call = "pay 1" if one.id.startswith("pay@") else "refund 3"
        if call in server.calls:
            surehold.answer(one.run_id, one.id, f"done {call}", storage=storage)
        else:
            surehold.answer(one.run_id, one.id, repeat=True, storage=storage)


async def _finish(server: ModelServer, storage: str, streamed: bool) -> tuple[Any, list[str]]:
    seen: list[str] = []
    for _ in range(4):
        support, events = make_workflow(server.url, storage, streamed=streamed)
        result = await support.run("help", run_id="case-7", storage=storage)
        seen += events
        if result.status == "completed":
            return result, seen
        assert result.status == "waiting"
        _settle(server, storage)
    raise AssertionError("the run does not end")


async def _items(storage: str) -> list[Any]:
    with SureholdSession("customer-7", storage) as session:
        return list(await session.get_items())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The items of the session of a run that nothing has disturbed."""

    async def run() -> list[Any]:
        await _finish(server, storage, False)
        return await _items(storage)

    storage = f"sqlite:///{tmp_path_factory.mktemp('undisturbed')}/runs.db"
    with serving() as server:
        items = asyncio.run(run())
    kinds = [one.get("type") or one["role"] for one in items]
    assert kinds == ["user", *["function_call", "function_call_output"] * 5, "message"]
    return items


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fatal", spread(range(1, EVENTS + 1), 4))
async def test_killed_at_any_call_the_run_and_its_session_end_the_same(
    server: ModelServer, fatal: int, streamed: bool, undisturbed: list[Any], tmp_path: Path
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
    assert await _items(storage) == undisturbed
    calls = Counter(call for call in server.calls if "write" not in call)
    assert set(calls) == set(CALLS)
    again = {call: count - 1 for call, count in calls.items() if count > 1}
    once = killed_at not in calls or killed_at in ASKED
    assert again == ({} if once else {killed_at: 1})


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_an_undisturbed_run_makes_each_call_once_and_a_second_start_none(
    server: ModelServer, streamed: bool, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    result, events = await _finish(server, storage, streamed)
    assert result.value == SAID
    assert [call for call in server.calls if "write" not in call] == CALLS
    assert len(server.calls) == EVENTS
    if streamed:
        assert events.count("raw_response_event") > 20
        assert events.count("tool_output") >= 4
    again, _ = await _finish(server, storage, streamed)
    assert again.value == SAID
    assert len(server.calls) == EVENTS
