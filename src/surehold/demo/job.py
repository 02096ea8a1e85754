"""The job that `surehold demo` kills: it reads twenty pages, one a step."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from surehold.doors.loop import run

PAGES = [f"page-{number:02}.html" for number in range(1, 21)]


def job(address: str, calls: Path) -> None:
    """Read the remaining pages; *calls* gets a line for each, like an invoice."""
    with run("crawl", storage=address) as crawl:
        done = len(crawl.state.get("read", []))
        print(f"  process started, {done} pages read so far", flush=True)
        for page in PAGES[done:]:
            time.sleep(0.05)
            with calls.open("a") as invoice:
                invoice.write(f"{page}\n")
            words = sum(map(ord, page)) * 7 % 900
            crawl.checkpoint(
                node="read",
                read=[*crawl.state.get("read", []), page],
                words=crawl.state.get("words", 0) + words,
                metadata={"attempt": crawl.attempt},
            )
            print(f"  read {page}", flush=True)


if __name__ == "__main__":
    job(sys.argv[1], Path(sys.argv[2]))
