"""Cost of one operation with 100,000 stored checkpoints, compared with 100."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.report import Line
from benchmarks.workload import Times
from surehold import CheckpointManager, MemoryStorage, SQLiteStorage, State
from surehold.core.state.position import Lineage
from surehold.engine.journal.draft import draft_of
from surehold.engine.journal.requests import Request
from surehold.storage.base import RunQuery, Storage

__all__ = ["measure", "pages", "request_of"]

_FEW, _MANY = 100, 100_000
_TURNS = 120
_AT_ONCE = 2000
_PAGE = 20
_RUNS = 5
"""Runs on a page; with 100 checkpoints there are 6."""
_LIMIT = 2


def measure(directory: Path) -> Iterator[Line]:
    """Measure SQLite, then memory; the small and the large storage take turns."""
    for medium in ("SQLite", "memory"):
        times = Times()
        stores = {count: _open(medium, directory, count) for count in (_FEW, _MANY)}
        managers = {count: CheckpointManager(storage) for count, storage in stores.items()}
        for count, manager in managers.items():
            fill(manager, count)
        work = {count: Work(manager) for count, manager in managers.items()}
        for turn in range(_TURNS):
            for count in (_FEW, _MANY) if turn % 2 else (_MANY, _FEW):
                for name, call in work[count].calls().items():
                    times.time(f"{name} {count}", call)
        for name in next(iter(work.values())).calls():
            few, many = f"{name} {_FEW}", f"{name} {_MANY}"
            yield Line(
                f"{medium}: {name}, with {_MANY:,} / with {_FEW}",
                times.ratio(many, few),
                _LIMIT,
                note=f"{times.median(many) * 1e3:.3f} ms",
            )
        for storage in stores.values():
            storage.close()


def _open(medium: str, directory: Path, count: int) -> Storage:
    return MemoryStorage() if medium == "memory" else SQLiteStorage(directory / f"{count}.db")


def pages(
    medium: str,
    open_for: Callable[[int], Storage],
    *,
    turns: int = 60,
    ended: bool = False,
    unlimited: tuple[str, ...] = (),
) -> Iterator[Line]:
    """Compare reads with 100,000 checkpoints to the same with 100, in turns.

    A read whose name ends with one of *unlimited* is only shown.
    """
    times, work = Times(), {}
    for count in (_FEW, _MANY):
        manager = CheckpointManager(open_for(count))
        fill(manager, count, ended=ended)
        work[count] = Work(manager)
    for turn in range(turns):
        for count in (_FEW, _MANY) if turn % 2 else (_MANY, _FEW):
            for name, call in work[count].reads().items():
                times.time(f"{name} {count}", call)
    for name in work[_FEW].reads():
        few, many = f"{name} {_FEW}", f"{name} {_MANY}"
        yield Line(
            f"{medium}: {name}, with {_MANY:,} / with {_FEW}",
            times.ratio(many, few),
            None if name.endswith(unlimited or "\0") else 1.5,
            note=f"{times.median(many) * 1e3:.2f} ms",
        )


def fill(manager: CheckpointManager, count: int, *, ended: bool = False) -> None:
    """Store half of the checkpoints in one long run and the rest in runs of ten, of two names.

    The short runs are completed if they have *ended*.
    """
    journal = manager.face.journal
    requests: list[Request] = []
    state = State.new({"log": []}, run_id="long", name="first")
    short = State.new({"log": []}, run_id="short-0", name="second")
    for number in range(count // 2):
        state = state.set("last", f"entry {number}").at(step=number + 1)
        if number % 10 == 0:
            name = ("first", "second")[number // 10 % 2]
            short = State.new({"log": []}, run_id=f"short-{number // 10}", name=name)
        short = short.set("last", f"entry {number}").at(step=number % 10 + 1)
        if ended and number % 10 == 9:
            short = short.at(status="completed")
        requests += map(request_of, (state, short))
        if len(requests) >= _AT_ONCE or number == count // 2 - 1:
            for outcome in journal.commit(requests):
                assert outcome.error is None
            requests.clear()


def request_of(state: State) -> Request:
    """The save of a state, for a commit of many."""
    # Without a lineage it builds on the record before it in the same commit.
    draft = msgspec.structs.replace(draft_of(state), lineage=Lineage())
    return Request(run_id=state.run_id, draft=draft)


class Work:
    """The calls timed on one storage. Each read uses a new manager with empty caches."""

    def __init__(self, manager: CheckpointManager) -> None:
        self._manager = manager
        self._state: State = manager.resume_from_latest("long")

    def calls(self) -> dict[str, Callable[[], Any]]:
        return {"save": self._save, **self.reads()}

    def reads(self) -> dict[str, Callable[[], Any]]:
        """The calls that store nothing."""
        return {
            "latest": lambda: self._new().latest("long"),
            f"page of {_PAGE} of one run": lambda: self._new().list_checkpoints(
                "long", limit=_PAGE
            ),
            f"page of {_PAGE} of one name": lambda: self._new().list_checkpoints(
                "second", limit=_PAGE
            ),
            f"page of {_PAGE} of all": lambda: self._new().list_checkpoints(limit=_PAGE),
            f"page of {_RUNS} runs": lambda: list(
                self._manager.storage.runs(RunQuery(limit=_RUNS))
            ),
        }

    def _new(self) -> CheckpointManager:
        return CheckpointManager(self._manager.storage)

    def _save(self) -> None:
        step = self._state.step + 1
        self._state = self._state.set("last", f"entry {step}").at(step=step)
        self._manager.save_checkpoint(self._state)
