"""The JSON is that of the commands, and the stream misses no record."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from tests.cli.conftest import call
from tests.web.conftest import Browser

import holdfast
from holdfast import CheckpointManager
from holdfast.web.live import Live

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
    [("/api/runs?limit=0", 200), ("/api/runs?limit=501", 400), ("/api/log", 404), ("/api/x", 404)],
)
def test_what_is_wrong_is_json_too(page: Browser, path: str, status: int) -> None:
    assert page.get(path).status_code == status


class Connection:
    """A browser that reads events until it has enough."""

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
            if "data" in fields:
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
        with holdfast.run(name, storage=manager) as run:
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
    import asyncio

    asked: list[object] = []
    real = type(manager.storage).headers
    monkeypatch.setattr("holdfast.web.live._EVERY", 0.01)
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
    while len(asked) < 51 + 20:  # each stream once, then the one task that asks for all
        await asyncio.sleep(0.001)
    before = len(asked)
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert len(asked) - before <= 40
    for task in readers:
        task.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
