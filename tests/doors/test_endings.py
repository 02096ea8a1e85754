"""Every door ends a run as the table of endings says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.builders.doors import BLOCKING, DOORS, Door

from surehold import CheckpointManager, MemoryStorage
from surehold.core.policy import OF_THE_RUN, RunFacts, driven_by, ending_of
from surehold.errors import (
    BudgetError,
    ConflictError,
    Drained,
    InDoubtError,
    Interrupted,
    LeaseHeldError,
    NotFoundError,
    RunError,
    ShapeError,
    StorageError,
    UsageError,
    VetoError,
)
from surehold.storage.base import RunQuery

ROWS: dict[str, tuple[Any, str]] = {
    "failure": (lambda: ValueError("wrong"), "failed"),
    "shape": (lambda: ShapeError("other code"), "running"),
    "veto": (lambda: VetoError("no", run_id="r"), "running"),
    "conflict": (lambda: ConflictError("taken", run_id="r"), "running"),
    "held elsewhere": (lambda: LeaseHeldError("held", run_id="other"), "failed"),
    "doubt": (lambda: InDoubtError("unknown"), "failed"),
    "budget": (lambda: BudgetError("spent"), "budget_exhausted"),
    "storage": (lambda: StorageError("gone"), "failed"),
    "waiting": (lambda: Interrupted("a question"), "waiting"),
    "stopped": (lambda: Drained("asked to"), "interrupted"),
    "cancelled": (asyncio.CancelledError, "interrupted"),
    "group": (lambda: ExceptionGroup("several", [ValueError("wrong")]), "failed"),
    "group that waits": (
        lambda: BaseExceptionGroup("several", [ValueError(), Interrupted("a question")]),
        "waiting",
    ),
    "group of shapes": (lambda: ExceptionGroup("several", [ValueError(), ShapeError("")]), ""),
}
RETURNED = ("waiting", "stopped", "group that waits")


def status_in(storage: MemoryStorage) -> str:
    """The status of the newest checkpoint; "running" if there is none."""
    with CheckpointManager(storage) as saved:
        run = saved.reader.run("r")
        newest = saved.reader.newest(run) if run is not None else None
        return newest.status if newest is not None else "running"


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("door", DOORS)
def test_a_run_ends_as_the_table_says(door: Door, row: str) -> None:
    storage = MemoryStorage()
    make, status = ROWS[row]
    error = make()

    def body() -> None:
        raise error

    ended: BaseException | None = None
    result = ""
    try:
        result = door(storage, body)
    except BaseException as raised:
        ended = raised
    assert status_in(storage) == (status or "running")
    name = door.__name__
    if row in RETURNED and "loop" not in name:
        assert (result, ended) == (status, None)
    elif name == "agent" and row in ("failure", "group", "held elsewhere") and ended is None:
        assert result == "failed"
    elif row in ("failure", "group") and name in ("graph", "fleet"):
        assert isinstance(ended, RunError) and "wrong" in f"{ended} {ended.__cause__}"
    elif name != "fleet":  # a participant's error is recorded, and raised as it is read
        assert ended is error or (row == "group of shapes" and ended is not None)
    else:
        assert type(ended) is type(error)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("door", BLOCKING)
def test_code_that_ends_the_process_interrupts_the_run(
    door: Door, error: type[BaseException]
) -> None:
    storage = MemoryStorage()

    def body() -> None:
        raise error

    with pytest.raises(error):
        door(storage, body)
    assert status_in(storage) == "interrupted"


@pytest.mark.parametrize("door", BLOCKING)
def test_a_generator_that_is_closed_saves_nothing(door: Door) -> None:
    storage = MemoryStorage()

    def body() -> None:
        raise GeneratorExit

    with pytest.raises(GeneratorExit):
        door(storage, body)
    assert status_in(storage) == "running"


@pytest.mark.parametrize("door", DOORS)
def test_wrong_code_adds_no_record_however_often_it_is_started(door: Door) -> None:
    storage = MemoryStorage()

    def body() -> None:
        raise ShapeError("other code")

    heads = []
    for _ in range(3):
        with pytest.raises(ShapeError):
            door(storage, body)
        run = next(iter(storage.runs(RunQuery(run_id="r"))), None)
        heads.append(run.seq if run is not None else 0)
    assert len(set(heads)) == 1


@pytest.mark.parametrize("error", [ValueError(), None])
def test_a_lost_run_is_a_conflict_whatever_its_code_raised(error: Exception | None) -> None:
    facts = RunFacts(run_id="r", lost=True)
    ending = ending_of(error or ConflictError("taken"), facts)
    assert (ending.saves, ending.gives) == (False, "lost")
    assert ending_of(KeyboardInterrupt(), facts).gives == "error"


def test_errors_of_the_run_are_raised_unchanged() -> None:
    for kind in OF_THE_RUN:
        assert ending_of(kind("x"), RunFacts()).gives == "error"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (LeaseHeldError("x"), "held"),
        (ConflictError("x"), "lost"),
        (ShapeError("x"), "unfit"),
        (UsageError("x"), "unfit"),
        (NotFoundError("x"), "unfit"),
        (BudgetError("x"), "unfit"),
        (StorageError("x"), None),
        (ValueError("x"), "failed"),
    ],
)
def test_drive_tells_errors_apart(error: Exception, outcome: str | None) -> None:
    assert driven_by(error) == outcome
