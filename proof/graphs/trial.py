"""One trial: start the graph again and again, break most of the starts, judge what was seen."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from proof.graphs.graph import KEY, RUN, Settings, build, settings_of
from proof.graphs.outside import Outside
from surehold import CheckpointManager, answer, pending
from surehold.core.records import Effect
from surehold.engine.journal import read_since
from surehold.errors import (
    ConflictError,
    LeaseHeldError,
    NotFoundError,
    RunError,
    StorageUnavailableError,
)

__all__ = ["FAULTS", "Seen", "try_out"]

FAULTS = ("kill", "kill", "kill", "terminate", "cancel", "timeout", "two", "pause", "none")
_BROKEN_STARTS = 6
_MOST_STARTS = 80
_LONGEST = 300.0
"""Seconds after which a start counts as hung."""
_ANSWER = "yes"


class Seen(NamedTuple):
    """Findings of one trial."""

    wrong: list[str]
    faults: Counter[str]
    calls: int
    asked: int


def try_out(seed: int, directory: Path, *, forgetful: bool = False) -> Seen:
    """Carry out the trial of a seed in an empty directory."""
    return _Trial(seed, directory, forgetful=forgetful).run()


class _Trial:
    def __init__(self, seed: int, directory: Path, *, forgetful: bool) -> None:
        self._seed = seed
        self._directory = directory
        self._forgetful = forgetful
        self._settings = settings_of(seed)
        self._outside = Outside(directory / "outside")
        self._chance = random.Random(f"faults {seed}")
        self._started = 0
        self._recorded: dict[int, set[str]] = {}
        """The keys of calls whose outcome was recorded before each start."""
        self._faults: Counter[str] = Counter()
        self._asked = 0
        self._wrong: list[str] = []

    def run(self) -> Seen:
        wanted = self._reference()
        result = self._directory / "result"
        while not result.exists() and self._started < _MOST_STARTS and not self._wrong:
            broken = self._started < _BROKEN_STARTS
            fault = self._chance.choice(FAULTS) if broken else "none"
            self._faults[fault] += 1
            getattr(self, f"_{fault}")()
            self._answer_all()
        if not result.exists():
            self._wrong.append(f"not completed after {self._started} starts")
        elif json.loads(result.read_text()) != wanted:
            self._wrong.append(f"final state {result.read_text()}, not {json.dumps(wanted)}")
        self._judge()
        calls = sum(line.what == "call" for line in self._outside.lines())
        wrong = [f"seed {self._seed}: {text}" for text in self._wrong]
        return Seen(wrong, self._faults, calls, self._asked)

    def _reference(self) -> Any:
        """The final state without faults, from a process of its own and another storage."""
        aside = self._directory / "reference"
        aside.mkdir()
        trial = _Trial(self._seed, aside, forgetful=False)
        while not (aside / "result").exists():
            if trial._started == _MOST_STARTS or trial._wrong:
                raise AssertionError(f"seed {self._seed}: no reference: {trial._wrong}")
            trial._none()
            trial._answer_all()
        return json.loads((aside / "result").read_text())

    # Starts and faults

    def _start(self, *, cancel: float | None = None, limit: float | None = None) -> int:
        self._started += 1
        number = self._started
        self._recorded[number] = self._recorded_now()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _work(
                self._seed,
                number,
                self._directory,
                self._settings,
                cancel,
                limit,
                forgetful=self._forgetful,
            )
        return pid

    def _end(self, pid: int) -> None:
        """Wait for the end of a start."""
        until = time.monotonic() + _LONGEST
        while time.monotonic() < until:
            if os.waitpid(pid, os.WNOHANG)[0]:
                break
            time.sleep(0.001)
        else:
            self._wrong.append(f"a start hung for {_LONGEST:g} s")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        error = self._directory / "error"
        if error.exists():
            self._wrong.append(error.read_text())

    def _after(self) -> float:
        return self._chance.choice((0.005, 0.02, 0.05, 0.1)) * self._chance.random() + 0.002

    def _none(self) -> None:
        self._end(self._start())

    def _kill(self) -> None:
        lines = len(self._outside.lines())
        pid = self._start()
        if self._chance.random() < 0.7:
            self._wait_for(lines + self._chance.randint(1, 8), pid)
        else:
            time.sleep(self._after())
        os.kill(pid, signal.SIGKILL)
        self._end(pid)

    def _wait_for(self, lines: int, pid: int) -> None:
        """Wait until so many lines were written, or the process has nothing more to do."""
        until = time.monotonic() + _LONGEST
        while len(self._outside.lines()) < lines and time.monotonic() < until:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return
            time.sleep(0.0005)

    def _terminate(self) -> None:
        pid = self._start()
        time.sleep(self._after())
        os.kill(pid, signal.SIGTERM)
        self._end(pid)

    def _cancel(self) -> None:
        self._end(self._start(cancel=self._after()))

    def _timeout(self) -> None:
        self._end(self._start(limit=self._after()))

    def _two(self) -> None:
        first, second = self._start(), self._start()
        time.sleep(self._after())
        os.kill(first, signal.SIGKILL)
        self._end(first)
        self._end(second)

    def _pause(self) -> None:
        """Stop a process for longer than its lease, and start another meanwhile."""
        first = self._start()
        time.sleep(self._after())
        os.kill(first, signal.SIGSTOP)
        time.sleep(self._settings.lease * 1.2)
        second = None
        # A process that was stopped while it held a lock of the medium keeps others out.
        with suppress(StorageUnavailableError):
            self._answer_all()
            second = self._start()
            time.sleep(self._after() * 4)
        os.kill(first, signal.SIGCONT)
        self._end(first)
        if second is not None:
            self._end(second)

    # The person

    def _open(self) -> CheckpointManager:
        key = KEY if self._settings.encrypted else None
        return CheckpointManager(self._settings.address(str(self._directory)), encryption_key=key)

    def _answer_all(self) -> None:
        with self._open() as manager:
            try:
                waiting = pending(RUN, storage=manager)
            except NotFoundError:
                return
            for one in waiting:
                try:
                    if one.kind == "question":
                        answer(RUN, one.id, _ANSWER, storage=manager)
                        continue
                    self._asked += 1
                    value = self._outside.done(one.key)
                    if value is None:
                        self._outside.write("permit", 0, one.policy, one.key)
                        answer(RUN, one.id, repeat=True, storage=manager)
                    else:
                        answer(RUN, one.id, int(value), storage=manager)
                except (LeaseHeldError, NotFoundError):
                    continue  # a process that was stopped continues

    # Judging

    def _recorded_now(self) -> set[str]:
        keys = {line.key for line in self._outside.lines() if line.what == "kept"}
        with self._open() as manager:
            run = manager.reader.run(RUN)
            notes = read_since(manager.reader, RUN, 0, run.seq) if run is not None else []
        entries = [note.content for note in notes if isinstance(note.content, Effect)]
        return keys | {entry.key for entry in entries if entry.done and entry.error is None}

    def _judge(self) -> None:
        lines = self._outside.lines()
        asked: Counter[str] = Counter()
        allowed: Counter[str] = Counter()
        for line in lines:
            if line.what == "call" and line.key in self._recorded.get(line.start, ()):
                self._wrong.append(f"{line.key} ({line.policy}) was recorded and called again")
            if line.policy in ("ask", "fail"):
                asked[line.key] += line.what == "call"
                allowed[line.key] += line.what in ("permit", "raised")
        for key, count in asked.items():
            if count > 1 + allowed[key]:
                self._wrong.append(f"{key} was called {count} times, unasked")
        with self._open() as manager:
            problems = [text for verdict in manager.verify() for text in verdict.problems]
        self._wrong += [f"verify: {text}" for text in problems]


def _work(
    seed: int,
    start: int,
    directory: Path,
    settings: Settings,
    cancel: float | None,
    limit: float | None,
    *,
    forgetful: bool,
) -> None:
    """Execute the graph in this process, which was forked for it, and end it."""
    try:
        ended = asyncio.run(_execute(seed, start, directory, settings, cancel, limit, forgetful))
        if ended is not None:
            made = directory / f"result.{start}"
            made.write_text(json.dumps(ended))
            made.rename(directory / "result")
    except (RunError, ConflictError, asyncio.CancelledError, TimeoutError, KeyboardInterrupt):
        pass
    except BaseException:
        (directory / "error").write_text(traceback.format_exc())
    finally:
        os._exit(0)


async def _execute(
    seed: int,
    start: int,
    directory: Path,
    settings: Settings,
    cancel: float | None,
    limit: float | None,
    forgetful: bool,
) -> dict[str, Any] | None:
    async with settings.manager(str(directory)) as manager:
        outside = Outside(directory / "outside")
        graph = build(seed, start, outside, manager, settings, forgetful=forgetful)
        task = asyncio.ensure_future(graph.run({"log": []}, run_id=RUN))
        if cancel is not None:
            asyncio.get_running_loop().call_later(cancel, task.cancel)
        async with asyncio.timeout(limit):
            result = await task
    return dict(result.state.to_dict()) if result.status == "completed" else None
