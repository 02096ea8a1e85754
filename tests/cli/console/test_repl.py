"""The console through a pipe: transcripts of what it does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.cli.console.consoles import (
    COMMAND,
    SHELL,
    WORKFLOW,
    calls,
    environment,
    ids_in,
    pipe,
    start,
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "workflow.yaml").write_text(WORKFLOW + SHELL)
    return tmp_path


def shape(text: str) -> list[str]:
    """The lines, with what differs from run to run left out."""
    text = re.sub(r"\bfleet_[0-9a-f]{8}\b", "RUN", text)
    text = re.sub(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]+", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"[\d,]+ tokens, \$[\d.]+", "COST", text)
    text = re.sub(r"\d+\.\d( s|$)", r"N\1", text, flags=re.MULTILINE)
    return [re.sub(" +", " ", line).strip() for line in text.splitlines()]


def test_a_task_is_worked_on_round_by_round(place: Path) -> None:
    assert shape(pipe(place, "Analyze sales data", "checkpoints", "graph")) == [
        "plan",
        "The plan.",
        "round 1/10 researcher: do part 1",
        "hand turn 1: do part 1",
        "2 calls, COST, N s; in all 4 calls, COST",
        "round 2/10 coder: do part 2",
        "hand turn 1: do part 2",
        "2 calls, COST, N s; in all 6 calls, COST",
        "round 3/10 analyst: do part 3",
        "hand turn 1: do part 3",
        "2 calls, COST, N s; in all 8 calls, COST",
        "completed in 3 rounds: 10 calls, COST",
        "The answer after 3 rounds.",
        "Available Checkpoints (7)",
        "CHECKPOINT WORKFLOW TIME ROUND STATUS",
        "ID RUN TIME 3 completed",
        "ID RUN TIME 3 running",
        "ID RUN TIME 3 running",
        "ID RUN TIME 2 running",
        "ID RUN TIME 1 running",
        "ID RUN TIME 0 running",
        "ID RUN TIME 0 running",
        "plan > researcher > coder > analyst > answer",
        "ROUND WHO INSTRUCTION COST SECONDS",
        "1 researcher do part 1 2 calls, COST N",
        "2 coder do part 2 2 calls, COST N",
        "3 analyst do part 3 2 calls, COST N",
    ]


def test_an_empty_list_says_so(place: Path) -> None:
    assert pipe(place, "checkpoints", "", "pending", "resume") == (
        "No checkpoints found.\nnothing waits for you\nNo checkpoints found.\n"
    )


def test_a_failed_run_is_resumed_by_a_prefix_with_a_text(place: Path) -> None:
    out = pipe(place, "Do the broken thing", code=1)
    assert "ConnectionError('no network')" in out and "failed after round 1" in out
    (id,) = ids_in(out)
    before = calls(place)
    (place / "mended").touch()
    out = pipe(place, f"resume {id}", "One more, please", "status")
    assert f"resuming from {id}" in out
    assert "completed in 4 rounds" in out  # the text asked for one more
    assert calls(place) - before == 1 + 2 + 2 + 2  # no ledger of round 2 is paid for again
    assert "run fleet_" in out and "completed, round 4" in out


def test_resume_alone_lists_what_can_be_resumed_and_takes_no_line_for_the_id(place: Path) -> None:
    pipe(place, "Done at once")
    pipe(place, "Do the broken thing", code=1)
    (place / "mended").touch()
    before = calls(place)
    out = pipe(place, "resume", "status", "1", code=1)
    assert len(ids_in(out)) == 1 and "failed" in out.splitlines()[1]
    assert "Do the broken thing" in out.splitlines()[1]
    said = "resume needs an ID here (resume ID, one of those above)"
    assert out.index(said) < out.index("participants: ")  # the next line was done
    assert calls(place) > before  # and 1 is a task, as it is elsewhere


def test_a_command_after_resume_is_no_text(place: Path) -> None:
    (id,) = ids_in(pipe(place, "Do the broken thing", code=1))
    (place / "mended").touch()
    out = pipe(place, f"resume {id}", "checkpoints status=completed")
    assert "completed in 3 rounds" in out and "Available Checkpoints (1)" in out


@pytest.mark.parametrize("id", ["ffffffff", "writing", "../../etc/passwd"])
def test_an_unknown_id_is_an_error_with_the_nearest_and_never_a_task(id: str, place: Path) -> None:
    pipe(place, "Analyze")
    before = calls(place)
    out = pipe(place, f"resume {id}", f"show {id}", f"fork {id}", f"diff {id} {id}", code=1)
    assert f"no checkpoint '{id}' (the nearest: 0" in out
    assert out.count(f"no run, name or checkpoint '{id}'") == 3
    assert calls(place) == before


def test_an_ambiguous_id_is_told(place: Path) -> None:
    listed = pipe(place, "Analyze", "checkpoints")
    out = pipe(place, f"resume {ids_in(listed)[0][:8]}", code=1)
    assert "is not unique" in out


def test_a_mistyped_command_costs_nothing(place: Path) -> None:
    lines = ["resume writing my CV", "approve all", "checkpoints | grep error", "show me sales"]
    out = pipe(place, *lines, "reject too dangerous", "help resume", "fork", code=1)
    assert calls(place) == 0
    assert "no checkpoint 'writing'" in out and "usage: approve" in out
    assert "resume [ID [TEXT]]: resume a run" in out
    assert "completed in 3 rounds" in pipe(place, "task resume writing my CV")


def test_resume_takes_more_to_say_and_says_that_it_forks(place: Path) -> None:
    listed = pipe(place, "Analyze", "checkpoints")
    run = re.findall(r"fleet_\w+", listed)[0]
    out = pipe(place, f"resume {ids_in(listed)[3]}", "")
    assert re.search(rf"^forked: this is the new run fleet_\w+; {run} stays as it is$", out, re.M)
    out = pipe(place, f"resume {ids_in(listed)[0]} One more")
    assert "The answer after 4 rounds." in out and "forked: this is the new run" in out


def test_a_reader_that_stops_reading_ends_the_console_quietly(place: Path) -> None:
    with subprocess.Popen(
        COMMAND,
        cwd=place,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as console:
        assert console.stdin is not None and console.stdout is not None
        assert console.stderr is not None
        console.stdout.close()
        console.stdin.write("Analyze\n")
        console.stdin.flush()
        err = console.stderr.read()
    assert console.returncode == 141, err
    assert "Traceback" not in err and "BrokenPipe" not in err


def test_a_completed_run_gives_its_result_again_and_goes_on_with_a_text(place: Path) -> None:
    listed = pipe(place, "Analyze", "checkpoints")
    id, before = ids_in(listed)[0], calls(place)
    out = pipe(place, f"resume {id}", "")
    assert "The answer after 3 rounds." in out and calls(place) == before
    out = pipe(place, f"resume {id}", "One more")
    assert "The answer after 4 rounds." in out


def test_show_diff_and_fork(place: Path) -> None:
    ids = ids_in(pipe(place, "Analyze sales", "checkpoints"))
    out = pipe(place, f"show {ids[3]}", f"diff {ids[4]} {ids[3]}", f"fork {ids[3]}")
    assert '"task": "Analyze sales"' in out and '"current_round": 2' in out
    assert "~ current_round 1 -> 2" in out and "~ last_response" in out
    forked = re.search(r"^(\S+) forked from fleet_\w+@\d+$", out, re.MULTILINE)
    assert forked is not None
    listed = pipe(place, f"checkpoints {forked[1]}", "checkpoints round=2")
    new = ids_in(listed)[0]
    assert listed.count(new) == 2  # a fork counts its rounds from where it began
    before = calls(place)
    out = pipe(place, f"resume {new}", "")
    assert "completed in 3 rounds" in out and calls(place) - before == 2 + 2


def test_checkpoints_are_filtered_by_status_and_metadata(place: Path) -> None:
    pipe(place, "Do the broken thing", code=1)
    out = pipe(place, "checkpoints status=error", "list-checkpoints round=1", "checkpoints a=b")
    assert [line for line in out.splitlines() if line.startswith("Available")] == [
        "Available Checkpoints (1)",
        "Available Checkpoints (2)",
    ]
    assert out.endswith("No checkpoints found.\n")


def test_an_operation_waits_and_is_approved_edited_or_rejected(place: Path) -> None:
    out = pipe(place, "Do the shell thing")
    assert "waits for you:\n  shell of coder\n  command: rm -r kelp\n" in out
    out = pipe(place, "pending", "approve")
    assert '{"command":"rm -r kelp"}' in out and "ran rm -r kelp" in out
    out = pipe(place, "Do the shell thing", 'approve edit {"command": "ls"}')
    assert 'tool shell {"command":"ls"}' in out and "ran ls" in out
    out = pipe(place, "Do the shell thing", "approve edit", '{"command": "pwd"}')
    assert "ran pwd" in out
    out = pipe(place, "Do the shell thing", "reject because too risky", "pending")
    assert "refused: too risky" in out and "nothing waits" in out
    out = pipe(place, "Do the shell thing", "approve edit nonsense", code=1)
    assert "are not arguments" in out


def test_requests_are_told_apart_by_number(place: Path) -> None:
    pipe(place, "Do the shell thing")
    pipe(place, "Do the other shell thing")
    assert "2 requests wait (approve N" in pipe(place, "approve", code=1)
    assert "there is no request 7" in pipe(place, "approve 7", code=1)
    out = pipe(place, "approve 2", "reject 1 because no")
    assert out.count("completed in 3 rounds") == 2
    assert "nothing waits for you" in pipe(place, "reject", code=1)


def test_a_plan_is_reviewed_and_edited(place: Path) -> None:
    text = WORKFLOW.replace("callbacks:", "plan_review: {require_human_approval: true}, callbacks:")
    (place / "workflow.yaml").write_text(text)
    out = pipe(place, "Analyze", "approve edit First look,  then leap")
    assert "  plan of manager\n  task: Analyze\n" in out
    assert "plan\nFirst look, then leap\n" in out and "completed in 3 rounds" in out


def test_without_checkpointing_the_console_says_so(place: Path) -> None:
    (place / "workflow.yaml").write_text(
        WORKFLOW.replace('{storage_type: "sqlite:///runs.db"}', "{enabled: false}")
    )
    done = start(place, ["Analyze", "checkpoints", "resume abc", "graph"])
    assert "Checkpointing disabled" in done.stderr
    assert "completed in 3 rounds" in done.stdout
    assert "No checkpoints found." in done.stdout and "saves nothing" in done.stdout
    assert not (place / "runs.db").exists()


def test_another_file_and_a_missing_or_wrong_one(place: Path) -> None:
    (place / "other.yaml").write_text("workflow: {max_round: 3}")
    for arguments, says in (
        (["other.yaml"], "other.yaml:1: workflow has no key"),
        (["nothing.yaml"], "there is no nothing.yaml"),
    ):
        done = start(place, [], [*COMMAND[:2], "surehold.cli.console.repl", *arguments])
        assert done.returncode == 2 and says in done.stderr


def test_help_lists_the_commands(place: Path) -> None:
    out = pipe(place, "help")
    for word in ("checkpoints", "resume [ID [TEXT]]", "diff A B", "approve", "quit"):
        assert word in out


def test_hostile_text_is_shown_and_does_nothing(place: Path) -> None:
    out = pipe(place, "Analyze \x1b]0;owned\x07", "checkpoints", "resume \x1b[2J", code=1)
    assert "\x1b" not in out


def test_a_storage_that_code_registers_is_found_after_its_module_is_imported(place: Path) -> None:
    (place / "shelves.py").write_text(
        "from surehold.storage.memory import MemoryStorage\n"
        "from surehold import register_checkpoint_store\n"
        "from surehold.agents.models.model import register_provider\n"
        "from tests.cli.console.console_program import open_scripted\n"
        "register_checkpoint_store('shelf', MemoryStorage)\n"
        "register_provider('test', open_scripted)\n"
    )
    (place / "workflow.yaml").write_text(WORKFLOW.replace("sqlite:///runs.db", "shelf"))
    command = [*COMMAND[:2], "surehold", "repl"]
    assert start(place, ["status"], command).returncode == 2
    done = start(place, ["status"], [*command, "--import", "shelves"])
    assert done.returncode == 0, done.stderr
    assert "Checkpointing enabled (storage: shelf)" in done.stderr
    assert start(place, [], [*command, "--import", "no_such_module"]).returncode == 2
