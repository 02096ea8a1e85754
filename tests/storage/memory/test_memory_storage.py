"""What only `MemoryStorage` promises; the rest is tests/contract/test_memory.py."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import msgspec
import pytest

from surehold.errors import CorruptError, UsageError
from surehold.storage.base import Batch, RecordQuery, RunQuery
from surehold.storage.memory.storage import MemoryStorage
from surehold.testing import JournalWriter, make_records


@pytest.mark.parametrize("part", ["text", "body"])
def test_every_bit_that_changes_in_memory_is_detected(part: str) -> None:
    storage = MemoryStorage()
    JournalWriter().save(storage)
    (entry,) = storage._entries.values()
    whole = getattr(entry, part)
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        setattr(entry, part, bytes(damaged))
        with pytest.raises(CorruptError):
            list(storage.read("run"))
        if part == "text":
            with pytest.raises(CorruptError):
                list(storage.headers(RecordQuery(run_id="run")))
            assert list(storage.headers(RecordQuery())) == []
    setattr(entry, part, whole)
    assert len(list(storage.read("run"))) == 1


def test_a_record_in_the_place_of_another_is_detected() -> None:
    storage = MemoryStorage()
    storage.append([JournalWriter().batch(2)])
    entries = storage._runs["run"].entries
    entries[1], entries[2] = entries[2], entries[1]
    with pytest.raises(CorruptError, match="seq 1"):
        list(storage.read("run"))


def test_a_record_that_does_not_fit_its_digest_is_not_stored() -> None:
    storage = MemoryStorage()
    record = make_records(1)[0]
    damaged = type(record)(record.header, record.text, record.body + b" ")
    with pytest.raises(CorruptError):
        storage.append([JournalWriter("other").batch(), Batch(run_id="run", records=(damaged,))])
    assert list(storage.runs(RunQuery())) == []


def test_paging_from_an_id_of_several_runs_asks_which() -> None:
    storage = MemoryStorage()
    for run_id in "ab":
        JournalWriter(run_id).save(storage, id="same")
    with pytest.raises(UsageError, match="run_id"):
        storage.headers(RecordQuery(before="same"))


def test_a_journal_read_while_its_run_is_deleted_ends() -> None:
    storage = MemoryStorage()
    storage.append([JournalWriter().batch(200)])
    reading = storage.read("run")
    first = next(reading)
    storage.delete("run")
    JournalWriter().save(storage, b"another journal")
    read = [first, *reading]
    assert [record.header.seq for record in read] == list(range(1, len(read) + 1))
    assert b"another journal" not in [record.body for record in read]


def typical(call: Callable[[], object]) -> float:
    times = []
    for _ in range(201):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def filled(count: int) -> dict[str, Callable[[], object]]:
    """Calls on a storage that holds *count* records of ten runs and five names."""
    storage, dice = MemoryStorage(), random.Random(7)

    def id_of() -> str:
        return f"{dice.getrandbits(128):032x}"

    writers = [JournalWriter(f"run-{n}", name=f"name-{n % 5}") for n in range(10)]
    for _ in range(count // 10):
        storage.append([writer.batch([writer.record(id=id_of())]) for writer in writers])
    more = iter([writers[3].batch([writers[3].record(id=id_of())]) for _ in range(201)])
    latest = RecordQuery(run_id="run-3", scope="", limit=1)
    return {
        "append": lambda: storage.append([next(more)]),
        "latest": lambda: list(storage.headers(latest)),
        "page of a run": lambda: list(storage.headers(RecordQuery(run_id="run-3", limit=20))),
        "page of a name": lambda: list(storage.headers(RecordQuery(name="name-3", limit=20))),
        "page of all": lambda: list(storage.headers(RecordQuery(limit=20))),
    }


@pytest.mark.figures
def test_a_hundred_thousand_records_cost_at_most_twice_a_hundred() -> None:
    few, many = filled(100), filled(100_000)
    for what in few:
        assert typical(many[what]) < 2 * typical(few[what]), what


@pytest.mark.figures
def test_the_newest_checkpoint_behind_a_hundred_thousand_notes_is_as_near() -> None:
    costs = []
    for count in (100, 100_000):
        storage, writer = MemoryStorage(), JournalWriter()
        writer.save(storage)
        notes = [writer.record(frame="note") for _ in range(count)]
        storage.append([writer.batch(notes)])
        query = RecordQuery(run_id="run", scope="", limit=1)
        costs.append(typical(lambda storage=storage, query=query: list(storage.headers(query))))
    assert costs[1] < 2 * costs[0]


@pytest.mark.figures
def test_the_open_run_among_a_hundred_thousand_completed_ones_is_as_near() -> None:
    costs = []
    for count in (100, 100_000):
        storage = MemoryStorage()
        JournalWriter("open", name="x").save(storage)
        writers = [JournalWriter(f"done-{n}", name="x") for n in range(count)]
        storage.append([w.batch([w.record(status="completed")]) for w in writers])
        query = RunQuery(name="x", not_status="completed", limit=1)
        assert [info.run_id for info in storage.runs(query)] == ["open"]
        costs.append(typical(lambda storage=storage, query=query: list(storage.runs(query))))
    assert costs[1] < 2 * costs[0]


class _Interrupt(Exception):
    pass


def _interrupted(work: Callable[[], object], line: int) -> bool:
    """Raise at the *line*th line that *work* runs in the storage; False if it has fewer."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        code = frame.f_code
        if "storage/memory" not in code.co_filename or not code.co_name.startswith("_"):
            return None
        if event == "line":
            count += 1
            if count == line:
                raise _Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except _Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def _shown(storage: MemoryStorage) -> object:
    runs = sorted(info.run_id for info in storage.runs(RunQuery()))
    return [
        (
            [record.header.digest for record in storage.read(run)],
            [header.digest for header in storage.headers(RecordQuery(run_id=run, notes=True))],
            sorted(storage.inspect(run).hidden),  # type: ignore[union-attr]
            [
                (info.seq, info.checkpoints, info.stored, info.name, info.status)
                for info in storage.runs(RunQuery(run_id=run))
            ],
            len(storage.find("")),
        )
        for run in runs
    ]


@pytest.mark.parametrize("change", ["append", "begin", "hide", "erase", "rewrite", "delete"])
def test_an_interrupted_change_is_whole_or_absent_and_can_be_repeated(change: str) -> None:
    """An exception from a signal handler may come at any line."""
    line, seen = 0, set()
    while True:
        line += 1
        writer = JournalWriter()
        storage = MemoryStorage()
        assert storage.append([writer.batch(3), JournalWriter("other").batch()]) == [None] * 2
        made = JournalWriter("new") if change == "begin" else writer
        more = msgspec.structs.replace(made.batch(2), hide=(2,))
        kept = [*storage.read("run")][1:]
        works: dict[str, Callable[[], object]] = {
            "append": lambda more=more, storage=storage: storage.append([more]),
            "hide": lambda storage=storage: storage.delete("run", hide=[1, 2]),
            "erase": lambda storage=storage: storage.delete("run", erase=[1, 2]),
            "rewrite": lambda storage=storage, kept=kept: storage.rewrite(
                "run",
                kept,
                [2],
                head=storage.inspect("run").head,  # type: ignore[union-attr]
            ),
            "delete": lambda storage=storage: storage.delete("run"),
        }
        work = works["append" if change == "begin" else change]
        before = _shown(storage)
        if not _interrupted(work, line):
            break
        after = _shown(storage)
        work()
        done = _shown(storage)
        if change != "erase":
            assert after in (before, done)
        seen.add(after == done)
        for run in storage.known_runs():
            seqs = [record.header.seq for record in storage.read(run)]
            assert seqs == sorted(set(seqs))
    assert _shown(storage) == done
    assert False in seen
