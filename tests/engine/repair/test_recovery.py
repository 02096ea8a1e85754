"""A damaged run is refused or, if that is the policy, gone on with from its last good checkpoint;
what is damaged is put aside, noted and told of, and a repaired run verifies."""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import msgspec
import pytest
from tests.engine.conftest import EVERY, KEY, MEDIA, PAIRWISE

import surehold
from surehold import (
    CheckpointManager,
    FilesystemStorage,
    HookEvent,
    HookManager,
    MemoryStorage,
    SQLiteStorage,
    State,
    StateManager,
    Storage,
)
from surehold.core.records.ids import medium_name
from surehold.core.records.lease import Owner
from surehold.errors import (
    ConflictError,
    CorruptError,
    LeaseHeldError,
    NotFoundError,
    StorageUnavailableError,
    UsageError,
    WrongKeyError,
)
from surehold.storage.base import RecordQuery, Repairable, RunQuery
from surehold.storage.sqlite.page_checksums import PAGE, checked_pages
from surehold.views.timeline import timeline

Open = Callable[..., CheckpointManager]
FULL = os.environ.get("SUREHOLD_FULL") == "1"


def fill(manager: CheckpointManager, steps: int = 6, run_id: str = "run") -> list[str]:
    """A keyframe and deltas on it; the ids."""
    state = State.new({"log": [], "big": "x" * 9_000}, run_id=run_id, name="job")
    ids = []
    for step in range(1, steps + 1):
        state = state.append("log", step).at(step=step)
        ids.append(manager.save_checkpoint(state))
    return ids


def seq_of(manager: CheckpointManager, checkpoint_id: str) -> int:
    (header,) = manager.storage.find(checkpoint_id)
    return header.seq


def damage(storage: Storage, run_id: str, seq: int, *, at: float = 0.5) -> None:
    """Change a byte of one record where it is stored."""
    if isinstance(storage, MemoryStorage):
        entry = storage._runs[run_id].entries[seq]
        entry.body = flipped(entry.body, at)
    elif isinstance(storage, SQLiteStorage):
        db = apsw.Connection(str(storage.path), vfs=checked_pages())
        where = (
            "ord = (SELECT ord FROM records r JOIN runs ON pk = run WHERE run_id = ? AND r.seq = ?)"
        )
        ((body,),) = db.execute(f"SELECT body FROM bodies WHERE {where}", (run_id, seq))
        db.execute(f"UPDATE bodies SET body = ? WHERE {where}", (flipped(body, at), run_id, seq))
        db.close()
    else:
        assert isinstance(storage, FilesystemStorage)
        with storage._reading() as root:
            journal = storage._files.journal(root, medium_name(run_id))
        place = journal.entries[seq].place
        path = storage._path / place.segment.folder / place.segment.file
        data = path.read_bytes()
        line = flipped(data[place.start : place.end], at)
        path.write_bytes(data[: place.start] + line + data[place.end :])


def flipped(data: bytes, at: float) -> bytes:
    place = int(len(data) * at)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def log_of(manager: CheckpointManager, name: str = "run") -> list[int]:
    return list(manager.resume_from_latest(name)["log"])


# The default


def test_by_default_a_damaged_newest_record_is_an_error_that_names_it(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager)
    damage(manager.storage, "run", seq_of(manager, ids[-1]))
    again = open_manager(reopen=True)
    with pytest.raises(CorruptError) as told:
        again.resume_from_latest("run")
    assert told.value.run_id == "run"
    assert "repair()" in str(told.value) and "fallback" in str(told.value)
    with pytest.raises(CorruptError):
        again.resume_from_latest("run")


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("at", [0.02, 0.5])
def test_the_history_of_a_run_is_shown_beside_damage(
    open_manager: Open, number: int, at: float, request: pytest.FixtureRequest
) -> None:
    """Whichever record is damaged, in its header or its body, the others are shown.

    In files the newest one says where the run ends.
    """
    manager = open_manager()
    seq = seq_of(manager, fill(manager)[number])
    damage(manager.storage, "run", seq, at=at)
    again = open_manager(reopen=True)
    if isinstance(again.storage, FilesystemStorage) and number == 5:
        with pytest.raises(CorruptError):
            again.reader.run("run")
        return
    run = again.reader.run("run")
    assert run is not None
    entries, after = timeline(again.reader, again.retention, run)
    if "file-gzip-encrypted" in request.node.name:  # nor can the note that keeps the key be found
        assert {entry.header.step for entry in entries} >= {*range(1, 7)} - {number + 1}
        return
    whole = [entry.header.step for entry in entries if not entry.damaged]
    assert whole == [step for step in range(6, 0, -1) if step != number + 1]
    told = [entry.error for entry in entries if entry.damaged]
    told += [note.error for entry in entries for note in entry.notes if note.kind == "damaged"]
    told += [note.error for note in after if note.kind == "damaged"]
    assert len(told) == 1 and re.search(rf"record {seq} of run 'run'|run 'run', seq {seq}", told[0])


def test_another_policy_than_fail_or_fallback_is_refused() -> None:
    with pytest.raises(UsageError, match="on_corrupt"):
        CheckpointManager("memory://", on_corrupt="ignore")  # type: ignore[arg-type]


# Falling back


def test_fallback_gives_the_last_good_checkpoint_and_goes_on(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager)
    damage(manager.storage, "run", seq_of(manager, ids[-1]))
    again = open_manager(reopen=True, on_corrupt="fallback")
    state = again.resume_from_latest("run")
    assert (list(state["log"]), state.step) == ([1, 2, 3, 4, 5], 5)
    again.save_checkpoint(state.append("log", "new").at(step=6))
    last = open_manager(reopen=True)
    assert log_of(last) == [1, 2, 3, 4, 5, "new"]
    assert all(last.verify())
    assert last.repair().clean


def test_fallback_by_name_takes_the_damaged_run_back_too(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager)
    damage(manager.storage, "run", seq_of(manager, ids[-1]))
    again = open_manager(reopen=True, on_corrupt="fallback")
    assert again.latest("job").step == 5  # type: ignore[union-attr]
    assert log_of(again, "job") == [1, 2, 3, 4, 5]


def test_what_is_built_on_a_damaged_record_goes_with_it(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager)
    third = seq_of(manager, ids[2])
    damage(manager.storage, "run", third)
    again = open_manager(reopen=True, on_corrupt="fallback")
    assert log_of(again) == [1, 2]
    assert [one.step for one in again.list_checkpoints("run")] == [2, 1]
    assert all(again.verify())


def test_a_keyframe_after_the_damage_keeps_what_follows_it(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager)
    # Every value is new, so that what is saved is a whole state again.
    key = State.new({"log": ["y" * 40_000]}, run_id="run", name="job").at(step=7)
    key.lineage.checkpoint_id = ids[-1]
    ids.append(manager.save_checkpoint(key))
    (header,) = manager.storage.find(ids[-1])
    assert header.frame == "key"
    damage(manager.storage, "run", seq_of(manager, ids[2]))
    again = open_manager(reopen=True)
    report = again.repair("run")
    assert [one.run_id for one in report.runs] == ["run"]
    assert all(again.verify())
    assert [one.step for one in again.list_checkpoints("run")] == [7, 2, 1]
    assert again.resume_from_latest("run").step == 7


def test_the_damage_is_noted_logged_hooked_and_counted(
    open_manager: Open, caplog: pytest.LogCaptureFixture
) -> None:
    manager = open_manager()
    ids = fill(manager)
    seq = seq_of(manager, ids[-1])
    damage(manager.storage, "run", seq)
    hooks, told = HookManager(), []
    hooks.register(HookEvent.POST_REPAIR, lambda context: told.append(context.data))
    again = open_manager(reopen=True, on_corrupt="fallback", hook_manager=hooks)
    with caplog.at_level(logging.WARNING, "surehold.checkpoint"):
        again.resume_from_latest("run")
    assert "run run was damaged" in caplog.text
    assert f"quarantined record {seq}" in caplog.text
    assert [(data["run_id"], data["checkpoint_id"]) for data in told] == [("run", ids[-2])]
    query = RecordQuery(run_id="run", kind="prune", notes=True)
    (note,) = again.storage.headers(query)
    assert note.metadata["damage"]["lost"] == [[seq, seq]]
    assert note.metadata["damage"]["head"] == seq
    assert again.metrics.snapshot()["integrity_errors"] >= 1  # type: ignore[operator]


def test_what_is_damaged_is_kept_aside(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager)
    (lost,) = manager.storage.read("run", first=(n := seq_of(manager, ids[2])), last=n)
    (later,) = manager.storage.read("run", first=(m := seq_of(manager, ids[4])), last=m)
    damage(manager.storage, "run", n)
    again = open_manager(reopen=True)
    (run,) = again.repair("run").runs
    assert (run.lost, run.orphaned) == (((n, n),), ((n + 1, n + 3),))
    assert run.kept is not None
    storage = again.storage
    if isinstance(storage, MemoryStorage):
        kept = {entry.header.seq: entry.body for entry in storage.quarantine["run"]}
        assert kept[m] == later.body
        assert len(kept[n]) == len(lost.body)
    elif isinstance(storage, SQLiteStorage):
        assert [f'"seq":{seq},' in Path(run.kept).read_text() for seq in range(n, n + 4)] == (
            [True] * 4
        )
    else:
        assert [path.stat().st_size > 0 for path in Path(run.kept).iterdir()] == [True]


def test_a_run_of_which_nothing_is_whole_is_not_begun_anew(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager, steps=1)
    damage(manager.storage, "run", seq_of(manager, ids[0]))
    again = open_manager(reopen=True, on_corrupt="fallback")
    with pytest.raises(CorruptError):
        again.resume_from_latest("run")
    report = again.repair("run")
    assert "the whole run is put aside" in str(report)
    assert all(again.verify()) and again.list_checkpoints() == []


def test_a_wrong_key_is_no_damage(tmp_path: Path) -> None:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db", encryption_key=KEY) as manager:
        fill(manager)
    other = CheckpointManager(
        f"sqlite:///{tmp_path}/runs.db", encryption_key="77" * 32, on_corrupt="fallback"
    )
    with other, pytest.raises(WrongKeyError):
        other.resume_from_latest("run")
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db", encryption_key=KEY) as manager:
        assert manager.repair().clean
        assert log_of(manager) == [1, 2, 3, 4, 5, 6]


def test_a_run_that_another_process_holds_is_left_alone(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager)
    storage = manager.storage
    storage.take_lease("run", Owner("elsewhere", "boot", 1, "0"), now=4e9, ttl=60)  # type: ignore[attr-defined]
    damage(storage, "run", seq_of(manager, ids[-1]))
    again = open_manager(reopen=True, on_corrupt="fallback")
    with pytest.raises(CorruptError):
        again.resume_from_latest("run")
    with pytest.raises(LeaseHeldError):
        again.repair("run")
    assert "left alone" in str(again.repair())


def test_a_run_of_ones_own_loop_falls_back(open_manager: Open) -> None:
    manager = open_manager()
    with pytest.raises(ZeroDivisionError), surehold.run("loop", storage=manager) as job:
        for n in range(4):
            job.checkpoint(done=n)
        _ = 1 / 0
    newest = manager.latest("loop")
    assert newest is not None
    damage(manager.storage, "loop", newest.seq)
    again = open_manager(reopen=True, on_corrupt="fallback")
    with surehold.run("loop", storage=again) as job:
        assert job.state == {"done": 3}
        job.checkpoint(done=4)
    assert all(again.verify())


async def test_an_awaited_manager_falls_back_and_repairs_as_well(tmp_path: Path) -> None:
    with CheckpointManager(f"file:{tmp_path}/runs") as manager:
        ids = fill(manager)
        damage(manager.storage, "run", seq_of(manager, ids[-1]))
    async with StateManager(f"file:{tmp_path}/runs", on_corrupt="fallback") as again:
        assert (await again.resume_from_latest("run")).step == 5
        assert (await again.repair()).clean
        assert all(await again.verify())


# Repairing


def test_a_dry_run_says_what_would_be_done_and_does_nothing(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager)
    seq = seq_of(manager, ids[-1])
    damage(manager.storage, "run", seq)
    again = open_manager(reopen=True)
    report = again.repair(dry_run=True)
    assert report.dry_run and not report.clean
    assert f"quarantined record {seq}" in str(report)
    assert f"head set to record {seq - 1}" in str(report)
    assert all(line.count("run ") == 1 for line in str(report).splitlines())
    with pytest.raises(CorruptError):
        again.resume_from_latest("run")
    assert report.runs[0].actions[:2] == again.repair().runs[0].actions[:2]
    assert all(again.verify())


def test_what_is_sound_is_not_touched_by_a_repair(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager)
    fill(manager, run_id="other")
    manager.delete_checkpoint(ids[1])
    manager.tag(ids[2], "good")
    before = [list(manager.storage.read(run_id)) for run_id in ("run", "other")]
    assert manager.repair().clean
    assert str(manager.repair()) == "nothing is damaged"
    assert [list(manager.storage.read(run_id)) for run_id in ("run", "other")] == before


def test_hidden_checkpoints_stay_hidden_and_ordinals_stay(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager)
    fill(manager, run_id="other")
    manager.storage.delete("run", hide=[seq_of(manager, ids[1])])
    ordinals = {run.run_id: run.ordinal for run in manager.storage.runs(RunQuery())}
    damage(manager.storage, "run", seq_of(manager, ids[-1]))
    again = open_manager(reopen=True)
    again.repair()
    last = open_manager(reopen=True)
    assert [one.step for one in last.list_checkpoints("run")] == [5, 4, 3, 1]
    assert {run.run_id: run.ordinal for run in last.storage.runs(RunQuery())} == ordinals
    assert all(last.verify())


def test_a_repaired_run_can_be_pruned_exported_and_damaged_again(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager()
    ids = fill(manager)
    damage(manager.storage, "run", seq_of(manager, ids[3]))
    manager = open_manager(reopen=True, on_corrupt="fallback")
    state = manager.resume_from_latest("run")
    for step in range(4, 8):
        state = state.append("log", step).at(step=step)
        ids.append(manager.save_checkpoint(state))
    manager.export_run("run", tmp_path / "run.surehold")
    with CheckpointManager("memory://", encryption_key=manager_key(manager)) as other:
        other.import_run(tmp_path / "run.surehold")
        assert log_of(other) == list(range(1, 8))
    manager.delete_checkpoint(ids[0])
    assert all(manager.verify())
    damage(manager.storage, "run", seq_of(manager, ids[-1]))
    again = open_manager(reopen=True, on_corrupt="fallback")
    assert log_of(again) == list(range(1, 7))
    assert all(again.verify())


def manager_key(manager: CheckpointManager) -> str | None:
    return KEY if manager.reader.sealer.keys is not None else None


@pytest.mark.parametrize("medium", EVERY if FULL else PAIRWISE)
def test_any_damage_to_any_record_is_repaired_so_that_verify_passes(
    medium: str, tmp_path: Path
) -> None:
    chance = random.Random(7)
    key = KEY if medium.endswith("-encrypted") else None
    kind = medium.removesuffix("-encrypted")
    for attempt in range(12):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        storage = MEDIA[kind](directory)
        manager = CheckpointManager(storage, encryption_key=key)
        fill(manager)
        head = manager.reader.run("run")
        assert head is not None
        for _ in range(1 + attempt % 2):
            damage(storage, "run", chance.randint(1, head.seq), at=chance.random())
            if kind.startswith("file"):
                break  # what is damaged cannot be looked up any more
        if kind != "memory":
            storage.close()
            storage = MEDIA[kind](directory)
        again = CheckpointManager(storage, encryption_key=key)
        report = again.repair()
        assert all(again.verify()), str(report)
        assert again.repair().clean
        for one in again.list_checkpoints():
            assert list(again.load_checkpoint(one.checkpoint_id)["log"]) == [  # type: ignore[index]
                *range(1, one.step + 1)
            ]
        storage.close()


def test_a_record_that_is_gone_without_a_word_is_noted(open_manager: Open) -> None:
    manager = open_manager()
    ids = fill(manager, steps=2)
    manager.tag(ids[0], "good")
    run = manager.reader.run("run")
    assert run is not None
    ids += [manager.save_checkpoint(manager.resume_from_latest("run").set("n", 1).at(step=3))]
    manager.storage.delete("run", erase=[run.seq])
    assert not all(manager.verify())
    report = manager.repair("run")
    assert (report.runs[0].lost, report.runs[0].kept) == (((run.seq, run.seq),), None)
    assert all(manager.verify())
    manager.save_checkpoint(manager.resume_from_latest("run").set("n", 2).at(step=4))
    assert [one.step for one in manager.list_checkpoints("run")] == [4, 3, 2, 1]


def test_what_is_missing_in_a_run_that_goes_on_elsewhere_is_left_to_it(open_manager: Open) -> None:
    manager = open_manager()
    storage = manager.storage
    assert isinstance(storage, Repairable)
    fill(manager, steps=2)
    inspection = storage.inspect("run")
    assert inspection is not None
    manager.save_checkpoint(manager.resume_from_latest("run").set("n", 1).at(step=3))
    before = list(manager.storage.read("run"))
    with pytest.raises(ConflictError):
        storage.rewrite("run", inspection.records[:1], (), head=inspection.head)
    with pytest.raises(UsageError):
        storage.rewrite("none", (), (), head=0)
    with pytest.raises(UsageError):
        storage.rewrite("other", inspection.records[:1], (), head=inspection.head)
    with pytest.raises(UsageError):
        storage.rewrite("run", inspection.records[::-1], (), head=inspection.head)
    assert list(manager.storage.read("run")) == before


def test_a_run_that_does_not_exist_is_not_found(open_manager: Open) -> None:
    with pytest.raises(NotFoundError):
        open_manager().repair("none")


# Files


def test_a_torn_tail_is_cut_and_told(tmp_path: Path) -> None:
    with CheckpointManager(f"file:{tmp_path}/runs") as manager:
        fill(manager)
    (file,) = tmp_path.glob("runs/job/*.jsonl")
    with file.open("ab") as opened:
        opened.write(b'{"commit":17')
    with CheckpointManager(f"file:{tmp_path}/runs") as manager:
        ids = fill(manager, run_id="other")
        damage(manager.storage, "other", seq_of(manager, ids[-1]))
        told = manager.repair(dry_run=True)
        assert "cut short" in str(told)
        assert [run.run_id for run in told.runs] == ["other"]
        assert "cut the torn tail, 12 bytes" in str(manager.repair())
        assert manager.repair().clean
        assert all(manager.verify())
        assert log_of(manager) == [1, 2, 3, 4, 5, 6]


def test_a_file_that_lost_its_end_goes_on_from_what_is_left(tmp_path: Path) -> None:
    with CheckpointManager(f"file:{tmp_path}/runs") as manager:
        fill(manager)
    (file,) = tmp_path.glob("runs/job/*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:4]))
    with CheckpointManager(f"file:{tmp_path}/runs", on_corrupt="fallback") as manager:
        assert log_of(manager) == [1, 2, 3, 4]
        assert all(manager.verify())


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 5])
def test_a_run_that_changed_its_name_and_compression_is_mended(tmp_path: Path, seq: int) -> None:
    state = State.new({"log": []}, run_id="run")
    for n, (name, compress) in enumerate(
        [("a", False), ("b", "gzip"), ("b", "zstd"), ("a", False), ("a", False)]
    ):
        with FilesystemStorage(tmp_path, compress=compress) as storage:
            place = msgspec.structs.replace(state.place, name=name, step=n + 1)
            state = state.set("log", [*range(n + 1)]).placed(place)
            CheckpointManager(storage).save_checkpoint(state)
    with FilesystemStorage(tmp_path) as storage:
        damage(storage, "run", seq)
        manager = CheckpointManager(storage)
        manager.repair()
        assert all(manager.verify())
        assert manager.repair().clean
    with FilesystemStorage(tmp_path) as storage:
        again = CheckpointManager(storage)
        assert all(again.verify())
        for one in again.list_checkpoints():
            assert list(again.load_checkpoint(one.checkpoint_id)["log"]) == [*range(one.step)]  # type: ignore[index]


# SQLite pages


def pages_of(path: Path, table: str) -> list[int]:
    db = apsw.Connection(str(path), vfs=checked_pages())
    found = [
        page
        for (page,) in db.execute(
            "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'", (table,)
        )
    ]
    db.close()
    return found


@pytest.mark.parametrize("table", ["bodies", "records", "marks", "records_of_run", "runs"])
def test_a_page_that_cannot_be_read_is_refused_and_repaired(tmp_path: Path, table: str) -> None:
    path = tmp_path / "runs.db"
    with CheckpointManager(f"sqlite:///{path}") as manager:
        fill(manager)
        fill(manager, run_id="other")
        lease = manager.storage.take_lease(  # type: ignore[attr-defined]
            "run", Owner("elsewhere", "boot", 1, "0"), now=0, ttl=1
        )
    pages = pages_of(path, table)
    data = bytearray(path.read_bytes())
    data[pages[-1] * PAGE - 40] ^= 1  # the first row of a page lies at its end
    path.write_bytes(data)
    with CheckpointManager(f"sqlite:///{path}", on_corrupt="fallback") as manager:
        assert "page" in str(manager.repair(dry_run=True))
        report = manager.repair()
        assert "new file" in str(report)
        assert all(manager.verify()), str(report)
        assert manager.repair().clean
        for one in manager.list_checkpoints():
            loaded = manager.load_checkpoint(one.checkpoint_id)
            assert list(loaded["log"]) == [*range(1, one.step + 1)]  # type: ignore[index]
        fill(manager, run_id="new")
        newest = manager.storage.lease_of("run")  # type: ignore[attr-defined]
        assert newest is not None and newest.epoch >= lease.epoch
    assert [one.name for one in tmp_path.glob("runs.db.damaged-*")] != []


def test_pages_are_not_repaired_while_another_has_the_file_open(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with CheckpointManager(f"sqlite:///{path}") as manager:
        fill(manager)
    page = pages_of(path, "bodies")[-1]
    data = bytearray(path.read_bytes())
    data[page * PAGE - 40] ^= 1
    path.write_bytes(data)
    with (
        CheckpointManager(f"sqlite:///{path}") as one,
        CheckpointManager(f"sqlite:///{path}") as two,
    ):
        list(two.storage.runs(RunQuery()))
        with pytest.raises(StorageUnavailableError, match="another"):
            one.repair()


@pytest.mark.parametrize("fault", ["its first page", "its tables", "its end"])
def test_a_file_that_cannot_be_opened_is_salvaged(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "runs.db"
    with CheckpointManager(f"sqlite:///{path}") as manager:
        for run_id in "abcdef":
            fill(manager, run_id=run_id)
    data = bytearray(path.read_bytes())
    if fault == "its end":
        del data[-2 * PAGE :]
    elif fault == "its tables":
        data[data.index(b"CREATE TABLE records(") + 15] ^= 1
    else:
        data[2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=r"SQLiteStorage\.salvage"):
        CheckpointManager(f"sqlite:///{path}")
    told = SQLiteStorage.salvage(path)
    assert "new file" in told[0]
    (kept,) = tmp_path.glob("runs.db.damaged-*Z")
    assert kept.read_bytes() == data
    with CheckpointManager(f"sqlite:///{path}") as manager:
        manager.repair()
        assert all(manager.verify())
        whole = {run.run_id for run in manager.storage.runs(RunQuery()) if run.seq == 6}
        short = {run_id for run_id in "abcdef" if any(f"{run_id!r}" in line for line in told[1:])}
        assert whole | short >= set("abcdef")
        assert len(whole) >= 3
        assert {*map(str, tmp_path.iterdir())} >= {str(path), str(kept)}


def test_a_file_of_which_nothing_can_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with CheckpointManager(f"sqlite:///{path}") as manager:
        fill(manager)
    data = path.read_bytes()[:1000] + bytes(path.stat().st_size - 1000)
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="left as it is"):
        SQLiteStorage.salvage(path)
    assert path.read_bytes() == data
    assert [one.name for one in tmp_path.iterdir() if "salvaged" in one.name] == []


def test_every_medium_can_be_mended() -> None:
    for kind in (MemoryStorage, SQLiteStorage, FilesystemStorage):
        assert issubclass(kind, Repairable)


# Dying while it is repaired


_REPAIRS = """
import sys
from surehold import CheckpointManager
with CheckpointManager(sys.argv[1]) as manager:
    manager.repair()
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("medium", ["file", "sqlite-pages"])
def test_a_repair_that_is_killed_anywhere_can_be_done_again(tmp_path: Path, medium: str) -> None:
    sound = tmp_path / "sound"
    address = {"file": "file:{}", "sqlite-pages": "sqlite:///{}/runs.db"}[medium]
    state = State.new({"log": [], "big": "x" * 9_000}, run_id="run")
    # What compresses to nothing leaves pages mostly empty, and damage there loses no record.
    chance = random.Random(1)
    for n in range(6):
        # Every second save opens another file.
        with CheckpointManager(address.format(sound)) as manager:
            name = "ab"[n // 2 % 2]
            place = msgspec.structs.replace(state.place, name=name, step=n + 1)
            state = state.append("log", chance.randbytes(900).hex()).placed(place)
            manager.save_checkpoint(state)
    if medium == "file":
        with FilesystemStorage(sound) as storage:
            damage(storage, "run", 6)
    else:
        path = sound / "runs.db"
        data = bytearray(path.read_bytes())
        data[(pages_of(path, "bodies")[-1] - 1) * PAGE + 2000] ^= 1
        path.write_bytes(data)
    shutil.copytree(sound, tmp_path / "repaired")
    with CheckpointManager(address.format(tmp_path / "repaired")) as manager:
        manager.repair()
        expected = list(manager.resume_from_latest("run")["log"])
    assert 0 < len(expected) < 6
    killed = 0
    for call in ("linkat,link", "renameat,rename,renameat2", "unlinkat,unlink", "fsync,fdatasync"):
        for when in range(1, 60, 1 if FULL else 6):
            place_ = tmp_path / f"{call[:5]}-{when}"
            shutil.copytree(sound, place_)
            done = subprocess.run(
                [
                    *("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"),
                    *("-e", f"inject={call}:signal=KILL:when={when}"),
                    *(sys.executable, "-c", _REPAIRS, address.format(place_)),
                ],
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode == 0:
                break
            assert done.returncode in (-9, 137), done.stderr
            killed += 1
            with CheckpointManager(address.format(place_)) as manager:
                manager.repair()
                assert all(manager.verify())
                assert list(manager.resume_from_latest("run")["log"]) == expected
                assert manager.repair().clean
    assert killed >= 2
