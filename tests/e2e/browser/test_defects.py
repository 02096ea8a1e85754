"""What a person does with a mouse, a selection and the clipboard, on runs that are hard to show."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from docs.page_review import HOSTILE, fill_review
from docs.page_screens import PATIENCE, SHAPES, new_context, served, sign_in
from playwright.sync_api import Browser, Page, expect

import surehold
from surehold import CheckpointManager
from surehold.core.policy import QueueSettings
from surehold.executors import set_queue

RUN = f"/run?id={quote(HOSTILE)}"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hard runs, of which there are fewer here."""
    address = f"sqlite:///{tmp_path_factory.mktemp('hard')}/runs.db"
    with ThreadPoolExecutor(1) as aside:  # Playwright runs a loop in this thread
        aside.submit(fill_review, address, runs=200, long=1200).result()
    return address


COPIED = """button => {
  const said = document.getElementById("said");
  window.told = [];
  new MutationObserver(() => window.told.push(said.textContent)).observe(said, { childList: true });
  window.copied = new Promise((done) => {
    const seen = () => button.textContent === "Copied" && done();
    new MutationObserver(seen).observe(button, { childList: true });
  });
}"""
"""Notes what is said of a copy for two seconds, which a busy machine may look at too late."""


def copies(page: Page) -> list[str]:
    """What each Copy button of a page writes to the clipboard."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    found = []
    for button in page.locator(".copy").all():
        button.evaluate("button => button.closest('details')?.setAttribute('open', '')")
        button.evaluate(COPIED)
        button.click()
        found.append(page.evaluate("window.copied.then(() => navigator.clipboard.readText())"))
    return found


@pytest.mark.parametrize(
    "path",
    [
        RUN,
        f"{RUN}&step=1&tab=state",
        f"/compare?a={quote(HOSTILE)}@1&b={quote(HOSTILE)}",
        "/?search=x+onmouseover%3Dalert%281%29+id%3Dlive+autofocus+y",
        f"/act/fork?checkpoint={quote(HOSTILE)}",
        "/waiting",
    ],
)
def test_every_copy_button_copies_what_a_shell_or_python_takes_whole(
    open_page: Any, path: str, tmp_path: Path
) -> None:
    page: Page = open_page(path)
    expect(page.locator("h1")).to_be_visible()
    texts = copies(page)
    assert texts
    for text in texts:
        if text.startswith("surehold"):
            words = shlex.split(text)
            assert words[0] == "surehold" and "pwned" not in words
            subprocess.run(["sh", "-nc", text], cwd=tmp_path, check=True)
        elif text.startswith("manager."):
            compile(text, "copied", "eval")
    assert page.evaluate("window.owned") is None


def test_copied_turns_back_and_is_said(open_page: Any) -> None:
    page: Page = open_page("/waiting")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.locator("main > .code .copy").last
    button.evaluate(COPIED)
    button.click()
    page.evaluate("window.copied")
    expect(button).to_have_text("Copy")
    assert page.evaluate("window.told") == ["Copied to the clipboard.", ""]


@pytest.mark.parametrize("path", ["/?search={}", "/?name={}", "/compare?a={}&b={}", "/run?id={}"])
def test_an_address_adds_no_attribute_to_the_page(open_page: Any, path: str) -> None:
    attack = quote("x\" onmouseover=alert(1) id='live' autofocus y")
    page: Page = open_page(path.replace("{}", attack))
    found = page.evaluate(
        "[...document.querySelectorAll('*')].filter(one => [...one.attributes].some("
        "each => each.name.startsWith('on') || each.name === 'autofocus')).length"
    )
    assert found == 0


def drag_over(page: Page, places: int) -> list[tuple[str, str]]:
    """Press on the last cell of the strip, and go left; what was under the pointer, and shown."""
    cells = page.locator("#strip .cell")
    count = cells.count()
    boxes = [cells.nth(count - 1 - at).bounding_box() for at in range(places)]
    seen = []
    for at, box in enumerate(boxes):
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
        if not at:
            page.mouse.down()
        wanted = cells.nth(count - 1 - at).get_attribute("data-step") or ""
        seen.append((wanted, page.locator(".scrub output").inner_text()))
        page.wait_for_timeout(60)  # answers for earlier places arrive meanwhile
    return seen


def test_the_strip_is_dragged_over_twenty_places(open_page: Any) -> None:
    page: Page = open_page("/run?id=invoice-audit-2026-11&tab=state")
    seen = drag_over(page, 20)
    assert [shown for _, shown in seen] == [wanted for wanted, _ in seen]
    assert len({shown for _, shown in seen}) >= 19
    page.mouse.up()
    expect(page.locator('[aria-current="step"] .n')).to_have_text(seen[-1][0])
    expect(page.locator(".detail")).to_have_attribute("aria-label", f"Step {seen[-1][0]}")


def test_the_strip_is_walked_with_keys_and_replayed(open_page: Any) -> None:
    page: Page = open_page("/run?id=essay&tab=state")
    strip = page.get_by_role("slider", name="Steps over time")
    strip.focus()
    for key, step in (("Home", "1"), ("ArrowRight", "2"), ("End", "8"), ("ArrowLeft", "8")):
        page.keyboard.press(key)
        expect(strip).to_have_attribute("aria-valuenow", step)
    page.keyboard.press("Home")
    page.get_by_role("button", name="Replay").click()
    expect(strip).to_have_attribute("aria-valuetext", re.compile("step 8"))


def test_a_cell_of_a_long_run_holds_several_steps_and_a_lens_shows_each(open_page: Any) -> None:
    page: Page = open_page("/run?id=long")
    assert page.locator("#strip .cell").count() <= 500
    lens = page.locator("#lens .cell")
    assert lens.count() >= 50
    box = lens.nth(lens.count() - 11).bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 10)
    expect(page.locator(".scrub output")).to_have_text("1191")
    page.get_by_label("Go to").fill("7")
    page.keyboard.press("Enter")
    expect(page.locator(".scrub output")).to_have_text("7")


def test_a_deep_link_opens_with_the_header_in_sight_and_the_step_too(open_page: Any) -> None:
    page: Page = open_page("/run?id=invoice-audit-2026-11&step=7&tab=state")
    chosen = page.locator('[aria-current="step"]')
    expect(chosen).to_be_in_viewport(ratio=0.9)
    assert page.evaluate("scrollY") == 0
    expect(page.locator("h1")).to_be_in_viewport()


def test_a_step_that_is_not_there_is_said(open_page: Any) -> None:
    page: Page = open_page("/run?id=essay&step=41")
    expect(page.locator(".cursor")).to_contain_text("There is no step 41: this is step 8")


@pytest.fixture
def growing(browser: Browser, tmp_path: Path) -> Iterator[tuple[Any, Page]]:
    """A run that can be saved, and a page that is live."""
    address = f"sqlite:///{tmp_path}/runs.db"
    with surehold.run("growing", storage=address) as run:
        for n in range(60):
            run.checkpoint(node=f"node-{n}", n=n, text=f"text {n}")
        with served(address) as (_, link):
            context = new_context(browser)
            page = sign_in(context, link)
            page.goto(f"{link.partition('/?')[0]}/run?id=growing&tab=state")
            expect(page.locator("#live")).to_have_text("Live.")
            yield run, page
            context.close()


def test_the_place_in_the_list_stays_through_ten_live_records(growing: Any) -> None:
    run, page = growing
    page.locator(".steps").evaluate("list => { list.scrollTop = 600 }")
    row = page.locator(".steps li", has_text="node-45")
    before = row.bounding_box()
    for n in range(10):
        run.checkpoint(node=f"live-{n}", n=100 + n)
        expect(page.locator(".list .what b").first).to_have_text(f"live-{n}")
    after = row.bounding_box()
    assert before is not None and after is not None and abs(before["y"] - after["y"]) < 2
    assert page.locator(".steps").evaluate("list => list.scrollTop") > 600


def test_a_selection_stays_through_live_records(growing: Any) -> None:
    run, page = growing
    page.locator("h1").select_text()
    for n in range(5):
        run.checkpoint(node=f"live-{n}", n=100 + n)
        expect(page.locator(".list .what b").first).to_have_text(f"live-{n}")
    assert "growing" in page.evaluate("getSelection().toString()")


def test_a_click_that_a_live_record_meets_is_not_lost(growing: Any) -> None:
    """The record is saved and shown between the press of the button and its release."""
    run, page = growing
    tab = page.locator(".tabs").first.get_by_role("link", name="events")
    box = tab.bounding_box()
    assert box is not None
    page.evaluate("window.pressed = document.querySelectorAll('.tabs a')[7]")
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    run.checkpoint(node="meanwhile", n=200)
    page.wait_for_timeout(1500)  # more than a live update takes
    page.mouse.up()
    expect(page.locator("h2.at")).to_contain_text("events")
    expect(page.locator(".list .what b").first).to_have_text("meanwhile")
    assert page.evaluate("window.pressed.isConnected")


def test_an_edited_field_stays_through_live_records(open_page: Any, storage: str) -> None:
    page: Page = open_page("/waiting")
    field = page.get_by_label("amount").first
    field.fill("99")
    with surehold.run("beside", storage=storage) as run:
        for n in range(3):
            run.checkpoint(node="beside", n=n)
            page.wait_for_timeout(500)
    expect(field).to_have_value("99")
    expect(field).to_be_focused()


def test_a_session_that_ended_is_said_where_the_eye_is(open_page: Any) -> None:
    page: Page = open_page("/run?id=essay")
    before = page.url
    page.context.clear_cookies()
    page.locator(".steps a.row").nth(3).click()
    expect(page.locator("#trouble")).to_contain_text("Not signed in any more")
    expect(page.locator("#trouble")).to_be_in_viewport()
    assert page.url == before
    page.goto("about:blank")


def test_a_server_that_is_gone_is_said_where_the_eye_is(browser: Browser, storage: str) -> None:
    with served(storage) as (process, link):
        context = new_context(browser)
        page = sign_in(context, link)
        page.goto(f"{link.partition('/?')[0]}/waiting")
        expect(page.locator("#live")).to_have_text("Live.")
        page.evaluate("scrollTo(0, 9999)")
        process.kill()
        process.wait()
        expect(page.locator("#trouble")).to_contain_text("The server does not answer")
        expect(page.locator("#trouble")).to_be_in_viewport()
        expect(page.locator("#live")).to_contain_text("Connecting again…")
        context.close()


def test_a_bad_edit_comes_back_in_its_form_with_all_that_was_written(open_page: Any) -> None:
    page: Page = open_page("/waiting")
    card = page.locator("article", has=page.get_by_label("amount")).first
    card.get_by_label("invoice").fill("B-82")
    card.get_by_label("amount").fill("not a number")
    card.get_by_role("button", name="Approve with 2 changes").click()
    expect(page.get_by_role("alert").filter(has_text="amount is a number here")).to_be_visible()
    expect(page.get_by_label("amount")).to_have_value("not a number")
    expect(page.get_by_label("amount")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("invoice")).to_have_value("B-82")
    page.get_by_label("amount").fill("12.5")
    page.get_by_role("button", name=re.compile("Approve with")).click()
    expect(page.locator("main")).to_contain_text('"amount":12.5')


def test_an_answer_is_confirmed_says_what_is_next_and_can_be_undone(
    open_page: Any, storage: str
) -> None:
    page: Page = open_page("/waiting")
    page.locator("#report-wed").get_by_role("button", name="Approve").click()
    page.get_by_role("button", name="Approve").click()
    expect(page.locator(".note-card")).to_contain_text("Answered: approve@6 is true")
    expect(page.get_by_role("link", name="Resume now")).to_be_visible()
    page.get_by_role("button", name="Undo the answer").click()
    expect(page.locator("#asks")).to_contain_text("Publish the report on lichen?")
    assert [one.id for one in surehold.pending("report-wed", storage=storage)] == ["approve@6"]
    page.locator("#asks").get_by_role("button", name="Approve").click()
    page.get_by_role("button", name="Approve").click()
    page.get_by_role("link", name="Resume now").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".bar .status").first).to_contain_text("completed")


def test_resume_is_offered_only_where_it_can_work(open_page: Any) -> None:
    page: Page = open_page("/health")
    row = page.locator("tr", has_text="payment-81")
    expect(row.get_by_role("link", name="Answer what it waits for")).to_be_visible()
    expect(row.get_by_role("link", name="Resume")).to_have_count(0)
    row.get_by_role("link", name="Answer what it waits for").click()
    expect(page.locator("#asks")).to_contain_text("its outcome is unknown")
    expect(page.get_by_role("link", name="Resume…")).to_have_count(0)


def test_nothing_runs_that_no_process_holds(open_page: Any, storage: str) -> None:
    page: Page = open_page("/health")
    expect(page.locator(".facts-line")).not_to_contain_text("running")
    page.goto(page.url.replace("/health", "/run?id=essay-warm"))
    expect(page.locator(".bar .status").first).to_contain_text("saved")
    expect(page.get_by_role("link", name="See what it waits for")).to_have_count(0)


def test_compare_names_the_common_ancestor_and_what_each_cost_since(open_page: Any) -> None:
    page: Page = open_page("/compare?a=essay-warm-a1-x&b=essay-cold-a1")
    said = page.locator(".verdict")
    expect(said).to_contain_text("They parted at step 4 of essay")
    expect(said).to_contain_text("They diverge at step 5")
    page = open_page("/compare?a=report-mon&b=report-mon-kids")
    costs = page.locator("section", has=page.get_by_role("heading", name="Cost"))
    expect(costs).to_contain_text("shared until step 3 of report-mon: $0.008")
    expect(costs).to_contain_text("$0.013 in From, $0.013 in To")


def test_cost_of_a_loop_is_told_by_node_and_by_model(open_page: Any) -> None:
    page: Page = open_page("/run?id=invoice-audit-2026-11&tab=cost")
    for name in ("rank", "critique", "price", "large-2", "small-1"):
        expect(page.locator(".detail tbody th", has_text=name)).to_have_count(1)
    expect(page.locator(".detail")).not_to_contain_text("the run itself")
    expect(page.locator(".sofar")).not_to_contain_text(" of ")


def test_a_run_is_found_by_its_id_however_old_it_is(open_page: Any) -> None:
    page: Page = open_page("/?search=sync-0001")
    expect(page.locator("tbody a.row").first).to_have_text("sync-0001")
    page = open_page("/?search=sync-000")
    expect(page.locator("tbody a.row", has_text="sync-0007")).to_have_count(1)


def test_the_failed_run_of_the_demonstration_is_healed_by_a_resume(open_page: Any) -> None:
    page: Page = open_page("/act/resume?id=report-tue")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".bar .status").first).to_contain_text(
        re.compile("waiting|completed"), timeout=PATIENCE
    )


def test_a_reader_sees_no_field_that_cannot_be_sent(browser: Browser, storage: str) -> None:
    with served(storage, "--read-only") as (_, link):
        context = new_context(browser)
        page = sign_in(context, link)
        page.goto(f"{link.partition('/?')[0]}/waiting")
        expect(page.locator("main")).to_contain_text("It wants to do pay")
        expect(page.locator("main input:visible, main textarea:visible")).to_have_count(0)
        context.close()


def test_arabic_is_set_from_right_to_left(open_page: Any) -> None:
    page: Page = open_page(f"/run?id={quote('محادثة-عربية')}&tab=conversation")
    for text in page.locator(".chat .said").all():
        assert text.evaluate("one => getComputedStyle(one).direction") == "rtl"


REVIEW = {
    "band": "/",
    "group": "/run?id=group-books",
    "failed loop": "/run?id=sync-0003",
    "in doubt": "/run?id=payment-81",
    "siblings": "/compare?a=essay-warm-a1-x&b=essay-cold-a1",
    "audit": "/run?id=invoice-audit-2026-11&step=29&tab=state",
    "markdown": "/run?id=chat-markdown&tab=conversation",
    "arabic": f"/run?id={quote('محادثة-عربية')}",
    "hostile": RUN,
    "hostile step": f"{RUN}&step=1&tab=state",
    "hostile address": f"/run?id={quote(HOSTILE * 20)}",
    "large": "/run?id=large-state&tab=state&shape=full",
    "family": "/forks?id=essay",
    "storage": "/storage",
    "costs": "/costs",
    "health": "/health",
}


@pytest.mark.parametrize("path", REVIEW.values(), ids=REVIEW)
def test_hard_runs_are_accessible_and_within_the_window(open_page: Any, path: str) -> None:
    page: Page = open_page(path)
    page.emulate_media(reduced_motion="reduce")  # no color is on its way to another
    for shape in SHAPES.values():
        page.set_viewport_size(shape["viewport"])
        page.emulate_media(color_scheme=shape.get("color_scheme", "light"))
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_hostile_question_is_text_within_a_phone(browser: Browser, tmp_path: Path) -> None:
    attack = "<script>window.owned=1</script>" + "x" * 300 + "\u202e\u061c"

    @surehold.workflow
    async def ask() -> Any:
        return await surehold.interrupt({"approve": attack, "arguments": {attack: attack, "n": 1}})

    address = f"sqlite:///{tmp_path}/runs.db"
    with ThreadPoolExecutor(1) as aside:  # Playwright runs a loop in this thread
        aside.submit(asyncio.run, ask.run(run_id="x" * 400, storage=address)).result()
    with served(address) as (_, link):
        context = new_context(browser, **SHAPES["phone"])
        page = sign_in(context, link)
        for path in ("/waiting", f"/run?id={'x' * 400}", "/"):
            page.goto(link.partition("/?")[0] + path)
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            said = page.locator("main").inner_text()
            assert not {"\u202e", "\u061c"} & {*said}
            assert page.evaluate("window.owned") is None
        context.close()


def test_a_phone_shows_the_chosen_tab_and_the_newest_message_first(open_page: Any) -> None:
    page: Page = open_page("/run?id=chat-markdown&tab=raw", **SHAPES["phone"])
    expect(page.locator(".tabs [aria-current]").first).to_be_in_viewport(ratio=0.9)
    page.goto(page.url.replace("tab=raw", "tab=conversation"))
    chat = page.locator(".chat.long").bounding_box()
    last = page.locator(".chat.long > li").last.bounding_box()
    assert chat is not None and last is not None
    assert chat["y"] <= last["y"] <= chat["y"] + chat["height"]


def test_a_phone_shows_who_wrote_a_value_without_breaking_its_words(open_page: Any) -> None:
    page: Page = open_page("/run?id=report-mon&tab=state&shape=blame", **SHAPES["phone"])
    box = page.locator(".blame code").first.bounding_box()
    table = page.locator(".blame").bounding_box()
    assert box is not None and table is not None
    assert box["height"] <= 40 and table["height"] <= 900


def test_a_tap_on_a_step_brings_what_it_did_into_sight(open_page: Any) -> None:
    page: Page = open_page("/run?id=invoice-audit-2026-11", **SHAPES["phone"])
    page.locator(".steps a.row", has_text="rewrite").first.click()
    expect(page.locator("h2.at")).to_contain_text("Step 36 rewrite")
    expect(page.locator("h2.at")).to_be_in_viewport(ratio=1)
    expect(page.locator(".detail del").first).to_be_in_viewport(ratio=1)


def test_a_phone_answers_with_a_thumb(open_page: Any) -> None:
    """What is pressed or filled is as wide as the card and 44 pixels high, all in sight."""
    page: Page = open_page("/waiting", **SHAPES["phone"])
    card = page.locator("article", has_text="its outcome is unknown")
    whole = card.bounding_box()
    assert whole is not None
    for one in card.locator("form button, form input[type=text]").all():
        box = one.bounding_box()
        assert box is not None and box["height"] >= 44 and box["width"] >= 0.8 * whole["width"]


def test_one_attempt_is_one_attempt(open_page: Any, storage: str) -> None:
    set_queue("single", QueueSettings(attempts=1), storage=storage)
    page: Page = open_page("/queues")
    expect(page.locator("tr", has_text="single").locator("[data-label=Limits]")).to_have_text(
        "1 attempt"
    )


def test_rewind_is_offered_only_where_it_can_work(open_page: Any) -> None:
    for run_id, count in (("invoice-audit-2026-11", 0), ("report-mon", 1)):
        page: Page = open_page(f"/run?id={run_id}&step=3")
        expect(page.locator(".menu a", has_text="Rewind")).to_have_count(count)


def test_swap_stands_in_its_row(open_page: Any) -> None:
    page: Page = open_page("/compare?a=essay-warm&b=essay-cold")
    boxes = [page.get_by_text(name, exact=True).last.bounding_box() for name in ("Compare", "Swap")]
    assert boxes[0] is not None and boxes[1] is not None
    assert abs(boxes[0]["y"] - boxes[1]["y"]) < 1


def test_a_line_of_the_fork_tree_ends_beside_the_name_of_its_run(open_page: Any) -> None:
    for shape in ("desktop", "phone"):
        page: Page = open_page("/forks?id=essay", **SHAPES[shape])
        names = [one.bounding_box() for one in page.locator(".family-list li").all()]
        heads = [one.bounding_box() for one in page.locator(".branch.head").all()]
        assert len(names) == len(heads) == 12
        for name, head in zip(names, heads, strict=True):
            assert name is not None and head is not None
            assert name["y"] <= head["y"] <= name["y"] + name["height"]


def test_attacks_in_every_field_stay_text(open_page: Any, storage: str) -> None:
    with CheckpointManager(storage) as manager:
        newest = manager.list_checkpoints(HOSTILE)[0]
    paths = [f"{RUN}&tab={tab}" for tab in ("overview", "conversation", "state", "effects", "cost")]
    paths += [f"{RUN}&tab=state&shape=blame", f"{RUN}&tab=graph", f"{RUN}&tab=timeline"]
    paths += [
        "/",
        "/costs",
        f"/forks?id={quote(HOSTILE)}",
        f"/act/tag?checkpoint={newest.checkpoint_id}",
    ]
    paths += [f"/compare?a={quote(HOSTILE)}@1&b={quote(HOSTILE)}"]
    for path in paths:
        page: Page = open_page(path)
        expect(page.locator("h1").first).to_be_visible()
        assert page.locator("main :is(img, script, iframe, [onclick], [onerror])").count() == 0
        assert page.locator('main a[href^="javascript"]').count() == 0
        assert page.evaluate("window.owned") is None
