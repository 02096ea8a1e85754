"""Processes that write at the same time: one wins each place, and what it was told is true."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.crash.media import DURABLE, FULL, manager_on, open_medium, strays, times
from tests.crash.processes import ForkServer

from surehold import State

MEDIA = DURABLE if FULL else ("sqlite", "file-gzip", "file-encrypted")

pytestmark = pytest.mark.timeout(1_800 if FULL else 600)


def run_all(
    server: ForkServer, function: str, medium: str, directory: Path, count: int, *rest: Any
) -> list[list[Any]]:
    """Let so many processes begin at once; all that they told."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                server.start(
                    f"tests.crash.racing:{function}",
                    medium,
                    str(directory),
                    number,
                    *rest,
                    begin=False,
                )
            )
            for number in range(count)
        ]
        for child in children:
            child.begin()
        told = [line for child in children for line in child.hear_all(600)]
        assert [child.wait() for child in children] == [0] * count, told[-1]
        return told


@pytest.mark.parametrize("processes", [2, 8, 32] if FULL else [2, 8])
@pytest.mark.parametrize("medium", MEDIA)
def test_of_processes_that_save_to_one_run_one_wins_each_place(
    medium: str, processes: int, tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    attempts = max(5, times(40, 16_000) // processes)
    with open_medium(medium, tmp_path) as storage:
        manager_on(storage, medium).save_checkpoint(State.new({"log": []}, run_id="shared"))
    told = run_all(server, "save_to_one_run", medium, tmp_path, processes, attempts)
    wins = [line[1:] for line in told if line[0] == "won"]
    lost = [line[1:] for line in told if line[0] == "lost"]
    won = {step: (me, attempt, checkpoint_id) for me, attempt, step, checkpoint_id in wins}
    assert len(won) + len(lost) == processes * attempts == len(told), "two won one step"
    with open_medium(medium, tmp_path) as storage:
        manager = manager_on(storage, medium)
        assert all(manager.verify())
        seqs = [record.header.seq for record in storage.read("shared")]
        assert seqs == list(range(1, len(seqs) + 1))
        entries = manager.list_checkpoints("shared")
        assert [entry.step for entry in reversed(entries)] == list(range(len(won) + 1))
        log = manager.resume_from_latest("shared")["log"]
        assert log == [[me, attempt] for _, (me, attempt, _) in sorted(won.items())]
        assert {entry.checkpoint_id for entry in entries if entry.step} == {
            id_ for _, _, id_ in won.values()
        }
    assert strays(tmp_path) == []
    finding(
        f"{processes} processes save to one run, {medium}",
        len(told),
        f"{len(won):,} won, {len(lost):,} conflicts, 0 gaps, 0 places taken twice",
    )


@pytest.mark.parametrize("medium", MEDIA)
def test_processes_that_begin_one_run_at_once_keep_what_each_was_told(
    medium: str, tmp_path: Path, server: ForkServer
) -> None:
    for number in range(20 if FULL else 3):
        directory = tmp_path / str(number)
        directory.mkdir()
        told = run_all(server, "begin_run", medium, directory, 4)
        won = {line[1]: line[2] for line in told if line[0] == "won"}
        assert won
        with open_medium(medium, directory) as storage:
            manager = manager_on(storage, medium)
            for me, checkpoint_id in won.items():
                state = manager.load_checkpoint(checkpoint_id)
                assert isinstance(state, State)
                assert state["me"] == me
            assert len(manager.list_checkpoints("new")) == len(won)
            assert all(manager.verify())


@pytest.mark.parametrize("medium", MEDIA)
def test_processes_on_runs_of_their_own_do_not_meet(
    medium: str, tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    processes, steps = 8, max(8, times(8, 200))
    told = run_all(server, "save_own_runs", medium, tmp_path, processes, steps)
    assert len(told) == processes * 3 * steps
    with open_medium(medium, tmp_path) as storage:
        manager = manager_on(storage, medium)
        assert len(manager.list_checkpoints("many")) == len(told)
        for _, run_id, step, checkpoint_id in told if FULL else told[::7]:
            state = manager.load_checkpoint(checkpoint_id)
            assert isinstance(state, State)
            assert (state.run_id, state["log"]) == (run_id, list(range(1, step + 1)))
        assert all(manager.verify())
    assert strays(tmp_path) == []
    finding(f"{processes} processes on {3 * processes} runs, {medium}", len(told), "0 lost")


def test_the_test_sees_saves_that_overwrite_each_other(
    tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    """A file that is read, added to and put in place whole: no save of it ever fails."""
    (tmp_path / "log").write_text("[]")
    told = run_all(server, "save_over", "none", tmp_path, 8, 50)
    kept = json.loads((tmp_path / "log").read_text())
    lost = sum(line[1:] not in kept for line in told)
    finding("saves that do not compare", len(told), f"{lost} of them lost", control=True)
    assert lost > 0
