"""Live updates: several browsers, many tabs on one connection, a server that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from docs.page_screens import PATIENCE, new_context, served, sign_in
from playwright.sync_api import Browser, Page, expect

import surehold
from surehold import CheckpointManager


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
        [sys.executable, "-m", "surehold", "-s", storage, "pending", "--json"],
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
    expect(page.locator(".bar .status").first).to_contain_text("completed")
    page.get_by_role("link", name="events").click()
    expect(page.locator(".detail")).to_contain_text("resumed it")
    with CheckpointManager(storage) as manager:
        latest = manager.latest("report-wed")
    assert latest is not None and latest.status == "completed"


def test_a_rewind_from_the_page_makes_an_earlier_checkpoint_the_head(
    open_page: Any, storage: str
) -> None:
    page: Page = open_page("/run?id=report-mon&step=3")
    page.get_by_text("More", exact=True).click()
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
    with surehold.run("watched", storage=address) as run:
        run.checkpoint(node="first", n=1)
        context = new_context(browser)
        yield address, run, context
        context.close()


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Any:
    """Prints a figure even if output is captured."""

    def print_it(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}")

    return print_it


class Saving:
    """Saves checkpoints of a run from a thread until it is told to stop."""

    def __init__(self, run: Any, seconds: float) -> None:
        self._run, self._seconds = run, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._save)
        self.saved = 0

    def _save(self) -> None:
        while not self._stop.wait(self._seconds):
            self.saved += 1
            self._run.checkpoint(node=f"save-{self.saved}", n=self.saved)

    def reach(self, count: int) -> None:
        """Wait until so many were saved."""
        while self.saved < count:
            assert self._thread.is_alive()
            time.sleep(0.01)

    def __enter__(self) -> Saving:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


STREAMED = """() => {
  window.ids = [];
  const stream = new EventSource("/api/events?id=watched&after=0");
  stream.addEventListener("record", (event) => window.ids.push(Number(event.lastEventId)));
}"""


def until(page: Page, condition: str) -> None:
    """Wait for an expression to hold; the page's own policy forbids Playwright's way to poll."""
    give_up = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < give_up, condition
        time.sleep(0.05)


def rendered(page: Page) -> list[int]:
    """The numbers of the records of the steps that the page shows, newest first."""
    found = page.locator(".list a.row").evaluate_all("rows => rows.map(row => row.href)")
    return [int(href.partition("at=")[2].partition("&")[0]) for href in found]


def test_a_page_continues_without_a_gap_when_its_server_is_killed_while_a_run_saves(
    watched: Any, tell: Any
) -> None:
    address, run, context = watched
    page, kills, base = context.new_page(), 3, ""
    with Saving(run, 0.2) as saving:
        for kill in range(kills + 1):
            port = int(base.rpartition(":")[2]) if base else 0
            with served(address, port=port) as (process, link):
                if not base:
                    base = link.partition("/?")[0]
                    page = sign_in(context, link)
                    page.goto(f"{base}/run?id=watched")
                    page.evaluate(STREAMED)
                before = saving.saved
                saving.reach(before + 3)
                expect(page.locator(".list .what b", has_text=f"save-{before + 1}")).to_have_count(
                    1
                )
                until(page, f"window.ids.at(-1) > {before + 1}")
                if kill < kills:
                    process.kill()
                    process.wait()
                    saving.reach(saving.saved + 3)
                    continue
                saving.__exit__()
                newest = saving.saved + 1
                expect(page.locator(".list .what b").first).to_have_text(f"save-{saving.saved}")
                until(page, f"window.ids.at(-1) == {newest}")
                assert page.evaluate("window.ids") == [*range(1, newest + 1)]
                assert rendered(page) == [*range(newest, max(0, newest - 50), -1)]
                tell(f"{kills} kills of the server: {newest} records, each streamed once, in order")


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
        expect(page.locator("#live")).to_contain_text("Connecting again…")
    with served(address, port=int(base.rpartition(":")[2])):
        run.checkpoint(node="back", n=3)
        for tab in (page, other):
            tab.bring_to_front()
            steps = tab.locator(".list .what b")
            expect(steps).to_have_text(["back", "while-away", "first"])


def test_fifty_tabs_share_one_connection_and_the_server_stays_below_one_core(
    watched: Any, tell: Any
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
        visible = sum(not tab.evaluate("document.hidden") for tab in tabs)
        with Saving(run, 0.1) as saving:
            before, began, saved = cpu_seconds(process.pid), time.monotonic(), saving.saved
            saving.reach(saved + 100)
            expect(first.locator(".list .what b").first).to_contain_text("save-")
            used = cpu_seconds(process.pid) - before
            cores = used / (time.monotonic() - began)
        tell(f"50 tabs ({visible} visible), 100 saves: {used:.2f} s of CPU, {cores:.2f} of a core")
        assert cores < 1
        for tab in (tabs[-1], tabs[25]):
            tab.bring_to_front()
            expect(tab.locator(".list .what b").first).to_have_text(f"save-{saving.saved}")


def test_fifty_browsers_on_a_run_that_saves_leave_the_server_below_one_core(
    watched: Any, tell: Any
) -> None:
    """Each with a connection of its own; one of them is real, the others only listen."""
    address, run, context = watched
    with served(address) as (process, link):
        base = link.partition("/?")[0]
        page = sign_in(context, link)
        page.goto(f"{base}/run?id=watched")
        cookie = "; ".join(f"{one['name']}={one['value']}" for one in context.cookies())
        heard = [0] * 49
        ended = threading.Event()

        def listen(at: int) -> None:
            request = Request(f"{base}/api/changes?after=newest", headers={"cookie": cookie})
            with suppress(OSError), urlopen(request, timeout=60) as answer:
                for line in answer:
                    heard[at] += line.startswith(b"event: record")
                    if ended.is_set():
                        return

        with ThreadPoolExecutor(49) as pool:
            for at in range(49):
                pool.submit(listen, at)
            with Saving(run, 0.1) as saving:
                while min(heard) < 1:
                    time.sleep(0.05)
                before, began = cpu_seconds(process.pid), time.monotonic()
                saving.reach(saving.saved + 100)
                cores = (cpu_seconds(process.pid) - before) / (time.monotonic() - began)
            ended.set()
            process.kill()
        tell(f"50 browsers, 100 saves: {cores:.2f} of a core")
        assert cores < 1


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[str]:
    """A storage with runs that wait for an approval."""
    address = f"sqlite:///{tmp_path}/asking.db"

    @surehold.workflow
    async def publish() -> bool:
        return bool(await surehold.interrupt("Publish?", schema=bool))

    async def ask() -> None:
        for number in range(APPROVALS):
            await publish.run(run_id=f"asks-{number}", storage=address)

    with ThreadPoolExecutor(1) as aside:  # Playwright runs a loop in this thread
        aside.submit(asyncio.run, ask()).result()
    yield address


APPROVALS = 20
GONE = """() => {
  window.gone = {};
  const there = () => [...document.querySelectorAll("article[id^=asks-]")].map((one) => one.id);
  let before = there();
  new MutationObserver(() => {
    const now = there();
    for (const id of before) if (!now.includes(id)) window.gone[id] ??= Date.now();
    before = now;
  }).observe(document.getElementById("main"), { childList: true, subtree: true });
}"""


def test_an_approval_shows_in_the_other_browser_and_in_the_command_at_once(
    browser: Browser, asking: str, tell: Any
) -> None:
    """Measured from the click to the change of the other browser's document."""
    command = [sys.executable, "-m", "surehold", "-s", asking, "pending", "--follow", "--jsonl"]
    printed: list[tuple[float, set[str]]] = []
    with (
        served(asking) as (_, link),
        subprocess.Popen(command, stdout=subprocess.PIPE) as follower,
        ExitStack() as end,
    ):
        end.callback(follower.kill)

        def follow() -> None:
            assert follower.stdout is not None
            for line in follower.stdout:
                left = {one["run_id"] for one in json.loads(line)["pending"]}
                printed.append((time.time(), left))

        reading = threading.Thread(target=follow)
        reading.start()
        base = link.partition("/?")[0]
        one, two = new_context(browser), new_context(browser)
        first, second = sign_in(one, link), two.new_page()
        two.add_cookies(one.cookies())  # type: ignore[arg-type]
        second.goto(f"{base}/waiting")
        second.evaluate(GONE)
        for page in (first, second):
            expect(page.locator("#live")).to_have_text("Live.")
        seen: list[float] = []
        shown: list[float] = []
        asked: list[str] = []
        second.on("request", lambda request: asked.append(request.url))
        refreshes: list[int] = []
        lines: list[int] = []
        for number in range(APPROVALS):
            run_id = f"asks-{number}"
            first.goto(f"{base}/waiting")
            first.locator(f"#{run_id}").get_by_role("button", name="Approve").click()
            button = first.get_by_role("button", name="Approve")
            expect(button).to_be_visible()
            asked_before, lines_before = len(asked), len(printed)
            began = time.time()
            button.click()
            until(second, f"!!window.gone['{run_id}']")
            seen.append(second.evaluate(f"window.gone['{run_id}']") / 1000 - began)
            refreshes.append(len(asked) - asked_before)
            while not printed or run_id in printed[-1][1]:
                time.sleep(0.01)
                assert reading.is_alive()
            shown.append(next(at for at, left in printed[1:] if run_id not in left) - began)
            lines.append(len(printed) - lines_before)
        follower.kill()
        reading.join()
        for context in (one, two):
            context.close()
    figures = [
        f"{name} {middle(times):.2f} s, most {max(times):.2f} s"
        for name, times in (("other browser", seen), ("command", shown))
    ]
    tell(f"{APPROVALS} approvals, median: {'; '.join(figures)}")
    # How long that takes depends on the machine. An approval writes two records, and a refresh may
    # have begun before it.
    assert max(refreshes) <= 3 and max(lines) <= 3, (refreshes, lines)


def middle(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]


MOUNTED = """
import socket, sys, uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from surehold.web import app

page = app(sys.argv[1], auth=lambda request: request.cookies.get("user"), read_only=True)
config = uvicorn.Config(Starlette(routes=[Mount("/agents", page)]), log_level="warning")
bound = socket.create_server(("127.0.0.1", 0))
print(bound.getsockname()[1], flush=True)
uvicorn.Server(config).run(sockets=[bound])
"""


def test_a_page_that_is_mounted_behind_a_sign_in_is_live_and_read_only(
    browser: Browser, watched: Any
) -> None:
    address, run, _ = watched
    command = [sys.executable, "-c", MOUNTED, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, ExitStack() as end:
        end.callback(server.kill)
        assert server.stdout is not None
        base = f"http://127.0.0.1:{server.stdout.readline().strip()}/agents"
        stranger = new_context(browser).new_page()
        answer = stranger.goto(f"{base}/run?id=watched")
        assert answer is not None and answer.status == 401
        context = new_context(browser)
        context.add_cookies([{"name": "user", "value": "ada", "url": base}])
        page = context.new_page()
        page.goto(f"{base}/")
        page.get_by_role("link", name="watched").click()
        expect(page.locator("footer")).to_contain_text("Signed in as ada.")
        expect(page.locator(".where")).to_contain_text("read-only")
        expect(page.get_by_role("link", name="Fork here")).to_have_count(0)
        expect(page.locator("#live")).to_have_text("Live.")
        run.checkpoint(node="mounted", n=2)
        expect(page.locator(".list .what b").first).to_have_text("mounted")
        for one in (context, stranger.context):
            one.close()
