"""An agent as a LangGraph graph is killed with SIGKILL at each of its calls, and resumed."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.crash.media import spread
from tests.integrations.langgraph.support_agent import CALLS, WRITES, go_on, live, script
from tests.integrations.model_server import ModelServer

import surehold

REPEATED = {"search orders"} | {call for call in CALLS if call.startswith("model")}
"""Calls that are made again if the process dies during them; about others a person is asked."""
SAID = '"done pay 1, done pay 2, done refund 3, done search orders"'
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.integrations.langgraph.support_agent"])


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


def _life(server: ModelServer, storage: str, _: bool = False) -> int | None:
    process = CONTEXT.Process(target=live, args=(server.url, storage))
    process.start()
    process.join(300)
    assert not process.is_alive()
    return process.exitcode


def _settle(server: ModelServer, storage: str) -> None:
    """Answer as a person who looks into the books of the bank, which are the server's."""
    for one in surehold.pending(storage=storage):
        if one.kind == "question":
            surehold.answer(one.run_id, one.id, True, storage=storage)
            continue
        (call,) = [call for call in CALLS if call in str(one.inputs)]
        if call in server.calls:
            surehold.answer(one.run_id, one.id, f"done {call}", storage=storage)
        else:
            surehold.answer(one.run_id, one.id, repeat=True, storage=storage)


async def _finish(server: ModelServer, storage: str, _: bool = False) -> tuple[Any, list[str]]:
    for _life in range(4):
        said = go_on(server.url, storage)
        if said is not None:
            return SimpleNamespace(value=said), []
        _settle(server, storage)
    raise AssertionError("the thread does not end")


@pytest.mark.parametrize("fatal", spread(range(1, len(CALLS) + WRITES + 1), 5))
async def test_killed_at_any_call_the_thread_ends_the_same_and_pays_nothing_twice(
    server: ModelServer, fatal: int, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/threads.db"
    server.fatal = fatal
    while len(server.calls) < fatal:
        if _life(server, storage) != -signal.SIGKILL:
            _settle(server, storage)
    killed_at = server.calls[fatal - 1]
    _settle(server, storage)
    result, _ = await _finish(server, storage)
    assert result.value == SAID
    calls = Counter(call for call in server.calls if "write" not in call)
    assert set(calls) == set(CALLS)
    again = {call: count - 1 for call, count in calls.items() if count > 1}
    assert again == ({killed_at: 1} if killed_at in REPEATED else {})


async def test_an_undisturbed_thread_makes_each_call_once(
    server: ModelServer, tmp_path: Path
) -> None:
    result, _ = await _finish(server, f"sqlite:///{tmp_path}/threads.db")
    assert result.value == SAID
    assert sorted(call for call in server.calls if "write" not in call) == sorted(CALLS)
    assert len(server.calls) == len(CALLS) + WRITES
