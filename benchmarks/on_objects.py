"""Object stores: requests of a save and a resume, and listings beside many runs.

Requests are counted by a fake store in memory, times are taken on SeaweedFS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.fake_objects import FakeObjects
from tests.servers import SeaweedFS

from benchmarks.report import Line
from benchmarks.scale import pages
from benchmarks.workload import Times, message
from holdfast import CheckpointManager, State
from holdfast.storage.base import RunQuery, Storage

__all__ = ["measure"]

_STEPS = 1000
_SAVES = 200


def measure(directory: Path) -> Iterator[Line]:
    """Count requests, then take times on a server."""
    with FakeObjects() as fake:
        _use({"AWS_ENDPOINT_URL": fake.endpoint})
        yield from _requests(fake)
    server = SeaweedFS(directory / "seaweedfs", owner=os.getpid()).start()
    _use(server.environment())
    yield from _saves(server)
    with ExitStack() as stack:
        yield from pages(
            "S3",
            lambda n: stack.enter_context(_open(server.bucket, f"pages{n}")),
            turns=20,
            ended=True,
            unlimited=("of one name", "of all", "of 5 runs"),  # a listing has 1,000 names
        )


def _use(environment: dict[str, str]) -> None:
    anyone = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    os.environ.update({"AWS_REGION": "us-east-1", **anyone, **environment})


def _open(bucket: str, prefix: str) -> Storage:
    from holdfast.storage.objects import ObjectStorage

    return ObjectStorage(f"s3://{bucket}/{prefix}")


def _requests(fake: FakeObjects) -> Iterator[Line]:
    """Count the requests of 1,000 saves, a resume in a new process, and a page of ended runs."""
    with _open("bucket", "one") as storage, CheckpointManager(storage) as manager:
        state = State.new({"messages": []}, run_id="run")
        manager.save_checkpoint(state)
        fake.requests.clear()
        for step in range(1, _STEPS + 1):
            state = state.append("messages", message(step)).at(step=step)
            manager.save_checkpoint(state)
        spent = len(fake.requests) / _STEPS
        yield Line(f"S3: requests a save, of {_STEPS:,}", spent, 1.1, unit="")
        storage.compact()
    with _open("bucket", "one") as storage, CheckpointManager(storage) as manager:
        fake.requests.clear()
        assert len(manager.resume_from_latest("run")["messages"]) == _STEPS
        what = f"S3: requests of a resume after {_STEPS:,} steps, packed"
        yield Line(what, len(fake.requests), 3, unit="")
    for count in (100, 3000):
        with _open("bucket", f"ended{count}") as storage, CheckpointManager(storage) as manager:
            for number in range(count):
                ended = State.new({"n": number}, run_id=f"run-{number}").at(status="completed")
                manager.save_checkpoint(ended)
            fake.requests.clear()
            assert len(list(storage.runs(RunQuery(limit=20)))) == 20
            what = f"S3: requests of a page of 20 runs, of {count:,} that have ended"
            yield Line(what, len(fake.requests), 2, unit="")


def _saves(server: SeaweedFS) -> Iterator[Line]:
    """Save in turns with one bare conditional write of the message alone."""
    with _open(server.bucket, "saves") as storage, CheckpointManager(storage) as manager:
        bucket, times = storage._bucket, Times()
        state = State.new({"messages": []}, run_id="run")
        for step in range(1, _SAVES + 1):
            item = message(step)
            state = state.append("messages", item).at(step=step)
            times.time("save", lambda state=state: manager.save_checkpoint(state))
            times.time("bare", lambda step=step: bucket.create(f"bare/{step}", bytes(1024)))
        note = f"{times.median('save') * 1e3:.2f} to {times.median('bare') * 1e3:.2f} ms"
        yield Line("S3: save / bare conditional write", times.ratio("save", "bare"), note=note)
