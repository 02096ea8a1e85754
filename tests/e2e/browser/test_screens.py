"""Every screen on every kind of run: accessible, within the window, within its budget."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from docs.page_screens import LONG_SCREENS, SCREENS, SHAPES, new_context, served, sign_in
from playwright.sync_api import Browser, Page, expect

import surehold.web
from surehold import CheckpointManager

ASSETS = Path(surehold.web.__file__).parent / "static"


@pytest.fixture(scope="module", params=SHAPES)
def page(request: Any, browser: Browser, cookies: list[Any]) -> Iterator[Page]:
    """A browser as a desktop, a phone, and dark."""
    context = new_context(browser, **SHAPES[request.param])
    context.add_cookies(cookies)
    yield context.new_page()
    context.close()


def check(page: Page) -> None:
    """Fail on a violation of accessibility, and on a page wider than its window."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize("name", SCREENS)
def test_no_screen_violates_accessibility_or_overflows(page: Page, base: str, name: str) -> None:
    page.goto(base + SCREENS[name])
    check(page)


@pytest.fixture(scope="module")
def long(browser: Browser, long_storage: str) -> Iterator[tuple[Page, str]]:
    """A page on a run of ten thousand checkpoints."""
    with served(long_storage) as (_, link):
        yield sign_in(new_context(browser), link), link.partition("/?")[0]


@pytest.mark.parametrize("path", LONG_SCREENS.values())
def test_every_screen_opens_on_a_run_of_ten_thousand_checkpoints(
    long: tuple[Page, str], path: str
) -> None:
    page, base = long
    for shape in SHAPES.values():
        page.set_viewport_size(shape["viewport"])
        page.emulate_media(color_scheme=shape.get("color_scheme", "light"))
        page.goto(base + path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        check(page)
    if path.startswith("/run"):
        assert page.locator(".list > li").count() <= 52


def test_an_empty_storage_and_a_refused_stranger_are_accessible_too(
    browser: Browser, tmp_path: Path
) -> None:
    CheckpointManager(f"sqlite:///{tmp_path}/empty.db").close()
    with served(f"sqlite:///{tmp_path}/empty.db", "--read-only") as (_, link):
        for options in SHAPES.values():
            stranger = new_context(browser, **options).new_page()
            stranger.goto(link.partition("?")[0])
            expect(stranger.get_by_role("heading", level=1)).to_have_text("Not signed in")
            check(stranger)
            stranger.context.close()
        page = sign_in(new_context(browser), link)
        for options in SHAPES.values():
            page.set_viewport_size(options["viewport"])
            page.emulate_media(color_scheme=options.get("color_scheme", "light"))
            for path in ("/", "/waiting", "/queues", "/storage", "/health?verify=1&resumes=1"):
                page.goto(link.partition("/?")[0] + path)
                check(page)
        page.context.close()


def test_pages_and_assets_stay_within_their_budgets(open_page: Any, base: str) -> None:
    """60 kB for the first page, 120 kB for a run, compressed; 1 MB for all assets."""
    page: Page = open_page("/")

    def weight(path: str) -> int:
        text = page.request.get(base + path).text()
        assets = {*re.findall(r'(?:href|src)="(/static/[^"]+)"', text)}
        bodies = [text.encode(), *(page.request.get(base + one).body() for one in assets)]
        return sum(len(gzip.compress(body)) for body in bodies) + len(
            gzip.compress((ASSETS / "live.js").read_bytes())
        )

    assert weight("/") <= 60_000
    assert max(weight(path) for path in SCREENS.values()) <= 120_000
    assert sum(file.stat().st_size for file in ASSETS.iterdir()) <= 1_000_000


def test_nothing_is_loaded_from_elsewhere(open_page: Any, base: str) -> None:
    page: Page = open_page("/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in ("/", "/run?id=report-mon&tab=graph", "/waiting", "/storage"):
        page.goto(base + path)
    assert asked and all(url.startswith(base) for url in asked)
