"""Faults that must stay contained: damage, failed prunes, signals, forks, cancellations."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

import surehold
from surehold import (
    CheckpointManager,
    FilesystemStorage,
    HookManager,
    MemoryStorage,
    RedactionHook,
    State,
    StateManager,
)
from surehold.core.policy.rules import Rules
from surehold.engine.journal import append
from surehold.engine.journal.draft import CheckpointDraft, draft_of
from surehold.engine.journal.reader import Loaded
from surehold.engine.journal.requests import Request
from surehold.errors import ConflictError, EncodeError, StorageUnavailableError, SureholdError
from surehold.storage.base import Batch, RecordQuery

KEY = "33" * 32
PATIENCE = 30.0


def _save(manager: CheckpointManager, count: int, run_id: str = "run", size: int = 1) -> State:
    state = State.new({"x": ""}, run_id=run_id)
    for step in range(1, count + 1):
        state = state.set("x", f"{step}" * size).at(step=step)
        manager.save_checkpoint(state)
    return state


def test_a_save_on_a_damaged_run_ends_with_retention_and_fallback(tmp_path: Path) -> None:
    storage = FilesystemStorage(tmp_path)
    rules = Rules(keep_last=3)
    manager = CheckpointManager(storage, retention=rules, on_corrupt="fallback")
    state = _save(manager, 3)
    path = next(tmp_path.rglob("*.jsonl"))
    data = bytearray(path.read_bytes())
    data[data.find(b'"digest":"', len(data) // 2) + 12] ^= 1
    path.write_bytes(bytes(data))
    ended: list[object] = []

    def save() -> None:
        try:
            ended.append(manager.save_checkpoint(state.set("x", "new").at(step=9)))
        except SureholdError as error:
            ended.append(error)

    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert ended


def test_hooks_and_redaction_see_a_fork_as_well() -> None:
    hooks = HookManager()
    hooks.register_hook(RedactionHook())
    storage = MemoryStorage()
    manager = CheckpointManager(storage, hook_manager=hooks)
    saved = manager.save_checkpoint(State.new({"x": 1}, run_id="run"))

    def change(loaded: Loaded, draft: CheckpointDraft) -> CheckpointDraft:
        secret = State.new({"api_key": "sk-live-1234567890abcdefghij"}, run_id="other")
        values, natures = secret.for_saving()
        return msgspec.structs.replace(draft, values=values, natures=natures)

    made = manager.fork_from_checkpoint(saved, "other", change=change)
    assert made["api_key"] == "[redacted:api_key]"  # type: ignore[index]
    assert b"sk-live" not in b"".join(record.body for record in storage.read("other"))
    assert manager.resume_from_latest("other").to_dict() == made.to_dict()  # type: ignore[union-attr]


class _RefusesPrunes(MemoryStorage):
    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        if any(r.header.kind == "prune" for batch in batches for r in batch.records):
            raise StorageUnavailableError("prune refused")
        return super().append(batches)


def test_a_failed_prune_is_no_failed_save(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surehold.engine.retention.live._ERASE_AFTER", 3)
    storage = _RefusesPrunes()
    rules = Rules(keep_last=1)
    manager = CheckpointManager(storage, retention=rules, on_save_failure="warn")
    _save(manager, 8, size=9000)
    assert manager.metrics.snapshot()["saves"] == {"ok": 8, "failed": 0, "vetoed": 0}
    notes = [h.kind for h in storage.headers(RecordQuery(run_id="run", notes=True, kind="missed"))]
    assert notes == [] and "was not saved" not in caplog.text


def test_cancelling_an_open_run_returns_when_its_final_save_has_settled() -> None:
    class Slow(MemoryStorage):
        started, durable = threading.Event(), False

        def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
            self.started.set()
            time.sleep(0.2)
            done = super().append(batches)
            self.durable = True
            return done

    storage = Slow()

    async def job() -> None:
        async with surehold.run("run", storage=storage) as run:
            run.state["x"] = 1

    async def main() -> None:
        task = asyncio.create_task(job())
        await asyncio.to_thread(storage.started.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert storage.durable

    asyncio.run(main())


def test_no_cache_grows_with_the_number_of_runs() -> None:
    rules = Rules(keep_last=2)
    manager = CheckpointManager("memory://", retention=rules, every=1, encryption_key=KEY)
    for number in range(1100):
        manager.save_checkpoint(State.new({"x": 1}, run_id=f"r{number}"))
    engine, retention = manager.face, manager.retention
    caches = [
        engine.journal._cursors,
        engine.journal._sealer._data_keys,
        engine._clocks,
        retention._groups,
        retention._marks,
    ]
    assert max(map(len, caches)) <= 1024


def test_a_closing_storage_does_not_block_the_event_loop() -> None:
    closed_on: list[int] = []

    class Closing(MemoryStorage):
        def close(self) -> None:
            closed_on.append(threading.get_ident())

    async def main() -> None:
        manager = StateManager(Closing())
        manager._owns_storage = True
        await manager.save_checkpoint(State.new({"x": 1}))
        await manager.close()

    asyncio.run(main())
    assert closed_on and threading.get_ident() not in closed_on


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_an_encrypted_run_begun_anew_elsewhere_is_read_with_its_new_key(
    tmp_path: Path, kind: str
) -> None:
    address = f"sqlite:///{tmp_path}/r.db" if kind == "sqlite" else f"file:{tmp_path}/f"
    first = CheckpointManager(address, encryption_key=KEY)
    second = CheckpointManager(address, encryption_key=KEY)
    first.save_checkpoint(State.new({"by": "first"}, run_id="r").at(step=1))
    assert second.resume_from_latest("r")["by"] == "first"
    first.delete_run("r")
    first.save_checkpoint(State.new({"by": "again"}, run_id="r").at(step=1))
    state = second.resume_from_latest("r")
    assert state["by"] == "again"
    second.save_checkpoint(state.set("by", "second").at(step=2))
    assert CheckpointManager(address, encryption_key=KEY).resume_from_latest("r")["by"] == "second"
    for manager in (first, second):
        manager.close()


def test_values_changed_during_a_save_are_an_error_that_says_so() -> None:
    manager = CheckpointManager("memory://")
    live: dict[str, Any] = {"n": 1}

    def extra(whole: bool) -> bytes:
        for _ in live:
            live["more"] = 2
        return b"{}"

    state = State.new({"x": 1}, run_id="run")
    values, natures = state.for_saving()
    draft = CheckpointDraft("", state.place, values, natures, state.lineage, extra=extra)
    with pytest.raises(EncodeError, match="changed while it was saved"):
        manager.save_draft(draft)
    assert manager.save_checkpoint(state)


class _Alarm(Exception):
    pass


@pytest.mark.untraced
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
# In a callback of a weak reference, say.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_from_a_signal_handler_leaves_no_save_waiting_for_ever(
    tmp_path: Path,
) -> None:
    """Interrupts saves at every kind of moment while other threads save."""
    manager = CheckpointManager(f"sqlite:///{tmp_path}/r.db")
    stop = threading.Event()
    counts = [0, 0]
    failed: list[SureholdError] = []

    def save(number: int) -> None:
        state = State.new({"n": 0}, run_id=f"thread-{number}")
        while not stop.is_set():
            counts[number] += 1
            state = state.set("n", counts[number]).at(step=counts[number])
            try:
                manager.save_checkpoint(state)
            except SureholdError as error:  # not because another thread was interrupted
                failed.append(error)
                return

    expected = False

    def alarm(*_: object) -> None:
        if expected:
            raise _Alarm

    threads = [threading.Thread(target=save, args=(n,), daemon=True) for n in range(2)]
    for thread in threads:
        thread.start()
    before = signal.signal(signal.SIGALRM, alarm)
    interrupted = 0
    try:
        state = State.new({"n": 0}, run_id="main")
        for number in range(150):
            try:
                expected = True
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + number % 7 * 0.0002)
                for _ in range(500):  # an alarm in a finalizer is ignored by Python
                    manager.save_checkpoint(state.at(step=number), force=True)
            except _Alarm:
                interrupted += 1
            expected = False
            state = manager.resume_from_latest("main") or state
    finally:
        signal.signal(signal.SIGALRM, before)
        stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert interrupted > 100 and not any(thread.is_alive() for thread in threads)
    assert not failed
    assert manager.save_checkpoint(State.new({"n": 1}, run_id="after"))


def test_a_save_is_not_in_conflict_because_the_thread_that_wrote_it_was_interrupted() -> None:
    """Interrupts the commit of two saves at every line, then repeats one of them."""
    line = interrupted = 0
    while line == interrupted:
        line += 1
        manager = CheckpointManager(MemoryStorage())
        journal = manager.face.journal
        state = State.new({"n": 1}, run_id="run").at(step=1)
        manager.save_checkpoint(state)
        requests = [
            Request(run_id=one.place.run_id, draft=draft_of(one))
            for one in (State.new({"n": 1}, run_id="leader"), state.set("n", 2).at(step=2))
        ]
        interrupted += _raises_at(line, lambda: journal.commit(requests))  # noqa: B023
        (outcome,) = journal.commit(requests[1:])
        assert outcome.error is None
        assert [one.step for one in manager.list_checkpoints("run")] == [2, 1]
    assert line > 20


def _raises_at(line: int, work: Callable[[], object]) -> bool:
    """Raise at the *line*th line that *work* runs of a commit; False if it has fewer."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != append.__file__:
            return None
        if event == "line":
            count += 1
            if count == line:
                raise _Alarm
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except _Alarm:
        return True
    finally:
        sys.settrace(before)
    return False


def _in_child(work: Any) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        return None
    return process.exitcode


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_async_manager_works_in_a_forked_child(tmp_path: Path) -> None:
    manager = StateManager(f"sqlite:///{tmp_path}/r.db")

    async def save(run_id: str) -> None:
        await manager.save_checkpoint(State.new({"n": 1}, run_id=run_id))

    asyncio.run(save("parent"))
    assert _in_child(lambda: asyncio.run(save("child"))) == 0
    assert CheckpointManager(manager.storage).resume_from_latest("child")["n"] == 1
    asyncio.run(manager.close())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_during_a_save_is_not_blocked_by_it(tmp_path: Path) -> None:
    manager = CheckpointManager(f"sqlite:///{tmp_path}/r.db")
    stop = threading.Event()

    def saves() -> None:
        state, step = State.new({"n": 0}, run_id="thread"), 0
        while not stop.is_set():
            step += 1
            state = state.set("n", step).at(step=step)
            manager.save_checkpoint(state)

    def child() -> None:
        try:
            manager.save_checkpoint(State.new({"n": 1}))
        except SureholdError:
            os._exit(3)  # says no at once
        os._exit(0)

    thread = threading.Thread(target=saves, daemon=True)
    thread.start()
    try:
        codes = {_in_child(child) for _ in range(5)}
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert codes <= {0, 3}
