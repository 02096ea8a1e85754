"""Races of two effects and a timer, as a process that can be killed.

    python -m tests.crash.race_victim URL RACES

Every effect that is made is a line of the log, and so is every winner that the code was told, once.
With SUREHOLD_TEST_MOST=N the process waits to be killed after N new lines.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
import signal
import sys
from functools import partial
from typing import Any

import surehold

RUN = "races"
LOG = os.environ.get("SUREHOLD_TEST_LOG", "")
MOST = int(os.environ.get("SUREHOLD_TEST_MOST", "0"))
news = itertools.count(1)


def tell(kind: str, *words: object) -> None:
    line = f"{kind} {' '.join(map(str, words))}\n"
    if kind == "won" and line in earlier():
        return
    if next(news) > MOST > 0:
        signal.pause()
    log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, line.encode())
    os.close(log)


@functools.cache
def earlier() -> frozenset[str]:
    """The lines of earlier lives."""
    with open(LOG) as log:
        return frozenset(log)


async def pay(number: int, name: str) -> str:
    await asyncio.sleep(random.uniform(0, 0.004))
    tell("paid", number, name)
    await asyncio.sleep(random.uniform(0, 0.004))
    return name


def was_paid(number: int, name: str, key: str) -> str | None:
    with open(LOG) as log:
        return name if f"paid {number} {name}\n" in log.read() else None


async def runner(number: int, name: str) -> str:
    await surehold.effect(f"pay {name}", pay, number, name, probe=partial(was_paid, number, name))
    return name


@surehold.workflow
async def racing(races: int) -> list[Any]:
    winners = []
    for number in range(races):
        won = await surehold.select(
            a=runner(number, "a"), b=runner(number, "b"), late=surehold.sleep(0.006)
        )
        tell("won", number, won.name)
        winners.append(won.name)
    return winners


if __name__ == "__main__":
    earlier()
    asyncio.run(racing.run(int(sys.argv[2]), run_id=RUN, storage=sys.argv[1]))
