"""A workflow that workers execute: `nightly.start(...)` queues a run, `surehold worker` runs it."""

from __future__ import annotations

import surehold


@surehold.step(retries=3)
def summarize(page: str) -> str:
    """Stands for a call to a model."""
    return page.title()


@surehold.workflow
def nightly(pages: list[str]) -> str:
    """Each page is one step: a worker that dies costs at most the page it was at."""
    return "\n".join(summarize(page) for page in pages)
