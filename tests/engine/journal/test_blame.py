"""Blame reads a run once, however many checkpoints appended to the list it asks about."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from surehold import CheckpointManager, SQLiteStorage, State
from surehold.engine.journal import append


def saved(manager: CheckpointManager, steps: int) -> list[str]:
    state = State.new({"messages": [], "n": 0}, run_id="r")
    ids = []
    for step in range(1, steps + 1):
        state = state.append("messages", {"text": f"message {step}"}).at(step=step)
        ids.append(manager.save_checkpoint(state))
    return ids


def cost(manager: CheckpointManager, path: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many states blame loads, and how many times it reads the storage."""
    loads, reads = [0], [0]
    load, read = manager.reader.load, manager.storage.read
    with monkeypatch.context() as patch:

        def counted_load(header: object) -> object:
            loads[0] += 1
            return load(header)  # type: ignore[arg-type]

        def counted_read(*args: object, **options: object) -> object:
            reads[0] += 1
            return read(*args, **options)  # type: ignore[arg-type]

        patch.setattr(manager.reader, "load", counted_load)
        patch.setattr(manager.storage, "read", counted_read)
        manager.blame("r", path)
    return loads[0], reads[0]


def test_blame_loads_at_most_two_states_whatever_the_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps in (50, 600):
        with SQLiteStorage(tmp_path / f"{steps}.db") as storage:
            manager = CheckpointManager(storage)
            ids = saved(manager, steps)
            loads, reads = cost(manager, "/messages/0/text", monkeypatch)
            assert loads <= 2
            assert reads <= 3 + steps // 100
            for index in (0, 7, steps - 1):
                blamed = manager.blame("r", f"/messages/{index}")
                assert blamed is not None and blamed.checkpoint_id == ids[index]


def test_blame_follows_lists_that_shrink_are_replaced_and_branch(tmp_path: Path) -> None:
    manager = CheckpointManager("memory://")
    state = State.new({"l": [0, 1, 2]}, run_id="r")
    first = manager.save_checkpoint(state)
    state = state.append("l", 3).at(step=1)
    second = manager.save_checkpoint(state)
    state = state.set("l", [0, 1, 3]).at(step=2)
    third = manager.save_checkpoint(state)
    state = state.append("l", 4).at(step=3)
    fourth = manager.save_checkpoint(state)
    found = [manager.blame("r", f"/l/{index}") for index in range(4)]
    ids = [one.checkpoint_id for one in found if one is not None]
    assert len(ids) == 4 and ids[3] == fourth
    assert ids[0] in (first, third) and ids[2] == third
    assert second not in ids


def written_at_random(manager: CheckpointManager, seed: int, steps: int) -> dict[str, str]:
    """Save *steps* random changes; returns the checkpoint that last wrote each path."""
    dice = random.Random(seed)
    state = State.new({"fixed": 1, "a/b": 0, "list": [], "rare": [0]}, run_id="r")
    writers = dict.fromkeys(("/fixed", "/a~1b", "/list", "/rare", "/rare/0"), "first")
    ids = {"first": manager.save_checkpoint(state)}
    items: list[int] = []
    for step in range(1, steps + 1):
        label = str(step)
        state = state.set("tick", step).at(step=step)
        writers["/tick"] = label
        match dice.choice(("append", "append", "append", "several", "rare", "slash", "none")):
            case "append":
                items.append(step)
                writers |= {"/list": label, f"/list/{len(items) - 1}": label}
            case "several":
                items += [step, -step]
                writers |= {"/list": label} | {f"/list/{len(items) - n}": label for n in (1, 2)}
            case "rare" if items and dice.random() < 0.05:
                place = dice.randrange(len(items))
                items[place] = -1000 - step
                writers |= {"/list": label, f"/list/{place}": label}
            case "slash" if dice.random() < 0.05:
                state = state.set("a/b", step)
                writers["/a~1b"] = label
            case _:
                pass
        state = state.set("list", [*items])
        ids[label] = manager.save_checkpoint(state)
    return {path: ids[label] for path, label in writers.items()}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("known", [True, False])
def test_blame_names_the_last_writer_with_and_without_what_keyframes_know(
    seed: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = append.checkpoint_body
    if not known:  # as older versions wrote them
        monkeypatch.setattr(append, "checkpoint_body", lambda *parts: body(*parts[:4]))
    monkeypatch.setattr("surehold.engine.journal.changes._AT_A_TIME", 24)
    manager = CheckpointManager("memory://")
    writers = written_at_random(manager, seed, 600)
    for path in dict.fromkeys([*[*writers][::7], "/fixed", "/a~1b", "/rare/0", "/list/0"]):
        found = manager.blame("r", path)
        assert found is not None and found.checkpoint_id == writers[path], path


def test_what_keyframes_know_survives_a_restart(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    with CheckpointManager(address) as manager:
        first = manager.save_checkpoint(State.new({"fixed": 1, "n": 0}, run_id="r"))
    for start in range(1, 400, 50):
        with CheckpointManager(address) as manager:
            state = manager.resume_from_latest("r")
            for step in range(start, start + 50):
                assert isinstance(state, State)
                state = state.set("n", step).at(step=step)
                newest = manager.save_checkpoint(state)
    with CheckpointManager(address) as manager:
        loaded = manager.reader.load(manager.reader.resolve(newest))
        assert loaded.written == {"fixed": (1, 1), "n": (401, 401)}
        found = manager.blame("r", "fixed")
        assert found is not None and found.checkpoint_id == first


def test_blame_of_a_value_that_never_changed_reads_few_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        manager = CheckpointManager(storage)
        ids = saved(manager, 2_000)
        rows: list[int] = []
        read = storage.read

        def counted(run_id: str, first: int, last: int) -> object:
            found = [*read(run_id, first=first, last=last)]
            rows.append(len(found))
            return iter(found)

        for path, step in (("/n", 0), ("/messages/0", 0), ("/messages/1000/text", 1000)):
            rows.clear()
            with monkeypatch.context() as patch:
                patch.setattr(storage, "read", counted)
                blamed = manager.blame("r", path)
            assert blamed is not None and blamed.checkpoint_id == ids[step]
            assert sum(rows) < 1_200, (path, rows)
