"""Live updates: several browsers, many tabs on one connection, a server that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from docs.page_screens import new_context, served, sign_in
from playwright.sync_api import Browser, Page, expect

import holdfast
from holdfast import CheckpointManager


def cpu_seconds(pid: int) -> float:
    """The processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def connections(port: int) -> int:
    """The number of connections that are open to a port of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def test_an_approval_shows_in_another_browser_in_another_tab_and_in_the_command(
    open_page: Any, storage: str
) -> None:
    one, two = open_page("/waiting"), open_page("/run?id=report-wed")
    inbox = two.context.new_page()
    inbox.goto(one.url)
    for page in (one, two, inbox):
        expect(page.locator("#live")).to_have_text("Live.")
    one.locator("#report-wed").get_by_role("button", name="Approve").first.click()
    expect(one.locator("main")).to_contain_text("recorded as true")
    one.get_by_role("button", name="Approve").first.click()
    expect(two.locator(".open")).to_contain_text("after the newest checkpoint")
    expect(inbox.locator("#report-wed")).to_have_count(0)
    said = subprocess.run(
        [sys.executable, "-m", "holdfast", "-s", storage, "pending", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "report-wed" not in said.stdout and "payment-81" in said.stdout
    two.get_by_role("link", name="events").click()
    expect(two.locator("tbody tr").first).to_contain_text("answer")


def test_a_resume_from_the_page_continues_the_run_and_notes_who(
    open_page: Any, storage: str
) -> None:
    page: Page = open_page("/act/resume?id=report-wed")
    expect(page.locator("main")).to_contain_text("would continue after step 5")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".bar .status")).to_contain_text("completed")
    page.get_by_role("link", name="events").click()
    expect(page.locator(".detail")).to_contain_text("resumed it")
    with CheckpointManager(storage) as manager:
        latest = manager.latest("report-wed")
    assert latest is not None and latest.status == "completed"


def test_a_rewind_from_the_page_makes_an_earlier_checkpoint_the_head(
    open_page: Any, storage: str
) -> None:
    page: Page = open_page("/run?id=report-mon&step=3")
    page.get_by_role("link", name="Rewind here").click()
    expect(page.locator("main")).to_contain_text("would be rewound from step 6 to step 3")
    page.get_by_role("button", name="Rewind").click()
    page.get_by_role("link", name="events").click()
    expect(page.locator(".detail")).to_contain_text("rewound it to step 3")
    expect(page.locator(".list .row")).not_to_have_count(8)


@pytest.fixture
def watched(browser: Browser, tmp_path: Path) -> Any:
    """A run that grows, and a page that shows it."""
    address = f"sqlite:///{tmp_path}/runs.db"
    with holdfast.run("watched", storage=address) as run:
        run.checkpoint(node="first", n=1)
        context = new_context(browser)
        yield address, run, context
        context.close()


def test_a_page_continues_without_a_gap_when_its_server_is_killed(watched: Any) -> None:
    address, run, context = watched
    with served(address) as (process, link):
        base = link.partition("/?")[0]
        page = sign_in(context, link)
        page.goto(f"{base}/run?id=watched")
        other = context.new_page()
        other.goto(f"{base}/run?id=watched")
        for tab in (page, other):
            expect(tab.locator("#live")).to_have_text("Live.")
        process.kill()
        process.wait()
        run.checkpoint(node="while-away", n=2)
        expect(page.locator("#live")).to_have_text("Connecting again…")
    with served(address, port=int(base.rpartition(":")[2])):
        run.checkpoint(node="back", n=3)
        for tab in (page, other):
            tab.bring_to_front()
            steps = tab.locator(".list .what b")
            expect(steps).to_have_text(["back", "while-away", "first"])


def test_fifty_tabs_share_one_connection_and_the_server_stays_below_one_core(
    watched: Any,
) -> None:
    address, run, context = watched
    with served(address) as (process, link):
        base = link.partition("/?")[0]
        first = sign_in(context, link)
        tabs = [first, *(context.new_page() for _ in range(49))]
        for tab in tabs:
            tab.goto(f"{base}/run?id=watched", wait_until="commit")
        for tab in tabs:
            expect(tab.locator("#live")).to_have_text("Live.")
        # One stream, and what a browser keeps open to one server.
        assert connections(int(base.rpartition(":")[2])) <= 6
        before, began = cpu_seconds(process.pid), time.monotonic()
        for n in range(2, 12):
            run.checkpoint(node=f"step-{n}", n=n)
            expect(first.locator(".list .what b").first).to_have_text(f"step-{n}")
        assert cpu_seconds(process.pid) - before < time.monotonic() - began
        tabs[-1].bring_to_front()
        expect(tabs[-1].locator(".list .what b").first).to_have_text("step-11")
