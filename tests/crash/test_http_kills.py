"""Runs that were accepted over HTTP, by servers that are killed with SIGKILL.

500 kills with SUREHOLD_FULL=1.
"""

from __future__ import annotations

import multiprocessing
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.crash import served
from tests.crash.media import times

from surehold import CheckpointManager
from surehold.client import Client
from surehold.errors import StorageUnavailableError
from surehold.executors import queue_entries
from surehold.storage.base import RunQuery

KILLS = times(6, 500, "HTTP_KILLS")
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.crash.served"])


@contextmanager
def server(storage: str, charged: Path) -> Iterator[tuple[Client, Callable[[], None]]]:
    """A server in a process of its own, and what kills it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = FORKING.Process(target=served.serve, args=(storage, str(charged), listening))
        process.start()
        port = listening.getsockname()[1]
    try:
        with served.client_of(port) as client:
            yield client, process.kill
    finally:
        process.kill()
        process.join()


@pytest.mark.timeout(3600)
def test_a_server_that_is_killed_after_it_accepted_loses_and_doubles_no_run(
    tmp_path: Path, finding: Callable[..., None]
) -> None:
    storage, charged = f"sqlite:///{tmp_path}/runs.db", tmp_path / "charged"
    charged.touch()
    chance = random.Random(7)
    accepted: dict[int, str] = {}
    cut = 0
    for number in range(1, KILLS + 1):
        key = f"order-{number}"
        if number % 2:
            with server(storage, charged) as (client, kill):
                accepted[number] = client.start("order", {"number": number}, idempotency_key=key)
                kill()
            continue
        with server(storage, charged) as (client, kill):
            client.code()  # it answers
            client.patience = 0
            killing = threading.Timer(chance.uniform(0, 0.02), kill)
            killing.start()
            try:
                client.start("order", {"number": number}, run_id=key)
            except StorageUnavailableError:
                cut += 1
            killing.join()
        with server(storage, charged) as (client, kill):
            accepted[number] = client.start("order", {"number": number}, run_id=key)
            kill()
    with server(storage, charged) as (client, _):
        for run_id in accepted.values():
            last = [event.type for event in client.events(run_id)][-1]
            assert last == "run.completed", run_id
            assert client.get(run_id).status == "completed"
    with CheckpointManager(storage) as manager:
        runs = [run.run_id for run in manager.storage.runs(RunQuery())]
        assert not [entry for entry in queue_entries(storage=manager)]
    assert sorted(runs) == sorted(accepted.values()), "none lost, none begun twice"
    told = Counter(map(int, charged.read_text().split()))
    assert {abs(number) for number in told} == {*accepted}
    again = sum(count - 1 for count in told.values())
    kills = KILLS + KILLS // 2
    finding(
        "SIGKILL of a server right after it accepted a request",
        kills,
        f"{cut} requests cut off; 0 lost, 0 doubled; {again} steps in flight repeated",
    )
