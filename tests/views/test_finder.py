"""How runs and checkpoints are named."""

from __future__ import annotations

import pytest

from surehold import CheckpointManager, State
from surehold.errors import NotFoundError, UsageError
from surehold.views.finder import Finder, Parsed, parse, split_path


@pytest.fixture
def manager() -> CheckpointManager:
    manager = CheckpointManager("memory://")
    for run_id, name in (("job-a1", "job"), ("job-b2", "job"), ("odd@7~1:state", "")):
        for step in (1, 2, 4):
            state = State.new({"n": step}, run_id=run_id, name=name)
            manager.save_checkpoint(state.at(step=step))
    return manager


@pytest.fixture
def finder(manager: CheckpointManager) -> Finder:
    return Finder(manager)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("nightly", Parsed("nightly")),
        ("nightly@12", Parsed("nightly", 12)),
        ("nightly~", Parsed("nightly", None, 1)),
        ("nightly~3", Parsed("nightly", None, 3)),
        ("nightly@12~3", Parsed("nightly", 12, 3)),
        ("a@b@4", Parsed("a@b", 4)),
        ("@4", Parsed("", 4)),
        ("a@b", Parsed("a@b")),
    ],
)
def test_an_address_is_taken_apart(text: str, parsed: Parsed) -> None:
    assert parse(text) == parsed


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("run", ("run", "state")),
        ("run@3:state", ("run@3", "state")),
        ("run@3:state.a[0]", ("run@3", "state.a[0]")),
        ("run:metadata.x", ("run", "metadata.x")),
        ("tag:good", ("tag:good", "state")),
        ("tag:good:state.a", ("tag:good", "state.a")),
        ("a:b", ("a:b", "state")),
    ],
)
def test_a_path_follows_an_address(text: str, split: tuple[str, str]) -> None:
    assert split_path(text) == split


@pytest.mark.parametrize(
    ("text", "run_id", "step"),
    [
        ("job-a1", "job-a1", 4),
        ("job-a", "job-a1", 4),
        ("job", "job-b2", 4),
        ("latest", "odd@7~1:state", 4),
        ("latest@2", "odd@7~1:state", 2),
        ("job-a@2", "job-a1", 2),
        ("job-a@3", "job-a1", 2),
        ("job-a~", "job-a1", 2),
        ("job-a~2", "job-a1", 1),
        ("job-a@2~1", "job-a1", 1),
        ("odd@7~1:state", "odd@7~1:state", 4),
        ("odd@7~1:state@1", "odd@7~1:state", 1),
    ],
)
def test_what_an_address_means(finder: Finder, text: str, run_id: str, step: int) -> None:
    header = finder.checkpoint(text)
    assert (header.run_id, header.step) == (run_id, step)
    assert finder.run(text).run_id == run_id


def test_a_tag_and_an_id_name_a_checkpoint(manager: CheckpointManager, finder: Finder) -> None:
    second = manager.list_checkpoints("job-a1")[1]
    manager.tag(second.checkpoint_id, "good")
    for text in ("tag:good", second.checkpoint_id, second.checkpoint_id[:-1]):
        header = finder.checkpoint(text)
        assert (header.run_id, header.step, header.tags) == ("job-a1", 2, ("good",))
    assert finder.run("tag:good").run_id == "job-a1"


@pytest.mark.parametrize("text", ["nope", "job-a@9", "job-a@0", "job-a~3", "tag:none", "x@1"])
def test_what_is_not_there_is_not_found(finder: Finder, text: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        finder.checkpoint(text)
    assert "surehold" in caught.value.hint


@pytest.mark.parametrize("text", ["", "@2", "~", "~2", "@2~1"])
def test_an_address_without_a_run_is_refused(finder: Finder, text: str) -> None:
    for look in (finder.run, finder.checkpoint):
        with pytest.raises(UsageError, match="empty") as caught:
            look(text)
        assert "latest" in caught.value.hint


def test_of_several_runs_of_a_name_it_is_told_once_which_was_taken(
    manager: CheckpointManager,
) -> None:
    told: list[str] = []
    finder = Finder(manager, told.append)
    finder.run("job-a1")
    finder.run("latest")
    assert told == []
    assert finder.run("job@2").run_id == finder.checkpoint("job").run_id == "job-b2"
    assert told == [
        "using job-b2, the newest of 2 runs named 'job'"
        " (surehold runs job lists them; an id names one)"
    ]


def test_a_prefix_of_several_runs_is_refused_and_lists_them(finder: Finder) -> None:
    with pytest.raises(UsageError, match="job-b2, job-a1"):
        finder.run("job-")
