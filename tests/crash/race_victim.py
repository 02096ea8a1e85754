"""Races of two effects and a timer, in a process that can be killed.

Every effect that is made is a line of the log, and so is every winner that the code was told, once.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import surehold

RUN = "races"
LOG: list[str] = []
MOST: list[int] = []
news = itertools.count(1)


def write(kind: str, *words: object) -> None:
    line = f"{kind} {' '.join(map(str, words))}\n"
    if kind == "won" and line in earlier():
        return
    if next(news) > MOST[0] > 0:
        signal.pause()
    log = os.open(LOG[0], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, line.encode())
    os.close(log)


@functools.cache
def earlier() -> frozenset[str]:
    """The lines of earlier lives."""
    with open(LOG[0]) as log:
        return frozenset(log)


async def pay(number: int, name: str) -> str:
    await asyncio.sleep(random.uniform(0, 0.004))
    write("paid", number, name)
    await asyncio.sleep(random.uniform(0, 0.004))
    return name


def was_paid(number: int, name: str, key: str) -> str | None:
    with open(LOG[0]) as log:
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
        write("won", number, won.name)
        winners.append(won.name)
    return winners


def execute(tell: Callable[..., None], url: str, log: str, most: int, races: int) -> None:
    """Execute so many races; wait to be killed after *most* new lines, unless that is 0."""
    LOG[:], MOST[:] = [log], [most]
    earlier()
    asyncio.run(racing.run(races, run_id=RUN, storage=url))
