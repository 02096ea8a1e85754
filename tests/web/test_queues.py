"""Queues and workers on the page."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import jsonschema
import msgspec
import pytest
from tests.cli.conftest import call
from tests.web.conftest import Browser, Open
from tests.web.test_actions import by
from tests.web.test_pages import rows_of, text_of

import surehold
from surehold import CheckpointManager
from surehold.executors import queue_entries, queues
from surehold.storage.base import Leasing, this_process
from surehold.storage.queueing import ClaimQuery, Queueing, WorkerInfo


@surehold.workflow
def nightly(page: int) -> int:
    return page


@pytest.fixture
def queued(manager: CheckpointManager, open_page: Open) -> Browser:
    """Two runs of one queue, one of them a dead letter."""
    for number in (1, 2):
        nightly.start(number, run_id=f"night-{number}", storage=manager, queue="nights")
    storage = manager.storage
    assert isinstance(storage, Queueing)
    entry = storage.entry_of("night-2")
    assert entry is not None
    dead = msgspec.structs.replace(entry, state="dead", failures=5, reason="<script>no net")
    storage.put_entries([("night-2", dead)])
    return open_page(manager)


def test_queues_show_their_runs_by_state(queued: Browser) -> None:
    text = queued.get("/queues").text
    assert rows_of(text, "<h2>Queues")[0][:5] == ["nights", "1", "0", "0", "1"]
    assert "No worker is there" in text
    assert "No worker serves" in text
    (dead,) = rows_of(queued.get("/queues?queue=nights&state=dead").text, "<h2>Runs")
    assert dead[0].startswith("night-2") and dead[-1] == "<script>no net"
    assert queued.get("/queues?state=x").status_code == 400
    runs = sorted(rows_of(queued.get("/?name=nightly").text, "<h1>Runs"))
    assert [row[1].split(" ", 1)[1] for row in runs] == ["queued", "dead Requeue…"]
    assert "Requeue" in text_of(queued.get("/run?id=night-2"))
    words = text_of(queued.get("/run?id=night-1"))
    assert "Step 0 of 0" not in words and "Cancel…" in words
    assert "It is number 1 of 1 in the queue nights" in words
    assert "surehold worker tests.web.test_queues:nightly --queues nights" in words
    wrong = {row[0]: row[-1] for row in rows_of(queued.get("/health").text, "<h2>Failed")}
    assert wrong["night-2"] == "Requeue…" and wrong["report-tue"] == "Resume…"
    (listed,) = queued.get("/api/queues").json()["queues"]
    assert (listed["name"], listed["ready"], listed["dead"]) == ("nights", 1, 1)


def test_a_run_that_is_executed_names_its_worker(
    queued: Browser, manager: CheckpointManager
) -> None:
    storage = manager.storage
    assert isinstance(storage, Queueing) and isinstance(storage, Leasing)
    (ready,) = queue_entries(state="ready", storage=manager)
    query = ClaimQuery(queues=("nights",), targets=(ready.target,))
    (claim,) = storage.claim(query, this_process(), now=1e10, ttl=60)
    (row,) = rows_of(queued.get("/queues").text, "<h2>Workers")
    assert row[0].startswith(f"{os.getpid()} on ")
    assert row[1] == "1" and row[-2:] == ["by its lease", "night-1"]
    storage.release_lease(claim.lease)


def test_a_worker_that_executes_nothing_is_listed_with_what_it_serves(
    queued: Browser, manager: CheckpointManager, tmp_path: Path
) -> None:
    storage = manager.storage
    assert isinstance(storage, Queueing)
    now = time.time()
    idle = WorkerInfo(
        id="w",
        owner=this_process(),
        queues=("nights", "mail"),
        targets=("app:<b>@1",),
        concurrency=8,
        since=now - 3600,
    )
    storage.announce(idle, now=now, ttl=600)
    (row,) = rows_of(queued.get("/queues").text, "<h2>Workers")
    assert row[1:4] == ["0 of 8", "nights, mail", "app:<b>@1"] and row[-1] == "idle"
    document = queued.get("/api/workers").json()
    printed = call("-s", f"sqlite:///{tmp_path}/runs.db", "queue", "workers", "--json")
    assert document == json.loads(printed.out)
    assert document["workers"][0]["pid"] == os.getpid()
    jsonschema.validate(document, queued.get("/api/schema").json()["/api/workers"])
    assert "0 of 8" in call("-s", f"sqlite:///{tmp_path}/runs.db", "queue", "workers").out


def test_a_queue_is_paused_and_resumed(queued: Browser, manager: CheckpointManager) -> None:
    text = text_of(queued.get("/act/pause?queue=nights"))
    assert "Workers start no more" in text and "surehold queue pause nights" in text
    assert queued.submit("/act/pause", queue="nights", paused="1").status_code == 303
    assert queues(manager)[0].settings.paused
    assert "paused" in text_of(queued.get("/queues"))
    assert "surehold queue resume nights" in text_of(queued.get("/act/pause?queue=nights"))
    assert queued.submit("/act/pause", queue="nights", paused="").status_code == 303
    assert not queues(manager)[0].settings.paused
    assert queued.get("/act/pause?queue=none").status_code == 404


def test_a_queue_is_limited_and_a_run_ended(queued: Browser, manager: CheckpointManager) -> None:
    assert "hold for all workers together" in text_of(queued.get("/act/limit?queue=nights"))
    given = {"concurrency": "3", "rate": "10", "period": "60", "attempts": "2"}
    assert queued.submit("/act/limit", queue="nights", **given).status_code == 303
    settings = queues(manager)[0].settings
    assert (settings.concurrency, settings.rate, settings.attempts) == (3, 10, 2)
    assert queued.submit("/act/limit", queue="nights", concurrency="x").status_code == 400
    assert queued.submit("/act/limit", queue="nights", attempts="4").status_code == 303
    settings = queues(manager)[0].settings
    assert (settings.concurrency, settings.rate, settings.attempts) == (None, None, 4)
    assert "ends at its next step" in text_of(queued.get("/act/cancel?id=night-1"))
    assert queued.submit("/act/cancel", id="night-1").status_code == 303
    (ready,) = queue_entries(state="ready", storage=manager)
    assert ready.cancelled


def test_runs_that_no_worker_serves_are_told(queued: Browser, manager: CheckpointManager) -> None:
    from surehold.executors import Served, Worker

    one = Worker(manager.storage, [Served("tests.web.test_queues:nightly", 1)], queues=["nights"])
    one._announce(60.0)
    assert "No worker serves" not in queued.get("/queues").text
    assert "1 worker can take it" in text_of(queued.get("/run?id=night-1"))
    assert queued.get("/api/queues").json()["unserved"] == []
    one._announce(0.0)
    assert queued.get("/api/queues").json()["unserved"][0]["runs"] == 1


def test_a_dead_letter_is_queued_again_with_who(
    queued: Browser, manager: CheckpointManager
) -> None:
    assert "It failed 5 times" in text_of(queued.get("/act/requeue?id=night-2"))
    assert "is ready already" in text_of(queued.get("/act/requeue?id=night-1"))
    assert queued.submit("/act/requeue", id="night-2").status_code == 303
    assert [one.state for one in queue_entries(storage=manager)] == ["ready", "ready"]
    assert by(manager, "night-2")[0][0] == "queued it again"


def test_a_storage_without_queues_says_which_keep_them(open_page: Open, tmp_path: object) -> None:
    with CheckpointManager(f"file:{tmp_path}/files") as manager:
        page = open_page(manager)
        assert "keeps no queues" in text_of(page.get("/queues"))
        assert page.get("/api/queues").json()["queues"] == []


def test_queues_that_are_empty_say_how_to_begin(page: Browser) -> None:
    assert "surehold worker app:main" in text_of(page.get("/queues"))
