"""The JSON is that of the commands, and the stream misses no record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from tests.cli.conftest import call
from tests.web.conftest import Browser, in_doubt

import surehold
from surehold import CheckpointManager
from surehold.core.records import Header
from surehold.storage.base import RecordQuery
from surehold.storage.memory import MemoryStorage
from surehold.web.live import Live

CASES = [
    ("/api/runs", ("runs",)),
    ("/api/runs?status=failed", ("runs", "--status", "failed")),
    ("/api/log?run=report-mon", ("log", "report-mon")),
    ("/api/show?checkpoint=report-mon@3", ("show", "report-mon@3")),
    ("/api/diff?a=report-mon&b=report-mon-kids", ("diff", "report-mon", "report-mon-kids")),
    ("/api/pending", ("pending",)),
]


@pytest.mark.parametrize(("path", "words"), CASES)
def test_a_document_is_what_the_command_prints(
    page: Browser, manager: CheckpointManager, tmp_path: Any, path: str, words: tuple[str, ...]
) -> None:
    answer = page.get(path)
    printed = call("-s", f"sqlite:///{tmp_path}/runs.db", *words, "--json")
    assert answer.json() == json.loads(printed.out)
    schema = page.get("/api/schema").json()[path.partition("?")[0]]
    jsonschema.validate(answer.json(), schema)


@pytest.mark.parametrize("status", ["waiting", "interrupted"])
def test_runs_are_listed_under_the_status_that_they_show(
    page: Browser, manager: CheckpointManager, tmp_path: Any, status: str
) -> None:
    in_doubt(manager)  # stored as interrupted, and nobody is asked anything
    listed = page.get(f"/api/runs?status={status}").json()
    printed = call("-s", f"sqlite:///{tmp_path}/runs.db", "runs", "--status", status, "--json")
    assert listed == json.loads(printed.out) and listed["runs"]
    assert {run["status"] for run in listed["runs"]} == {status}


def test_runs_name_their_next_page(page: Browser) -> None:
    seen: list[str] = []
    path = "/api/runs?limit=2"
    while path:
        answer = page.get(path)
        seen += [run["run_id"] for run in answer.json()["runs"]]
        path = answer.headers.get("link", "").partition(">")[0].removeprefix("<")
    assert len(seen) == len(set(seen)) == 5


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/runs?limit=0", 400),
        ("/api/runs?limit=501", 400),
        ("/api/runs?limit=abc", 400),
        ("/api/runs?status=bogus", 400),
        ("/api/log", 404),
        ("/api/x", 404),
    ],
)
def test_what_is_wrong_is_json_too(page: Browser, path: str, status: int) -> None:
    answer = page.get(path)
    assert answer.status_code == status
    if status != 200:
        assert answer.json().keys() == {"error", "message", "hint"}


def test_an_unknown_status_is_refused_in_the_words_of_the_command(page: Browser) -> None:
    answer = page.get("/api/runs?status=complete")
    assert answer.json()["message"] == "no run has the status 'complete'"
    assert "completed" in answer.json()["hint"]
    assert page.get("/?status=bogus").status_code == 400


class Connection:
    """A browser that reads events until it has enough; how many read along does not count."""

    def __init__(self, query: dict[str, str], last: str | None, enough: int) -> None:
        self.query_params = query
        self.headers = {"last-event-id": last} if last else {}
        self.left = enough

    async def is_disconnected(self) -> bool:
        return self.left <= 0

    async def read(self, answer: Any) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        async for text in answer.body_iterator:
            fields = dict(line.split(": ", 1) for line in text.strip().splitlines() if ": " in line)
            if "data" in fields and fields.get("event") != "clients":
                found.append(fields)
                self.left -= 1
        return found


async def test_the_stream_of_a_run_resumes_after_the_last_record_seen(
    manager: CheckpointManager,
) -> None:
    live = Live(manager)
    first = Connection({"id": "report-mon", "after": "0"}, None, 3)
    seen = await first.read(await live.run(first))  # type: ignore[arg-type]
    head = manager.reader.run("report-mon")
    assert head is not None
    again = Connection({"id": "report-mon"}, seen[-1]["id"], head.seq - len(seen))
    seen += await again.read(await live.run(again))  # type: ignore[arg-type]
    assert [int(one["id"]) for one in seen] == [*range(1, head.seq + 1)]
    assert json.loads(seen[0]["data"])["run_id"] == "report-mon"


async def test_the_stream_of_a_storage_tells_of_every_new_record(
    manager: CheckpointManager,
) -> None:
    live = Live(manager)
    first = Connection({}, None, 1)
    (now,) = await first.read(await live.storage(first))  # type: ignore[arg-type]
    for name in ("one", "two"):
        with surehold.run(name, storage=manager) as run:
            run.checkpoint(done=1)
    second = Connection({}, now["id"], 4)
    then = await second.read(await live.storage(second))  # type: ignore[arg-type]
    told = [json.loads(one["data"]) for one in then]
    assert [(one["run_id"], one["seq"]) for one in told] == [
        ("one", 1),
        ("one", 2),
        ("two", 1),
        ("two", 2),
    ]


async def test_many_streams_ask_the_storage_as_often_as_one(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    real = type(manager.storage).headers
    monkeypatch.setattr("surehold.web.live._EVERY", 0.01)
    monkeypatch.setattr("surehold.web.live._SETTLED", 0.0)
    monkeypatch.setattr(
        type(manager.storage),
        "headers",
        lambda self, query: (asked.append(query), real(self, query))[1],
    )
    live = Live(manager)
    readers = []
    for _ in range(50):
        one = Connection({"after": "newest"}, None, 1_000_000)
        readers.append(asyncio.create_task(one.read(await live.storage(one))))  # type: ignore[arg-type]
    while len(asked) < 2 * 50 + 2 + 20:  # each stream twice, then the one task that asks for all
        await asyncio.sleep(0.001)
    before = len(asked)
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert len(asked) - before <= 40
    for task in readers:
        task.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


class Listened:
    """A subscription whose notifications arrive."""

    is_live = True

    def close(self) -> None: ...


class NotifyingStorage(MemoryStorage):
    """Notifies only when the test says so, and counts the looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.late: set[str] = set()
        """Runs whose records are committed and not yet visible."""
        self.told: list[Callable[[str | None], None]] = []

    def subscribe(self, notify: Callable[[str | None], None]) -> Any:
        self.told.append(notify)
        return Listened()

    def headers(self, query: RecordQuery) -> Any:
        self.looks += 1
        found: list[Header] = [*super().headers(query)]
        return iter([header for header in found if header.run_id not in self.late])


def steps(storage: Any, name: str, count: int) -> None:
    with surehold.run(name, storage=storage) as run:
        for n in range(count):
            run.checkpoint(n=n)


async def test_a_storage_that_notifies_is_not_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surehold.web.live._EVERY", 0.001)
    monkeypatch.setattr("surehold.web.live._BESIDE", 3600.0)
    storage = NotifyingStorage()
    live, reader = Live(CheckpointManager(storage)), Connection({}, None, 2)
    reading = asyncio.create_task(reader.read(await live.storage(reader)))  # type: ignore[arg-type]
    while storage.looks < 3:  # the first look of the task that asks for all, and of the stream
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.2)
    assert storage.looks == 3
    steps(storage, "one", 1)
    await asyncio.to_thread(storage.told[0], "one")
    seen = await reading
    assert [json.loads(one["data"])["run_id"] for one in seen] == ["one", "one"]


async def test_a_record_that_becomes_visible_late_is_told() -> None:
    """As on a server, where a transaction that began earlier may end later."""
    storage = NotifyingStorage()
    live, reader = Live(CheckpointManager(storage)), Connection({}, None, 4)
    reading = asyncio.create_task(reader.read(await live.storage(reader)))  # type: ignore[arg-type]
    while storage.looks < 3:  # the first look of the task that asks for all, and of the stream
        await asyncio.sleep(0.001)
    storage.late = {"slow"}
    for name in ("slow", "fast"):
        steps(storage, name, 1)
    storage.told[0]("fast")
    while reader.left > 2:
        await asyncio.sleep(0.001)
    storage.late = set()
    storage.told[0]("slow")
    seen = await reading
    told = [json.loads(one["data"])["run_id"] for one in seen]
    assert told == ["fast", "fast", "slow", "slow"]


async def test_a_client_that_missed_too_much_is_told_to_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("surehold.web.live._MOST_MISSED", 50)
    storage = MemoryStorage()
    steps(storage, "one", 1)
    live = Live(CheckpointManager(storage))
    first = Connection({}, None, 1)
    (now,) = await first.read(await live.storage(first))  # type: ignore[arg-type]
    steps(storage, "two", 1000)
    for last in (now["id"], "a record that was erased"):
        again = Connection({}, last, 1)
        (told,) = await again.read(await live.storage(again))  # type: ignore[arg-type]
        assert (told["event"], told["data"]) == ("reset", "null")
        newest = next(iter(storage.headers(RecordQuery(limit=1, notes=True))))
        assert told["id"] == newest.id


async def test_a_client_that_missed_a_thousand_records_is_told_of_each() -> None:
    storage = MemoryStorage()
    steps(storage, "one", 1)
    live = Live(CheckpointManager(storage))
    first = Connection({}, None, 1)
    (now,) = await first.read(await live.storage(first))  # type: ignore[arg-type]
    steps(storage, "two", 1000)
    again = Connection({}, now["id"], 1001)
    seen = await again.read(await live.storage(again))  # type: ignore[arg-type]
    assert [json.loads(one["data"])["seq"] for one in seen] == [*range(1, 1002)]
