"""A real Chromium, a page that is being served, and runs of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from docs.page_runs import fill, fill_frameworks, make_long
from docs.page_screens import PATIENCE, chromium, new_context, served, sign_in
from playwright.sync_api import Browser, BrowserContext, Page, expect

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the key of cookies away from the developer's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    address = f"sqlite:///{tmp_path_factory.mktemp('page')}/runs.db"
    with ThreadPoolExecutor(1) as aside:  # Playwright runs a loop in this thread
        aside.submit(fill, address).result()
        aside.submit(fill_frameworks, address).result()
    return address


@pytest.fixture(scope="session")
def long_storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A storage with a run of ten thousand checkpoints."""
    address = f"sqlite:///{tmp_path_factory.mktemp('long')}/long.db"
    make_long(address)
    return address


@pytest.fixture(scope="module")
def site(storage: str) -> Iterator[str]:
    """A page that is being served; gives its link."""
    with served(storage) as (_, link):
        yield link


@pytest.fixture(scope="module")
def base(site: str) -> str:
    """The address of the page without a path."""
    return site.partition("/?")[0]


@pytest.fixture(scope="module")
def cookies(site: str, browser: Browser) -> list[Any]:
    context = new_context(browser)
    sign_in(context, site)
    return context.cookies()


Open = Callable[..., Page]


@pytest.fixture
def open_page(base: str, browser: Browser, cookies: list[Any]) -> Iterator[Open]:
    """Opens a path in a browser of its own, and fails at the end on any error of the console."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def open(path: str, **options: Any) -> Page:
        context = new_context(browser, **options)
        contexts.append(context)
        context.add_cookies(cookies)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(base + path)
        return page

    yield open
    for context in contexts:
        context.close()
    assert [one for one in errors if "a status of 4" not in one] == []
