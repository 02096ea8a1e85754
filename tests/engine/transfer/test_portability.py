"""Runs that travel: as files, as copies, as JSON."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from surehold import (
    AgentState,
    CheckpointManager,
    FilesystemStorage,
    MemoryStorage,
    Rules,
    SQLiteStorage,
    State,
    StateManager,
    Storage,
)
from surehold.core.policy.redaction import make_rules
from surehold.core.records import Header
from surehold.core.values.frozen import DEPTH_LIMIT
from surehold.errors import (
    ConflictError,
    EncodeError,
    NotFoundError,
    StorageError,
    StorageUnavailableError,
    UsageError,
    WrongKeyError,
)
from surehold.storage.base import Batch, RecordQuery, RunQuery

KEY = "6b" * 32
OTHER_KEY = "7c" * 32

MEDIA: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda path: MemoryStorage(),
    "sqlite": lambda path: SQLiteStorage(path / "runs.db"),
    "sqlite-zstd": lambda path: SQLiteStorage(path / "runs.db", compress="zstd"),
    "file": lambda path: FilesystemStorage(path / "runs"),
    "file-gzip": lambda path: FilesystemStorage(path / "runs", compress=True),
}

_numbers = itertools.count(1)


@pytest.fixture(params=[None, KEY], ids=["plain", "encrypted"])
def key(request: pytest.FixtureRequest) -> str | None:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=MEDIA)
def medium(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_on(tmp_path: Path) -> Iterator[Callable[..., CheckpointManager]]:
    """Opens a manager on a new storage of that medium."""
    opened: list[Storage] = []

    def open_one(medium: str, key: str | None = None, **options: Any) -> CheckpointManager:
        folder = tmp_path / f"storage{next(_numbers)}"
        folder.mkdir()
        opened.append(MEDIA[medium](folder))
        return CheckpointManager(opened[-1], encryption_key=key, **options)

    yield open_one
    for storage in opened:
        storage.close()


def begin(manager: CheckpointManager, steps: int = 12, run_id: str = "nightly") -> list[str]:
    """A run with deltas and keyframes, a nested scope, a pin, a tag and a note of its own."""
    state = State.new({"messages": [], "when": datetime(2026, 5, 1, tzinfo=UTC)}, run_id=run_id)
    nested = State.new({"n": 0}, run_id=run_id).at(scope="inner")
    ids = []
    for step in range(1, steps + 1):
        state = state.append("messages", {"role": "user", "content": f"{step} " * 200})
        state = state.set("pair", (step, {step})).at(step=step, node="ask")
        ids.append(manager.save_checkpoint(state))
        if step % 4 == 0:
            nested = nested.set("n", step).at(step=step)
            manager.save_checkpoint(nested)
    manager.pin(ids[-2])
    manager.tag(ids[-1], "good")
    return ids


def everything(manager: CheckpointManager, run_id: str = "nightly") -> list[tuple[Any, ...]]:
    """What can be seen of a run: every checkpoint, and its state."""
    found = []
    for one in manager.list_checkpoints(run_id):
        loaded = manager.load_checkpoint(one.checkpoint_id)
        assert isinstance(loaded, State)
        facts = (one.checkpoint_id, one.seq, one.step, one.node, one.kind, one.status, one.scope)
        found.append((*facts, one.timestamp, one.tags, one.metadata, loaded.to_dict()))
    return found


def prune(manager: CheckpointManager, key: str | None, keep: int = 3) -> None:
    pruner = CheckpointManager(
        manager.storage, encryption_key=key, retention=Rules(keep_last=keep, group_by="run")
    )
    assert pruner.cleanup_old_checkpoints("nightly") > 0


def shape_of(tree: dict[str | None, list[str]]) -> list[int]:
    return [len(children) for children in tree.values()]


def is_sound(manager: CheckpointManager, run_id: str = "nightly") -> bool:
    return all(not verdict.problems for verdict in manager.verify(run_id))


def run_ids(manager: CheckpointManager) -> list[str]:
    return [run.run_id for run in manager.storage.runs(RunQuery())]


# Files


def test_a_run_comes_back_from_its_file_record_by_record(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, medium: str, key: str | None
) -> None:
    source, target = open_on(medium, key), open_on(medium, key)
    begin(source)
    told = source.export_run("nightly", tmp_path / "a.surehold")
    assert target.import_run(tmp_path / "a.surehold") == "nightly"
    assert list(target.storage.read("nightly")) == list(source.storage.read("nightly"))
    assert everything(target) == everything(source)
    assert is_sound(target)
    assert (told.content, told.encrypted) == ("sealed", key is not None)
    state = target.resume_from_latest("nightly")
    target.save_checkpoint(state.set("more", True).at(step=99))
    assert target.resume_from_latest("nightly")["more"] is True


def test_a_pruned_run_comes_back_with_its_gaps_and_what_is_hidden(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, medium: str, key: str | None
) -> None:
    source, target = open_on(medium, key), open_on(medium, key)
    begin(source, 40)
    prune(source, key)
    told = source.export_run("nightly", tmp_path / "a.surehold")
    assert told.records < told.last
    assert told.hidden
    target.import_run(tmp_path / "a.surehold")
    assert list(target.storage.read("nightly")) == list(source.storage.read("nightly"))
    assert everything(target) == everything(source)
    assert is_sound(target)


def test_a_run_goes_from_each_medium_to_each_other(
    open_on: Callable[..., CheckpointManager], tmp_path: Path
) -> None:
    home = open_on("memory", KEY)
    begin(home, 20)
    before, at = everything(home), home
    for number, medium in enumerate([*MEDIA, "memory"]):
        following = open_on(medium, KEY)
        at.export_run("nightly", tmp_path / f"{number}.surehold")
        following.import_run(tmp_path / f"{number}.surehold")
        at = following
    assert everything(at) == before
    assert list(at.storage.read("nightly")) == list(home.storage.read("nightly"))


def test_another_run_id_seals_the_records_anew(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, medium: str, key: str | None
) -> None:
    manager = open_on(medium, key)
    begin(manager, 30)
    prune(manager, key)
    manager.export_run("nightly", tmp_path / "a.surehold")
    assert manager.import_run(tmp_path / "a.surehold", "twin") == "twin"
    assert [row[1:] for row in everything(manager, "twin")] == [
        row[1:] for row in everything(manager)
    ]
    assert is_sound(manager, "twin")
    assert shape_of(manager.get_checkpoint_tree("twin")) == shape_of(
        manager.get_checkpoint_tree("nightly")
    )
    twins = [record.header for record in manager.storage.read("twin")]
    assert {header.run_id for header in twins} == {"twin"}
    ours = {record.header.digest for record in manager.storage.read("nightly")}
    assert not ours & {header.digest for header in twins}


def test_a_run_that_is_there_is_not_imported_over(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, medium: str
) -> None:
    manager = open_on(medium)
    begin(manager)
    manager.export_run("nightly", tmp_path / "a.surehold")
    before = everything(manager)
    with pytest.raises(ConflictError, match="nightly") as caught:
        manager.import_run(tmp_path / "a.surehold")
    assert "another run_id" in caught.value.hint
    assert everything(manager) == before


def test_a_run_that_changed_its_name_can_be_imported(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, medium: str
) -> None:
    source, target = open_on(medium), open_on(medium)
    state = State.new({"n": 0}, run_id="nightly", name="first")
    source.save_checkpoint(state)
    renamed = state.placed(msgspec.structs.replace(state.place, name="second", step=1))
    source.save_checkpoint(renamed.set("n", 1))
    source.export_run("nightly", tmp_path / "a.surehold")
    target.import_run(tmp_path / "a.surehold")
    assert everything(target) == everything(source)
    assert source.copy_run("nightly", open_on(medium).storage) == 2


def test_an_imported_run_is_stored_as_its_new_home_stores(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, medium: str
) -> None:
    plain, locked = open_on("memory"), open_on("memory", KEY)
    begin(plain)
    begin(locked)
    plain.export_run("nightly", tmp_path / "plain.surehold")
    locked.export_run("nightly", tmp_path / "locked.surehold")
    now_locked, now_plain = open_on(medium, KEY), open_on(medium)
    now_locked.import_run(tmp_path / "plain.surehold")
    now_plain.import_run(tmp_path / "locked.surehold", encryption_key=KEY)
    assert everything(now_locked) == everything(plain)
    assert everything(now_plain) == everything(locked)
    assert is_sound(now_locked) and is_sound(now_plain)
    assert all(b"SHE1" not in record.body for record in now_plain.storage.read("nightly"))
    for manager, key in ((now_locked, KEY), (now_plain, None)):
        again = CheckpointManager(manager.storage, encryption_key=key)
        state = again.resume_from_latest("nightly")
        again.save_checkpoint(state.set("more", 1).at(step=50))
        assert is_sound(again)


def test_a_file_under_another_key_is_brought_under_ours(
    open_on: Callable[..., CheckpointManager], tmp_path: Path
) -> None:
    source, target = open_on("memory", KEY), open_on("sqlite", OTHER_KEY)
    begin(source)
    source.export_run("nightly", tmp_path / "a.surehold")
    for given in (None, "8d" * 32):
        with pytest.raises(WrongKeyError):
            target.import_run(tmp_path / "a.surehold", encryption_key=given)
    assert run_ids(target) == []
    target.import_run(tmp_path / "a.surehold", encryption_key=KEY)
    assert everything(target) == everything(source)


def test_an_encrypted_file_without_a_key_says_so(
    open_on: Callable[..., CheckpointManager], tmp_path: Path
) -> None:
    source, target = open_on("memory", KEY), open_on("memory")
    begin(source)
    source.export_run("nightly", tmp_path / "a.surehold")
    with pytest.raises(WrongKeyError, match="encrypted"):
        target.import_run(tmp_path / "a.surehold")
    assert run_ids(target) == []


def test_a_file_can_be_encrypted_with_a_key_of_its_own_or_with_none(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, key: str | None
) -> None:
    source = open_on("memory", key)
    begin(source, 30)
    prune(source, key)
    sealed = source.export_run("nightly", tmp_path / "own.surehold", encryption_key=OTHER_KEY)
    assert (sealed.content, sealed.encrypted) == ("resealed", True)
    clear = source.export_run("nightly", tmp_path / "clear.surehold", decrypt=True)
    assert clear.encrypted is False
    theirs, anyone = open_on("sqlite", OTHER_KEY), open_on("sqlite")
    theirs.import_run(tmp_path / "own.surehold")
    anyone.import_run(tmp_path / "clear.surehold")
    assert everything(theirs) == everything(source) == everything(anyone)
    assert is_sound(theirs) and is_sound(anyone)
    with pytest.raises(UsageError):
        source.export_run("nightly", tmp_path / "x", decrypt=True, encryption_key=KEY)


def test_secrets_are_taken_out_of_everything_that_a_file_holds(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, medium: str, key: str | None
) -> None:
    source, target = open_on(medium, key), open_on(medium)
    secret = "sk-abcdefghij0123456789"
    state = State.new({"messages": [], "api_key": secret, "kept": (1, 2)}, run_id="nightly")
    for step in range(1, 20):
        state = state.append("messages", f"{step}: the key is {secret}, do not tell")
        if step > 9:
            state = state.set("api_key", f"{secret}{step}")
        source.save_checkpoint(state.at(step=step, metadata={"note": f"uses {secret}"}))
    path = tmp_path / "a.surehold"
    told = source.export_run("nightly", path, redact=make_rules(), decrypt=key is not None)
    assert (told.content, told.redacted.keys()) == ("redacted", {"api_key"})
    target.import_run(path)
    assert is_sound(target)
    for record in target.storage.read("nightly"):
        text = target.reader.sealer.open(record)
        assert secret.encode() not in record.text + text
    loaded = target.resume_from_latest("nightly")
    assert loaded["kept"] == (1, 2)
    assert loaded["messages"][3] == "4: the key is [redacted:api_key], do not tell"
    assert [entry.checkpoint.step for entry in target.history("nightly")] == [*range(1, 20)]


def test_what_is_left_over_of_a_pruned_run_is_left_out_of_a_redacted_file(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, key: str | None
) -> None:
    """Hidden checkpoints of one scope may be built on what a prune took for another."""
    source, target = open_on("sqlite", key), open_on("file", key)
    begin(source, 40)
    prune(source, key)
    source.export_run("nightly", tmp_path / "a.surehold", redact=make_rules())
    target.import_run(tmp_path / "a.surehold")
    assert everything(target) == everything(source)
    assert is_sound(target)
    kinds = [record.header.kind for record in target.storage.read("nightly")]
    assert "blank" in kinds


def test_a_function_can_redact(open_on: Callable[..., CheckpointManager], tmp_path: Path) -> None:
    source, target = open_on("memory"), open_on("memory")
    begin(source)

    def without_messages(values: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if key != "messages"}

    source.export_run("nightly", tmp_path / "a.surehold", redact=without_messages)
    target.import_run(tmp_path / "a.surehold")
    before = {row[0]: row[-1] for row in everything(source)}
    for row in everything(target):
        assert row[-1] == without_messages(before[row[0]])
    with pytest.raises(UsageError, match="redact"):
        source.export_run("nightly", tmp_path / "b.surehold", redact="all")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="dict"):
        source.export_run("nightly", tmp_path / "b.surehold", redact=lambda values: 5)
    assert not (tmp_path / "b.surehold").exists()


def test_a_file_is_for_its_owner_and_never_written_over_another(
    open_on: Callable[..., CheckpointManager], tmp_path: Path
) -> None:
    manager = open_on("memory")
    begin(manager)
    folder = tmp_path / "out"
    folder.mkdir()
    path = folder / "a.surehold"
    manager.export_run("nightly", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = path.read_bytes()
    with pytest.raises(UsageError, match="overwrite"):
        manager.export_run("nightly", path)
    (folder / "link").symlink_to(path)
    with pytest.raises(UsageError, match="already"):
        manager.export_run("nightly", folder / "link")
    with pytest.raises(UsageError, match="directory"):
        manager.export_run("nightly", folder, overwrite=True)
    assert path.read_bytes() == written
    begin(manager, 3, "other")
    manager.export_run("other", path, overwrite=True)
    assert path.read_bytes() != written
    assert sorted(os.listdir(folder)) == ["a.surehold", "link"]


def test_a_failed_export_leaves_nothing(
    open_on: Callable[..., CheckpointManager], tmp_path: Path
) -> None:
    manager = open_on("memory", KEY)
    begin(manager)
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(NotFoundError, match="nothing"):
        manager.export_run("nothing", folder / "a")
    stranger = CheckpointManager(manager.storage, encryption_key=OTHER_KEY)
    with pytest.raises(WrongKeyError):
        stranger.export_run("nightly", folder / "a", decrypt=True)
    with pytest.raises(StorageError, match="written"):
        manager.export_run("nightly", folder / "missing" / "a")
    assert os.listdir(folder) == []


def test_a_file_is_a_storage_with_the_run_and_nothing_beside_it(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, medium: str, key: str | None
) -> None:
    source, folder = open_on(medium, key), tmp_path / "out"
    folder.mkdir()
    begin(source, 30)
    prune(source, key)
    told = source.export_run("nightly", folder / "a.surehold")
    assert os.listdir(folder) == ["a.surehold"]
    before = (folder / "a.surehold").read_bytes()
    with CheckpointManager(f"sqlite:///{folder}/a.surehold", encryption_key=key) as inside:
        assert everything(inside) == everything(source)
        assert list(inside.storage.read("nightly")) == list(source.storage.read("nightly"))
        assert run_ids(inside) == ["nightly"] and is_sound(inside)
        (run,) = inside.storage.runs(RunQuery())
        assert (run.seq, run.digest, run.checkpoints) == (told.last, told.head, told.checkpoints)
    assert (folder / "a.surehold").read_bytes() == before
    assert os.listdir(folder) == ["a.surehold"]


def test_an_export_can_always_be_imported_however_well_it_packs(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, medium: str
) -> None:
    source, target = open_on("file"), open_on(medium)
    state = State.new({"text": "again " * 2_000_000, "n": 0}, run_id="nightly")
    source.save_checkpoint(state)
    source.save_checkpoint(state.set("n", 1).at(step=1))
    source.export_run("nightly", tmp_path / "a.surehold")
    target.import_run(tmp_path / "a.surehold")
    assert everything(target) == everything(source)


def test_the_deepest_state_that_can_be_saved_can_be_imported(
    open_on: Callable[..., CheckpointManager], tmp_path: Path
) -> None:
    source, target = open_on("memory"), open_on("memory")
    state, value = State.new({}, run_id="nightly"), {1: 1}
    for _ in range(DEPTH_LIMIT - 2):
        value = {1: value}  # type: ignore[dict-item]
    with pytest.raises(EncodeError):
        while True:
            state = state.set("deep", value)
            value = {1: value}  # type: ignore[dict-item]
    source.save_checkpoint(state)
    source.export_run("nightly", tmp_path / "a.surehold")
    target.import_run(tmp_path / "a.surehold")
    assert everything(target) == everything(source)


def test_the_awaited_manager_does_the_same(
    open_on: Callable[..., CheckpointManager], tmp_path: Path
) -> None:
    source = open_on("sqlite", KEY)
    begin(source)

    async def travel() -> tuple[str, int, str, int, bool]:
        async with StateManager(source.storage, encryption_key=KEY) as manager:
            await manager.export_run("nightly", tmp_path / "a.surehold")
            twin = await manager.import_run(tmp_path / "a.surehold", "twin")
            copied = await manager.copy_run("nightly", to=open_on("file").storage)
            text = await manager.export_json("nightly", "graph")
            rotated = await manager.rotate_keys()
            return twin, copied, text, rotated, await manager.shred_run("twin")

    twin, copied, text, rotated, shredded = asyncio.run(travel())
    assert (twin, copied) == ("twin", len(list(source.storage.read("nightly"))))
    assert json.loads(text)[0]["checkpoint_node"] == "ask"
    assert (rotated, shredded) == (0, True)
    assert everything(source)


# Copies


def test_a_copy_is_exact_and_copying_again_copies_nothing(
    open_on: Callable[..., CheckpointManager], medium: str, key: str | None
) -> None:
    source, target = open_on("memory", key), open_on(medium, key)
    begin(source, 30)
    prune(source, key)
    records = list(source.storage.read("nightly"))
    assert source.copy_run("nightly", to=target.storage) == len(records)
    assert source.copy_run("nightly", to=target.storage) == 0
    assert list(target.storage.read("nightly")) == records
    assert everything(target) == everything(source)
    assert is_sound(target)


def test_a_copy_is_brought_up_to_date(
    open_on: Callable[..., CheckpointManager], medium: str, key: str | None
) -> None:
    source, target = open_on(medium, key), open_on("memory", key)
    begin(source, 40)
    source.copy_run("nightly", to=target.storage)
    state = source.resume_from_latest("nightly")
    source.save_checkpoint(state.set("more", 1).at(step=41))
    assert source.copy_run("nightly", to=target.storage) == 1
    prune(source, key)
    assert source.copy_run("nightly", to=target.storage) >= 1
    assert target.resume_from_latest("nightly") == source.resume_from_latest("nightly")
    assert is_sound(target)


def test_a_copy_goes_to_an_address_as_well(
    open_on: Callable[..., CheckpointManager], tmp_path: Path
) -> None:
    source = open_on("memory")
    begin(source)
    source.copy_run("nightly", to=f"sqlite:///{tmp_path}/copy.db")
    with CheckpointManager(f"sqlite:///{tmp_path}/copy.db") as target:
        assert everything(target) == everything(source)


class Flaky(MemoryStorage):
    """Takes so many batches, then none."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        if self.left == 0:
            raise StorageUnavailableError("the line is dead")
        self.left -= 1
        return super().append(batches)


def test_a_copy_that_was_interrupted_goes_on(
    open_on: Callable[..., CheckpointManager], monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.setattr("surehold.storage.base._BATCH_RECORDS", 4)
    source, target = open_on("sqlite", key), Flaky(2)
    begin(source)
    with pytest.raises(StorageUnavailableError):
        source.copy_run("nightly", to=target)
    assert len(list(target.read("nightly"))) == 8
    target.left = 100
    records = list(source.storage.read("nightly"))
    assert source.copy_run("nightly", to=target) == len(records) - 8
    assert list(target.read("nightly")) == records


def test_a_copy_that_went_its_own_way_is_a_conflict_that_names_the_seq(
    open_on: Callable[..., CheckpointManager], medium: str
) -> None:
    source, target = open_on("memory"), open_on(medium)
    begin(source)
    source.copy_run("nightly", to=target.storage)
    common = len(list(source.storage.read("nightly")))
    for number, manager in enumerate((source, target)):
        for step in range(20, 22):
            state = manager.resume_from_latest("nightly")
            manager.save_checkpoint(state.set("who", number).at(step=step))
    with pytest.raises(ConflictError) as caught:
        source.copy_run("nightly", to=target.storage)
    assert caught.value.seq == common + 1
    assert target.resume_from_latest("nightly")["who"] == 1


def test_a_copy_that_is_ahead_is_left_as_it_is(open_on: Callable[..., CheckpointManager]) -> None:
    source, target = open_on("memory"), open_on("memory")
    begin(source)
    source.copy_run("nightly", to=target.storage)
    state = target.resume_from_latest("nightly")
    target.save_checkpoint(state.set("ahead", 1).at(step=20))
    assert source.copy_run("nightly", to=target.storage) == 0
    assert target.resume_from_latest("nightly")["ahead"] == 1


def test_a_copy_that_cannot_be_told_to_be_one_is_refused(
    open_on: Callable[..., CheckpointManager],
) -> None:
    source, target = open_on("memory"), open_on("memory")
    begin(source, 2)
    source.copy_run("nightly", to=target.storage)
    state = source.resume_from_latest("nightly")
    for step in range(3, 60):
        state = state.append("messages", "x" * 500).at(step=step)
        source.save_checkpoint(state)
    for checkpoint in source.list_checkpoints("nightly")[3:]:
        source.delete_checkpoint(checkpoint.checkpoint_id)
    with pytest.raises(ConflictError, match="were pruned"):
        source.copy_run("nightly", to=target.storage)


def test_copying_what_is_not_there_says_so(open_on: Callable[..., CheckpointManager]) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        open_on("memory").copy_run("nothing", to=MemoryStorage())


# JSON


def test_an_agent_state_is_exported_as_its_own_dict_with_iso_times(
    open_on: Callable[..., CheckpointManager],
) -> None:
    manager = open_on("sqlite")
    state = AgentState(agent_id="researcher", step_number=3, budget_spent_usd=0.25)
    state.conversation_history.append({"role": "user", "content": "hi"})
    state.extra["plan"] = ["look", "write"]
    checkpoint_id = manager.save_checkpoint(state)
    told = json.loads(manager.export_json(checkpoint_id))
    assert told == json.loads(json.dumps(state.to_dict()))
    assert AgentState.from_dict(told) == state


def test_a_fleet_checkpoint_has_the_fleets_keys_and_spelling(
    open_on: Callable[..., CheckpointManager],
) -> None:
    manager = open_on("memory")
    state = State.new(
        {"stall_count": 1, "last_response": "DELEGATE: coder", "context": {"user_query": "q"}},
        run_id="workflow_1",
    )
    first = manager.save_checkpoint(state.at(step=3, metadata={"user_input": "q"}))
    manager.save_checkpoint(state.set("current_round", 4).at(step=4, status="error"))
    told = json.loads(manager.export_json(first, "fleet"))
    moment = datetime.fromisoformat(told.pop("timestamp"))
    assert moment.tzinfo is not None
    assert told == {
        "checkpoint_id": first,
        "workflow_id": "workflow_1",
        "current_round": 3,
        "stall_count": 1,
        "last_response": "DELEGATE: coder",
        "context": {"user_query": "q"},
        "metadata": {"user_input": "q", "status": "in_progress", "round": 3},
    }
    both = json.loads(manager.export_json("workflow_1", "fleet"))
    assert [one["metadata"]["status"] for one in both] == ["in_progress", "error"]
    assert [one["current_round"] for one in both] == [3, 4]


def test_the_other_forms_and_values_that_json_has_no_word_for(
    open_on: Callable[..., CheckpointManager],
) -> None:
    manager = open_on("memory")
    state = State.new({"at": datetime(2026, 5, 1, tzinfo=UTC), "n": float("nan"), "k": {1: b"x"}})
    checkpoint_id = manager.save_checkpoint(state.at(node="ask", kind="recovery"))
    graph = json.loads(manager.export_json(checkpoint_id, "graph"))
    assert graph["data"] == {"at": "2026-05-01T00:00:00+00:00", "n": None, "k": {"1": "eA=="}}
    assert graph["checkpoint_node"] == "ask"
    resilient = json.loads(manager.export_json(checkpoint_id, "resilient"))
    assert (resilient["checkpoint_type"], resilient["version"]) == ("recovery", "1.0")
    with pytest.raises(UsageError, match="agent, fleet"):
        manager.export_json(checkpoint_id, "xml")  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        manager.export_json("nothing")


# Crashes


IMPORT_AND_DIE = """
import sys, pathlib
from surehold import CheckpointManager
with CheckpointManager(sys.argv[1]) as manager:
    print("ready", flush=True)
    manager.import_run(pathlib.Path(sys.argv[2]))
    print("done", flush=True)
"""


@pytest.mark.parametrize("address", ["sqlite:///{}/runs.db", "file://{}/runs"])
def test_an_import_that_is_killed_leaves_a_whole_run_or_none(
    open_on: Callable[..., CheckpointManager], tmp_path: Path, address: str
) -> None:
    source = open_on("memory")
    begin(source, 400)
    source.export_run("nightly", tmp_path / "a.surehold")
    whole = len(list(source.storage.read("nightly")))
    seen = set()
    for number, delay in enumerate([0.0, 0.05, 0.1, 0.15, 0.2, 0.3, None]):
        folder = tmp_path / f"target{number}"
        folder.mkdir()
        command = [sys.executable, "-c", IMPORT_AND_DIE, address.format(folder)]
        with subprocess.Popen(
            [*command, str(tmp_path / "a.surehold")], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            try:
                child.wait(delay)
            except subprocess.TimeoutExpired:
                child.kill()
        with CheckpointManager(address.format(folder)) as target:
            found = len(list(target.storage.read("nightly")))
            assert found in (0, whole)
            assert target.verify() == [] if found == 0 else is_sound(target)
            seen.add(found)
    assert whole in seen


@pytest.fixture
def pruned_while_read(tmp_path: Path) -> Iterator[CheckpointManager]:
    """A manager on a run that another one prunes after its visible records were listed."""
    with SQLiteStorage(tmp_path / "live.db") as storage:
        other = CheckpointManager(SQLiteStorage(tmp_path / "live.db"), retention=Rules(keep_last=2))
        state = State.new({"n": 0, "text": "kelp" * 50}, run_id="live")
        for step in range(1, 6):
            state = state.set("n", step).at(step=step)
            other.save_checkpoint(state)
        listed = storage.headers

        def headers(query: RecordQuery) -> Iterator[Header]:
            nonlocal state
            found = list(listed(query))
            for step in range(state.step + 1, 400 if state.step == 5 else 0):
                state = state.set("n", step).at(step=step)
                other.save_checkpoint(state)
            other.cleanup_old_checkpoints("live")
            return iter(found)

        storage.headers = headers  # type: ignore[method-assign]
        yield CheckpointManager(storage)
        other.close()


def test_a_run_that_is_pruned_while_it_is_exported_can_be_imported(
    pruned_while_read: CheckpointManager, tmp_path: Path
) -> None:
    pruned_while_read.export_run("live", tmp_path / "live.surehold")
    with CheckpointManager(MemoryStorage()) as there:
        there.import_run(tmp_path / "live.surehold")
        assert [one.step for one in there.list_checkpoints("live")] == [399, 398]
        assert there.resume_from_latest("live")["n"] == 399
        assert all(there.verify())


def test_the_json_of_a_run_that_is_saved_while_it_is_read_is_whole(
    pruned_while_read: CheckpointManager,
) -> None:
    rows = json.loads(pruned_while_read.export_json("live", "graph"))
    assert rows[-1]["data"] == {"n": 399, "text": "kelp" * 50}


def test_a_copy_of_a_run_that_is_pruned_while_it_is_read_is_sound(
    pruned_while_read: CheckpointManager,
) -> None:
    with CheckpointManager(MemoryStorage()) as there:
        pruned_while_read.copy_run("live", there.storage)
        assert [one.step for one in there.list_checkpoints("live")] == [399, 398]
        assert there.resume_from_latest("live")["n"] == 399
        assert all(there.verify())
