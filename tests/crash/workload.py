"""A process that works as an application does, and tells of every call before and after it.

What it saves follows from the run and the step alone, so that whoever looks at the storage later
knows what must be there. A line is told before each call (``save``) and another once it returned
(``saved``): what stands between them may or may not have happened.
"""

from __future__ import annotations

import asyncio
import logging
import random
import resource
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.crash.media import manager_on, open_medium, options_of

import surehold
from surehold import AgentState, Rules, State, StateManager
from surehold.errors import LeaseHeldError, StorageError

__all__ = ["AGENT", "KEPT", "LAST", "LOOP", "RUNS", "Worker", "message", "work", "work_through"]

Tell = Callable[..., None]

GROUP = ("g0", "g1", "g2", "g3")
RUNS = ("a", "b", *GROUP)
AGENT = "agent"
KEPT = "k"
"""The run that retention leaves only the last `LAST` checkpoints."""
LAST = 3
LOOP = 2
"""How many steps a loop takes."""
LEASE = 0.2

_WEIGHTS = {
    "save": 8,
    "save_group": 3,
    "save_agent": 3,
    "save_kept": 4,
    "tag": 2,
    "drop": 2,
    "fork": 2,
    "delete": 1,
    "clean": 1,
    "run": 1,
    "reopen": 1,
}


def message(run: str, step: int) -> dict[str, str]:
    """What a step adds to its run."""
    size = zlib.crc32(f"{run}/{step}".encode()) % 900
    return {"role": "user", "content": f"{run} {step} ".ljust(size, "-")}


_LOGGER = logging.getLogger("surehold")


class _Unapplied(logging.Handler):
    """Tells of a save whose retention failed: the next save of the run makes up for it."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        if "retention was not applied" in record.msg:
            self._tell("unapplied")


class Worker:
    """Does one thing after the other to the runs in a directory."""

    def __init__(self, medium: str, directory: Path, seed: int, tell: Tell) -> None:
        self._medium = medium
        self._directory = directory
        self._chance = random.Random(seed)
        self._seed = seed
        self._tell = tell
        self._loop = asyncio.new_event_loop()
        self._forks: list[str] = []
        self._made = 0
        self._ids: dict[str, list[str]] = {"a": [], "b": []}
        self._handler = _Unapplied(tell)
        _LOGGER.addHandler(self._handler)
        self._try(self._open)

    def _open(self) -> None:
        self._storage = open_medium(self._medium, self._directory)
        try:
            self._resume()
        except BaseException:
            self._storage.close()
            raise

    def _resume(self) -> None:
        self._plain = manager_on(self._storage, self._medium)
        rules = Rules(keep_last=LAST)
        self._keeping = manager_on(self._storage, self._medium, retention=rules)
        self._awaited = StateManager(self._storage, **options_of(self._medium))
        self._states: dict[str, Any] = {}
        for run in (*RUNS, KEPT, AGENT):
            manager = self._keeping if run == KEPT else self._plain
            state = manager.resume_from_latest(run)
            if state is None and run == AGENT:
                state = AgentState(agent_id=AGENT, run_id=AGENT)
            elif state is None:
                state = State.new({"messages": []}, run_id=run)
            self._states[run] = state
            step = state.step_number if run == AGENT else state.step
            self._tell("resumed", run, step)

    def _close(self) -> None:
        self._loop.run_until_complete(self._awaited.close())
        self._storage.close()

    def end(self) -> None:
        """Close everything."""
        self._try(self._close)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        _LOGGER.removeHandler(self._handler)

    def work(self, count: int | None = None) -> None:
        """So many calls, or for ever."""
        names, weights = list(_WEIGHTS), list(_WEIGHTS.values())
        done = 0
        while count is None or done < count:
            getattr(self, f"_{self._chance.choices(names, weights)[0]}")()
            done += 1

    def every_call(self) -> None:
        """Each kind of call that is made on the caller's own thread, in few steps."""
        calls = "save save_agent save_kept save save tag fork save_kept drop save_kept delete run"
        for name in (*calls.split(), "save_kept", "clean", "reopen", "save", "save_kept"):
            getattr(self, f"_{name}")()

    def _try(self, call: Callable[[], Any]) -> Any:
        """What *call* gives; a medium that fails is told of, and the call made again."""
        for _ in range(4):
            try:
                return call()
            except StorageError as error:
                self._tell("failed", type(error).__name__, str(error))
        return call()

    def _next(self, run: str) -> State:
        state: State = self._states[run]
        step = state.step + 1
        return state.append("messages", message(run, step)).set("round", step).at(step=step)

    def _save(self) -> None:
        run = self._chance.choice("ab")
        state = self._next(run)
        self._tell("save", run, state.step)
        checkpoint_id = self._try(lambda: self._plain.save_checkpoint(state))
        self._tell("saved", run, state.step, checkpoint_id)
        self._states[run] = state
        self._ids[run].append(checkpoint_id)

    def _save_kept(self) -> None:
        state = self._next(KEPT)
        self._tell("save", KEPT, state.step)
        checkpoint_id = self._try(lambda: self._keeping.save_checkpoint(state))
        self._tell("saved", KEPT, state.step, checkpoint_id)
        self._states[KEPT] = state

    def _save_agent(self) -> None:
        state = self._states[AGENT]
        step = state.step_number + 1
        state.step_number = step
        state.conversation_history.append(message(AGENT, step))
        self._tell("save", AGENT, step)
        checkpoint_id = self._try(lambda: self._plain.save_checkpoint(state))
        self._tell("saved", AGENT, step, checkpoint_id)

    def _save_group(self) -> None:
        states = [self._next(run) for run in GROUP]
        for state in states:
            self._tell("save", state.run_id, state.step)

        async def save(state: State) -> None:
            for _ in range(4):
                try:
                    checkpoint_id = await self._awaited.save_checkpoint(state)
                    break
                except StorageError as error:
                    self._tell("failed", type(error).__name__, str(error))
            else:
                checkpoint_id = await self._awaited.save_checkpoint(state)
            self._tell("saved", state.run_id, state.step, checkpoint_id)
            self._states[state.run_id] = state

        async def save_all() -> None:
            await asyncio.gather(*map(save, states))

        self._loop.run_until_complete(save_all())

    def _tag(self) -> None:
        run = self._chance.choice("ab")
        if not self._ids[run]:
            return
        checkpoint_id = self._ids[run][-1]
        self._made += 1
        tag = f"tag-{self._seed}-{self._made}"
        self._tell("tag", checkpoint_id, tag)
        self._try(lambda: self._plain.tag(checkpoint_id, tag))
        self._tell("tagged", checkpoint_id, tag)

    def _drop(self) -> None:
        run = self._chance.choice("ab")
        if len(self._ids[run]) < 3:
            return
        checkpoint_id = self._ids[run].pop(self._chance.randrange(len(self._ids[run]) - 1))
        self._tell("drop", checkpoint_id)
        self._try(lambda: self._plain.exists(checkpoint_id) and self._drop_one(checkpoint_id))
        self._tell("dropped", checkpoint_id)

    def _drop_one(self, checkpoint_id: str) -> bool:
        return self._plain.delete_checkpoint(checkpoint_id)

    def _fork(self) -> None:
        run = self._chance.choice("ab")
        if not self._ids[run]:
            return
        self._made += 1
        made = f"fork-{self._seed}-{self._made}"
        step = self._states[run].step
        self._tell("fork", made, run, step)
        self._try(lambda: self._fork_once(self._ids[run][-1], made))
        self._tell("forked", made, run, step)
        self._forks.append(made)

    def _fork_once(self, checkpoint_id: str, made: str) -> None:
        if self._plain.latest(made) is None:
            self._plain.fork_from_checkpoint(checkpoint_id, run_id=made)

    def _delete(self) -> None:
        if not self._forks:
            return
        run = self._forks.pop()
        self._tell("delete", run)
        self._try(lambda: self._plain.latest(run) and self._plain.delete_run(run))
        self._tell("deleted", run)

    def _run(self) -> None:
        """A loop of the user's own, under a lease, from its beginning to its end."""
        self._made += 1
        run_id = f"loop-{self._seed}-{self._made}"
        self._tell("run", run_id)
        self._try(lambda: self._run_once(run_id))
        self._tell("ran", run_id)

    def _run_once(self, run_id: str) -> None:
        while True:
            try:
                opened = surehold.run(run_id, storage=self._plain, lease_seconds=LEASE)
                with opened as run:
                    while run.step < LOOP:
                        run.checkpoint(messages=[message(run_id, run.step + 1)])
                return
            except LeaseHeldError:
                # A lease that could not be given back is free once it has expired.
                time.sleep(LEASE)

    def _clean(self) -> None:
        self._try(lambda: self._keeping.cleanup_old_checkpoints(KEPT))

    def _reopen(self) -> None:
        self._try(self._close)
        self._try(self._open)


def work(tell: Tell, medium: str, directory: str, seed: int) -> None:
    """Work for ever."""
    worker = Worker(medium, Path(directory), seed, tell)
    tell("ready")
    worker.work()


def loop(tell: Tell, medium: str, directory: str) -> None:
    """A loop of the user's own, for ever."""
    storage = open_medium(medium, Path(directory))
    with surehold.run("loop", storage=manager_on(storage, medium)) as run:
        tell("began", run.step, run.attempt, dict(run.state))
        while True:
            tell("save", run.step + 1)
            run.checkpoint(done=run.step + 1)
            tell("saved", run.step)


def boast(tell: Tell, medium: str, directory: str) -> None:
    """Tell of every save before it is made: what a storage does that acknowledges too early."""
    with open_medium(medium, Path(directory)) as storage:
        manager = manager_on(storage, medium)
        state = State.new({"messages": []}, run_id="a")
        while True:
            step = state.step + 1
            state = state.append("messages", message("a", step)).set("round", step).at(step=step)
            tell("save", "a", step)
            tell("saved", "a", step, "unknown")
            manager.save_checkpoint(state)


def shrug(tell: Tell, medium: str, directory: str, seed: int) -> None:
    """Tell of saves that failed as if they had not: a storage that swallows errors."""
    with open_medium(medium, Path(directory)) as storage:
        manager = manager_on(storage, medium)
        state = State.new({"messages": []}, run_id="a")
        for step in range(1, 13):
            state = state.append("messages", message("a", step)).set("round", step).at(step=step)
            tell("save", "a", step)
            with suppress(StorageError):
                manager.save_checkpoint(state)
            tell("saved", "a", step, "unknown")
    tell("done")


def work_while_it_lasts(tell: Tell, medium: str, directory: str, seed: int) -> None:
    """Make each kind of call until the medium fails for good, and end."""
    worker = None
    try:
        worker = Worker(medium, Path(directory), seed, tell)
        worker.every_call()
    except StorageError as error:
        tell("gave up", type(error).__name__)
    try:
        if worker is not None:
            worker.end()
    except StorageError as error:
        tell("gave up", type(error).__name__)
    tell("done")


def _limit_files(largest: int) -> None:
    sys.dont_write_bytecode = True  # the limit would cut short what Python caches of a module
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))


def work_within(tell: Tell, medium: str, directory: str, seed: int, largest: int) -> None:
    """The same where no file may grow beyond so many bytes."""
    _limit_files(largest)
    work_while_it_lasts(tell, medium, directory, seed)


def shrug_within(tell: Tell, medium: str, directory: str, seed: int, largest: int) -> None:
    """`shrug` where no file may grow beyond so many bytes."""
    _limit_files(largest)
    shrug(tell, medium, directory, seed)


def work_through(tell: Tell, medium: str, directory: str, seed: int) -> None:
    """Make each kind of call, and end."""
    worker = Worker(medium, Path(directory), seed, tell)
    tell("ready")
    worker.every_call()
    worker.end()
    tell("done")
