"""Makes the pictures of the page: a demonstration storage, a real Chromium, each screen.

`make screens` writes those of the documentation. With a directory as argument, every screen is
written there as desktop, phone and dark.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.page_runs import fill, fill_frameworks, make_long

IMAGES = Path(__file__).parent / "images"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
SCREENS = {
    "runs": "/",
    "run": "/run?id=report-mon",
    "failed": "/run?id=report-tue",
    "state": "/run?id=report-mon&step=4&tab=state",
    "blame": "/run?id=report-mon&tab=state&shape=blame",
    "graph": "/run?id=report-mon&tab=graph",
    "timeline": "/run?id=report-mon&tab=timeline",
    "cost": "/run?id=report-mon&tab=cost",
    "events": "/run?id=report-mon&tab=events",
    "long": "/run?id=crawl&step=40",
    "waiting": "/waiting",
    "conversation": "/run?id=tides-brest&tab=conversation",
    "forks": "/forks?id=report-mon",
    "costs": "/costs",
    "bad-answer": "/act/answer?id=report-wed&waiting=approve%406&how=answer&value=maybe",
    "approve": "/act/answer?id=report-wed&waiting=approve%406&how=approve",
    "compare": "/compare?a=report-mon&b=report-mon-kids",
    "queues": "/queues",
    "storage": "/storage",
    "forget": "/act/forget?id=crawl&keep_last=5",
    "resume": "/act/resume?id=report-tue",
    "fork": "/act/fork?checkpoint=report-mon%403",
    "rewind": "/act/rewind?checkpoint=report-mon%403",
    "repair": "/act/repair?id=report-mon",
    "verify": "/act/verify?id=report-mon",
    "health": "/health?verify=1&resumes=1",
    "thread": "/run?id=tides-brest",
    "thread-graph": "/run?id=tides-brest&tab=graph",
    "fleet": "/run?id=sales-fleet",
    "fleet-timeline": "/run?id=sales-fleet&tab=timeline",
    "fleet-graph": "/run?id=sales-fleet&tab=graph",
    "agents": "/run?id=clerk-nov",
    "agents-effects": "/run?id=clerk-nov&tab=effects",
    "raw": "/run?id=report-mon&tab=raw",
    "full": "/run?id=report-mon&tab=state&shape=full",
    "event": "/event?id=report-mon&seq=2",
    "missing": "/run?id=nothing",
    "found": "/?search=kids&status=completed",
    "compare-form": "/compare",
    "queue": "/queues?queue=nightly&state=dead",
    "pause": "/act/pause?queue=nightly",
    "requeue": "/act/requeue?id=nightly-3",
    "tag": "/act/tag?checkpoint=report-mon%403",
    "pin": "/act/pin?checkpoint=report-mon%403",
    "in-doubt": "/act/answer?id=payment-81&waiting=charge%402&how=happened",
    "queued": "/run?id=nightly-1",
    "sub-agent": "/run?id=clerk-nov&nested=1",
}
LONG_SCREENS = {
    "long-runs": "/",
    "long-run": "/run?id=long",
    "long-middle": "/run?id=long&step=5000",
    "long-timeline": "/run?id=long&tab=timeline&step=777",
    "long-graph": "/run?id=long&tab=graph",
    "long-events": "/run?id=long&tab=events",
    "long-blame": "/run?id=long&tab=state&shape=blame",
    "long-compare": "/compare?a=long@10&b=long",
    "long-storage": "/storage",
    "long-health": "/health?verify=1",
    "long-waiting": "/waiting",
    "long-rewind": "/act/rewind?checkpoint=long@9990",
    "long-fork": "/act/fork?checkpoint=long@3",
}
"""Those of a storage with a run of ten thousand checkpoints."""
SHAPES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
}
PATIENCE = int(os.environ.get("PATIENCE", "120000"))
"""Milliseconds."""
SHOWN = {
    "runs": "/",
    "run": "/run?id=invoice-audit-2026-11&step=29&tab=state",
    "graph": "/run?id=report-mon&tab=graph",
    "waiting": "/waiting",
    "forks": "/forks?id=essay",
    "resume": "/act/resume?id=report-tue",
}
"""The six screens of the tour in the documentation."""
_TOUR: Any = {"width": 1180, "height": 760}
_COLORS = 128


@contextmanager
def served(address: str, *words: str, port: int = 0) -> Iterator[tuple[Any, str]]:
    """The page in a process of its own; gives the process and its link."""
    command = [sys.executable, "-m", "surehold", "-s", address, "ui", "--jsonl"]
    process = subprocess.Popen(
        [*command, "--port", str(port), *words], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def new_context(browser: Browser, **options: Any) -> BrowserContext:
    """A browser of its own, that waits long enough on a busy machine."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    return context


def sign_in(context: BrowserContext, link: str) -> Page:
    """Open the link, so that the context has the cookie."""
    page = context.new_page()
    page.goto(link)
    return page


def main(directory: Path | None) -> None:
    """Write the pictures."""
    target = (directory or IMAGES).resolve()
    target.mkdir(parents=True, exist_ok=True)
    os.environ["LOGNAME"] = "ada"
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        if directory is None:
            from docs.page_review import fill_review

            fill_review("sqlite:///agents.db", runs=120, long=600)
            _take_tour("sqlite:///agents.db", target)
            return
        fill("sqlite:///runs.db")
        fill_frameworks("sqlite:///runs.db")
        _take("sqlite:///runs.db", SCREENS, target)
        make_long("sqlite:///long.db")
        _take("sqlite:///long.db", LONG_SCREENS, target)


def _take(address: str, screens: dict[str, str], target: Path) -> None:
    """Write the pictures of the screens of one storage."""
    with served(address) as (_, link), chromium() as browser:
        base, cookies = link.partition("/?")[0], sign_in(new_context(browser), link)
        for shape, options in SHAPES.items():
            context = new_context(browser, **options)
            context.add_cookies(cookies.context.cookies())  # type: ignore[arg-type]
            page = context.new_page()
            for name, path in screens.items():
                page.goto(base + path)
                page.screenshot(path=target / f"{name}-{shape}.png", full_page=True)
            context.close()


def _take_tour(address: str, target: Path) -> None:
    """Write the pictures of the documentation, light and dark, and the film."""
    from docs.page_film import SIZE, make_film
    from PIL import Image

    with served(address) as (_, link), chromium() as browser:
        base, first = link.partition("/?")[0], new_context(browser)
        sign_in(first, link)
        cookies: Any = first.cookies()
        schemes: dict[str, Any] = {"": "light", "-dark": "dark"}
        for ending, scheme in schemes.items():
            context = new_context(browser, viewport=_TOUR, color_scheme=scheme)
            context.add_cookies(cookies)
            page = context.new_page()
            for name, path in SHOWN.items():
                page.goto(base + path)
                file = target / f"page-{name}{ending}.png"
                page.screenshot(path=file)
                with Image.open(file) as image:
                    image.convert("RGB").quantize(_COLORS).save(file, optimize=True)
            context.close()
        context = new_context(browser, viewport={"width": SIZE[0], "height": SIZE[1]})
        context.add_cookies(cookies)
        make_film(context.new_page(), base, target / "page.webp")
        context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
