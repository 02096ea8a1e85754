"""Your own loop, resumable: run it, stop it with Ctrl-C, run it again."""

from __future__ import annotations

import sys

import holdfast

PAGES = [f"page-{number}" for number in range(1, 11)]


def main(address: str = "sqlite:///.holdfast/own_loop.db") -> None:
    with holdfast.run("crawl", storage=address) as run:
        if run.completed:
            print("done already:", run.state["words"], "words")
            return
        if run.resumed:
            print("going on after step", run.step)
        for page in PAGES[run.state.get("done", 0) :]:
            words = len(page) * 7  # the part that costs time or money
            run.checkpoint(
                done=run.state.get("done", 0) + 1, words=run.state.get("words", 0) + words
            )
            print("read", page)
    print("done:", run.state["words"], "words in", run.step, "steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
