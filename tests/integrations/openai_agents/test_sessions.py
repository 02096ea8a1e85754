"""Sessions: the protocol of the SDK, on every medium, for any number of writers."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from agents.memory import Session, SessionSettings

from surehold.core.policy import Rules
from surehold.engine.hooks import HookManager, RedactionHook
from surehold.engine.managers import CheckpointManager
from surehold.errors import UsageError
from surehold.integrations.openai_agents import SureholdSession
from surehold.integrations.openai_agents.sessions import OnceCall
from surehold.storage.base import RunQuery
from surehold.storage.registry import open_storage

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.integrations.openai_agents.support_agent"])


def said(text: str) -> Any:
    return {"role": "user", "content": text}


async def test_items_come_back_in_order_and_equal(address: str) -> None:
    items = [said("One."), {"type": "call", "deep": {"$t": "odd", "n": [1.5, None, True, 2**60]}}]
    with SureholdSession("s", address) as session:
        assert isinstance(session, Session) and session
        assert await session.get_items() == [] and await session.pop_item() is None
        await session.add_items([])
        await session.add_items([*items])
        await session.add_items([said("Two.")])
        assert await session.get_items() == [*items, said("Two.")]
        assert await session.get_items(limit=2) == [items[1], said("Two.")]
        assert await session.get_items(limit=0) == []
        assert await session.pop_item() == said("Two.")
        assert await session.get_items() == items
        await session.clear_session()
        assert await session.get_items() == []
        await session.add_items([said("Anew.")])
        assert await session.get_items() == [said("Anew.")]


async def test_without_a_limit_the_settings_have_one() -> None:
    with SureholdSession("s", "memory://", session_settings=SessionSettings(limit=1)) as session:
        await session.add_items([said("One."), said("Two.")])
        assert await session.get_items() == [said("Two.")]
        assert await session.get_items(limit=5) == [said("One."), said("Two.")]


async def test_sessions_are_apart_and_others_runs_are_refused(tmp_path: Path) -> None:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as manager:
        from surehold import State

        manager.save_checkpoint(State.new({"done": 1}, run_id="nightly"))
        first, second = SureholdSession("a", manager), SureholdSession("b", manager)
        await first.add_items([said("One.")])
        assert await second.get_items() == []
        with pytest.raises(UsageError, match="is not a session"):
            await SureholdSession("nightly", manager).get_items()


def _add(address: str, name: str) -> None:
    async def add() -> None:
        with SureholdSession("s", address) as session:
            for number in range(10):
                await session.add_items([said(f"{name} {number}"), said(f"{name} {number}+")])

    asyncio.run(add())


@pytest.mark.parametrize("medium", ["sqlite:///{}/runs.db", "file://{}/runs"])
async def test_processes_that_add_at_once_lose_nothing(medium: str, tmp_path: Path) -> None:
    address = medium.format(tmp_path)
    processes = [CONTEXT.Process(target=_add, args=(address, name)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    with SureholdSession("s", address) as session:
        items: list[Any] = await session.get_items()
    texts = [one["content"] for one in items]
    assert len(texts) == 60
    for name in "abc":
        wanted = [f"{name} {number}{end}" for number in range(10) for end in ("", "+")]
        assert [text for text in texts if text.startswith(name)] == wanted
    assert all(texts[at + 1] == texts[at] + "+" for at in range(0, 60, 2)), "a list is atomic"


async def test_objects_of_one_process_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    with open_storage(f"sqlite:///{tmp_path}/runs.db") as storage:
        manager = CheckpointManager(storage)
        sessions = [SureholdSession("s", where) for where in (manager, manager, storage)]
        adding = [one.add_items([said(str(n))]) for n in range(20) for one in sessions]
        await asyncio.gather(*adding)
        items: list[Any] = await sessions[0].get_items()
        assert sorted(int(one["content"]) for one in items) == sorted([*range(20)] * 3)
        for one in sessions:
            one.close()


async def test_a_call_that_was_made_before_changes_nothing(address: str) -> None:
    with SureholdSession("s", address) as session:
        await session.add_items([said("One."), said("Two.")])
        popped = OnceCall("run", "pop 1")
        assert await session.pop_once(popped) == said("Two.")
        await session.add_items([said("Three.")])
        assert await session.pop_once(popped) == said("Two.")
        added = OnceCall("run", "add 2")
        for _ in range(2):
            await session.add_once([said("Four.")], added)
        assert await session.get_items() == [said("One."), said("Three."), said("Four.")]
        cleared = OnceCall("run", "clear 3")
        await session.clear_once(cleared)
        await session.add_items([said("Five.")])
        await session.clear_once(cleared)
        assert await session.get_items() == [said("Five.")]


async def test_an_add_that_is_cancelled_has_settled(tmp_path: Path) -> None:
    with SureholdSession("s", f"sqlite:///{tmp_path}/runs.db") as session:
        adding = asyncio.ensure_future(session.add_items([said("One.")]))
        await asyncio.sleep(0)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert await session.get_items() == [said("One.")]


async def test_hooks_redact_what_a_session_stores(tmp_path: Path) -> None:
    hooks = HookManager()
    hooks.register_hook(RedactionHook())
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db", hook_manager=hooks) as manager:
        session = SureholdSession("s", manager)
        await session.add_items([{"role": "user", "content": "x", "password": "hunter2"}])  # type: ignore[typeddict-unknown-key]
        await session.add_items([said("Two.")])
        assert len(await session.get_items()) == 2
        session.close()
    assert b"hunter2" not in (tmp_path / "runs.db").read_bytes()


async def test_retention_keeps_the_newest_and_the_session_goes_on(tmp_path: Path) -> None:
    rules = Rules(keep_last=2)
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db", retention=rules) as manager:
        session = SureholdSession("s", manager)
        for number in range(10):
            await session.add_items([said(str(number))])
        assert len(await session.get_items()) == 10
        assert len(list(manager.list_checkpoints("s"))) == 2
        session.close()


async def test_what_a_session_stores_grows_with_what_is_added_and_not_with_its_length(
    tmp_path: Path,
) -> None:
    with open_storage(f"sqlite:///{tmp_path}/runs.db?compress=false") as storage:
        with SureholdSession("s", storage) as session:
            for number in range(200):
                await session.add_items([said(f"{number:04}" + "x" * 1000)])
        (run,) = list(storage.runs(RunQuery()))
        assert run.stored < 3 * 200 * 1040
