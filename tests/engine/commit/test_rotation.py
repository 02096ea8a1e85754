"""Another key for what is encrypted, and none at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from surehold import CheckpointManager, FilesystemStorage, MemoryStorage, SQLiteStorage, State
from surehold.engine.crypto.sealer import key_notes
from surehold.errors import (
    ConflictError,
    NotFoundError,
    StorageUnavailableError,
    UsageError,
    WrongKeyError,
)
from surehold.storage.base import Batch, RecordQuery, RunQuery, Storage

OLD, NEW, OTHER = "6b" * 32, "7c" * 32, "8d" * 32

MEDIA: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda path: MemoryStorage(),
    "sqlite": lambda path: SQLiteStorage(path / "runs.db"),
    "file": lambda path: FilesystemStorage(path / "runs"),
    "file-zstd": lambda path: FilesystemStorage(path / "runs", compress="zstd"),
}


@pytest.fixture(params=MEDIA)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with MEDIA[request.param](tmp_path) as opened:
        yield opened


def manager(storage: Storage, key: str | None = OLD, *old_keys: str) -> CheckpointManager:
    return CheckpointManager(storage, encryption_key=key, old_keys=old_keys)


def begin(opened: CheckpointManager, *run_ids: str, name: str = "bot") -> None:
    for run_id in run_ids:
        state = State.new({"messages": []}, run_id=run_id, name=name)
        for step in range(1, 6):
            state = state.append("messages", f"message {step}").at(step=step)
            opened.save_checkpoint(state)


def wrapped(storage: Storage, run_id: str) -> list[bytes]:
    """The wrapped keys that a run's journal holds, the newest first."""
    notes = key_notes(storage, run_id)
    return [msgspec.json.decode(note.body)["wrapped"].encode() for note in notes]


def can_read(opened: CheckpointManager, run_id: str) -> bool:
    try:
        state = opened.resume_from_latest(run_id)
    except WrongKeyError:
        return False
    assert state["messages"][:5] == [f"message {step}" for step in range(1, 6)]
    return True


def is_sound(opened: CheckpointManager) -> bool:
    return not any(verdict.problems for verdict in opened.verify())


def test_rotated_runs_are_read_with_the_new_key_and_not_with_the_old(storage: Storage) -> None:
    begin(manager(storage), "a", "b")
    bodies = [record.body for record in storage.read("a") if record.header.kind == "routine"]
    assert manager(storage, NEW, OLD).rotate_keys() == 2
    new, old = manager(storage, NEW), manager(storage, OLD)
    for run_id in ("a", "b"):
        assert can_read(new, run_id)
        assert not can_read(old, run_id)
        assert len(wrapped(storage, run_id)) == 1
    assert is_sound(new)
    assert [r.body for r in storage.read("a") if r.header.kind == "routine"] == bodies
    state = new.resume_from_latest("a")
    new.save_checkpoint(state.append("messages", "one more").at(step=6))
    assert is_sound(new)


def test_rotating_again_changes_nothing(storage: Storage) -> None:
    begin(manager(storage), "a")
    both = manager(storage, NEW, OLD)
    assert both.rotate_keys() == 1
    before = list(storage.read("a"))
    assert both.rotate_keys() == 0
    assert manager(storage, NEW).rotate_keys() == 0
    assert list(storage.read("a")) == before


def test_only_the_runs_that_are_named_are_rotated(storage: Storage) -> None:
    old = manager(storage)
    begin(old, "a", "b", name="x")
    begin(old, "c", name="y")
    both = manager(storage, NEW, OLD)
    assert both.rotate_keys("a") == 1
    assert [can_read(manager(storage, NEW), run_id) for run_id in "abc"] == [True, False, False]
    assert both.rotate_keys("x") == 1
    assert [can_read(manager(storage, NEW), run_id) for run_id in "abc"] == [True, True, False]
    with pytest.raises(NotFoundError, match="nothing"):
        both.rotate_keys("nothing")


def test_a_run_whose_key_is_not_at_hand_is_told_of_after_the_others_are_done(
    storage: Storage,
) -> None:
    begin(manager(storage), "a")
    begin(manager(storage, OTHER), "foreign")
    begin(manager(storage), "b")
    with pytest.raises(WrongKeyError, match="foreign"):
        manager(storage, NEW, OLD).rotate_keys()
    assert can_read(manager(storage, NEW), "a") and can_read(manager(storage, NEW), "b")
    assert can_read(manager(storage, OTHER), "foreign")


def test_a_run_that_is_not_encrypted_is_left_alone(storage: Storage) -> None:
    begin(manager(storage, None), "plain")
    before = list(storage.read("plain"))
    assert manager(storage, NEW, OLD).rotate_keys() == 0
    assert list(storage.read("plain")) == before


def test_rotating_takes_a_key(storage: Storage) -> None:
    with pytest.raises(UsageError, match="old_keys"):
        manager(storage, None).rotate_keys()


def test_a_process_that_holds_a_run_goes_on_while_it_is_rotated(storage: Storage) -> None:
    old = manager(storage)
    begin(old, "a")
    state = old.resume_from_latest("a")
    assert manager(storage, NEW, OLD).rotate_keys() == 1
    old.save_checkpoint(state.append("messages", "meanwhile").at(step=6))
    new = manager(storage, NEW)
    assert new.resume_from_latest("a")["messages"][-1] == "meanwhile"
    assert is_sound(new)


def test_saves_that_come_between_do_not_stop_a_rotation(storage: Storage) -> None:
    old = manager(storage)
    begin(old, "a")
    both = manager(storage, NEW, OLD)
    both.save_checkpoint(both.resume_from_latest("a").set("mine", 1).at(step=6))
    state = old.resume_from_latest("a")
    old.save_checkpoint(state.append("messages", "theirs").at(step=7))
    assert both.rotate_keys() == 1
    assert manager(storage, NEW).resume_from_latest("a")["messages"][-1] == "theirs"


def test_erased_keys_are_gone_from_the_files(tmp_path: Path) -> None:
    for medium in ("sqlite", "file", "file-zstd"):
        folder = tmp_path / medium
        folder.mkdir()
        with MEDIA[medium](folder) as opened:
            begin(manager(opened), "a", "b")
            first = wrapped(opened, "a")
            manager(opened, NEW, OLD).rotate_keys()
            second = wrapped(opened, "a")
            assert not holds(folder, first)
            manager(opened, NEW).shred_run("a")
            assert not holds(folder, second)
            assert wrapped(opened, "b")
        assert not holds(folder, [*first, *second])


def holds(folder: Path, needles: Sequence[bytes]) -> bool:
    data = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return any(needle in data for needle in needles)


class Failing(MemoryStorage):
    """Its n-th write fails, before or after it is carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1
        self.after = False

    def _write(self, write: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left != 0:
            return write()
        if self.after:
            write()
        raise StorageUnavailableError("the power is gone")

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        whole = super().append
        return self._write(lambda: whole(batches))  # type: ignore[no-any-return]

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        whole = super().delete
        return self._write(lambda: whole(run_id, hide=hide, erase=erase))  # type: ignore[no-any-return]


@pytest.mark.parametrize("after", [False, True])
def test_a_rotation_that_is_interrupted_anywhere_can_be_gone_on_with(after: bool) -> None:
    interrupted = 0
    for number in range(1, 20):
        storage = Failing()
        begin(manager(storage), "a", "b", "c")
        storage.left, storage.after = number, after
        try:
            manager(storage, NEW, OLD).rotate_keys()
        except StorageUnavailableError:
            interrupted += 1
        storage.left = -1
        both = manager(storage, NEW, OLD)
        assert all(can_read(both, run_id) for run_id in "abc")
        assert is_sound(both)
        both.rotate_keys()
        assert all(can_read(manager(storage, NEW), run_id) for run_id in "abc")
        assert not any(can_read(manager(storage, OLD), run_id) for run_id in "abc")
        assert all(len(wrapped(storage, run_id)) == 1 for run_id in "abc")
        assert is_sound(both)
        assert both.rotate_keys() == 0
    assert interrupted == 6


def test_a_shredded_run_cannot_be_read_by_anyone(storage: Storage) -> None:
    opened = manager(storage)
    begin(opened, "a", "b")
    checkpoint_id = opened.list_checkpoints("a")[0].checkpoint_id
    headers = list(storage.headers(RecordQuery(run_id="a")))
    assert opened.shred_run("a") is True
    assert wrapped(storage, "a") == []
    for reader in (opened, manager(storage), manager(storage, None), manager(storage, OTHER)):
        for read in (
            lambda one: one.load_checkpoint(checkpoint_id),
            lambda one: one.resume_from_latest("a"),
            lambda one: one.fork_from_checkpoint(checkpoint_id),
            lambda one: one.export_json("a"),
        ):
            with pytest.raises(WrongKeyError, match="was erased") as caught:
                read(reader)
            assert isinstance(caught.value.erased_at, datetime)
    assert list(storage.headers(RecordQuery(run_id="a"))) == headers
    assert can_read(opened, "b")


def test_shredding_is_told_from_damage(storage: Storage) -> None:
    opened = manager(storage)
    begin(opened, "a")
    opened.shred_run("a")
    problems = opened.verify("a")[0].problems
    assert problems
    assert all("was erased" in problem for problem in problems)


def test_shredding_needs_no_key_and_can_be_repeated(storage: Storage) -> None:
    begin(manager(storage), "a")
    stranger = manager(storage, None)
    assert stranger.shred_run("a") is True
    assert stranger.shred_run("a") is False
    assert not can_read(manager(storage), "a")


def test_a_shredded_run_takes_no_more_states(storage: Storage) -> None:
    opened = manager(storage)
    begin(opened, "a")
    state = opened.resume_from_latest("a")
    opened.shred_run("a")
    with pytest.raises(WrongKeyError):
        opened.save_checkpoint(state.set("more", 1).at(step=9))
    assert opened.delete_run("a") > 0
    begin(opened, "a")
    assert can_read(opened, "a")


def test_what_is_not_encrypted_cannot_be_shredded(storage: Storage) -> None:
    opened = manager(storage, None)
    begin(opened, "a")
    with pytest.raises(UsageError, match="delete_run"):
        opened.shred_run("a")
    with pytest.raises(NotFoundError):
        opened.shred_run("nothing")
    assert opened.resume_from_latest("a")["messages"]


def test_a_shredded_run_is_not_exported(storage: Storage, tmp_path: Path) -> None:
    opened = manager(storage)
    begin(opened, "a")
    opened.shred_run("a")
    with pytest.raises(WrongKeyError, match="erased"):
        opened.export_run("a", tmp_path / "a.surehold")
    assert not (tmp_path / "a.surehold").exists()


def test_a_checkpoint_of_the_kind_key_is_not_taken_for_a_key(storage: Storage) -> None:
    opened = manager(storage)
    begin(opened, "a")
    state = opened.resume_from_latest("a")
    opened.save_checkpoint(state.at(step=6, kind="key"))
    assert can_read(manager(storage), "a")
    assert manager(storage, NEW, OLD).rotate_keys() == 1
    assert can_read(manager(storage, NEW), "a")


def test_runs_with_a_passphrase_are_rotated_too() -> None:
    with MemoryStorage() as storage:
        begin(manager(storage, "a rather long passphrase"), "a")
        new = manager(storage, "another long passphrase", "a rather long passphrase")
        assert new.rotate_keys() == 1
        assert new.rotate_keys() == 0
        assert can_read(manager(storage, "another long passphrase"), "a")
        assert [run.run_id for run in storage.runs(RunQuery())] == ["a"]


def test_a_process_that_holds_a_run_notices_that_it_was_shredded(storage: Storage) -> None:
    holder = manager(storage)
    begin(holder, "a")
    state = holder.resume_from_latest("a")
    manager(storage).shred_run("a")
    with pytest.raises(WrongKeyError, match="was erased"):
        holder.save_checkpoint(state.append("messages", "too late").at(step=6))
    assert wrapped(storage, "a") == []
