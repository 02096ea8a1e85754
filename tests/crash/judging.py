"""Compares what a storage holds with what processes that may have been killed told of it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.crash.media import manager_on, open_medium, strays
from tests.crash.workload import AGENT, KEPT, LAST, LOOP, Worker, message

from surehold import AgentState, CheckpointManager, CheckpointMetadata, State

__all__ = ["Told"]


class Told:
    """All that the processes which worked in one directory told, one after the other."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[str, int], str] = {}
        """The ids of the checkpoints whose saving had returned, by run and step."""
        self.failures = 0
        self._unapplied = False
        self._begun: dict[str, int] = defaultdict(int)
        self._newest: dict[str, int] = defaultdict(int)
        self._dropping: set[str] = set()
        self._dropped: set[str] = set()
        self._tags: dict[str, set[str]] = defaultdict(set)
        self._forks: dict[str, tuple[str, int]] = {}
        self._whole: set[str] = set()
        self._deleting: set[str] = set()
        self._gone: set[str] = set()
        self._loops: set[str] = set()
        self._completed: set[str] = set()
        self._fresh: list[str] = []

    def hear(self, lines: Iterable[list[Any]]) -> None:
        """Take in what one process told."""
        self._fresh = []
        for line in lines:
            match line:
                case ["resumed", run, step]:
                    self._check_resumed(run, step)
                case ["save", run, step]:
                    self._begun[run] = max(self._begun[run], step)
                    self._unapplied &= run != KEPT
                case ["unapplied"]:
                    self._unapplied = True
                case ["saved", run, step, checkpoint_id]:
                    self.acknowledged[run, step] = checkpoint_id
                    self._newest[run] = max(self._newest[run], step)
                    self._fresh.append(checkpoint_id)
                case ["drop", checkpoint_id]:
                    self._dropping.add(checkpoint_id)
                case ["dropped", checkpoint_id]:
                    self._dropped.add(checkpoint_id)
                case ["tagged", checkpoint_id, tag]:
                    self._tags[checkpoint_id].add(tag)
                case ["fork", run, source, step]:
                    self._forks[run] = source, step
                case ["forked", run, *_]:
                    self._whole.add(run)
                case ["delete", run]:
                    self._deleting.add(run)
                case ["deleted", run]:
                    self._gone.add(run)
                case ["run", run]:
                    self._loops.add(run)
                case ["ran", run]:
                    self._completed.add(run)
                case ["failed", *_]:
                    self.failures += 1
                case ["crashed", trace]:
                    raise AssertionError(f"the worker failed:\n{trace}")

    def _check_resumed(self, run: str, step: int) -> None:
        low, high = self._newest[run], self._begun[run]
        assert low <= step <= high, f"run {run} went on from {step}, not from {low} to {high}"

    def check(self, medium: str, directory: Path, *, thorough: bool = True) -> None:
        """Open what is there and compare: all of it, or what was told last and a sample."""
        with open_medium(medium, directory) as storage:
            manager = manager_on(storage, medium)
            while True:
                listed = manager.list_checkpoints()
                try:
                    self._check_listing(manager, listed, thorough)
                    break
                except AssertionError:
                    if manager.list_checkpoints() == listed:
                        raise
                    # A server has stored meanwhile what a process had sent before it died.
            verdicts = manager.verify()
            assert all(verdicts), [v.problems for v in verdicts if not v]
        assert strays(directory) == []

    def go_on(self, medium: str, directory: Path, seed: int, calls: int = 4) -> None:
        """Work there as the next process would, and compare again."""
        lines: list[list[Any]] = []
        worker = Worker(medium, directory, seed, lambda *words: lines.append(list(words)))
        worker.work(calls)
        worker.end()
        self.hear(lines)
        self.check(medium, directory, thorough=False)

    def _check_listing(
        self, manager: CheckpointManager, listed: list[CheckpointMetadata], thorough: bool
    ) -> None:
        by_run: dict[str, list[CheckpointMetadata]] = defaultdict(list)
        for entry in listed:
            by_run[entry.run_id].append(entry)
        for run in self._begun:
            self._check_run(run, by_run[run])
        self._check_forks(by_run)
        self._check_loops(by_run)
        for entries in by_run.values():
            if entries:
                found = manager.resume_from_latest(entries[0].run_id)
                self._check_state(found, entries[0])
                assert found.checkpoint_id == entries[0].checkpoint_id
        every = [entry for entries in by_run.values() for entry in entries]
        for entry in every if thorough else self._some(every):
            self._check_state(manager.load_checkpoint(entry.checkpoint_id), entry)
        for entry in every:
            assert self._tags[entry.checkpoint_id] <= set(entry.tags), "a tag was lost"

    def _some(self, every: list[CheckpointMetadata]) -> list[CheckpointMetadata]:
        chance = random.Random(len(self.acknowledged))
        return [e for e in every if e.checkpoint_id in self._fresh or chance.random() < 0.1]

    def _check_run(self, run: str, entries: list[CheckpointMetadata]) -> None:
        low, high = self._newest[run], self._begun[run]
        there = {entry.step: entry.checkpoint_id for entry in entries}
        newest = max(there, default=0)
        assert low <= newest <= high, f"run {run} is at step {newest}, not from {low} to {high}"
        assert [entry.step for entry in entries] == sorted(there, reverse=True)
        first = max(1, newest - LAST + 1) if run == KEPT else 1
        for step in range(first, newest + 1):
            acknowledged = self.acknowledged.get((run, step))
            if acknowledged in self._dropped:
                assert step not in there, f"step {step} of run {run} was deleted and is back"
            elif acknowledged in self._dropping:
                assert there.get(step) in (None, acknowledged)
            elif acknowledged is None:
                assert step in there, f"step {step} of run {run} is missing among later ones"
            else:
                assert there.get(step) == acknowledged, f"step {step} of run {run} was lost"
        applied = run != KEPT or not self._unapplied
        assert not applied or min(there, default=first) >= first, "what retention dropped is back"

    def _check_forks(self, by_run: dict[str, list[CheckpointMetadata]]) -> None:
        for run, (_, step) in self._forks.items():
            steps = [entry.step for entry in by_run[run]]
            if run in self._gone:
                assert steps == [], f"run {run} was deleted and is back"
            elif run in self._whole and run not in self._deleting:
                assert steps == [step], f"run {run} was lost"
            else:
                assert steps in ([], [step])
        known = {*self._begun, *self._forks, *self._loops}
        assert {run for run, entries in by_run.items() if entries} <= known

    def _check_loops(self, by_run: dict[str, list[CheckpointMetadata]]) -> None:
        for run in self._loops:
            steps = [entry.step for entry in by_run[run]]
            assert steps == sorted(steps, reverse=True)
            newest = next(iter(by_run[run]), None)
            if run in self._completed:
                assert newest is not None, f"run {run} was lost"
                assert (newest.step, newest.status) == (LOOP, "completed")

    def _check_state(self, state: Any, entry: CheckpointMetadata) -> None:
        run, step = self._forks.get(entry.run_id, (entry.run_id, entry.step))
        assert step == entry.step
        if run in self._loops:
            # A step that was broken off is saved with the state that it had begun with.
            assert state.to_dict() == ({"messages": [message(run, step)]} if step else {})
            return
        wanted = [message(run, number) for number in range(1, step + 1)]
        if run == AGENT:
            assert isinstance(state, AgentState)
            assert (state.step_number, state.conversation_history) == (step, wanted)
        else:
            assert isinstance(state, State)
            found = (state.step, state["round"], state["messages"])
            assert found == (step, step, wanted), f"{found} is not step {step}"
