"""What the page shows of a run at one look: its strip, its costs, and what its steps did."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import CheckpointManager, MemoryStorage, State
from surehold.engine.journal import Change
from surehold.engine.runs import count_by_status, retract
from surehold.errors import NotFoundError
from surehold.storage.base import RunQuery
from surehold.views.band import read_band
from surehold.views.costs import read_costs
from surehold.views.run import Pasts, marked, spending, step_words
from surehold.views.stats import survey_storage
from surehold.web.drawing import draw_strip
from surehold.web.markdown import told


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager(MemoryStorage()) as opened:
        yield opened


def spend(manager: CheckpointManager, run_id: str, steps: int) -> None:
    """A loop whose step *n* costs n cents of a model."""

    def usage(n: int) -> dict[str, Any]:
        return {"tokens": 10 * n, "output": n, "dollars": n / 100, "model": f"m{n % 2}"}

    with surehold.run(run_id, storage=manager, name="spends") as run:
        for n in range(1, steps + 1):
            run.effect("ask", lambda n=n: n, usage=usage)
            run.checkpoint(node=f"node-{n}", n=n)


def test_a_loop_records_what_its_effects_cost_by_node_and_model(
    manager: CheckpointManager,
) -> None:
    spend(manager, "one", 3)
    run = manager.reader.run("one")
    assert run is not None
    past = Pasts(manager).of(run)
    by_node = [(one.node, round(one.dollars, 2)) for one in spending(past, run.seq)]
    assert by_node == [("node-3", 0.03), ("node-2", 0.02), ("node-1", 0.01)]
    by_model = {one.node: (one.tokens, one.output) for one in spending(past, run.seq, "model")}
    assert by_model == {"m1": (40, 4), "m0": (20, 2)}


def test_costs_of_all_runs_add_up_under_every_heading(manager: CheckpointManager) -> None:
    spend(manager, "one", 3)
    spend(manager, "two", 4)
    report = read_costs(manager)
    assert (report.calls, report.tokens, report.output_tokens) == (7, 160, 16)
    for kind in ("day", "name", "node", "model", "run"):
        rows = [row for row in report.rows if row.by == kind]
        assert sum(row.dollars for row in rows) == pytest.approx(0.16), kind
    assert report.today == pytest.approx(read_band(manager).today) == pytest.approx(0.16)
    newest = read_costs(manager, 4)
    assert newest.calls == 4 and newest.since is not None


def test_what_a_resume_does_not_pay_again_is_counted(manager: CheckpointManager) -> None:
    """Also if the resumed run then makes no call; a run that was never left counts nothing."""
    usage = lambda n: {"tokens": 10, "dollars": n / 100}  # noqa: E731
    for run_id, stop in (("left", 2), ("whole", 9), ("again", 1)):
        for leave_at in (stop, 9):
            with suppress(ValueError), surehold.run(run_id, storage=manager) as run:
                for n in run.each([1, 2, 3]):
                    run.effect("ask", lambda n=n: n, usage=usage)
                    if n == leave_at:
                        raise ValueError
    report = read_costs(manager)
    assert report.dollars == pytest.approx(0.18)
    assert report.resumes == 2
    assert report.saved == pytest.approx(0.01 + 0.02 + 0.01)


def test_a_past_that_is_read_on_equals_one_that_is_read_at_once(
    manager: CheckpointManager,
) -> None:
    pasts = Pasts(manager)
    with surehold.run("grows", storage=manager) as run:
        for n in range(20):
            run.call(lambda n=n: n)
            if n % 3 == 0:
                run.checkpoint(node=f"n{n}", n=n)
            info = manager.reader.run("grows")
            if info is not None:
                pasts.of(info)
    info = manager.reader.run("grows")
    assert info is not None
    assert pasts.of(info) == Pasts(manager).of(info)
    assert sum(one.calls for one in pasts.of(info).moments) == 20


def test_a_strip_is_as_wide_as_the_page_whatever_the_number_of_steps(
    manager: CheckpointManager,
) -> None:
    for count in (1, 7, 1203):
        with surehold.run(f"r{count}", storage=manager) as run:
            for n in range(count):
                run.checkpoint(node="n", n=n)
        info = manager.reader.run(f"r{count}")
        assert info is not None
        past = Pasts(manager).of(info)
        strip = draw_strip(past, info.seq, ())
        assert strip is not None and len(strip.cells) <= 500
        assert strip.cells[-1].x + strip.cells[-1].width == pytest.approx(1000, abs=0.5)
        assert [cell.chosen for cell in strip.cells].count(True) == 1 and strip.cells[-1].chosen


def test_what_a_step_did_is_said_in_a_line() -> None:
    said = Change("add", "/messages/-", {"role": "assistant", "content": "High\ntide."})
    branch = Change("add", "/branch:to:model", None)
    score = Change("replace", "/score", 3)
    assert step_words([branch, said]) == "assistant: High tide."
    assert step_words([branch, score]) == "score = 3"
    assert step_words([branch]) != ""


def test_the_first_messages_of_a_list_are_said_and_not_their_json() -> None:
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    for path, value, words in (
        ("/messages", said, "user: hello; assistant: hi"),
        ("/messages", said * 5, "assistant: hi; user: hello; assistant: hi"),
        ("/__start__", {"messages": said[:1]}, "user: hello"),
        ("/messages", [], "messages = []"),
    ):
        assert step_words([Change("add", path, value)]) == words


def test_words_are_marked_and_long_texts_are_left_whole() -> None:
    parts = marked("one two three", "one 2 three")
    assert parts == [("same", "one "), ("old", "two"), ("new", "2"), ("same", " three")]
    assert marked("x" * 5000, "y") is None


@pytest.mark.parametrize(
    "attack",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[click](javascript:alert(1))",
        "![x](https://elsewhere.example/x.png)",
        "<https://elsewhere.example>",
        "[a]: javascript:alert(1)\n[a]",
        '[x](https://a.example "onmouseover=alert(1)")',
        "`<script>`\n\n    <script>alert(1)</script>\n",
        "| <b onclick=1> |\n|---|\n| <i> |",
        '{"a": "<script>"}',
    ],
)
def test_markdown_of_a_model_is_text_without_links_pictures_and_tags(attack: str) -> None:
    found: list[tuple[str, dict[str, str | None]]] = []

    class Seen(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, dict(attrs)))

    Seen().feed(str(told(attack)))
    written = {"p", "br", "pre", "code", "span", "table", "thead", "tbody", "tr", "th", "td"}
    assert {tag for tag, _ in found} <= written
    assert {name for _, attributes in found for name in attributes} <= {"class"}


def test_markdown_shows_where_a_link_leads() -> None:
    assert "https://tides.example" in told("see [the table](https://tides.example)")
    assert "<strong>high</strong>" in told("**high**") and "<td>1</td>" in told("|a|\n|-|\n|1|")


def test_an_answer_is_taken_back_until_a_resume_has_used_it(manager: CheckpointManager) -> None:
    @surehold.workflow
    async def ask() -> str:
        return str(await surehold.interrupt("Which?", schema=str))

    def waits() -> list[str]:
        return [one.id for one in surehold.pending("asks", storage=manager)]

    assert asyncio.run(ask.run(run_id="asks", storage=manager)).status == "waiting"
    (question,) = waits()
    surehold.answer("asks", question, "left", storage=manager)
    assert waits() == []
    retract("asks", question, by="ada", storage=manager)
    assert waits() == [question]
    surehold.answer("asks", question, "right", storage=manager)
    assert asyncio.run(ask.resume("asks", storage=manager)).value == "right"
    with pytest.raises(NotFoundError, match="no answer"):
        retract("asks", question, storage=manager)


def test_results_states_runs_and_graphs_are_cards_in_a_notebook(
    manager: CheckpointManager,
) -> None:
    attack = "<script>alert(1)</script>\u202e"

    @surehold.workflow
    def made() -> str:
        return attack

    with surehold.run("card", storage=manager) as run:
        run.checkpoint(node="one", text=attack)
    graph = surehold.StateGraph("report")
    graph.add_node("plan", lambda state: {})
    graph.set_entry_point("plan")
    state = manager.resume_from_latest("card").with_secrets({"key": "sk-1"})
    shown = [made.run(run_id="result", storage=manager), state, run, graph]
    for one in shown:
        html = one._repr_html_()
        assert "<script" not in html and "\u202e" not in html and "sk-1" not in html
    assert "completed" in shown[0]._repr_html_() and "plan" in graph._repr_html_()
    assert "&lt;script&gt;" in state._repr_html_()


@surehold.workflow
def later() -> None:
    """The run that is queued."""


def test_a_fork_that_nothing_executed_is_counted_as_saved_and_a_queued_run_once(
    tmp_path: Path,
) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"

    for number in range(3):
        later.start(run_id=f"later-{number}", storage=address, queue="mail")
    with CheckpointManager(address) as sqlite:
        spend(sqlite, "origin", 2)
        newest = sqlite.list_checkpoints("origin")[-1]
        sqlite.fork_from_checkpoint(newest.checkpoint_id, "twin")
        band = read_band(sqlite)
        assert (band.running, band.queued, band.wrong) == (0, 3, 0)
        counts, _ = count_by_status(sqlite.storage, 10)
    assert counts == {"queued": 3, "completed": 1, "saved": 1}


def test_a_storage_says_how_much_was_written_when_and_what_is_old(
    manager: CheckpointManager,
) -> None:
    spend(manager, "one", 5)
    survey = survey_storage(manager)
    assert survey.growth[-1].total == survey.total
    assert sum(span.runs for span in survey.growth) == 1
    assert survey.per_day is None and survey.old_runs == 0


def test_a_storage_of_weeks_says_what_it_grows_a_day_however_much_was_written_today() -> None:
    """A run is spread over its time, a day without a record has its place, the sum is the total."""
    now = datetime.now(UTC)
    storage = MemoryStorage()
    for days in (39, 21, 20, 3, 0):
        at = now - timedelta(days=days)
        with CheckpointManager(storage, clock=lambda at=at: at) as manager:
            spend(manager, f"run-{days}", 5)
    with CheckpointManager(storage, clock=lambda: now - timedelta(days=39)) as manager:
        manager.save_checkpoint(State.new({"text": "x" * 400}, run_id="long"))
    with CheckpointManager(storage) as manager:
        manager.save_checkpoint(manager.resume_from_latest("long").merge({"text": "y" * 400}))
        survey = survey_storage(manager)
        sizes = {run.run_id: run.stored for run in manager.storage.runs(RunQuery())}
    assert survey.unit == "day" and len(survey.growth) == 40
    assert survey.growth[-1].total == survey.total == sum(sizes.values())
    assert sum(span.stored for span in survey.growth) == pytest.approx(survey.total, abs=40)
    assert {span.runs for span in survey.growth} == {1, 2}
    week = sizes["run-3"] + sizes["run-0"] + sizes["long"] * 7 / 39
    assert survey.per_day == pytest.approx(week / 7, abs=2)
    assert (survey.old_runs, survey.old) == (1, sizes["run-39"])


def test_old_runs_are_counted_though_only_the_newest_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What expiry would free is asked of the whole storage."""
    storage, now = MemoryStorage(), datetime.now(UTC)
    with CheckpointManager(storage, clock=lambda: now - timedelta(days=40)) as manager:
        spend(manager, "old", 2)
    with CheckpointManager(storage) as manager:
        for number in range(4):
            spend(manager, f"new-{number}", 2)
        whole = survey_storage(manager)
        monkeypatch.setattr("surehold.views.stats._MOST_COUNTED", 3)
        survey = survey_storage(manager)
    assert (whole.count, whole.more, whole.per_day is not None) == (5, False, True)
    assert (survey.count, survey.more) == (3, True)
    assert survey.old_runs == whole.old_runs == 1 and survey.old == whole.old > 0
