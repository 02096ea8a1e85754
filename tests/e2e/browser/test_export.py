"""`surehold export --html` in a real Chromium: one file, the same page, however long the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from docs.page_runs import LONG
from docs.page_screens import SHAPES, new_context
from playwright.sync_api import Browser, expect


def exported(address: str, run: str, path: Path) -> str:
    """The address of the file that the command writes."""
    command = [sys.executable, "-m", "surehold", "-s", address, "export", run, "--html"]
    subprocess.run([*command, "-o", str(path)], check=True, capture_output=True)
    return path.as_uri()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_file_is_the_run_page_without_a_script(
    browser: Browser, storage: str, tmp_path: Path, shape: str
) -> None:
    asked: list[str] = []
    context = new_context(browser, java_script_enabled=True, **SHAPES[shape])
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    errors: list[Any] = []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    address = exported(storage, "report-mon", tmp_path / "run.html")
    page.goto(address)
    expect(page.get_by_role("heading", level=1)).to_contain_text("report-mon")
    expect(page.locator(".panel:visible h2").first).to_have_text("Step 6 approve")
    page.locator(".list a", has_text="plan").click()
    expect(page.locator(".panel:visible h2").first).to_have_text("Step 1 plan")
    expect(page.locator(".panel:visible")).to_contain_text("/questions")
    assert Axe().run(page).violations_count == 0
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert {url.partition("#")[0] for url in asked} == {address}
    assert errors == []
    context.close()


def test_a_file_of_ten_thousand_checkpoints_opens_and_turns_its_pages(
    browser: Browser, long_storage: str, tmp_path: Path
) -> None:
    page = new_context(browser, java_script_enabled=False).new_page()
    page.goto(exported(long_storage, "long", tmp_path / "long.html"))
    expect(page.locator(".page:visible .list li")).to_have_count(50)
    page.locator(".pages a").nth(100).click()
    expect(page.locator(".page:visible .list li")).to_have_count(50)
    page.locator(".page:visible .list a").nth(7).click()
    expect(page.locator(".panel:visible")).to_have_count(1)
    expect(page.locator(".panel:visible h2").first).to_contain_text("Step 4")
    assert page.locator(".panel").count() == LONG + 1
    page.context.close()
