"""One trial: start a program again and again, break most of the starts, judge what was seen."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import surehold
from proof.graphs.outside import Outside
from proof.programs.doors import execute
from proof.programs.runtime import RUN, Fault, Runtime
from proof.programs.source import DOORS, PLAIN, source_of
from surehold import CheckpointManager, answer, pending
from surehold.core.records import Effect
from surehold.engine.journal import read_since
from surehold.errors import ConflictError, NotFoundError

__all__ = ["Seen", "try_out"]

_FAULTS = (
    *("kill", "kill", "kill before append", "kill after append", "interrupt", "terminate"),
    *("cancel", "disk", "none"),
)
_BROKEN_STARTS = 5
_MOST_STARTS = 50
_LONGEST = 60.0
"""Seconds after which a start counts as hung."""


class Seen(NamedTuple):
    """Findings of one trial."""

    wrong: list[str]
    faults: Counter[str]
    calls: int
    asked: int
    ended: str
    """``value`` or ``error``; ``refused`` for an error of the program before its first effect."""


def try_out(seed: int, directory: Path, *, door: str = "", forgetful: bool = False) -> Seen:
    """Carry out the trial of a seed in an empty directory."""
    for name in surehold.__all__:  # imported here once, and not in every fork
        getattr(surehold, name)
    door = door or DOORS[seed % len(DOORS)]
    source = source_of(random.Random(f"program {seed}"), door)
    aside = directory / "reference"
    aside.mkdir()
    reference = _Trial(seed, aside, door, source)
    wanted = reference.run(broken=0)
    if wanted is None:
        wrong = reference.wrong or ["no reference"]
        return Seen(_titled(seed, door, wrong), Counter(), 0, 0, "")
    if wanted["kind"] == "refused":
        wrong = [f"refused after its first effect: {wanted}"] if reference.begun() else []
        return Seen(_titled(seed, door, wrong), Counter(), 0, 0, "refused")
    trial = _Trial(seed, directory, door, source, forgetful=forgetful)
    ended = trial.run(broken=_BROKEN_STARTS)
    wrong = [*reference.wrong, *trial.wrong]
    if not wrong:
        if ended != wanted:
            wrong.append(f"ended with {json.dumps(ended)}, and undisturbed {json.dumps(wanted)}")
        if trial.begun() != reference.begun():
            more = sorted((trial.begun() - reference.begun()).elements())
            less = sorted((reference.begun() - trial.begun()).elements())
            wrong.append(f"calls made that the undisturbed run does not make: {more}; not: {less}")
    calls = len([line for line in trial.outside.lines() if line.what == "call"])
    return Seen(_titled(seed, door, wrong), trial.faults, calls, trial.asked, wanted["kind"])


def _titled(seed: int, door: str, wrong: list[str]) -> list[str]:
    return [f"seed {seed}, {door}: {text}" for text in wrong]


class _Trial:
    def __init__(
        self, seed: int, directory: Path, door: str, source: str, *, forgetful: bool = False
    ) -> None:
        self._directory = directory
        self._door = door
        self._source = source
        self._forgetful = forgetful
        self._address = f"sqlite:///{directory}/runs.db"
        self._chance = random.Random(f"faults {seed}")
        self._started = 0
        self._recorded: dict[int, set[str]] = {}
        """The keys of calls whose outcome was recorded before each start."""
        self.outside = Outside(directory / "outside")
        self.faults: Counter[str] = Counter()
        self.asked = 0
        self._has_replayed = False
        self.wrong: list[str] = []

    def run(self, broken: int) -> dict[str, Any] | None:
        """Start the program until it ends for good; its end."""
        result, unsure = self._directory / "result", False
        for _ in range(_MOST_STARTS):
            kind = self._chance.choice(_FAULTS) if self._started < broken else "none"
            fault = Fault(kind, self._chance.randint(1, 12 if "append" not in kind else 6))
            self.faults[kind] += 1
            self._end(self._start(fault))
            if self.wrong:
                return None
            # A start whose storage failed may not have recorded how the run ended.
            before, unsure = unsure, kind == "disk" or not result.exists()
            if not result.exists():
                self._answer_all()
                continue
            ended: dict[str, Any] = json.loads(result.read_text())
            network = self._directory / "network"
            if ended["kind"] == "error" and not network.exists():
                network.touch()  # the next start finds the network up
                result.unlink()
                continue
            if ended["kind"] == "error" and (kind == "disk" or (before and self._replayed(ended))):
                result.unlink()
                continue
            self._start_again(ended)
            self._judge()
            return ended
        self.wrong.append(f"not ended after {self._started} starts")
        return None

    def _replayed(self, ended: dict[str, Any]) -> bool:
        """True, once, for a failure that was recorded and not made in the newest start.

        A process that died between such a failure and the end of its run has not said whether its
        code handles the failure: the next start replays it, ends the run, and only the start after
        that may make the call again. A failure that has ended the run is never replayed.
        """
        number = ended["text"].rpartition(" ")[2]
        made = [one for one in self.outside.lines() if one.start == self._started]
        called = any(one.what == "call" and one.value.endswith(f" {number}") for one in made)
        first, self._has_replayed = not self._has_replayed, True
        return first and not called

    def begun(self) -> Counter[str]:
        """The calls that were made, each once, by key and arguments."""
        return Counter(
            {f"{line.key[:8]} {line.value}" for line in self.outside.lines() if line.what == "call"}
        )

    # Starts

    def _start(self, fault: Fault) -> int:
        self._started += 1
        self._recorded[self._started] = self._recorded_now()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self.work(fault)
        return pid

    def _end(self, pid: int) -> None:
        until = time.monotonic() + _LONGEST
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > until:
                self.wrong.append(f"start {self._started} hung for {_LONGEST:g} s")
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(0.0005)
        error = self._directory / "error"
        if error.exists():
            self.wrong.append(error.read_text())
            error.unlink()

    def _start_again(self, ended: dict[str, Any]) -> None:
        """A run that has ended: the next starts say the same, and make and record nothing."""
        result = self._directory / "result"
        for _ in range(2):
            calls, head = len(self.outside.lines()), self._head()
            result.unlink(missing_ok=True)
            self._end(self._start(Fault()))
            if self.wrong:
                return
            again = json.loads(result.read_text()) if result.exists() else None
            if again != ended:
                self.wrong.append(f"ended with {ended}, and started again with {again}")
            made = [line for line in self.outside.lines()[calls:] if line.what == "call"]
            if ended["kind"] == "value" and (made or self._head() != head):
                self.wrong.append(f"a completed run made {made}, head {head} to {self._head()}")

    # The person

    def _answer_all(self) -> None:
        try:
            waiting = pending(RUN, storage=self._address)
        except NotFoundError:
            return
        for one in waiting:
            name = one.name or str(one.question)
            if one.kind == "effect":
                self.asked += 1
                value = self.outside.done(one.key)
                if value is None:
                    self.outside.write("permit", 0, one.policy, one.key)
                    answer(RUN, one.id, repeat=True, storage=self._address)
                else:
                    answer(RUN, one.id, int(value) * 7 + 1, storage=self._address)
            elif one.kind in ("event", "question") and not name.startswith("never"):
                answer(RUN, one.id, name.rstrip("?"), storage=self._address)

    # Judging

    def _head(self) -> int:
        with CheckpointManager(self._address) as manager:
            run = manager.reader.run(RUN)
            return run.seq if run is not None else 0

    def _recorded_now(self) -> set[str]:
        """The keys of calls whose results the journal has."""
        if not (self._directory / "runs.db").exists():
            return set()
        with CheckpointManager(self._address) as manager:
            run = manager.reader.run(RUN)
            notes = read_since(manager.reader, RUN, 0, run.seq) if run is not None else []
            entries = [note.content for note in notes if isinstance(note.content, Effect)]
            return {entry.key for entry in entries if entry.done and entry.error is None}

    def _judge(self) -> None:
        asked: Counter[str] = Counter()
        allowed: Counter[str] = Counter()
        left: dict[int, list[str]] = {}
        for line in self.outside.lines():
            if line.what == "left":
                left.setdefault(line.start, []).append(line.value)
            if line.what == "call":
                tag = line.value.split(" ")[0]
                if line.key in self._recorded.get(line.start, ()):
                    self.wrong.append(f"{line.key} {line.value} was recorded and called again")
                if any(tag == gone or tag == "b" for gone in left.get(line.start, ())):
                    self.wrong.append(f"start {line.start} made call {line.value} while leaving")
            if line.policy == "ask":
                asked[line.key] += line.what == "call"
                allowed[line.key] += line.what == "permit"
        for key, count in asked.items():
            if count > 1 + allowed[key]:
                self.wrong.append(f"{key} was called {count} times, unasked")
        with CheckpointManager(self._address) as manager:
            problems = [text for verdict in manager.verify() for text in verdict.problems]
        self.wrong += [f"verify: {text}" for text in problems]

    def work(self, fault: Fault) -> NoReturn:
        """Execute the program in this process, which was forked for it, and end it."""
        directory = self._directory
        try:
            log = os.open(directory / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 2)
            warnings.simplefilter("ignore")  # programs change arguments in place on purpose
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            runtime = Runtime(
                directory,
                self._started,
                fault,
                awaited=self._door not in PLAIN,
                forgetful=self._forgetful,
            )
            ended = execute(self._door, self._source, runtime, self._address)
            if ended is not None:
                made = directory / "result.new"
                made.write_text(json.dumps(ended))
                made.rename(directory / "result")
        except (ConflictError, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            pass
        except BaseException:
            (directory / "error").write_text(traceback.format_exc())
        finally:
            os._exit(0)
