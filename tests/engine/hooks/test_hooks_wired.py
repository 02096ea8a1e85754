"""Hooks as the managers call them: when, with what, and what becomes of their answers."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import logging
import subprocess
import sys
import textwrap
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.crash.media import open_medium

from surehold import (
    AgentState,
    CheckpointManager,
    HookContext,
    HookEvent,
    HookManager,
    HookPriority,
    HookResult,
    MemoryStorage,
    Rules,
    State,
    StateManager,
    Storage,
)
from surehold.engine.hooks.builtin import RedactionHook
from surehold.errors import NotFoundError, VetoError
from surehold.storage.base import RecordQuery

Call = Callable[..., Any]


class Both:
    """A manager of either kind, called the same way; its loop stays open between the calls."""

    def __init__(self, kind: str, storage: Storage, **options: Any) -> None:
        self._loop = asyncio.new_event_loop() if kind == "awaited" else None
        made = StateManager if self._loop is not None else CheckpointManager
        self.manager: Any = made(storage, **options)

    def __getattr__(self, name: str) -> Call:
        method = getattr(self.manager, name)

        def call(*args: Any, **options: Any) -> Any:
            result = method(*args, **options)
            if inspect.iscoroutine(result):
                assert self._loop is not None
                return self._loop.run_until_complete(result)
            return result

        return call

    def end(self) -> None:
        self.close()
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    self._loop.run_until_complete(task)
            self._loop.close()


@pytest.fixture(params=["blocking", "awaited"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hooks() -> HookManager:
    return HookManager(timeout=500)


@pytest.fixture
def opened(kind: str, hooks: HookManager) -> Iterator[Call]:
    """Opens managers with these hooks; each on a storage of its own unless one is given."""
    made: list[Both] = []

    def open_one(storage: Storage | None = None, **options: Any) -> Both:
        options.setdefault("hook_manager", hooks)
        made.append(Both(kind, storage or MemoryStorage(), **options))
        return made[-1]

    yield open_one
    for one in made:
        one.end()


def record_all(hooks: HookManager) -> list[HookContext]:
    """Every event that is fired, in order."""
    told: list[HookContext] = []
    for event in HookEvent:
        hooks.register(event, told.append)  # type: ignore[arg-type]
    return told


def names(told: list[HookContext]) -> list[str]:
    return [str(context.event_type) for context in told]


STATE = State.new({"n": 1}, run_id="run", name="job").at(step=4, status="failed")


def test_a_save_fires_before_and_after_with_what_it_saves(hooks: HookManager, opened: Call) -> None:
    told, manager = record_all(hooks), opened()
    checkpoint_id = manager.save_checkpoint(STATE)
    assert names(told) == ["pre_checkpoint_save", "post_checkpoint_save"]
    for context in told:
        data = context.data
        assert (context.agent_id, context.run_id) == ("job", "run")
        assert (data["agent_id"], data["run_id"], data["step_number"]) == ("job", "run", 4)
        assert (data["status"], data["state"]) == ("failed", STATE)
        assert isinstance(data["timestamp"], datetime)
    before, after = told
    assert "checkpoint_id" not in before.data
    assert after.data["checkpoint_id"] == checkpoint_id
    assert after.data["size"] == len(b'{"n":1}')
    assert after.data["stored"] > 0
    assert after.data["duration_ms"] > 0
    assert before.trace_id and after.trace_id


def test_loads_resumes_forks_and_prunes_are_told_in_their_order(
    hooks: HookManager, opened: Call
) -> None:
    manager = opened(retention=Rules(keep_last=1))
    checkpoint_id = manager.save_checkpoint(STATE)
    told = record_all(hooks)
    manager.load_checkpoint(checkpoint_id)
    assert names(told) == ["pre_checkpoint_load", "post_checkpoint_load"]
    told.clear()
    manager.resume_from_latest("job")
    loads = ["pre_checkpoint_load", "post_checkpoint_load"]
    assert names(told) == ["pre_resume", *loads, "post_resume"]
    for context in told:
        assert context.data["checkpoint_id"] == checkpoint_id
        assert (context.data["run_id"], context.data["step_number"]) == ("run", 4)
        assert ("state" in context.data) == context.event_type.startswith("post")
        assert ("duration_ms" in context.data) == context.event_type.startswith("post")
    told.clear()
    manager.fork_from_checkpoint(checkpoint_id, "other")
    saves = ["pre_checkpoint_save", "post_checkpoint_save"]
    assert names(told) == ["pre_fork", *saves, *loads, "post_fork"]
    assert (told[0].data["run_id"], told[0].data["new_run_id"]) == ("run", "other")
    assert told[-1].data["state"].run_id == "other"
    told.clear()
    manager.cleanup_old_checkpoints("run")
    assert names(told) == ["pre_prune", "post_prune"]
    assert (told[0].data["run_id"], told[0].data["run_ids"]) == ("run", ["run"])
    assert told[1].data["removed"] == 0


def test_a_prune_tells_what_it_removed_and_freed(hooks: HookManager, opened: Call) -> None:
    storage = MemoryStorage()
    unpruned = opened(storage, hook_manager=None)
    for step in range(40):
        unpruned.save_checkpoint(State.new({"n": "x" * 1000}, run_id="run").at(step=step))
    told, manager = record_all(hooks), opened(storage, retention=Rules(keep_last=1))
    assert manager.cleanup_old_checkpoints("run") == 39
    assert told[-1].data["removed"] == 39
    assert told[-1].data["freed"] > 1000
    assert told[-1].data["duration_ms"] > 0


def test_nothing_is_told_of_what_did_not_happen(hooks: HookManager, opened: Call) -> None:
    told, manager = record_all(hooks), opened()
    assert manager.resume_from_latest("nobody") is None
    with pytest.raises(NotFoundError):
        manager.load_checkpoint("no-such-id")
    assert told == []


def test_hooks_run_in_the_order_of_their_priority(hooks: HookManager, opened: Call) -> None:
    order: list[str] = []
    for priority in (HookPriority.LOW, HookPriority.CRITICAL, HookPriority.NORMAL):
        hooks.register(
            "pre_checkpoint_save", lambda context, p=priority: order.append(p.name), priority
        )
    opened().save_checkpoint(STATE)
    assert order == ["CRITICAL", "NORMAL", "LOW"]


def test_a_pre_hook_replaces_the_state_and_run_and_step_stay(
    hooks: HookManager, opened: Call
) -> None:
    def replace(context: HookContext) -> HookResult:
        other = State.new({"n": 2}, run_id="elsewhere").at(step=99, tags=["seen"])
        return HookResult(success=True, data={"state": other})

    async def add(context: HookContext) -> HookResult:
        return HookResult(success=True, data={"state": context.data["state"].set("more", True)})

    hooks.register("pre_checkpoint_save", replace, HookPriority.HIGH)
    hooks.register("pre_checkpoint_save", add)
    told = record_all(hooks)
    manager = opened()
    manager.save_checkpoint(STATE)
    saved = manager.resume_from_latest("run")
    assert (saved.run_id, saved.step, saved.name) == ("run", 4, "job")
    assert (saved.to_dict(), saved.tags) == ({"n": 2, "more": True}, ("seen",))
    assert next(c for c in told if c.event_type == "post_checkpoint_save").data["state"]["n"] == 2
    assert STATE["n"] == 1


def test_what_a_hook_does_to_an_agents_state_does_not_reach_the_live_one(
    hooks: HookManager, opened: Call
) -> None:
    def spoil(context: HookContext) -> None:
        context.data["state"].conversation_history.append({"role": "intruder"})

    hooks.register("pre_checkpoint_save", spoil)
    hooks.register("post_checkpoint_save", spoil)
    manager = opened()
    state = AgentState(agent_id="agent", conversation_history=[{"role": "user"}])
    manager.save_checkpoint(state)
    assert state.conversation_history == [{"role": "user"}]
    state.step_number = 1
    manager.save_checkpoint(state)
    saved = manager.resume_from_latest("agent").conversation_history
    assert saved == [{"role": "user"}, {"role": "intruder"}], "of the hook before the save"


@pytest.mark.parametrize("medium", ["sqlite", "file"])
def test_a_veto_leaves_nothing_written(
    medium: str, hooks: HookManager, opened: Call, tmp_path: Path
) -> None:
    def refuse(context: HookContext) -> HookResult | None:
        if context.data["state"]["n"] == 2:
            return HookResult(success=False, veto=True, error="two is not allowed")
        return None

    hooks.register("pre_checkpoint_save", refuse, HookPriority.HIGH)
    told = record_all(hooks)
    with open_medium(medium, tmp_path) as storage:
        manager = opened(storage)
        manager.save_checkpoint(STATE)
        before = list(storage.headers(RecordQuery(notes=True)))
        told.clear()
        with pytest.raises(VetoError, match="two is not allowed") as caught:
            manager.save_checkpoint(STATE.set("n", 2).at(step=5))
        assert caught.value.run_id == "run"
        with pytest.raises(VetoError):
            manager.save_checkpoint(State.new({"n": 2}, run_id="new"))
        assert names(told) == []
        assert list(storage.headers(RecordQuery(notes=True))) == before
        manager.save_checkpoint(STATE.set("n", 3).at(step=5))
        assert manager.resume_from_latest("run")["n"] == 3
        assert manager.manager.metrics.snapshot()["saves"] == {"ok": 2, "failed": 0, "vetoed": 2}


@pytest.mark.parametrize("event", ["pre_checkpoint_load", "pre_resume", "pre_fork", "pre_prune"])
def test_every_pre_hook_can_refuse(event: str, hooks: HookManager, opened: Call) -> None:
    manager = opened(retention=Rules(keep_last=1))
    checkpoint_id = manager.save_checkpoint(STATE)
    hooks.register(event, lambda context: HookResult(False, veto=True, error="not now"))
    call = {
        "pre_checkpoint_load": lambda: manager.load_checkpoint(checkpoint_id),
        "pre_resume": lambda: manager.resume_from_latest("run"),
        "pre_fork": lambda: manager.fork_from_checkpoint(checkpoint_id, "fork"),
        "pre_prune": lambda: manager.cleanup_old_checkpoints("run"),
    }[event]
    with pytest.raises(VetoError, match="not now"):
        call()
    assert [entry.run_id for entry in manager.list_checkpoints()] == ["run"]


def sleep_for_ever(context: HookContext) -> None:
    threading.Event().wait()


async def await_for_ever(context: HookContext) -> None:
    await asyncio.Event().wait()


def raise_an_error(context: HookContext) -> None:
    raise ValueError("out of order")


def end_its_thread(context: HookContext) -> None:
    sys.exit()


def answer_nonsense(context: HookContext) -> Any:
    return 42


HARMFUL = [sleep_for_ever, await_for_ever, raise_an_error, end_its_thread, answer_nonsense]


@pytest.mark.parametrize("harmful", HARMFUL)
def test_saves_go_on_within_the_timeout_whatever_a_hook_does(
    harmful: Callable[[HookContext], Any],
    hooks: HookManager,
    opened: Call,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []
    for event in ("pre_checkpoint_save", "post_checkpoint_save"):
        hooks.register(event, harmful, HookPriority.HIGH, timeout=0.05)
        hooks.register(event, lambda context: told.append(context.event_type))
    manager = opened()
    with caplog.at_level(logging.WARNING):
        for step in range(1, 13):
            manager.save_checkpoint(STATE.set("n", step).at(step=step))
    assert [entry.step for entry in manager.list_checkpoints("run")] == list(range(12, 0, -1))
    assert told == ["pre_checkpoint_save", "post_checkpoint_save"] * 12
    assert len([record for record in caplog.records if record.name == "surehold.hooks"]) <= 2
    assert hooks.get_stats()[harmful.__name__]["failure_count"] == 24


@pytest.mark.skipif(sys.platform != "linux", reason="calls the system's pthread_exit")
def test_saves_go_on_when_a_hook_kills_its_own_thread() -> None:
    """Not by an exception: the thread is gone without running another line of Python."""
    assert hasattr(ctypes.CDLL(None), "pthread_exit")
    script = """
        import ctypes, time
        from surehold import CheckpointManager, HookManager, State
        hooks = HookManager(timeout=0.05)
        hooks.register("pre_checkpoint_save", lambda context: ctypes.CDLL(None).pthread_exit(None))
        manager = CheckpointManager("memory://", hook_manager=hooks)
        state = State.new({"n": 0}, run_id="run")
        for step in range(1, 11):
            manager.save_checkpoint(state.set("n", step).at(step=step))
        print(len(manager.list_checkpoints("run")), manager.resume_from_latest("run")["n"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("10 10\n", 0), done.stderr


SECRET = "sk-ant-api03-hunter2hunter2hunter2hunter2hunter2"


def everything_in(directory: Path) -> bytes:
    """The bytes of all files, compressed ones unpacked as well."""
    found = b""
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        data = path.read_bytes()
        found += data
        if path.suffix == ".gz":
            while data:
                inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
                found += inflate.decompress(data)
                data = inflate.unused_data
        elif path.suffix == ".zst":
            found += (
                zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
            )
    return found


@pytest.mark.parametrize("medium", ["sqlite", "file", "file-gzip", "file-zstd"])
def test_a_redacted_secret_is_nowhere_in_the_files(
    medium: str, hooks: HookManager, opened: Call, tmp_path: Path
) -> None:
    redaction = RedactionHook()
    hooks.register_hook(redaction)
    storage = open_medium(medium, tmp_path)
    manager = opened(storage)
    state = State.new({"messages": [], "config": {"api_key": SECRET}}, run_id="run")
    for step in range(1, 4):
        text = f"step {step}: use {SECRET} please"
        state = state.append("messages", {"content": text}).at(step=step)
        manager.save_checkpoint(state)
    agent = AgentState(agent_id="agent", memory_contents={"password": SECRET})
    agent.conversation_history.append({"content": f"the key is {SECRET}"})
    manager.save_checkpoint(agent)
    assert state["config"]["api_key"] == SECRET
    assert agent.memory_contents["password"] == SECRET
    found = everything_in(tmp_path)
    loaded = manager.resume_from_latest("run")
    assert "[redacted:" in loaded["config"]["api_key"]
    assert loaded["messages"][0]["content"].startswith("step 1: use [redacted:")
    storage.close()
    found += everything_in(tmp_path)
    assert b"step 1: use" in found
    assert SECRET.encode() not in found
    assert b"hunter2" not in found
    assert redaction.counts.total() >= 6


def test_a_redaction_that_fails_refuses_the_save(
    hooks: HookManager, opened: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    redaction = RedactionHook()
    monkeypatch.setattr(redaction, "redact", lambda state: 1 / 0)
    hooks.register_hook(redaction)
    manager = opened()
    with pytest.raises(VetoError):
        manager.save_checkpoint(STATE)
    assert manager.list_checkpoints() == []
