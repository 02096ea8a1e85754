"""Messages from several processes to a run that is killed: each taken once, in order."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.mail_victim import RUN, receiver
from tests.crash.media import times
from tests.crash.processes import Child, ForkServer

from surehold import CheckpointManager

MESSAGES = times(25, 1250, "SUREHOLD_TRIALS")
SENDERS = 8 if MESSAGES > 100 else 4
LONGEST = 500 if MESSAGES < 100 else 7_000
"""Seconds for all of it, on a machine that is busy."""
KILLS = times(5, 100, "SUREHOLD_KILLS")
VICTIM = "tests.crash.mail_victim"


A_LIFE = SENDERS * MESSAGES // (KILLS + 2)
"""Messages after which a life waits to be killed, so that each kill finds messages left."""


pytestmark = pytest.mark.timeout(2 * LONGEST)


def receive(server: ForkServer, log: Path, url: str, kills: int) -> Child:
    most = A_LIFE if kills < KILLS else 0
    return server.start(f"{VICTIM}:receive_all", url, str(log), most, SENDERS * MESSAGES)


def test_messages_are_taken_once_and_in_order_while_the_receiver_is_killed(
    tmp_path: Path, server: ForkServer, finding: Callable[..., Any]
) -> None:
    url, log = f"sqlite:///{tmp_path}/runs.db", tmp_path / "log"
    log.touch()
    chance = random.Random(7)
    receiving = receive(server, log, url, 0)
    until = time.monotonic() + LONGEST
    while not is_begun(url):
        assert time.monotonic() < until
        time.sleep(0.05)
    sending = f"{VICTIM}:send_all"
    senders = [server.start(sending, url, number, MESSAGES) for number in range(SENDERS)]
    kills, seen = 0, 0
    while kills < KILLS:
        assert time.monotonic() < until, log.read_text()[-200:]
        if log.stat().st_size > seen:  # it has taken something
            time.sleep(chance.uniform(0, 0.1))
            with receiving:
                receiving.kill()
            assert receiving.exit_code == -signal.SIGKILL
            kills, seen = kills + 1, log.stat().st_size
            receiving = receive(server, log, url, kills)
        time.sleep(0.005)
    for child in (receiving, *senders):
        with child:
            assert (child.hear_all(LONGEST), child.wait()) == ([], 0)
    result = receiver.resume(RUN, storage=url)
    taken = result.value
    assert result.status == "completed"
    assert len(taken) == SENDERS * MESSAGES
    for number in range(SENDERS):
        assert [n for sender, n in taken if sender == number] == [*range(MESSAGES)]
    lines = log.read_text().splitlines()
    assert len(lines) - len(set(lines)) <= kills, "only a step in flight is repeated"
    assert kills == KILLS
    text = f"{SENDERS} senders, receiver killed {kills} times: each taken once, in order"
    finding("messages to a run", SENDERS * MESSAGES, text)


def is_begun(url: str) -> bool:
    with CheckpointManager(url) as manager:
        return manager.reader.run(RUN) is not None
