"""`surehold group`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import call

from surehold import CheckpointManager, State


def test_a_group_is_taken_forked_exported_and_pruned(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    with CheckpointManager(storage) as manager:
        for run_id in ("planner", "coder"):
            manager.save_checkpoint(State.new({"n": 1}, run_id=run_id).at(step=3))

    def on(*words: str, storage: str = storage) -> object:
        result = call("-s", storage, "group", *words, "--json")
        return result.json() if result.code == 0 else (result.code, result.err)

    first = on("checkpoint", "crew", "planner", "coder")
    assert [one["status"] for one in first["members"]] == ["current", "current"]  # type: ignore[index]
    (taken,) = first["checkpoints"]  # type: ignore[index]
    on("checkpoint", "crew")
    assert on("pin", "crew", taken["id"])["checkpoints"][1]["pinned"]  # type: ignore[index]
    assert on("prune", "crew")["dropped"] == []  # type: ignore[index]
    on("unpin", "crew", taken["id"])
    assert on("prune", "crew")["dropped"] == [taken["id"]]  # type: ignore[index]
    forked = on("fork", "crew", "try")
    assert [one["run_id"] for one in forked["members"]] == ["planner-try", "coder-try"]  # type: ignore[index]
    on("export", "crew", f"{tmp_path}/crew.zip")
    there = on("import", f"{tmp_path}/crew.zip", storage=f"file:{tmp_path}/there")
    assert [one["step"] for one in there["members"]] == [3, 3]  # type: ignore[index]
    code, text = on("checkpoint", "crew", "planner", "nobody")  # type: ignore[misc]
    assert code == 4 and "'nobody'" in text
    code, text = on("show", "none")  # type: ignore[misc]
    assert code == 4 and "surehold group checkpoint none" in text
    for wrong in (("show", "crew", "x"), ("dance", "crew"), ("fork", "crew")):
        assert on(*wrong)[0] == 2  # type: ignore[index]
