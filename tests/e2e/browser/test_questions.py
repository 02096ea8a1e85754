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


def test_what_happened_at_a_step_takes_one_click(open_page: Any) -> None:
    """From its run, which a link or the list opened."""
    person = Person(open_page("/run?id=invoice-audit-2026-11"))
    person.click(person.page.locator(".steps a.row", has_text="price").first)
    expect(person.page.locator(".detail del").first).to_be_visible()  # the old value
    expect(person.page.locator(".detail ins").first).to_be_visible()  # and the new one
    expect(person.page.locator('[aria-current="step"]')).to_contain_text("1 call")
    assert person.clicks == 1


def test_what_did_it_cost_and_where_takes_one_click(person: Person) -> None:
    person.click(person.page.get_by_role("link", name="Cost", exact=True))
    for heading in ("By day", "By name", "By node", "By model", "The dearest runs"):
        expect(person.page.get_by_role("heading", name=heading)).to_be_visible()
    expect(person.page.locator("main")).to_contain_text("tokens in")
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


def test_what_a_resume_would_do_takes_one_click(open_page: Any) -> None:
    """From its run, which a link or the list opened."""
    person = Person(open_page("/run?id=report-tue"))
    person.click(person.page.get_by_role("link", name="Resume…"))
    expect(person.page.locator("main")).to_contain_text("runs first")
    expect(person.page.locator("main")).to_contain_text("Estimated cost")
    assert person.clicks == 1


def test_is_my_storage_growing_takes_one_click(person: Person) -> None:
    person.click(person.page.get_by_role("link", name="Storage"))
    expect(person.page.get_by_role("heading", name="Growth")).to_be_in_viewport()
    expect(person.page.locator("main")).to_contain_text("how fast it grows")
    assert person.clicks == 1
