"""`surehold.run`: killed or failed at any moment, it goes on where it was."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import AgentState, CheckpointManager, HookManager, MemoryStorage, RedactionHook
from surehold.engine.runs.positions import OPEN_RUN
from surehold.errors import (
    ConflictError,
    EncodeError,
    InDoubtError,
    Interrupted,
    LeaseHeldError,
    StorageFullError,
    UsageError,
)
from surehold.views.timeline import timeline


@pytest.fixture(params=["sqlite:///{}/runs.db", "file:///{}/runs", "file:///{}/z?compress=zstd"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


def work(
    address: str, pages: int, fail_at: int | None = None, error: type = ValueError
) -> list[int]:
    """Does the pages that are left, and returns which they were."""
    done = []
    with surehold.run("nightly", storage=address) as run:
        for page in range(run.state.get("done", 0), pages):
            if page == fail_at:
                raise error("broken")
            done.append(page)
            run.checkpoint(done=page + 1)
    return done


def test_a_run_that_failed_goes_on_where_it_was(address: str) -> None:
    with pytest.raises(ValueError, match="broken"):
        work(address, 10, fail_at=4)
    with CheckpointManager(address) as manager:
        newest = manager.latest("nightly")
        assert newest is not None
        assert (newest.status, newest.kind, newest.step) == ("failed", "recovery", 4)
        assert newest.metadata == {"error": "ValueError"}
    assert work(address, 10) == [4, 5, 6, 7, 8, 9]


def failures(address: str, **options: Any) -> list[str]:
    """What the failed checkpoints tell, newest first."""
    with CheckpointManager(address, **options) as manager:
        reader, retention = manager.reader, manager.retention
        run = reader.run("nightly")
        assert run is not None
        return [moment.error for moment in timeline(reader, retention, run)[0] if moment.error]


def fail(address: str, text: str, hooks: HookManager | None = None) -> None:
    with (
        CheckpointManager(address, hook_manager=hooks) as manager,
        pytest.raises(OSError),
        surehold.run("nightly", storage=manager),
    ):
        raise OSError(text)


def test_what_a_run_failed_with_is_kept_and_each_new_failure_as_well(address: str) -> None:
    fail(address, "db-1 is away")
    fail(address, "db-1 is away")
    fail(address, "db-2 is away")
    assert failures(address) == ["OSError: db-2 is away", "OSError: db-1 is away"]
    work(address, 2)
    assert failures(address) == ["OSError: db-2 is away", "OSError: db-1 is away"]


def test_what_a_run_failed_with_is_kept_in_part_and_without_secrets(address: str) -> None:
    key = "sk-" + "a1" * 20
    hooks = HookManager()
    hooks.register_hook(RedactionHook({"ticket": "TCK-[0-9]+"}))
    fail(address, f"TCK-77 of {'x' * 960} {key}", hooks)
    (text,) = failures(address)
    assert text.startswith("OSError: [redacted:ticket] of xxx")
    assert len(text) == 1_000 and "a1" not in text
    fail(address, "lone \ud800 half")
    assert failures(address)[0] == "OSError: lone ? half"


@pytest.mark.parametrize("answer", [None, ValueError("TCK-77")])
def test_a_hook_that_cannot_redact_does_not_hide_what_failed(
    address: str, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(RedactionHook):
        def redact(self, state: Any) -> Any:
            if isinstance(state, str):
                if answer is not None:
                    raise answer
                return answer
            return super().redact(state)

    hooks = HookManager()
    hooks.register_hook(Broken())
    fail(address, "see TCK-77", hooks)
    assert failures(address) == ["OSError"]
    assert "redacting it raised" in caplog.text and "TCK-77" not in caplog.text


def test_what_a_run_failed_with_is_encrypted_with_its_state(address: str, tmp_path: Path) -> None:
    keys = {"encryption_key": bytes(range(32))}
    with (
        CheckpointManager(address, **keys) as manager,
        pytest.raises(OSError),
        surehold.run("nightly", storage=manager),
    ):
        raise OSError("an unusual sentence")
    assert failures(address, **keys) == ["OSError: an unusual sentence"]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files and not any(b"unusual" in file.read_bytes() for file in files)


def test_an_error_that_cannot_be_told_is_raised_all_the_same(address: str) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    with pytest.raises(Mute), surehold.run("nightly", storage=address):
        raise Mute
    assert failures(address) == ["Mute"]


def test_ctrl_c_leaves_an_interrupted_checkpoint(address: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        work(address, 10, fail_at=2, error=KeyboardInterrupt)
    with CheckpointManager(address) as manager:
        newest = manager.latest("nightly")
        assert newest is not None
        assert (newest.status, newest.kind) == ("interrupted", "interrupt")
    assert work(address, 10) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_a_completed_run_says_so_and_gives_its_final_state(address: str) -> None:
    assert work(address, 3) == [0, 1, 2]
    with surehold.run("nightly", storage=address) as run:
        assert run.completed
        assert (run.state, run.step) == ({"done": 3}, 3)
        with pytest.raises(UsageError, match="completed"):
            run.checkpoint(done=4)
    with CheckpointManager(address) as manager:
        statuses = [entry.status for entry in manager.list_checkpoints("nightly")]
        assert statuses == ["completed", "running", "running", "running"]


def test_the_state_is_plain_and_may_be_changed_in_place(address: str) -> None:
    with surehold.run("nightly", storage=address) as run:
        run.state["log"] = []
        for number in range(5):
            run.state["log"].append({"n": number})
            run.checkpoint()
            run.state["log"][0]["last"] = number
    with surehold.run("nightly", storage=address) as run:
        assert run.state["log"] == [{"n": 0, "last": 4}, *({"n": n} for n in range(1, 5))]


def test_triggers_decide_which_steps_are_saved(address: str) -> None:
    with surehold.run("nightly", storage=address, every=3) as run:
        saved = [run.checkpoint(n=n) is not None for n in range(7)]
    assert saved == [False, False, True, False, False, True, False]
    with CheckpointManager(address) as manager:
        assert [e.step for e in manager.list_checkpoints("nightly")] == [7, 6, 3]


async def test_it_works_with_async_with(address: str) -> None:
    async with surehold.run("nightly", storage=address) as run:
        run.checkpoint(n=1)
    async with surehold.run("nightly", storage=address) as run:
        assert run.completed
        assert run.state == {"n": 1}


def test_a_run_in_use_is_refused_and_free_afterwards(address: str) -> None:
    with surehold.run("nightly", storage=address) as run:
        run.checkpoint(n=1)
        with pytest.raises(LeaseHeldError) as caught, surehold.run("nightly", storage=address):
            pass
        assert caught.value.owner.pid == os.getpid()
        assert "is open in this process already" in caught.value.message
        assert "stop that process" not in caught.value.hint
    with surehold.run("nightly", storage=address) as run:
        assert run.attempt == 2


def test_a_process_that_lost_its_lease_can_append_nothing_more(tmp_path: Path) -> None:
    manager = CheckpointManager(f"sqlite:///{tmp_path}/a.db")
    other = CheckpointManager(f"sqlite:///{tmp_path}/a.db")
    with (
        pytest.raises(ConflictError),
        surehold.run("r", storage=manager, lease_seconds=0.05) as run,
    ):
        run.checkpoint(n=1)
        assert run._run is not None
        run._run._lease._stop.set()  # as if the process had been stopped
        time.sleep(0.1)
        with surehold.run("r", storage=other) as second:
            assert second.state == {"n": 1}
            run.checkpoint(n=2)
    assert other.resume_from_latest("r")["n"] == 1
    manager.close()
    other.close()


def test_mistakes_are_told_before_anything_is_written(tmp_path: Path) -> None:
    run = surehold.run("r", storage=MemoryStorage())
    with pytest.raises(UsageError, match="not open"):
        run.checkpoint(n=1)
    with pytest.raises(UsageError, match="empty"):
        surehold.run("", storage="memory://")
    with pytest.raises(UsageError, match="every is 0"):
        surehold.run("r", storage="memory://", every=0)
    manager = CheckpointManager(MemoryStorage())
    manager.save_checkpoint(AgentState(agent_id="a", run_id="agents"))
    with pytest.raises(UsageError, match="agent"), surehold.run("agents", storage=manager):
        pass
    with surehold.run("other", storage=manager) as run:
        assert not run.resumed
    with pytest.raises(UsageError, match="name is 5"):
        surehold.run("r", storage="memory://", name=5)  # type: ignore[arg-type]
    with surehold.run("wrong", storage=manager) as run:
        with pytest.raises(UsageError, match=r"run.state is \[1\]"):
            run.state = [1]  # type: ignore[assignment]
        with pytest.raises(UsageError, match="node is 5"):
            run.checkpoint(node=5, n=1)  # type: ignore[arg-type]
        run.state = {"n": 2}
    assert (run.step, run.state) == (0, {"n": 2})


class Connection:
    """Nothing that can be stored."""


def newest_of(
    manager: CheckpointManager, run_id: str = "r"
) -> tuple[str, int, dict[str, Any], str]:
    """Status, step, state and failure of a run's newest checkpoint."""
    reader = manager.reader
    run = reader.run(run_id)
    assert run is not None
    moments, _ = timeline(reader, manager.retention, run, limit=1)
    state = reader.load(moments[0].header).graph_state()
    return run.status, state.step, state.to_dict(), moments[0].error


def test_values_that_cannot_be_stored_are_taken_back(address: str) -> None:
    with surehold.run("r", storage=address) as run:
        run.checkpoint(a=1, gone=0)
        del run.state["gone"]
        for name in ("a", "gone", "new"):
            with pytest.raises(EncodeError, match="Connection"):
                run.checkpoint(**{"b": 5, name: Connection()})
            assert (run.state, run.step) == ({"a": 1}, 1)
        with pytest.raises(EncodeError):
            run.checkpoint(metadata={"to": Connection()}, a=9)
        assert (run.state, run.step) == ({"a": 1}, 1)
        run.checkpoint(a=2)
    with surehold.run("r", storage=address) as again:
        assert (again.state, again.step, again.completed) == ({"a": 2}, 2, True)


def test_a_state_that_cannot_be_stored_fails_the_run_with_the_last_good_one(address: str) -> None:
    with CheckpointManager(address) as manager:
        with pytest.raises(EncodeError), surehold.run("r", storage=manager) as run:
            run.checkpoint(a=1)
            run.checkpoint(a=2, c=Connection())
        status, step, state, error = newest_of(manager)
        assert (status, step, state) == ("failed", 1, {"a": 1})
        assert error.startswith("EncodeError: c: ") and "Connection" in error
        with surehold.run("r", storage=manager) as run:
            assert run.state == {"a": 1}
            run.checkpoint(a=2)
        assert newest_of(manager) == ("completed", 2, {"a": 2}, "")


def test_a_first_checkpoint_that_cannot_be_stored_leaves_a_failed_run(address: str) -> None:
    with CheckpointManager(address) as manager:
        with pytest.raises(EncodeError), surehold.run("r", storage=manager) as run:
            run.checkpoint(c=Connection())
        status, step, state, error = newest_of(manager)
        assert (status, step, state) == ("failed", 0, {}) and "Connection" in error


def test_what_stands_in_the_state_and_cannot_be_stored_hides_no_exception(address: str) -> None:
    with CheckpointManager(address) as manager:
        with (
            pytest.raises(ValueError, match="broken"),
            surehold.run("r", storage=manager, every=3) as run,
        ):
            for step in range(1, 4):
                run.checkpoint(a=step)
            run.checkpoint(a=4, c=Connection())
            raise ValueError("broken")
        assert newest_of(manager) == ("failed", 3, {"a": 3}, "ValueError: broken")


BREAKS: list[BaseException] = [
    ValueError("broken"),
    KeyboardInterrupt(),
    SystemExit(1),
    InDoubtError("unknown"),
    Interrupted("waits", run_id="r"),
]


@pytest.mark.parametrize("error", BREAKS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("every", [1, 3])
def test_an_item_that_was_broken_off_begins_with_the_state_it_began_with(
    address: str, error: BaseException, every: int
) -> None:
    """As after a kill: what it changed before the exception is not done twice."""
    for attempt in (1, 2):
        with suppress(BaseException), surehold.run("r", storage=address, every=every) as run:
            for item in run.each(range(8)):
                run.state["total"] = run.state.get("total", 0) + item
                run.state.setdefault("seen", []).append(item)
                if item == 4 and attempt == 1:
                    raise error
    assert run.completed
    assert run.state == {"total": 28, "seen": [*range(8)]}


def test_a_step_that_could_not_be_saved_has_ended(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointManager(address) as manager:
        append = manager.storage.append
        full = iter([False, True])

        def append_if_there_is_room(batches: Any) -> Any:
            if next(full, False):
                raise StorageFullError("no room left")
            return append(batches)

        monkeypatch.setattr(manager.storage, "append", append_if_there_is_room)
        with pytest.raises(StorageFullError), surehold.run("r", storage=manager) as run:
            for step in range(1, 4):
                run.checkpoint(a=step)
        assert newest_of(manager)[:3] == ("failed", 2, {"a": 2})


@pytest.mark.parametrize("every", [1, 3])
def test_a_step_that_was_broken_off_keeps_nothing_that_it_changed(address: str, every: int) -> None:
    for attempt in (1, 2):
        with suppress(ValueError), surehold.run("r", storage=address, every=every) as run:
            for item in range(run.state.get("done", 0), 8):
                run.state["total"] = run.state.get("total", 0) + item
                if item == 4 and attempt == 1:
                    raise ValueError("broken")
                run.checkpoint(done=item + 1)
    assert run.state == {"total": 28, "done": 8}


def test_a_final_state_that_cannot_be_stored_fails_the_run(address: str) -> None:
    with CheckpointManager(address) as manager:
        with pytest.raises(EncodeError), surehold.run("r", storage=manager) as run:
            run.checkpoint(a=1)
            run.state["c"] = Connection()
        status, step, state, error = newest_of(manager)
        assert (status, step, state) == ("failed", 1, {"a": 1}) and "Connection" in error


CHILD = """
    import signal, sys, surehold
    address, counts = sys.argv[1], open(sys.argv[2], "a", buffering=1)
    with surehold.run("nightly", storage=address) as run:
        for page in range(run.state.get("done", 0), 200):
            if page == int(sys.argv[3]):
                signal.pause()
            counts.write(f"{page}\\n")
            run.checkpoint(done=page + 1)
            print(page, flush=True)
"""


def test_a_killed_run_started_again_at_once_goes_on_after_the_last_saved_step(
    address: str, tmp_path: Path
) -> None:
    script, counts = tmp_path / "child.py", tmp_path / "counts"
    script.write_text(textwrap.dedent(CHILD))
    acknowledged = -1
    for target in (20, 50, 90, 199):
        # It waits some steps later, so that it is not done when a late kill comes.
        command = [sys.executable, str(script), address, str(counts), str(target + 20)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            first = int(child.stdout.readline())
            assert acknowledged < first <= acknowledged + 2
            for line in child.stdout:
                if int(line) == target:
                    break
            if target != 199:
                child.send_signal(signal.SIGKILL)
            acknowledged = max([target, *map(int, child.stdout.read().split())])
    begun = [int(line) for line in counts.read_text().split()]
    assert sorted(set(begun)) == list(range(200))
    assert len(begun) <= 200 + 3
    assert work(address, 200) == []


def enter(block: Any) -> Any:
    return block.__enter__()


def leave(block: Any) -> Any:
    return block.__exit__(None, None, None)


@pytest.mark.parametrize("copied", [True, False])
def test_a_block_may_be_left_in_another_context_than_it_was_entered_in(copied: bool) -> None:
    """The dependencies of web frameworks are: their two halves run in two threads of a pool."""
    storage = MemoryStorage()
    block = surehold.run("nightly", storage=storage)
    entered = copy_context()
    run = entered.run(enter, block)
    run.state["page"] = run.call(str.upper, "a")
    left = entered.copy() if copied else copy_context()
    left.run(leave, block)
    assert left.run(OPEN_RUN.get) is None
    assert run.status == "completed"
    with surehold.run("nightly", storage=storage) as again:
        assert again.state == {"page": "A"}


async def test_an_awaited_block_may_be_left_in_another_task_than_it_was_entered_in() -> None:
    """Fixtures of asynchronous tests are."""
    storage = MemoryStorage()
    block = surehold.run("nightly", storage=storage)
    run = await asyncio.create_task(block.__aenter__())
    run.state["page"] = await run.call(str.upper, "a")
    await asyncio.create_task(block.__aexit__(None, None, None))
    assert run.status == "completed"
    async with surehold.run("nightly", storage=storage) as again:
        assert again.state == {"page": "A"}
