"""The page in a real Chromium: keys, selection, forms, text that is only text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docs.page_screens import new_context, served, sign_in
from playwright.sync_api import Browser, expect

import surehold
from surehold import CheckpointManager


def test_reading_needs_no_script(open_page: Any) -> None:
    page = open_page("/", java_script_enabled=False)
    page.get_by_role("link", name="report-mon", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("report-mon")
    page.locator(".list a", has_text="plan").first.click()
    expect(page.locator('[aria-current="step"]')).to_contain_text("plan")
    page.get_by_role("link", name="state").click()
    expect(page.locator(".detail")).to_contain_text("/questions")


def test_keys_move_search_and_help(open_page: Any) -> None:
    page = open_page("/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator("tbody tr:first-child a.row")).to_be_focused()
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("kids")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("body").click()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("report-mon-kids"))


def test_arrows_move_between_rows_and_steps(open_page: Any) -> None:
    page = open_page("/")
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    expect(page.locator("tbody tr:nth-child(2) a.row")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.locator("tbody tr:first-child a.row")).to_be_focused()
    page = open_page("/run?id=report-mon&step=3")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".scrub output")).to_have_text("2")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".scrub output")).to_have_text("3")
    page.locator("#strip").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".scrub output")).to_have_text("4")
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("older and newer step")


TABBABLE = """() => {
  window.places = [...document.querySelectorAll(
    "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
  )].filter((one) => one.checkVisibility() && !one.closest("dialog"));
  return window.places.length;
}"""
FOCUSED = """() => {
  const one = document.activeElement;
  const place = window.places.indexOf(one);
  if (place < 0) return null;
  return { place, outline: getComputedStyle(one).outlineStyle, drawn: !!one.closest("svg") };
}"""


def test_everything_can_be_reached_and_done_with_the_keyboard(open_page: Any) -> None:
    """Tab reaches every link, button and field, and each shows its focus."""
    page = open_page("/run?id=report-mon&step=2&tab=state")
    wanted = page.evaluate(TABBABLE)
    reached = []
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
    assert len({one["place"] for one in reached if one}) == wanted
    assert all(one["outline"] != "none" for one in reached if one and not one["drawn"])
    page.locator(".menu summary").focus()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Tag").focus()
    page.keyboard.press("Enter")
    page.locator("#main input[type=text]").first.focus()
    page.keyboard.type("by-keyboard")
    page.keyboard.press("Enter")
    expect(page.locator('[aria-current="step"]')).to_contain_text("#by-keyboard")


def test_steps_scrubber_and_detail_are_one_selection(open_page: Any) -> None:
    page = open_page("/run?id=report-mon&tab=state")
    page.keyboard.press("j")
    expect(page.locator(".scrub output")).to_have_text("5")
    page.get_by_label("Go to").fill("2")
    page.keyboard.press("Enter")
    expect(page.locator('[aria-current="step"] .n')).to_have_text("2")
    expect(page.locator(".detail")).to_contain_text("kelp grows half a metre a day")
    expect(page).to_have_url(re.compile("step=2"))
    expect(page.locator(".cursor")).to_contain_text("$0.006 up to here")
    page.reload()
    expect(page.locator('[aria-current="step"] .n')).to_have_text("2")


def test_script_in_a_state_does_not_run(open_page: Any, storage: str) -> None:
    attack = "<img src=x onerror='window.owned=1'><script>alert(1)</script>"
    with surehold.run(f"attack {attack}", storage=storage) as run:
        run.checkpoint(node=attack, messages=[{"role": "user", "content": attack}])
    page = open_page("/?search=attack")
    page.locator("a.row").first.click()
    expect(page.locator(".chat")).to_contain_text("<script>alert(1)</script>")
    assert page.evaluate("window.owned") is None
    assert page.locator(".chat img, .chat script").count() == 0


def test_the_demonstration_is_loaded_into_an_empty_storage(
    browser: Browser, tmp_path: Path
) -> None:
    address = f"sqlite:///{tmp_path}/empty.db"
    CheckpointManager(address).close()
    with served(address) as (_, link):
        page = sign_in(new_context(browser), link)
        expect(page.get_by_role("heading", level=1)).to_have_text("No runs yet")
        page.get_by_role("button", name="Load the demonstration").click()
        expect(page.locator("tbody tr")).to_have_count(4)
        page.context.close()


def test_a_fork_is_made_with_a_form(open_page: Any, storage: str) -> None:
    page = open_page("/run?id=report-mon&step=3")
    page.get_by_role("link", name="Fork here").click()
    page.get_by_label("Run id of the fork").fill("report-moss")
    page.get_by_label("topic", exact=True).fill("moss")
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("report-moss")
    with CheckpointManager(storage) as manager:
        assert manager.resume_from_latest("report-moss")["topic"] == "moss"


def test_the_arguments_of_a_payment_are_edited_before_it_is_approved(
    open_page: Any, storage: str
) -> None:
    page = open_page("/waiting")
    card = page.locator("article", has_text="clerk-nov")
    expect(card).to_contain_text("It wants to do pay")
    card.get_by_label("amount").fill("99.5")
    card.get_by_role("button", name="Approve with 1 change").click()
    expect(page.locator("main")).to_contain_text('{"invoice":"A-81","amount":99.5}')
    page.get_by_role("button", name="Approve with these arguments").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("clerk-nov")
    left = [one.run_id for one in surehold.pending(storage=storage)]
    assert not any(run_id.startswith("clerk-nov") for run_id in left)
