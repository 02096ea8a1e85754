"""The page on servers that notify, and on a storage that does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.servers import postgres, redis_server
from tests.web.conftest import Open
from tests.web.test_api import Connection, steps
from tests.web.test_pages import text_of

from surehold import CheckpointManager
from surehold.demo.runs import make_runs
from surehold.storage.base import Storage, Watching
from surehold.storage.files import FilesystemStorage
from surehold.storage.postgres import PostgresStorage
from surehold.storage.redis import RedisStorage
from surehold.web.live import Live

MEDIA = ("postgres", "redis", "files")


@pytest.fixture(params=MEDIA)
def storage(request: Any, tmp_path: Path) -> Iterator[Storage]:
    name = f"page{uuid4().hex[:16]}"
    if request.param == "postgres":
        server = postgres()
        with PostgresStorage(server.url, schema=name, pool=3) as storage:
            yield storage
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(f"DROP SCHEMA {name} CASCADE")
    elif request.param == "redis":
        with RedisStorage(redis_server().url, prefix=name, pool=3) as storage:
            yield storage
        redis_server().drop(name)
    else:
        with FilesystemStorage(tmp_path / "runs") as storage:
            yield storage


def test_every_page_is_served(storage: Storage, open_page: Open) -> None:
    with CheckpointManager(storage) as manager:
        make_runs(manager)
        page = open_page(manager)
        for path in ("/", "/waiting", "/queues", "/storage", "/health?verify=1&resumes=1"):
            assert page.get(path).status_code == 200
        for tab in ("conversation", "state", "effects", "timeline", "graph", "cost", "events"):
            assert page.get(f"/run?id=report-mon&tab={tab}").status_code == 200
        compared = page.get("/compare?a=report-mon&b=report-mon-kids")
        assert "They diverge at step 5" in text_of(compared)
        fields = {"id": "report-wed", "waiting": "approve@6", "how": "approve"}
        assert page.submit("/act/answer", **fields).status_code == 303
        assert "Nothing waits" in text_of(page.get("/waiting"))


async def test_a_record_is_told_without_polling_where_the_storage_notifies(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = CheckpointManager(storage)
    steps(storage, "before", 1)
    if isinstance(storage, Watching):
        listening = storage.subscribe(lambda _: None)
        while not listening.is_live:
            await asyncio.sleep(0.01)
        monkeypatch.setattr("surehold.web.live._EVERY", 3600.0)
        monkeypatch.setattr("surehold.web.live._BESIDE", 3600.0)
    live, reader = Live(manager), Connection({}, None, 3)
    reading = asyncio.create_task(reader.read(await live.storage(reader)))  # type: ignore[arg-type]
    while reader.left > 2:  # the newest record, told at once
        await asyncio.sleep(0.01)
    await asyncio.to_thread(steps, storage, "after", 1)
    seen = await asyncio.wait_for(reading, 60)
    told = [json.loads(one["data"])["run_id"] for one in seen]
    assert told == ["before", "after", "after"]
    await asyncio.to_thread(manager.close)
