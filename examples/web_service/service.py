"""Reports over HTTP: start a run, follow it, approve it. Killed and restarted, runs continue.

    surehold serve service --listen 127.0.0.1:8000

The storage is the configured one: `SUREHOLD_STORAGE`, `surehold.toml`, or `.surehold/surehold.db`.
"""

from __future__ import annotations

import asyncio

import surehold

SECTIONS = ("summary", "body", "sources")


@surehold.step(retries=3)
async def write(topic: str, section: str) -> str:
    await asyncio.sleep(0.2)  # stands for a model call
    return f"{section} of {topic}"


@surehold.workflow
async def report(topic: str) -> str:
    """Write a report, and wait until an editor approves it."""
    sections = [await write(topic, section) for section in SECTIONS]
    editor = await surehold.wait_for("approval")
    return f"{', '.join(sections)}; approved by {editor}"
