"""The page in a real Chromium: every screen, keys, live updates, approvals, accessibility."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from docs.page_screens import SCREENS, SHAPES, chromium, fill, leave_in_doubt, served, sign_in
from playwright.sync_api import Browser, BrowserContext, Page, expect

import holdfast
from holdfast import CheckpointManager

LONG = 10_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the key of cookies away from the developer's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    address = f"sqlite:///{tmp_path_factory.mktemp('page')}/runs.db"
    fill(address)
    leave_in_doubt(address)
    return address


@pytest.fixture(scope="module")
def site(storage: str) -> Iterator[str]:
    """A page that is being served; gives its link."""
    with served(storage) as (_, link):
        yield link


@pytest.fixture(scope="module")
def cookies(site: str, browser: Browser) -> list[Any]:
    context = browser.new_context()
    sign_in(context, site)
    return context.cookies()


Open = Callable[..., Page]


@pytest.fixture
def open_page(site: str, browser: Browser, cookies: list[Any]) -> Iterator[Open]:
    """Opens a path in a browser of its own, and fails at the end on any error of the console."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open(path: str, **options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        context.add_cookies(cookies)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(site.partition("/?")[0] + path)
        return page

    yield open
    for context in contexts:
        context.close()
    assert [one for one in errors if "404" not in one] == []


@pytest.mark.parametrize("name", SCREENS)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_screen_violates_accessibility_or_overflows(
    open_page: Open, name: str, shape: str
) -> None:
    page = open_page(SCREENS[name], **SHAPES[shape])
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0


def test_reading_needs_no_script(open_page: Open) -> None:
    page = open_page("/", java_script_enabled=False)
    page.get_by_role("link", name="report-mon", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("report-mon")
    page.locator(".list a", has_text="plan").click()
    expect(page.locator('[aria-current="step"]')).to_contain_text("plan")
    page.get_by_role("link", name="state").click()
    expect(page.locator(".changes")).to_contain_text("/questions")


def test_keys_move_search_and_help(open_page: Open) -> None:
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


def test_steps_scrubber_and_detail_are_one_selection(open_page: Open) -> None:
    page = open_page("/run?id=report-mon&tab=state")
    page.keyboard.press("j")
    expect(page.locator(".scrub output")).to_have_text("5")
    page.locator("#scrub").fill("2")
    expect(page.locator('[aria-current="step"] .n')).to_have_text("2")
    expect(page.locator(".detail")).to_contain_text("kelp grows half a metre a day")
    expect(page).to_have_url(re.compile("step=2"))
    expect(page.locator(".cursor")).to_contain_text("$0.006 up to here")
    page.reload()
    expect(page.locator('[aria-current="step"] .n')).to_have_text("2")


def test_script_in_a_state_does_not_run(open_page: Open, storage: str) -> None:
    attack = "<img src=x onerror='window.owned=1'><script>alert(1)</script>"
    with holdfast.run(f"attack {attack}", storage=storage) as run:
        run.checkpoint(node=attack, messages=[{"role": "user", "content": attack}])
    page = open_page("/?search=attack")
    page.locator("a.row").first.click()
    expect(page.locator(".chat")).to_contain_text("<script>alert(1)</script>")
    assert page.evaluate("window.owned") is None
    assert page.locator(".chat img, .chat script").count() == 0


def test_an_approval_shows_in_another_browser_and_in_the_journal(
    open_page: Open, storage: str
) -> None:
    one, two = open_page("/waiting"), open_page("/run?id=report-wed")
    expect(two.locator("#live")).to_have_text("Live.")
    one.locator("#report-wed").get_by_role("button", name="Approve").click()
    expect(one.locator("main")).to_contain_text("recorded as true")
    began = time.monotonic()
    one.get_by_role("button", name="Approve").click()
    expect(two.locator(".open")).to_contain_text("after the newest checkpoint", timeout=5000)
    two.get_by_role("link", name="events").click()
    expect(two.locator("tbody tr").first).to_contain_text("answer")
    assert time.monotonic() - began < 5
    assert [one.run_id for one in holdfast.pending(storage=storage)] == ["payment-81"]


def test_a_resume_from_the_page_continues_the_run(open_page: Open, storage: str) -> None:
    page = open_page("/act/resume?id=report-wed")
    expect(page.locator("main")).to_contain_text("would continue after step 5")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".bar .status")).to_contain_text("completed", timeout=20_000)
    with CheckpointManager(storage) as manager:
        latest = manager.latest("report-wed")
    assert latest is not None and latest.status == "completed"


def test_a_page_continues_when_its_server_is_killed_and_started_again(
    browser: Browser, tmp_path: Path
) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    with holdfast.run("watched", storage=address) as run:
        run.checkpoint(node="first", n=1)
        with served(address) as (process, link):
            base = link.partition("/?")[0]
            page = sign_in(browser.new_context(), link)
            page.goto(f"{base}/run?id=watched")
            expect(page.locator("#live")).to_have_text("Live.")
            process.kill()
            process.wait()
            run.checkpoint(node="while-away", n=2)
        with served(address, port=int(base.rpartition(":")[2])):
            run.checkpoint(node="back", n=3)
            steps = page.locator(".list .what b")
            expect(steps).to_have_text(["back", "while-away", "first"], timeout=15_000)
        page.context.close()


def test_the_demonstration_is_loaded_into_an_empty_storage(
    browser: Browser, tmp_path: Path
) -> None:
    address = f"sqlite:///{tmp_path}/empty.db"
    CheckpointManager(address).close()
    with served(address) as (_, link):
        page = sign_in(browser.new_context(), link)
        expect(page.get_by_role("heading", level=1)).to_have_text("No runs yet")
        page.get_by_role("button", name="Load the demonstration").click()
        expect(page.locator("tbody tr")).to_have_count(4, timeout=20_000)
        page.context.close()


def test_a_run_of_ten_thousand_checkpoints_opens(browser: Browser, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/long.db"
    with holdfast.run("long", storage=address) as run:
        for n in range(LONG):
            run.checkpoint(node="tick", n=n)
    with served(address) as (_, link):
        page = sign_in(browser.new_context(), link)
        base = link.partition("/?")[0]
        for rest in ("", "&step=5000", "&tab=state&shape=blame"):
            page.goto(f"{base}/run?id=long{rest}")
            expect(page.locator(".list li").first).to_be_visible()
        page.context.close()
