"""Your own loop, resumable: run it, stop it with Ctrl-C, run it again."""

from __future__ import annotations

import sys

import surehold

PAGES = [f"page-{number}" for number in range(1, 11)]


def read(page: str) -> int:
    return len(page) * 7  # the part that costs time or money


def main(address: str = "sqlite:///.surehold/own_loop.db") -> None:
    with surehold.run("crawl-2026-11-16", storage=address) as run:
        if run.completed:
            print("completed earlier:", run.state["words"], "words")
            return
        if run.resumed:
            print("resuming after step", run.step)
        for page in run.each(PAGES):
            run.state["words"] = run.state.get("words", 0) + run.call(read, page)
            print("read", page)
    print("completed:", run.state["words"], "words in", run.step, "steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
