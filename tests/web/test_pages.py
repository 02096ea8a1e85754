"""Every screen shows what the journal says, without a script."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.web.conftest import Browser, Open, in_doubt

import surehold
from surehold import CheckpointManager, State
from surehold.views.forks import read_tree


def text_of(answer: Any) -> str:
    """The words of a page."""
    assert answer.status_code == 200, answer.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def test_runs_are_listed_with_status_steps_cost_forks_and_tags(page: Browser) -> None:
    text = text_of(page.get("/"))
    for word in ("report-mon-kids", "fork of report-mon at step 3", "✕ failed", "◐ waiting"):
        assert word in text
    assert "$0.021" in text
    assert "#published" in text


@pytest.mark.parametrize(
    ("query", "there", "absent"),
    [
        ("status=failed", "report-tue", "report-wed"),
        ("name=report", "report-tue", "crawl"),
        ("search=KIDS", "report-mon-kids", "crawl"),
        ("search=published", "report-mon", "report-tue"),
    ],
)
def test_filters_are_in_the_address(page: Browser, query: str, there: str, absent: str) -> None:
    table = page.get(f"/?{query}").text.partition("<tbody>")[2]
    assert f">{there}</a>" in table
    assert f">{absent}</a>" not in table


def test_a_search_finds_what_was_added_after_the_last_search(
    page: Browser, manager: CheckpointManager
) -> None:
    assert "No run matches" in text_of(page.get("/?search=found-later"))
    latest = manager.latest("crawl")
    assert latest is not None
    manager.tag(latest.checkpoint_id, "found-later")
    assert rows_of(page.get("/?search=FOUND-later").text, "<h1>Runs")[0][0].startswith("crawl")


def test_runs_are_paged_by_what_they_end_with(tmp_path: Path, open_page: Open) -> None:
    with CheckpointManager(f"sqlite:///{tmp_path}/many.db") as manager:
        for at in range(60):
            with surehold.run(f"run-{at:02}", storage=manager) as run:
                run.checkpoint(done=at)
        page = open_page(manager)
        seen: list[str] = []
        address: str | None = "/"
        while address:
            text = page.get(address).text
            seen += re.findall(r'class="row" href="/run\?id=([\w-]+)"', text)
            found = re.search(r'rel="next" href="([^"]+)"', text)
            address = html.unescape(found[1]) if found else None
    assert seen == [f"run-{at:02}" for at in range(59, -1, -1)]


def test_a_run_shows_its_conversation_first(page: Browser) -> None:
    text = text_of(page.get("/run?id=report-mon"))
    assert "what is kelp?" in text
    assert "kelp shelters sea otters" in text
    assert "✓ completed" in text


def test_one_step_is_chosen_by_the_address(page: Browser) -> None:
    answer = page.get("/run?id=report-mon&step=2&tab=state")
    chosen = re.search(r'aria-current="step">\s*<span class="n">(\d+)', answer.text)
    assert chosen is not None and chosen[1] == "2"
    assert "kelp grows half a metre a day" in answer.text
    assert "brown alga" not in answer.text.partition('class="detail"')[2]


def test_the_cost_is_that_up_to_the_chosen_step(page: Browser) -> None:
    assert "$0.004 up to here of $0.021" in text_of(page.get("/run?id=report-mon&step=1"))
    assert "$0.021 up to here" in text_of(page.get("/run?id=report-mon"))


@pytest.mark.parametrize(
    ("tab", "words"),
    [
        ("conversation", "assistant"),
        ("state", "/approved + added true"),
        ("effects", "No effects were recorded in this step"),
        ("cost", "search $0.006 3"),
        ("events", "approve@6"),
        ("raw", "final"),
        ("state&shape=full", 'topic "kelp" questions 5 lines ['),
        ("state&shape=blame", "step 1 plan $0.004 questions"),
    ],
)
def test_every_tab(page: Browser, tab: str, words: str) -> None:
    assert words in text_of(page.get(f"/run?id=report-mon&tab={tab}"))


def test_a_state_of_any_size_is_shown_by_key_and_cut(
    manager: CheckpointManager, open_page: Open
) -> None:
    many = {f"key-{number}": number for number in range(6000)}
    manager.save_checkpoint(State.new(many, run_id="many"))
    manager.save_checkpoint(State.new({"a": 1, "blob": "x" * 450_000, "b": 2}, run_id="blob"))
    browser = open_page(manager)
    text = browser.get("/run?id=many&tab=state&shape=full").text
    assert 3000 < text.count('class="folded"') < 5000 and "characters hidden" in text
    text = browser.get("/run?id=blob&tab=state&shape=full").text
    assert text.count('class="folded"') == 2 and 400_000 < len(text) < 450_000
    assert "50,105 characters hidden" in text


def test_effects_show_what_they_returned_and_cost(page: Browser) -> None:
    text = text_of(page.get("/run?id=report-mon&step=3&tab=effects"))
    assert "search@3" in text and "kelp is a brown alga" in text and "$0.002" in text


def test_an_effect_of_a_killed_process_is_in_doubt(tmp_path: Path, open_page: Open) -> None:
    script = (
        "import surehold, os, signal\n"
        "with surehold.run('payment', storage=os.environ['WHERE']) as run:\n"
        "    run.checkpoint(order=1)\n"
        "    run.effect('kill', os.kill, os.getpid(), signal.SIGKILL)\n"
    )
    where = f"sqlite:///{tmp_path}/killed.db"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=os.environ | {"WHERE": where}, check=False)
    assert done.returncode == -signal.SIGKILL
    with CheckpointManager(where) as manager:
        text = text_of(open_page(manager).get("/run?id=payment&tab=events"))
    assert "! stale" in text and "in doubt" in text


def test_a_failed_run_says_where_and_why(page: Browser) -> None:
    text = text_of(page.get("/run?id=report-tue"))
    assert "Failed in search" in text
    assert "would continue after step 1 with node 'search'" in text


def test_a_step_names_the_runs_forked_from_it(page: Browser) -> None:
    text = page.get("/run?id=report-mon").text
    item = next(one for one in text.split("<li>") if 'class="n">3<' in one)
    assert 'href="/run?id=report-mon-kids"' in item
    assert 'href="/compare?a=report-mon&amp;b=report-mon-kids"' in item


def test_steps_are_shown_in_windows_that_join_without_a_gap(page: Browser) -> None:
    seen: list[int] = []
    address: str | None = "/run?id=crawl"
    while address:
        text = page.get(address).text
        steps = [int(n) for n in re.findall(r'<span class="n">(\d+)</span>', text)]
        seen += [step for step in steps if not seen or step < seen[-1]]
        found = re.search(r'href="([^"]+)">Older steps', text)
        address = html.unescape(found[1]) if found else None
    assert seen == [120, *range(120, 0, -1)]  # the final checkpoint is of the last step


def test_a_chosen_step_far_back_is_in_its_window(page: Browser) -> None:
    text = page.get("/run?id=crawl&step=20").text
    assert re.search(r'aria-current="step">\s*<span class="n">20<', text)
    assert "Newer steps" in text


def test_compare_shows_both_values_and_where_a_fork_diverged(page: Browser) -> None:
    text = text_of(page.get("/compare?a=report-mon&b=report-mon-kids"))
    assert "They parted at step 3 of report-mon" in text
    assert "/audience + added" in text
    assert "surehold diff report-mon report-mon-kids" in text


def test_what_waits_is_listed_with_its_question(page: Browser) -> None:
    text = text_of(page.get("/waiting"))
    assert "Publish the report on lichen?" in text
    assert "Approve" in text and "Reject" in text


def test_what_waits_says_who_asks_and_since_when(page: Browser) -> None:
    text = text_of(page.get("/waiting"))
    assert re.search(r"report-wed\s+report · step 6 approve · asked", text)
    assert re.search(r"asked (now|just now|\d+ .+ ago)", text)


def test_what_waits_is_paged_by_run(
    manager: CheckpointManager, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surehold.views.waiting._MOST", 1)
    in_doubt(manager)
    page = open_page(manager)
    first = page.get("/waiting").text
    assert 'id="payment"' in first and 'id="report-wed"' not in first
    following = re.search(r'rel="next" href="([^"]+)"', first)
    assert following is not None
    second = page.get(html.unescape(following[1])).text
    assert 'id="report-wed"' in second and 'id="payment"' not in second
    assert 'rel="next"' not in second


def test_storage_shows_bytes_by_name_and_run(page: Browser) -> None:
    text = text_of(page.get("/storage"))
    assert "report 4" in text and "Largest runs" in text


def test_health_names_failed_runs_and_verifies(page: Browser) -> None:
    assert "report-tue" in text_of(page.get("/health"))
    assert "are sound" in text_of(page.get("/health?verify=1"))
    assert "Resumed after" in text_of(page.get("/health?resumes=1"))


def test_an_event_shows_its_value(page: Browser) -> None:
    assert "what is kelp?" in text_of(page.get("/event?id=report-mon&seq=2"))


def test_an_empty_storage_offers_three_commands_and_the_demonstration(
    tmp_path: Path, open_page: Open
) -> None:
    with CheckpointManager(f"sqlite:///{tmp_path}/new.db") as manager:
        page = open_page(manager)
        text = text_of(page.get("/"))
        assert all(f"surehold {name}" in text for name in ("demo", "init", "doctor"))
        assert page.submit("/act/demo").status_code == 303
        assert "report-mon" in text_of(page.get("/"))
        assert page.submit("/act/demo").status_code == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/run?id=nothing", 404),
        ("/run", 404),
        ("/run?id=report-mon&at=x", 400),
        ("/run?id=report-mon&tab=x", 404),
        ("/nothing", 404),
        ("/act/nothing", 404),
        ("/compare?a=nothing&b=report-mon", 404),
        ("/export?id=report-mon&form=x", 400),
        ("/static/x/../../server.py", 404),
        ("/static/x/..%2f..%2fserver.py", 404),
    ],
)
def test_what_is_not_there_is_said_plainly(page: Browser, path: str, status: int) -> None:
    answer = page.get(path)
    assert answer.status_code == status
    assert "Traceback" not in answer.text and "import" not in answer.text


def test_a_run_with_a_similar_id_is_named_and_linked(page: Browser) -> None:
    told = page.get("/run?id=reprot-mon").text
    assert 'Did you mean <a href="/run?id=report-mon">report-mon</a>' in told


def test_a_group_says_how_its_members_stand(manager: CheckpointManager, open_page: Open) -> None:
    for run_id in ("ledger", "stock", "prices"):
        with surehold.run(run_id, storage=manager) as run:
            run.checkpoint(node="count", n=1)
    surehold.group("books", ["ledger", "stock", "prices"], storage=manager).checkpoint()
    with surehold.run("stock-2", storage=manager) as run:
        run.checkpoint(node="count", n=2)
    state = manager.resume_from_latest("stock")
    manager.save_checkpoint(state.merge({"n": 3}).at(step=3))
    manager.storage.delete("prices")
    told = open_page(manager).get("/run?id=group-books").text
    stands = dict(re.findall(r'id=(\w+)">\w+</a></th>.*?chip\S*">(\w+)<', told))
    assert stands == {"ledger": "current", "stock": "ahead"}
    assert "What it did since" in told and ">missing</span>" in told
    assert "It cannot be restored as it is: prices." in told
    assert "surehold group fork books books-try --at" in told
    assert "/act/fork" not in told and "/act/forget" not in told  # of the group's own run alone


def test_a_run_that_only_its_program_resumes_says_that_and_shows_no_plan(
    manager: CheckpointManager, open_page: Open
) -> None:
    with suppress(ValueError), surehold.run("fails", storage=manager) as run:
        run.checkpoint(node="one", n=1)
        raise ValueError("no")
    told = open_page(manager).get("/run?id=fails").text
    assert "Start its program again: it continues after step 1" in told
    assert "A resume would do this" not in told and "not of a graph" not in told


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/act/forget?id=crawl&keep_last=5", "danger"), ("/act/fork?checkpoint=crawl@3", "primary")],
)
def test_what_cannot_be_taken_back_has_a_red_button(page: Browser, path: str, kind: str) -> None:
    assert re.findall(r'<button class="(\w+)">(?:Drop|Fork)', page.get(path).text) == [kind]


def test_a_fork_is_offered_an_id_that_no_run_has(
    manager: CheckpointManager, open_page: Open
) -> None:
    manager.fork_from_checkpoint(manager.list_checkpoints("crawl")[0].checkpoint_id, "crawl-2")
    told = open_page(manager).get("/act/fork?checkpoint=crawl@3").text
    assert 'name="run_id" value="crawl-3"' in told


def test_a_call_is_shown_once_with_its_arguments_and_its_result(
    manager: CheckpointManager, open_page: Open
) -> None:
    with surehold.run("pays", storage=manager) as run:
        run.effect("pay", lambda amount: {"paid": amount}, 12)
        run.checkpoint(node="pay")
        run.checkpoint(node="end")
    text = text_of(open_page(manager).get("/run?id=pays&tab=effects&step=1"))
    assert text.count("pay@") == 1 and "Called with amount=12" in text
    assert re.search(r'Returned { "paid": 12 }', text)


def test_a_comparison_of_what_is_not_there_comes_back_in_its_form(page: Browser) -> None:
    answer = page.get("/compare?a=reprot-mon&b=crawl")
    assert answer.status_code == 404
    assert 'name="a" value="reprot-mon"' in answer.text and 'name="b" value="crawl"' in answer.text
    assert '<p class="error" role="alert">No run, name or checkpoint' in answer.text
    assert 'Did you mean <a href="/compare?a=report-mon&amp;b=crawl">report-mon</a>' in answer.text


def test_the_forks_that_are_ticked_first_are_two_tips(page: Browser, manager: Any) -> None:
    at = manager.list_checkpoints("report-mon-kids")[-1].checkpoint_id
    for name in ("one", "two"):
        manager.fork_from_checkpoint(at, name)

    def ticked(path: str, status: int = 200) -> list[str]:
        answer = page.get(path)
        assert answer.status_code == status
        return re.findall(r'name="pick" value="([^"]+)" checked', answer.text)

    assert sorted(ticked("/forks?id=report-mon")) == ["one", "two"]
    assert "one" in ticked("/forks?id=one")
    assert ticked("/compare?pick=one", 400) == ["one"]


def test_the_cost_of_a_run_is_added_up_under_its_own_heads(page: Browser) -> None:
    text = page.get("/run?id=report-mon&tab=cost").text
    rows = [[int(cell.replace(",", "")) for cell in row[3:]] for row in rows_of(text, "by node")]
    summed = re.findall(r">([\d,]+)</td>", text.partition("<tfoot>")[2].partition("</tfoot>")[0])
    assert [int(one.replace(",", "")) for one in summed] == [
        sum(column) for column in zip(*rows, strict=True)
    ]
    assert "$0.021" in text.partition("<tfoot>")[2].partition("</tfoot>")[0]


def test_an_event_is_one_row_with_its_time(manager: CheckpointManager, open_page: Open) -> None:
    with surehold.run("paid", storage=manager) as run:
        run.effect("pay", lambda: "receipt 81")
        run.checkpoint(node="pay", n=1)
    text = open_page(manager).get("/run?id=paid&tab=events").text
    (row,) = (one for one in rows_of(text, "Records beside") if one[1].startswith("effect"))
    assert row[1] == "effect done" and re.fullmatch(r"\d\d:\d\d:\d\d", row[-1])


def test_what_is_no_node_is_called_by_a_plain_word(page: Browser) -> None:
    text = text_of(page.get("/run?id=report-mon&nested=1"))
    assert " 0 start " in text and " routine " not in text


def test_a_search_that_found_nothing_yet_offers_to_go_on(
    manager: CheckpointManager, open_page: Open
) -> None:
    for number in range(200):
        with surehold.run(f"many-{number}", storage=manager) as run:
            run.checkpoint(n=number)
    answer = open_page(manager).get("/?search=nowhere-to-be-found")
    assert "No run matches so far; older ones are not searched yet." in text_of(answer)
    assert "Search older runs" in answer.text


def test_the_forks_of_a_family_are_drawn_without_a_crossing(
    manager: CheckpointManager,
) -> None:
    with surehold.run("trunk", storage=manager) as run:
        for n in range(6):
            run.checkpoint(n=n)
    for step in (2, 5, 4):
        at = next(one for one in manager.list_checkpoints("trunk") if one.step == step)
        manager.fork_from_checkpoint(at.checkpoint_id, f"fork-{step}")
    tree = read_tree(manager, "trunk")
    assert [one.run_id for one in tree.runs] == ["trunk", "fork-5", "fork-4", "fork-2"]


def test_it_can_be_mounted_below_a_path(manager: CheckpointManager) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.testclient import TestClient

    from surehold.web import app

    site = app(manager, auth=lambda request: request.headers.get("x-user"), hosts=["testserver"])
    client = TestClient(Starlette(routes=[Mount("/agents", site)]))
    assert client.get("/agents/").status_code == 401
    answer = client.get("/agents/", headers={"x-user": "ada"})
    assert 'href="/agents/run?id=report-mon"' in answer.text
    assert "Signed in as ada" in answer.text
    style = re.search(r'href="(/agents/static/[^"]+\.css)"', answer.text)
    assert style is not None and client.get(style[1]).status_code == 200


def test_pages_stay_within_their_budgets(page: Browser) -> None:
    import gzip

    def weight(path: str) -> int:
        text = page.get(path).text
        assets = re.findall(r'(?:href|src)="(/static/[^"]+)"', text)
        return sum(len(gzip.compress(page.get(one).content)) for one in {*assets, path})

    assert weight("/") < 60_000
    assert weight("/run?id=crawl") < 120_000


def rows_of(text: str, caption: str) -> list[list[str]]:
    """The cells of the table with that caption, or of the first table after that heading."""
    body = text.partition(caption)[2].partition("<tbody>")[2].partition("</tbody>")[0]
    cells = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.S)
    return [
        [html.unescape(re.sub(r"<[^>]+>", "", one)).strip() for one in cells.findall(row)]
        for row in body.split("</tr>")[:-1]
    ]


def test_the_graph_is_drawn_as_recorded_with_the_path_taken(page: Browser) -> None:
    text = page.get("/run?id=report-mon&tab=graph").text
    assert text.count('class="node visited') == 4
    assert (
        "$0.006" in text.partition("</svg>")[0]
        or "$0.006" in text.partition("The same as tables")[0]
    )
    assert rows_of(text, "Nodes") == [
        ["plan", "1", ""],
        ["search", "3", ""],
        ["write", "1", ""],
        ["approve", "1", ""],
    ]
    assert ["search", "search", "more questions", "2"] in rows_of(text, "Edges")


def test_the_graph_of_an_early_step_of_a_long_run_is_drawn(
    manager: CheckpointManager, open_page: Open
) -> None:
    with surehold.run("long", storage=manager) as run:
        for n in range(1200):
            run.checkpoint(node=("fetch", "parse")[n % 2], n=n)
    page = open_page(manager)
    text = text_of(page.get("/run?id=long&tab=graph&step=4"))
    assert "fetch \u00d72" in text and "were examined" not in text
    assert "of which the last 500 were examined" in text_of(page.get("/run?id=long&tab=graph"))
    words = text_of(page.get("/compare?a=long@10&b=long"))
    assert "More than 600 checkpoints lie between" in words


def test_the_graph_is_that_of_the_chosen_step(page: Browser) -> None:
    text = page.get("/run?id=report-mon&tab=graph&step=2").text
    assert rows_of(text, "Nodes") == [
        ["plan", "1", ""],
        ["search", "1", "next or last"],
        ["write", "0", ""],
        ["approve", "0", ""],
    ]


def test_of_a_run_without_a_graph_only_seen_transitions_are_drawn(page: Browser) -> None:
    text = page.get("/run?id=crawl&tab=graph").text
    assert "records no graph" in text
    assert rows_of(text, "Transitions") == [["read", "read", "", "119"]]


def test_a_graph_of_any_shape_is_drawn_within_its_picture(page: Browser) -> None:
    from surehold.web.drawing.graph_drawing import _draw, _Recorded

    names = [f"node-{n}" for n in range(12)]
    edges = [(a, b, "") for n, a in enumerate(names) for b in names[n % 5 :: 3]]
    drawn = _draw(_Recorded(nodes=names, edges=edges, path=names, here=None), {}, {})
    assert len(drawn.edges) == len(edges)
    for node in drawn.nodes:
        assert node.x >= 0 and node.x + node.width <= drawn.width
        assert node.y >= 0 and node.y + node.height <= drawn.height
    places = {(node.x, node.y) for node in drawn.nodes}
    assert len(places) == len(names)


def test_the_timeline_compresses_pauses(page: Browser, manager: CheckpointManager) -> None:
    from datetime import timedelta

    import msgspec

    from surehold.views.timeline import timeline
    from surehold.views.words import span
    from surehold.web.drawing import draw_times

    text = page.get("/run?id=report-mon&tab=timeline").text
    assert len(rows_of(text, "The same as a table")) == 7
    run = manager.reader.run("report-mon")
    assert run is not None
    entries, _ = timeline(manager.reader, manager.retention, run)
    first = entries[-1].header.saved_at
    moments = [0, 1, 2, 3, 4, 5, 1000, 1000 + 7200]
    epochs = [1, 1, 1, 1, 1, 1, 1, 2]
    moved = [
        msgspec.structs.replace(
            entry,
            header=msgspec.structs.replace(
                entry.header, saved_at=first + timedelta(seconds=at), epoch=epoch
            ),
        )
        for entry, at, epoch in zip(reversed(entries), moments, epochs, strict=True)
    ]
    drawn = draw_times(moved[::-1])
    assert drawn is not None
    assert [bar.is_cut for bar in drawn.bars] == [False] * 5 + [True, False]
    assert [span(seconds) for _, seconds in drawn.pauses] == ["2 h"]
    assert drawn.bars[5].width < 5 * drawn.bars[0].width
    assert all(a.x + a.width <= b.x for a, b in zip(drawn.bars, drawn.bars[1:], strict=False))


def test_compare_names_the_first_divergence_effects_messages_and_cost(page: Browser) -> None:
    text = page.get("/compare?a=report-mon&b=report-mon-kids").text
    assert "They diverge at step 5: both ran write and left other values: /report." in text
    effects = rows_of(text, "<h2>Effects")
    assert [row[:2] for row in effects] == [["write@5", "different"], ["search@4", "same"]]
    assert "4 messages in common" in text
    costs = rows_of(text, "<h2>Cost")
    assert next(row[:3] for row in costs if row[0] == "write") == ["write", "1", "1"]


def test_compare_of_two_checkpoints_of_one_run(page: Browser) -> None:
    text = text_of(page.get("/compare?a=report-mon@1&b=report-mon@3"))
    assert "2 checkpoints lie between: search, search." in text
    assert "only in To" in text


def test_compare_of_runs_that_have_nothing_in_common(page: Browser) -> None:
    text = text_of(page.get("/compare?a=crawl&b=report-tue"))
    assert "They diverge at step" in text


def test_storage_shows_kinds_and_growth(page: Browser) -> None:
    text = page.get("/storage").text
    kinds = {row[0] for row in rows_of(text, "<h2>By kind")}
    assert {"routine checkpoint", "effect note", "fork checkpoint"} <= kinds
    hours = rows_of(text, "Growth")
    assert sum(int(hour[1]) for hour in hours) >= 5, "every run wrote in some hour"
    assert hours[0][3] != hours[0][2] or len(hours) == 1, "the newest hour first, with all bytes"


def test_health_shows_who_holds_a_run(manager: CheckpointManager, open_page: Open) -> None:
    with surehold.run("held", storage=manager) as run:
        run.checkpoint(done=1)
        text = open_page(manager).get("/health").text
        assert rows_of(text, "Leases that are held")[0][0] == "held"


def test_figures_are_counted_again_after_ten_seconds(manager: CheckpointManager) -> None:
    from surehold.views.health import Surveys

    now = [0.0]
    surveys = Surveys(manager, clock=lambda: now[0])
    first = surveys.storage()
    manager.delete_run("crawl")
    assert surveys.storage() is first
    now[0] = 11.0
    assert surveys.storage().count == first.count - 1
