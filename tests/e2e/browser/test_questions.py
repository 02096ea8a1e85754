"""The questions that people bring to the page, as scripts that count clicks."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from docs.page_review import fill_review
from playwright.sync_api import Locator, Page, expect


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    address = f"sqlite:///{tmp_path_factory.mktemp('asked')}/runs.db"
    with ThreadPoolExecutor(1) as aside:  # Playwright runs a loop in this thread
        aside.submit(fill_review, address, runs=200, long=1200).result()
    return address


class Person:
    """Someone who clicks, on a page that shows the list of runs."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, what: Locator) -> None:
        self.clicks += 1
        what.click()


@pytest.fixture
def person(open_page: Any) -> Person:
    return Person(open_page("/"))


def test_is_anything_stuck_takes_no_click(person: Person) -> None:
    band = person.page.get_by_role("navigation", name="What needs somebody")
    for said in ("0 running", "wait for you", "failed", "1 stale", "1 dead", "3 queued", "today"):
        expect(band).to_contain_text(said)
    expect(person.page).to_have_title(re.compile(r"^\(\d+\) "))
    assert person.clicks == 0


def test_what_happened_at_a_step_and_why_takes_one_click(person: Person) -> None:
    """From the list, and from the run."""
    person.page.get_by_label("Search").fill("invoice-audit-2026-11@38")
    person.click(person.page.get_by_role("button", name="Filter"))
    check_step(person.page)
    assert person.clicks == 1
    person.page.goto(person.page.url.partition("&step")[0])
    person.clicks = 0
    person.click(person.page.locator(".steps a.row", has_text="price").first)
    check_step(person.page)
    assert person.clicks == 1


def check_step(page: Page) -> None:
    """Step 38 is shown: its old and new values, and the call that made them, with what it got."""
    expect(page.locator("h2.at")).to_contain_text("Step 38 price")
    expect(page.locator(".detail del").first).to_be_visible()
    expect(page.locator(".detail ins").first).to_be_visible()
    expect(page.locator('[aria-current="step"]')).to_contain_text("1 call")
    why = page.locator(".detail .calls li")
    expect(why).to_contain_text("model:price(step=38)")
    expect(why).to_contain_text("answer 38")
    expect(why).to_contain_text("$0.045")


def test_what_did_it_cost_and_where_takes_one_click(person: Person) -> None:
    person.click(person.page.get_by_role("link", name="Cost", exact=True))
    for heading in ("By day", "By name", "By node", "By model", "The dearest runs"):
        expect(person.page.get_by_role("heading", name=heading)).to_be_visible()
    expect(person.page.locator("main")).to_contain_text("tokens in")
    expect(person.page.locator("main")).to_contain_text("$0.021 not paid again, thanks to 1 resume")
    assert person.clicks == 1


def test_what_waits_for_me_takes_no_click(person: Person) -> None:
    badge = person.page.get_by_role("link", name="Waiting").locator(".badge")
    expect(badge).to_have_text(re.compile(r"[1-9]"))
    assert person.clicks == 0


def test_how_two_forks_differ_takes_two_clicks(person: Person) -> None:
    person.page.goto(person.page.url + "?search=essay&status=completed")
    row = person.page.locator("tr", has=person.page.get_by_role("link", name="essay", exact=True))
    person.click(row.locator("td.num a"))
    person.click(person.page.get_by_role("button", name="Compare the two"))
    expect(person.page.locator(".verdict")).to_contain_text("They parted at step")
    expect(person.page.get_by_role("heading", name="Steps")).to_be_visible()
    assert person.clicks == 2


def test_what_a_resume_would_do_takes_one_click(person: Person) -> None:
    """From the list, and from the run."""
    row = person.page.locator("tr[data-key=report-tue]")
    person.click(row.get_by_role("link", name="Resume…"))
    for _ in range(2):
        expect(person.page.locator("main .lead")).to_contain_text("It would continue after step 1")
        expect(person.page.locator("main")).to_contain_text("runs first")
        expect(person.page.locator("main")).to_contain_text("Estimated cost")
        assert person.clicks == 1
        person.page.goto(person.page.url.replace("/act/resume", "/run"))
        person.clicks = 0
        person.click(person.page.get_by_role("link", name="Resume…"))


def test_is_my_storage_growing_takes_one_click(person: Person) -> None:
    person.click(person.page.get_by_role("link", name="Storage"))
    expect(person.page.get_by_role("heading", name="Growth")).to_be_in_viewport()
    main = person.page.locator("main")
    expect(main).to_contain_text(re.compile(r"It grows by [\d.]+ k?B a day: the disk, with"))
    expect(main).to_contain_text("Runs that were completed more than 30 days ago hold")
    assert person.page.locator(".growth rect.slot.pale").count() >= 35
    assert person.clicks == 1


def test_the_list_offers_what_helps_each_run_that_stopped(person: Person) -> None:
    page = person.page
    for run_id, offered in (
        ("report-wed", "Answer…"),
        ("payment-81", "Answer…"),
        ("nightly-3", "Requeue…"),
        ("report-tue", "Resume…"),
    ):
        link = page.locator(f"tr[data-key={run_id}] td[data-label=Status] a")
        expect(link).to_have_text(offered)
    for run_id in ("report-mon", "sales-fleet", "nightly-1"):
        expect(page.locator(f"tr[data-key={run_id}] td[data-label=Status] a")).to_have_count(0)
