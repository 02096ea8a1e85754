"""Senders of messages, and the run that receives them, as processes that can be killed.

    python -m tests.crash.mail_victim receive URL SENDERS MESSAGES
    python -m tests.crash.mail_victim send URL SENDER MESSAGES

The receiver records each message in a step, and writes a line for each that it begins. With
SUREHOLD_TEST_MOST=N it waits to be killed after N messages.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys

import surehold
from surehold.errors import StorageError

RUN = "mail"
MOST = int(os.environ.get("SUREHOLD_TEST_MOST", "0"))
begun = itertools.count(1)


@surehold.step
def take(sender: int, number: int) -> tuple[int, int]:
    if next(begun) > MOST > 0:
        signal.pause()
    log = os.environ["SUREHOLD_TEST_LOG"]
    with open(log, "a") as file:
        file.write(f"{sender} {number}\n")
    return sender, number


@surehold.workflow
def receiver(messages: int) -> list[tuple[int, int]]:
    return [take(*surehold.receive("numbers")) for _ in range(messages)]


def send_all(url: str, sender: int, messages: int) -> None:
    with surehold.CheckpointManager(url) as manager:
        for number in range(messages):
            while True:
                try:
                    surehold.send(RUN, "numbers", (sender, number), storage=manager)
                    break
                except StorageError as error:  # nothing was acknowledged
                    if not error.retryable:
                        raise


if __name__ == "__main__":
    what, url, *rest = sys.argv[1:]
    first, messages = map(int, rest)
    if what == "send":
        send_all(url, first, messages)
    else:
        receiver.run(first * messages, run_id=RUN, storage=url)
