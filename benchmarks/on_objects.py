"""Object stores: requests of a save and a resume, and listings of long runs and many runs.

Requests are counted by a fake store in memory, times are taken on SeaweedFS. The run of 100,000
checkpoints is stored by commits of 250 states each and, at its end, 300 saves. Its log is then as
it is an hour later: the objects are deleted that packs replaced. While they are there a new
process lists up to 1,000 names more, which is shown by itself.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.fake_objects import FakeObjects
from tests.servers import SeaweedFS

from benchmarks.report import Line
from benchmarks.scale import pages, request_of
from benchmarks.workload import Times, message
from surehold import CheckpointManager, State
from surehold.engine.journal.requests import Request
from surehold.storage.base import RunQuery, Storage

__all__ = ["measure"]

_STEPS = 1000
_SAVES = 200
_FEW, _MANY, _FAST = 100, 100_000, 1200
_AT_ONCE = 250
_LAST = 300
"""Checkpoints of a commit, and those saved one by one at the end of the long run."""
_TURNS = 15
_AGAIN = (", new process", ", again")
_NEWEST = "page of 10"
_FAR = "page of 50 in the middle, new process"
"""As many requests, which SeaweedFS serves the slower the larger an object is."""


def measure(directory: Path) -> Iterator[Line]:
    """Count requests, then take times on a server."""
    with FakeObjects() as fake:
        _use({"AWS_ENDPOINT_URL": fake.endpoint})
        yield from _requests(fake)
    server = SeaweedFS(directory / "seaweedfs", owner=os.getpid()).start()
    _use(server.environment())
    yield from _saves(server)
    yield from _long_run(server)
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
    from surehold.storage.cloud import ObjectStorage

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


def _long_run(server: SeaweedFS) -> Iterator[Line]:
    """List inside one run of 100,000 checkpoints and one of 100, in turns.

    Each turn opens the storage anew, as a new process does, and lists twice.
    """
    counts = {_FEW: 0, _MANY: _LAST, _FAST: _FAST}
    marks = {count: _fill_run(server, count, single) for count, single in counts.items()}
    times, requests = Times(), Counter[str]()
    for turn in range(_TURNS):
        for name in _listings(None, ""):
            wanted = [one for one in counts if one != _FAST or name == _NEWEST]
            for count in wanted if turn % 2 else reversed(wanted):
                with _open(server.bucket, f"long{count}") as storage:
                    call = _listings(storage, marks[count])[name]
                    for again in _AGAIN:
                        key = f"{name}{again} {count}"
                        requests[key] = _counted(storage, lambda c=call, k=key: times.time(k, c))
    keys = [f"{name}{again}" for name in _listings(None, "") for again in _AGAIN]
    for key in keys:
        few, many = f"{key} {_FEW}", f"{key} {_MANY}"
        yield Line(
            f"S3: one run: {key}, {_MANY:,} / {_FEW}",
            _fastest(times, many) / _fastest(times, few),
            None if key == _FAR else 1.5,
            note=f"{_fastest(times, many) * 1e3:.1f} ms; {requests[many]} requests,"
            f" {requests[few]} with {_FEW}",
        )
    most = max(requests[f"{key} {_MANY}"] / requests[f"{key} {_FEW}"] for key in keys)
    yield Line(f"S3: one run: requests of any of these, {_MANY:,} / {_FEW}", most, 1.5)
    key = _NEWEST + _AGAIN[0]
    many, few = f"{key} {_FAST}", f"{key} {_FEW}"
    what = f"S3: one run: {key}, {_FAST:,} saves of this hour / {_FEW}"
    ratio = _fastest(times, many) / _fastest(times, few)
    yield Line(what, ratio, note=f"{_fastest(times, many) * 1e3:.1f} ms")


def _fastest(times: Times, name: str) -> float:
    """The fastest of all turns: other work on the machine makes a few requests only slower."""
    return min(times.taken[name])


def _fill_run(server: SeaweedFS, count: int, single: int) -> str:
    """Store the run, the last *single* one by one; the id of a checkpoint in the middle."""
    from surehold.storage.objects import packs

    with _open(server.bucket, f"long{count}") as storage, CheckpointManager(storage) as manager:
        state = State.new({"log": []}, run_id="long", name="agent")
        requests: list[Request] = []
        for step in range(1, count + 1):
            state = state.set("last", f"entry {step}").at(step=step)
            if step > count - single or count == _FEW:
                manager.save_checkpoint(state)
                continue
            requests.append(request_of(state))
            if len(requests) == _AT_ONCE or step == count - single:
                assert all(one.error is None for one in manager.face.journal.commit(requests))
                requests.clear()
        if count != _FAST:
            with patch.object(packs, "GRACE", timedelta(seconds=-1)):
                storage.compact()
        (middle,) = storage.read("long", first=count // 2, last=count // 2)
        return middle.header.id


def _listings(storage: Storage | None, middle: str) -> dict[str, Callable[[], Any]]:
    def page(**fields: Any) -> list[Any]:
        assert storage is not None
        return CheckpointManager(storage).list_checkpoints("long", **fields)

    return {
        "latest": lambda: CheckpointManager(storage).latest("long"),
        _NEWEST: lambda: page(limit=10),
        "page of 50": lambda: page(limit=50),
        "page of 50 in the middle": lambda: page(limit=50, before=middle),
        "page of 50 by kind": lambda: page(limit=50, kind="final"),
        "page of 50 by status": lambda: page(limit=50, status="failed"),
        "page of 50 by metadata": lambda: page(limit=50, metadata={"colour": "blue"}),
        "facts of the run": lambda: list(storage.runs(RunQuery(run_id="long"))),
    }


def _counted(storage: Storage, call: Callable[[], Any]) -> int:
    """Call, and count the requests that it makes."""
    bucket, made = storage._bucket, []
    run = type(bucket)._run
    with patch.object(bucket, "_run", lambda work: made.append(work) or run(bucket, work)):
        call()
    return len(made)
