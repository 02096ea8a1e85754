"""The commands that look: runs, log, show, cat, diff, blame, status, stats, watch, tree."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders.held import save_under
from tests.cli.conftest import Surehold, call

import surehold
from surehold import CheckpointManager, SQLiteStorage, State, StateManager
from surehold.demo.graph import OFFLINE, graph
from surehold.engine.journal import Note
from surehold.engine.leases import RunLease
from surehold.errors import StorageFullError
from surehold.storage.memory.storage import MemoryStorage
from surehold.views.forks import draw, newest_first

FAMILY = ["report-mon-kids", "report-wed", "report-tue", "report-mon", "crawl"]


def test_runs_lists_status_steps_size_cost_and_forks(on: Surehold) -> None:
    lines = on("runs").out.splitlines()
    assert lines[0].split() == [
        *("RUN", "NAME", "STATUS", "STEPS", "LAST", "CHECKPOINT", "SIZE", "COST", "FORKS")
    ]
    assert [line.split()[0] for line in lines[1:6]] == FAMILY
    assert "report (fork of report-mon@3)  completed" in lines[1]
    assert "waiting        5" in lines[2] and "$0.021" in lines[2]
    assert lines[4].endswith("$0.021      1")
    assert lines[-1] == "5 runs, $0.059"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["report"], FAMILY[:4]),
        (["--status", "failed"], ["report-tue"]),
        (["--status", "error"], ["report-tue"]),
        (["--status", "stale"], []),
        (["--search", "WED"], ["report-wed"]),
        (["--search", "ConnectionError"], ["report-tue"]),
        (["--where", "error=ConnectionError"], ["report-tue"]),
        (["--sort", "steps", "-n", "2"], ["report-mon", "report-mon-kids"]),
        (["--sort", "name", "-n", "1"], ["crawl"]),
        (["-n", "2"], FAMILY[:2]),
        (["-n", "2", "--all"], FAMILY),
    ],
)
def test_runs_are_filtered_searched_and_sorted(
    on: Surehold, words: list[str], found: list[str]
) -> None:
    document = on("runs", *words, "--json").json()
    ids = [run["run_id"] for run in document["runs"]]
    assert sorted(ids) == sorted(found)
    assert document["more"] is ("-n" in words and "--all" not in words)


def test_runs_that_wait_are_found_under_either_stored_status(
    on: Surehold, manager: CheckpointManager
) -> None:
    def found(status: str) -> list[str]:
        return [run["run_id"] for run in on("runs", "--status", status, "--json").json()["runs"]]

    waiting, interrupted = found("waiting"), found("interrupted")
    # Versions before the status `waiting` stored such a run so.
    manager.save_checkpoint(State.new({}, run_id="old").at(status="interrupted"))
    manager.append_notes("old", [Note(kind="question", content={"text": "Publish?"})])
    manager.save_checkpoint(State.new({}, run_id="stopped").at(status="interrupted"))
    assert found("waiting") == ["old", *waiting]
    assert found("interrupted") == ["stopped", *interrupted]


def test_runs_as_lines_are_one_for_each(on: Surehold) -> None:
    lines = on("runs", "--jsonl").lines()
    assert [line["run_id"] for line in lines] == FAMILY
    assert {line["type"] for line in lines} == {"run"}
    kids = lines[0]["forked_from"]
    assert (kids["run_id"], kids["step"]) == ("report-mon", 3)


def test_log_shows_what_each_step_changed_with_effects_and_marks(on: Surehold) -> None:
    out = on("log", "report-mon").out
    assert 'tool: kelp is a brown alga; facts + "kelp is a brown alga"' in out
    assert 'search@3 "kelp is a brown alga" ($0.002)' in out
    assert 'approve@6: "Publish the report on kelp?"' in out
    assert "completed #published" in out
    assert [line.split()[0] for line in out.splitlines() if " pinned" in line] == ["3"]
    steps = [row["step"] for row in on("log", "report-mon", "--json").json()["checkpoints"]]
    assert steps == sorted(steps, reverse=True) and steps[-1] == 0


def test_log_is_limited_and_says_so(on: Surehold) -> None:
    result = on("log", "report-mon", "-n", "2")
    assert len(result.out.splitlines()) == 1 + 2 + 2  # heads, steps, question and answer
    assert "--all" in result.err
    assert on("log", "report-mon", "-n", "2", "--json").json()["more"] is True
    assert on("log", "report-mon", "--all", "--json").json()["more"] is False


def test_log_graph_draws_forks_in_lanes(on: Surehold) -> None:
    lines = [line.split("  ")[0] for line in on("log", "report-mon", "--graph").out.splitlines()]
    assert lines == ["*", "*", "*", "*", "| *", "| *", "| *", "| *", "|/", "*", "*", "*", "*"]
    same = on("log", "report-mon-kids", "-g").out
    assert same == on("log", "report-mon", "-g").out


def test_log_graph_shows_no_checkpoint_as_the_origin_of_another_that_was_left_out(
    on: Surehold, manager: CheckpointManager
) -> None:
    """A lane ends where its origin is shown; the lanes of others stand beside it until the end."""
    manager.save_checkpoint(State.new({"n": 1}, run_id="essay"))
    for name in ("warm", "cold"):
        origin = manager.list_checkpoints("essay")[0].checkpoint_id
        manager.fork_from_checkpoint(origin, f"essay-{name}")
        state = manager.resume_from_latest(f"essay-{name}")
        manager.save_checkpoint(state.merge({"n": name}).at(step=2))
    cut = on("log", "essay", "--graph", "-n", "4").out
    assert [line.split("  ")[0] for line in cut.splitlines()] == ["*", "*", "| *", "| *"]
    whole = on("log", "essay", "--graph", "--all").out
    lanes = [line.split("  ")[0] for line in whole.splitlines()]
    assert lanes == ["*", "*", "| *", "| *", "|/", "*"]


def test_log_operations_shows_every_record(on: Surehold, manager: CheckpointManager) -> None:
    rows = on("log", "report-wed", "--operations", "--all", "--json").json()["checkpoints"]
    run = manager.reader.run("report-wed")
    assert run is not None
    assert [row["seq"] for row in rows] == list(range(run.seq, 0, -1))
    assert "note: effect" in on("log", "report-wed", "-o").out


@pytest.mark.parametrize("command", ["log", "show", "diff"])
def test_a_name_of_several_runs_says_which_was_taken(on: Surehold, command: str) -> None:
    result = on(command, "report")
    assert result.err.startswith("using report-mon-kids, the newest of 4 runs named 'report'")
    assert result.err.count("\n") == 1 and "surehold runs report" in result.err
    for words in (["--json"], ["--jsonl"]):
        assert on(command, "report", *words).err == ""
    assert on(command, "report-mon").err == on(command, "crawl").err == ""


def test_an_empty_argument_is_no_run(on: Surehold) -> None:
    for words in (["log", ""], ["show", ""], ["cat", ":state"], ["tree", ""], ["resume", "@2"]):
        result = on(*words)
        assert result.code == 2 and result.out == ""
        assert "surehold: no run is named" in result.err and "latest" in result.err


def test_log_and_show_tell_what_a_run_failed_with(on: Surehold, database: Path) -> None:
    with (
        CheckpointManager(f"sqlite:///{database}") as manager,
        pytest.raises(ValueError, match="page 3"),
        surehold.run("own", storage=manager) as run,
    ):
        run.checkpoint(page=3)
        raise ValueError("page 3 of https://me:hunter2@example.org\nhas no title " + "x" * 200)
    text = "ValueError: page 3 of https://me:[redacted:url_password]@example.org"
    shown = on("show", "own", width=60).out
    assert f"\nerror       {text}\n            has no title {'x' * 200}\n" in shown
    for words in ([], ["--graph"], ["--operations"]):
        logged = on("log", "own", *words).out.splitlines()
        (line,) = [one for one in logged if "ValueError" in one]
        assert f"{text} has no title xx" in line and "…" in line
    (line,) = [one for one in on("log", "own", width=60).out.splitlines() if "ValueErr" in one]
    assert len(line) <= 60
    document = on("log", "own", "--json").json()
    assert document["checkpoints"][0]["error"] == on("show", "own", "--json").json()["error"]
    assert "hunter2" not in str(document) and "has no title" in str(document)


def test_log_and_show_tell_what_a_graph_failed_with(on: Surehold) -> None:
    text = "ConnectionError: search.example is not reachable"
    assert f"failed in   search\nerror       {text}\n" in on("show", "report-tue").out
    assert "    error  " in on("log", "report-tue").out
    assert f"  in search: {text}\n" in on("log", "report-tue").out
    for words in (["--graph"], ["--operations"]):
        assert f"  in search: {text}" in on("log", "report-tue", *words).out
    assert on("show", "report-tue", "--json").json()["failed_in"] == "search"
    newest, *earlier = on("log", "report-tue", "--json").json()["checkpoints"]
    assert newest["failed_in"] == "search" and newest["node"] != "search"
    assert {one["failed_in"] for one in earlier} == {""}
    before = on("show", "report-tue@1~1").out
    assert "ConnectionError" not in before and "failed in" not in before


def test_lanes_end_where_their_parent_stands() -> None:
    nodes: dict[str, tuple[str | None, float]] = {
        **{"a": (None, 1), "b": ("a", 2), "c": ("b", 3), "x": ("a", 4), "y": ("b", 5)},
        "lost": ("nowhere", 0),
    }
    drawn = [f"{row.prefix} {row.id or ''}".rstrip() for row in draw(newest_first(nodes))]
    assert drawn == ["* y", "| * x", "| | * c", "| |/", "|/|", "* | b", "|/", "* a", "* lost"]


def test_show_tells_where_a_checkpoint_stands_and_what_it_holds(on: Surehold) -> None:
    out = on("show", "report-mon@3").out
    assert "run         report-mon of report" in out
    assert "step        3 after search" in out
    assert "marks       pinned" in out
    assert '"kelp is a brown alga"' in out
    document = on("show", "report-mon@3", "--json").json()
    assert document["state"]["topic"] == "kelp"
    assert document["checkpoint"]["step"] == 3


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("report-mon:state.topic", "kelp\n"),
        ("report-mon@3:state.facts[-1]", "kelp is a brown alga\n"),
        ('report-mon@3:state.messages[0]["role"]', "assistant\n"),
        ("report-mon:state.approved", "true\n"),
        ("report-mon@3:state.facts[5]", None),
        ("report-mon@3:state.nothing", None),
        ("report-tue:metadata.error", "ConnectionError\n"),
    ],
)
def test_cat_prints_one_value(on: Surehold, what: str, shown: str | None) -> None:
    result = on("cat", what)
    if shown is None:
        assert result.code == 4 and "has no" in result.err
    else:
        assert (result.code, result.out) == (0, shown)
        assert on("cat", what, "--json").json()["path"] == what.partition(":")[2]


def test_cat_refuses_what_is_no_path(on: Surehold) -> None:
    assert on("cat", "report-mon:state.a[b").code == 2


def test_text_out_of_a_checkpoint_cannot_write_to_the_terminal(
    on: Surehold, manager: CheckpointManager
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b1m"
    state = State.new({evil: evil, "key": evil}, run_id=f"r{evil}", name=evil)
    manager.save_checkpoint(state.at(step=1, node=evil, tags=[evil], metadata={"m": evil}))
    run = f"r{evil}"
    for words in (
        *(["runs"], ["log", run], ["log", run, "-g"], ["log", run, "-o"], ["show", run]),
        *(["cat", f"{run}:state.key"], ["tree"], ["blame", run, "key"], ["stats"], ["status"]),
        *(["log", "nope" + evil], ["pending", run], ["forget", run, "--keep-last", "1", "-n"]),
        *(["export", run, "--html"], ["tag", run, evil + "2"], ["verify", run]),
    ):
        for more in ([], ["--json"]):
            if more and "--html" in words:
                continue
            result = on(*words, *more)
            for text in (result.out, result.err):
                assert not set(text) & set("\x1b\x07\x9b"), words
        assert result.code in (0, 1, 4), (words, result)
    asked = on("forget", run, "--whole-run", typed="n\n")
    assert asked.code == 6 and "would be deleted" in asked.err
    assert not set(asked.err) & set("\x1b\x07\x9b")


def test_diff_is_structural(on: Surehold, manager: CheckpointManager) -> None:
    for step in (1, 2):
        tree = {"a": step, "b": step, "c": step}
        manager.save_checkpoint(State.new({"tree": tree}, run_id="nested").at(step=step))
    out = on("diff", "report-mon", "report-mon-kids").out
    assert "--- report-mon@6" in out and "+++ report-mon-kids@6" in out
    assert '+ audience "children"' in out
    assert '~ report \n  - "Kelp grows' in out and '  + "Did you know? Kelp' in out
    assert "2 keys differ, cost -$0.008" in out
    assert "1 top-level key differs" in on("diff", "nested@1", "nested@2").out
    assert "~ pages 2 -> 4\n" in on("diff", "crawl@2", "crawl@4").out
    document = on("diff", "report-mon@2", "report-mon@4", "--json").json()
    assert document["keys"] == ["messages", "facts"]
    assert document["appended"] == {"/messages": 2, "/facts": 2}
    assert document["dollars"] == pytest.approx(0.004)


def test_diff_with_one_side_compares_with_the_parent(on: Surehold) -> None:
    document = on("diff", "report-mon@3", "--json").json()
    assert (document["a"]["step"], document["b"]["step"]) == (2, 3)
    assert on("diff", "report-mon@0").code == 4
    assert on("diff", "report-mon@3", "report-mon@3", "--quiet").code == 0
    assert on("diff", "report-mon@3", "--quiet").code == 1
    assert on("diff", "report-mon", "report-mon").out.endswith("the states are the same\n")


def test_blame_names_the_step_that_wrote_a_value(on: Surehold) -> None:
    assert on("blame", "report-mon", "topic").out.startswith("report-mon@0")
    document = on("blame", "report-mon", "facts[1]", "--json").json()
    assert (document["checkpoint"]["step"], document["value"]) == (3, "kelp is a brown alga")
    assert on("blame", "report-mon", "facts[-1]", "--json").json()["checkpoint"]["step"] == 4
    assert on("blame", "report-mon", "facts[0]", "--json").json()["checkpoint"]["step"] == 2
    assert on("blame", "report-mon", "nothing").code == 4


def test_status_is_healthy_when_nothing_is_wrong(on: Surehold) -> None:
    assert on("forget", "report-tue", "--whole-run", "--yes").code == 0
    result = on("status")
    assert result.code == 0
    assert result.out.startswith("healthy")
    assert "1 waiting for a person" in result.out
    document = on("status", "--json").json()
    assert document["runs"] == {"completed": 3, "waiting": 1}


def test_status_tells_of_a_run_that_failed(on: Surehold) -> None:
    result = on("status")
    assert result.code == 1
    document = on("status", "--json").json()
    assert document["runs"] == {"completed": 3, "failed": 1, "waiting": 1}
    assert [(one["kind"], one["run_id"]) for one in document["problems"]] == [
        ("failed", "report-tue")
    ]


def crash_loops(path: Path, resumes: int) -> CheckpointManager:
    """A run that was resumed so often, each time without a save."""
    manager = CheckpointManager(SQLiteStorage(path))
    journal = manager.face.journal
    state = State.new({"n": 1}, run_id="job").at(step=1)
    with RunLease(journal, "job") as held:
        save_under(held, manager, state)
    for _ in range(resumes):
        RunLease(journal, "job").acquire().release()
    return manager


def test_resumes_of_a_crash_loop_count_as_failed(tmp_path: Path) -> None:
    path = tmp_path / "loop.db"
    with crash_loops(path, 10) as manager:
        problems = call("-s", f"sqlite:///{path}", "status", "--json").json()["problems"]
        assert ("crash loop", "job") in [(one["kind"], one["run_id"]) for one in problems]
        with RunLease(manager.face.journal, "job") as held:
            state = manager.resume_from_latest("job")
            assert isinstance(state, State)
            save_under(held, manager, state.set("n", 2).at(step=2, status="completed"))
    (resumes,) = call("-s", f"sqlite:///{path}", "stats", "--json").json()["resumes"]
    assert (resumes["cause"], resumes["tried"], resumes["failed"]) == ("crash", 11, 10)
    assert call("-s", f"sqlite:///{path}", "status").code == 0


def test_checkpoints_of_a_group_are_no_resumes(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/runs"
    with CheckpointManager(url) as manager:
        manager.save_checkpoint(State.new({"n": 1}, run_id="job").at(step=1))
        crew = surehold.group("crew", ["job"], storage=manager)
        for _ in range(3):
            crew.checkpoint()
    assert call("-s", url, "stats", "--json").json()["resumes"] == []


def test_a_run_that_is_resumed_right_now_does_not_loop(tmp_path: Path) -> None:
    path = tmp_path / "loop.db"
    with crash_loops(path, 2) as manager, RunLease(manager.face.journal, "job"):
        document = call("-s", f"sqlite:///{path}", "status", "--json").json()
        assert document["healthy"]
        (resumes,) = call("-s", f"sqlite:///{path}", "stats", "--json").json()["resumes"]
        assert (resumes["tried"], resumes["failed"]) == (2, 2)


def test_resumes_whose_saves_were_pruned_are_not_failures(tmp_path: Path) -> None:
    path = tmp_path / "pruned.db"
    with CheckpointManager(SQLiteStorage(path)) as manager:
        state, ids = State.new({"n": 0}, run_id="job"), []
        for step in range(1, 5):
            with RunLease(manager.face.journal, "job") as held:
                state = state.set("n", step).at(step=step)
                ids.append(save_under(held, manager, state))
        for checkpoint_id in ids[1:3]:
            manager.delete_checkpoint(checkpoint_id)
    (resumes,) = call("-s", f"sqlite:///{path}", "stats", "--json").json()["resumes"]
    assert resumes["failed"] == 0


def test_status_tells_of_a_run_whose_process_died(on: Surehold, database: Path) -> None:
    script = (
        "import surehold, os, signal\n"
        "with surehold.run('victim', storage=os.environ['WHERE']) as run:\n"
        "    run.checkpoint(n=1)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    where = {"WHERE": f"sqlite:///{database}"}
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | where, check=False)
    assert done.returncode == -signal.SIGKILL
    result = on("status")
    assert result.code == 1
    assert "unhealthy" in result.out and "start its program again" in result.out
    assert on("runs", "victim", "--json").json()["runs"] == []  # no name
    assert on("runs", "--status", "stale", "--json").json()["runs"][0]["run_id"] == "victim"
    watched = on("watch", "victim")
    assert watched.code == 1 and "stale" in watched.err
    assert "start its program again" in watched.err and "resume" not in watched.err
    for words in (["log", "victim"], ["log", "victim", "-g"], ["log", "victim", "-o"]):
        assert on(*words, "--json").json()["status"] == "stale"
    assert "status      stale" in on("show", "victim").out
    assert on("show", "victim", "--json").json()["run_status"] == "stale"


class FullAtTimes(MemoryStorage):
    """A storage that is full when told so."""

    full = False

    def append(self, batches: Any) -> Any:
        if self.full:
            raise StorageFullError("no room")
        return super().append(batches)


def test_saves_that_were_only_warned_of_are_told_by_the_next_one(
    on: Surehold, tmp_path: Path
) -> None:
    storage = FullAtTimes()
    with CheckpointManager(storage, on_save_failure="warn") as manager:
        state = State.new({"n": 0}, run_id="lossy")
        manager.save_checkpoint(state)
        storage.full = True
        for step in (1, 2):
            assert manager.save_checkpoint(state.set("n", step).at(step=step)) == ""
        storage.full = False
        manager.save_checkpoint(state.set("n", 3).at(step=3))
        manager.save_checkpoint(state.set("n", 4).at(step=4))
        manager.copy_run("lossy", f"sqlite:///{tmp_path}/runs.db")
    result = on("status")
    assert result.code == 1
    assert "2 saves failed with only a warning" in result.out


def test_stats_counts_bytes_resumes_and_times(on: Surehold, database: Path) -> None:
    document = on("stats", "--json").json()
    assert document["runs"] == 5
    assert document["logical_bytes"] > document["stored_bytes"] > 0
    assert document["file_bytes"] >= database.stat().st_size
    assert sum(kind["checkpoints"] for kind in document["by_kind"]) == document["checkpoints"]
    assert {run["name"] for run in document["by_run"]} == set(FAMILY)
    resumes = {one["cause"]: (one["tried"], one["succeeded"]) for one in document["resumes"]}
    assert resumes == {"wait": (1, 1)}
    assert {one["name"] for one in document["latency"]} == {"load, now", "between checkpoints"}
    assert "RESUMED AFTER" in on("stats").out


def test_stats_tells_resumes_that_failed(on: Surehold, manager: CheckpointManager) -> None:
    outage = OFFLINE.set(True)
    with pytest.raises(Exception, match="not reachable"):
        graph.over(StateManager(manager.storage)).resume_sync("report-tue")
    OFFLINE.reset(outage)
    document = on("stats", "--json").json()
    failed = {one["cause"]: (one["tried"], one["failed"]) for one in document["resumes"]}
    assert failed == {"wait": (1, 0), "failure": (1, 1)}


def test_tree_shows_forks_below_what_they_came_from(on: Surehold) -> None:
    lines = on("tree").out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("report-mon "))
    assert lines[at + 1].startswith("└─ report-mon-kids report completed at step 6, from step 3")
    rows = on("tree", "report-mon-kids", "--json").json()["runs"]
    assert [(row["run_id"], row["depth"]) for row in rows] == [
        ("report-mon", 0),
        ("report-mon-kids", 1),
    ]


@pytest.mark.parametrize(("run", "code"), [("crawl", 0), ("report-wed", 20), ("report-tue", 1)])
def test_watch_ends_with_the_run(on: Surehold, run: str, code: int) -> None:
    result = on("watch", run)
    assert result.code == code
    assert run in result.err and result.out


def test_watch_of_a_run_that_was_asked_to_stop_needs_no_person(
    on: Surehold, manager: CheckpointManager
) -> None:
    manager.save_checkpoint(State.new({}, run_id="stopped").at(status="interrupted"))
    assert on("watch", "stopped").code == 130


def test_watch_follows_a_run_as_it_goes_on(database: Path, tmp_path: Path) -> None:
    script = (
        "import surehold, os, sys, time\n"
        "with surehold.run('live', storage=os.environ['WHERE']) as run:\n"
        "    run.checkpoint(n=0)\n"
        "    print('begun', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    for n in range(1, 4):\n"
        "        run.checkpoint(n=n)\n"
    )
    url = f"sqlite:///{database}"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"WHERE": url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "begun\n"
        words = ["-s", url, "watch", "live", "--interval", "0.05", "--jsonl"]
        with subprocess.Popen(
            [sys.executable, "-m", "surehold", *words], stdout=subprocess.PIPE, text=True
        ) as watching:
            assert watching.stdout is not None
            lines = [msgspec.json.decode(watching.stdout.readline())]
            child.stdin.write("go on\n")
            child.stdin.flush()
            lines += [msgspec.json.decode(line) for line in watching.stdout]
        assert watching.returncode == 0
    steps = [line["checkpoint"]["step"] for line in lines]
    assert steps == [1, 2, 3, 4, 4]
    assert lines[-1]["checkpoint"]["status"] == "completed"


def test_ages_are_shown_in_the_readers_zone(on: Surehold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        there = on("log", "crawl").out
    finally:
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()
    assert there != on("log", "crawl").out


def test_an_empty_storage_is_no_error(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/new.db"
    CheckpointManager(address).close()
    for words in (["runs"], ["tree"], ["status"], ["stats"], ["pending"], ["verify"], ["prune"]):
        assert call("-s", address, *words).code == 0, words
    assert call("-s", address, "show").code == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["runs", "--status", "bogus"], "no run has the status 'bogus'"),
        (["runs", "--status", "complete"], "did you mean completed?"),
        (["runs", "--serch", "x"], "did you mean --search?"),
        (["cat", "report-mon:facts"], "did you mean report-mon:state.facts?"),
        (["cat", "report-mon:state.fatcs"], "did you mean facts?"),
        (["blame", "report-mon", "topics"], "did you mean topic?"),
        (["help", "rnus"], "did you mean runs?"),
    ],
)
def test_a_mistyped_word_is_refused_with_a_suggestion(
    on: Surehold, words: list[str], says: str
) -> None:
    result = on(*words)
    assert result.code in (2, 4) and result.out == ""
    assert says in result.err


def test_help_is_a_command(on: Surehold) -> None:
    assert on("help").out == on("--help").out
    assert on("help", "log").out == on("log", "--help").out


def test_a_settled_effect_is_not_in_doubt(on: Surehold, manager: CheckpointManager) -> None:
    async def pay(state: State) -> dict[str, Any]:
        return {"receipt": await surehold.effect("pay", asyncio.sleep, 0, "paid")}

    shop = surehold.StateGraph(
        surehold.GraphConfig(
            name="shop", checkpoint=surehold.CheckpointConfig(interval=1, preserve=True)
        ),
        manager=StateManager(manager.storage),
    )
    shop.add_node("pay", pay)
    shop.set_entry_point("pay")
    shop.set_exit_point("pay")
    shop.execute_sync(State.new({}, run_id="order"))
    said = on("log", "order").out
    assert said.count("pay@1") == 1 and 'pay@1 "paid"' in said and "in doubt" not in said
    states = [
        note["state"]
        for row in on("log", "order", "--json").json()["checkpoints"]
        for note in row["notes"]
        if note["kind"] == "effect"
    ]
    assert states == ["begun", "done"]
    assert "in doubt" not in on("log", "order", "-o").out


def test_log_graph_respects_scope_and_operations(on: Surehold) -> None:
    assert on("log", "report-mon", "-g", "--scope", "nowhere", "--json").json()["checkpoints"] == []
    plain, full = on("log", "report-mon", "-g").out, on("log", "report-mon", "-g", "-o").out
    assert "effect done" in full and "effect done" not in plain
    assert [line for line in full.splitlines() if "@" in line and "*" in line] == [
        line for line in plain.splitlines() if "@" in line and "*" in line
    ]


def test_many_empty_keys_are_counted(on: Surehold, manager: CheckpointManager) -> None:
    empty = dict.fromkeys(("plan", "answer", "error", "usage", "child"))
    manager.save_checkpoint(State.new({"task": "x", **empty}, run_id="agent"))
    assert 'task = "x", 5 empty keys\n' in on("log", "agent").out


def test_piped_columns_line_up_whatever_changed(on: Surehold) -> None:
    lines = on("log", "report-mon").out.splitlines()
    at = lines[0].index("WHAT CHANGED")
    assert all(line[at - 1] == " " != line[at] for line in lines[1:])


def test_a_run_id_that_begins_with_a_dash_follows_two(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with surehold.run("-x", storage=url) as run:
        run.checkpoint(n=1)
    assert call("-s", url, "cat", "--", "-x:state.n").out == "1\n"
    assert call("log", "-s", url, "--json", "--", "-x").json()["run_id"] == "-x"
