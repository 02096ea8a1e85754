"""Senders of messages, and the run that receives them, in processes that can be killed.

The receiver records each message in a step, and writes a line for each that it begins.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable

import surehold
from surehold.errors import StorageError

RUN = "mail"
LOG: list[str] = []
MOST: list[int] = []
begun = itertools.count(1)


@surehold.step
def take(sender: int, number: int) -> tuple[int, int]:
    if next(begun) > MOST[0] > 0:
        signal.pause()
    with open(LOG[0], "a") as file:
        file.write(f"{sender} {number}\n")
    return sender, number


@surehold.workflow
def receiver(messages: int) -> list[tuple[int, int]]:
    return [take(*surehold.receive("numbers")) for _ in range(messages)]


def receive_all(tell: Callable[..., None], url: str, log: str, most: int, messages: int) -> None:
    """Receive so many messages; wait to be killed after *most*, unless that is 0."""
    LOG[:], MOST[:] = [log], [most]
    receiver.run(messages, run_id=RUN, storage=url)


def send_all(tell: Callable[..., None], url: str, sender: int, messages: int) -> None:
    with surehold.CheckpointManager(url) as manager:
        for number in range(messages):
            while True:
                try:
                    surehold.send(RUN, "numbers", (sender, number), storage=manager)
                    break
                except StorageError as error:  # nothing was acknowledged
                    if not error.retryable:
                        raise
