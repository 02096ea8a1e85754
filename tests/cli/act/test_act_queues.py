"""`surehold worker` and `surehold queue`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.cli.conftest import call
from tests.executors import jobs

from surehold import SQLiteStorage
from surehold.cli.framework import Cli
from surehold.core.policy import DEAD, QueueSettings
from surehold.engine.journal import Note
from surehold.engine.managers import CheckpointManager
from surehold.errors import StorageUnavailableError
from surehold.executors import Worker, served_by
from surehold.storage.base import RecordQuery
from surehold.storage.queueing import EntryQuery

ROOT = Path(__file__).parents[3]
JOBS = "tests.executors.jobs"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def storage(url: str) -> SQLiteStorage:
    return SQLiteStorage(url.removeprefix("sqlite:///"))


def kill(storage: SQLiteStorage, run_id: str) -> None:
    note = Note(kind=DEAD, content={}, metadata={"reason": "no luck"})
    CheckpointManager(storage).append_notes(run_id, (note,))


def test_an_answer_says_who_gave_it_and_that_a_worker_continues_the_run(
    url: str, storage: SQLiteStorage
) -> None:
    jobs.asks.start(run_id="a", storage=storage)
    Worker(storage, served_by([JOBS])).take("a")
    answered = call("answer", "a", "yes", "-s", url)
    assert f"to continue: a worker that serves {JOBS}:asks@1 does so" in answered.err
    shown = call("log", "a", "-o", "-s", url).out.splitlines()
    (record,) = (line for line in shown if "note: answer" in line)
    assert '"yes" by ' in record


def test_queue_lists_shows_and_requeues(url: str, storage: SQLiteStorage) -> None:
    jobs.doubled.start([1], run_id="a", storage=storage, queue="mail", key="anna")
    jobs.doubled.start([2], run_id="b", storage=storage)
    kill(storage, "b")
    listed = call("queue", "-s", url, "--json").json()
    assert [(one["name"], one["ready"], one["dead"]) for one in listed["queues"]] == [
        ("default", 0, 1),
        ("mail", 1, 0),
    ]
    shown = call("queue", "show", "mail", "-s", url, "--json").json()
    assert [(one["run_id"], one["key"], one["target"]) for one in shown["runs"]] == [
        ("a", "anna", f"{JOBS}:doubled@1")
    ]
    runs = call("runs", "-s", url, "--json").json()["runs"]
    assert [(one["run_id"], one["status"]) for one in runs] == [("b", "dead"), ("a", "queued")]
    found = call("runs", "--status", "queued", "-s", url, "--json").json()["runs"]
    assert [one["run_id"] for one in found] == ["a"]
    assert "status      queued" in call("show", "a", "-s", url).out
    health = call("status", "-s", url, "--json").json()
    assert health["runs"] == {"dead": 1, "queued": 1}
    assert [(one["run_id"], one["help"]) for one in health["problems"]] == [
        ("b", "surehold queue requeue b")
    ]
    dead = call("queue", "dead", "-s", url, "--json").json()
    assert [(one["run_id"], one["reason"]) for one in dead["runs"]] == [("b", "no luck")]
    assert "no luck" in call("queue", "dead", "-s", url).out
    assert call("queue", "requeue", "--dead", "-s", url, "--json").json()["runs"] == ["b"]
    entry = storage.entry_of("b")
    assert entry is not None and entry.state == "ready"
    again = call("queue", "requeue", "b", "-s", url)
    assert (again.code, "ready already" in again.err) == (2, True)


def test_queue_cancels(url: str, storage: SQLiteStorage) -> None:
    jobs.doubled.start([1], run_id="a", storage=storage, delay=3600)
    assert call("queue", "cancel", "a", "-s", url, "--json").json()["runs"] == ["a"]
    entry = storage.entry_of("a")
    assert entry is not None and (entry.state, entry.cancelled) == ("ready", True)
    assert "ready, cancelled" in call("queue", "show", "default", "-s", url).out
    assert call("queue", "cancel", "gone", "-s", url).code == 4
    assert call("queue", "cancel", "-s", url).code == 2


def test_many_runs_are_cancelled_and_requeued_by_queue_code_and_state(
    url: str, storage: SQLiteStorage
) -> None:
    for number in range(3):
        jobs.doubled.start([1], run_id=f"mail-{number}", storage=storage, queue="mail")
    jobs.rests.start(1.0, run_id="rests", storage=storage, queue="mail", delay=3600)
    jobs.doubled.start([1], run_id="other", storage=storage)
    kill(storage, "mail-2")

    def chosen(*words: str) -> set[str]:
        return set(call("queue", *words, "-s", url, "--json").json()["runs"])

    mail = ("--in", "mail", "--dry-run")
    assert chosen("cancel", *mail) == {"mail-0", "mail-1", "rests"}
    assert chosen("cancel", *mail, "--code", f"{JOBS}:doubled") == {"mail-0", "mail-1"}
    assert chosen("cancel", *mail, "--code", f"{JOBS}:doubled@7") == set()
    assert chosen("cancel", *mail, "--state", "waiting") == {"rests"}
    assert chosen("requeue", *mail) == {"mail-2"}
    assert "would be requeued: mail-2" in call("queue", "requeue", *mail, "-s", url).out
    entry = storage.entry_of("mail-0")
    assert entry is not None and not entry.cancelled
    assert call("queue", "cancel", "--in", "mail", "-s", url).code == 6
    assert chosen("cancel", "--in", "mail", "--yes") == {"mail-0", "mail-1", "rests"}
    assert all(
        (entry := storage.entry_of(run_id)) is not None and entry.cancelled
        for run_id in ("mail-0", "mail-1", "rests")
    )
    other = storage.entry_of("other")
    assert other is not None and not other.cancelled
    assert chosen("requeue", "--in", "mail", "--yes") == {"mail-2"}
    assert chosen("requeue", "--dead") == set()
    for wrong in (("cancel", "a", "--in", "mail"), ("cancel", "--state", "tired")):
        assert call("queue", *wrong, "-s", url).code == 2


def test_queue_pauses_and_limits(url: str, storage: SQLiteStorage) -> None:
    call("queue", "limit", "mail", "--concurrency", "2", "--rate", "100/60", "-s", url)
    call("queue", "pause", "mail", "-s", url)
    paused = QueueSettings(concurrency=2, rate=100, period=60, paused=True)
    assert storage.settings_of("mail") == paused
    told = call("queue", "resume", "mail", "-s", url).out
    assert "2 at a time, 100 in 60 s" in told
    call("queue", "limit", "mail", "--rate", "0", "-s", url)
    assert storage.settings_of("mail") == QueueSettings(concurrency=2, period=60)
    told = call("queue", "limit", "mail", "--attempts", "3", "-s", url).out
    assert told == "mail: 2 at a time, 3 attempts\n"
    assert "3 attempts" in call("queue", "-s", url).out
    assert call("queue", "limit", "mail", "-s", url).code == 2
    for rate in ("5/0", "-5/60", "5/soon"):
        refused = call("queue", "limit", "mail", f"--rate={rate}", "-s", url)
        assert refused.code == 2 and f"--rate is '{rate}'" in refused.err
    assert call("queue", "show", "gone", "-s", url).code == 4


def test_an_unknown_action_is_not_called_a_queue(url: str, storage: SQLiteStorage) -> None:
    result = call("queue", "paus", "mail", "-s", url)
    assert (result.code, result.out) == (2, "")
    assert "queue has no action 'paus' (did you mean pause?" in result.err
    assert call("queue", "dead", "-s", url).err == "there are no dead letters\n"


def test_queues_are_made_again_from_the_journal(url: str, storage: SQLiteStorage) -> None:
    jobs.doubled.start([1], run_id="a", storage=storage, queue="mail", priority=4)
    jobs.doubled.start([1], run_id="b", storage=storage)
    kill(storage, "b")
    before = [*storage.entries(EntryQuery())]
    storage.put_entries((entry.run_id, None) for entry in before)
    assert call("queue", "rebuild", "-s", url, "--json").json()["entries"] == 2
    after = [*storage.entries(EntryQuery())]
    facts = [[(e.run_id, e.state, e.queue, e.priority) for e in found] for found in (before, after)]
    assert facts[0] == facts[1]


def test_a_server_that_may_not_listen_executes_nothing(url: str, storage: SQLiteStorage) -> None:
    jobs.doubled.start([1], storage=storage, run_id="queued")
    result = call("-s", url, "serve", JOBS, "--listen", "0.0.0.0:0")
    assert result.code == 2 and "there are no tokens" in result.err
    assert "worker.start" not in result.out
    assert CheckpointManager(storage).reader.known("queued").step == 0


def test_a_worker_without_its_code_makes_no_storage(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "schedules_app.py").write_text(
        "import surehold\nfrom tests.executors import jobs\n"
        "nightly = surehold.schedule('0 3 * * *', jobs.doubled, [1])\n"
    )
    for words, said in (
        (("no_such_module",), "cannot be imported"),
        (("jobs.py",), "jobs.py is a file (name its module: jobs)"),
        (("./app/jobs.py",), "(name its module: app.jobs)"),
        ((f"{JOBS}:doubeld",), f"module {JOBS} has no 'doubeld' (did you mean doubled? it has: "),
        (("schedules_app:nightly",), "serve its module: surehold worker schedules_app"),
        ((JOBS, "--listen", "here"), "--listen is 'here'"),
        ((JOBS,), "there is no storage at"),
    ):
        done = call("worker", *words, "-s", url)
        assert done.code in (2, 4, 10)
        assert said in done.err
    assert not (tmp_path / "runs.db").exists()


def test_a_worker_names_a_port_that_is_in_use(url: str, storage: SQLiteStorage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = call("worker", JOBS, "--listen", f"127.0.0.1:{port}", "-s", url)
    assert done.code == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in done.err
    assert "defect" not in done.err


def test_a_worker_process_serves_metrics_and_drains_on_sigterm(
    url: str, storage: SQLiteStorage
) -> None:
    handle = jobs.slow.start(100_000, storage=storage)
    quick = jobs.doubled.start([3], storage=storage, queue="mail")
    command = [sys.executable, "-m", "surehold", "worker", JOBS, "-s", url]
    with subprocess.Popen(
        [*command, "--queues", "default,mail", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    ) as process:
        assert process.stdout is not None
        events = (json.loads(line) for line in process.stdout)
        address = next(one["facts"]["address"] for one in events if one["event"] == "worker.listen")
        assert quick.result(timeout=60).value == [6]
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=10) as page:
            assert page.read() == b"ok\n"
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
            metrics = page.read().decode()
        labels = f'queue="mail",code="{JOBS}:doubled@1"'
        assert f'surehold_worker_runs_total{{{labels},outcome="completed"}} 1' in metrics
        assert "surehold_worker_active 1" in metrics
        process.send_signal(signal.SIGTERM)
        rest = [one["event"] for one in events]
        assert process.wait(timeout=60) == 0
        assert rest[-1] == "worker.stop"
        assert "run.interrupted" in rest
    assert handle.status() == "interrupted"
    entry = storage.entry_of(handle.run_id)
    assert entry is not None and entry.state == "ready"


def test_libraries_log_in_the_lines_of_the_worker(url: str, storage: SQLiteStorage) -> None:
    handle = jobs.chatty.start("hello", storage=storage)
    done = call("worker", JOBS, "--until-idle", "-s", url)
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert len({line["worker"] for line in lines}) == 1
    levels = {line["event"]: line["level"] for line in lines}
    assert levels["run.start"] == "info"
    logged = [line for line in lines if line["event"] == "log"]
    assert [line["level"] for line in logged] == ["warning", "error"]
    for line in logged:
        assert (line["facts"]["run_id"], line["facts"]["attempt"]) == (handle.run_id, 1)
    assert [line["facts"]["logger"] for line in logged] == ["library", "library"]
    assert "ValueError: hello" in logged[1]["facts"]["traceback"]
    assert done.err == ""


def test_who_did_it_is_recorded(url: str, storage: SQLiteStorage) -> None:
    me = {"SUREHOLD_USER": "ann@desk"}
    run_id = jobs.doubled.start([3], storage=storage, delay=600).run_id
    for words in (
        ("queue", "requeue", run_id),
        ("queue", "cancel", run_id),
        ("tag", run_id, "odd"),
        ("pin", run_id),
        ("fork", run_id, "--as", "forked"),
    ):
        assert call(*words, "-s", url, environ=me).code == 0, words
    with CheckpointManager(storage) as manager:
        notes = [*manager.storage.headers(RecordQuery(run_id=run_id, notes=True))]
        forked = [*manager.storage.headers(RecordQuery(run_id="forked", notes=True))]
    told = {note.metadata.get("did", note.kind) for note in notes if "by" in note.metadata}
    assert told >= {"queued", "cancel", "pinned step 0", "tagged step 0: #odd"}
    assert {note.metadata["by"] for note in notes if "by" in note.metadata} == {"ann@desk"}
    assert [note.metadata["by"] for note in forked if note.kind == "action"] == ["ann@desk"]


@pytest.mark.parametrize(
    ("grace", "signals"),
    [("0", [signal.SIGTERM]), ("600", [signal.SIGTERM, signal.SIGINT])],
    ids=["grace", "twice"],
)
def test_a_worker_that_may_not_wait_lets_go_of_its_runs(
    url: str, storage: SQLiteStorage, grace: str, signals: list[signal.Signals], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    handle = jobs.gated.start(storage=storage)  # its gate stays closed
    command = [sys.executable, "-m", "surehold", "worker", JOBS, "-s", url, "--grace", grace]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SUREHOLD_TEST_GATE": str(gate)},
        text=True,
    ) as process:
        assert process.stdout is not None
        events = (json.loads(line)["event"] for line in process.stdout)
        assert "run.start" in events
        while not gate.exists():  # before its first step a run can still be stopped
            assert process.poll() is None
            time.sleep(0.01)
        for number in signals:
            process.send_signal(number)
        assert process.wait(timeout=60) in (128 + signal.SIGTERM, 128 + signal.SIGINT)
        assert "run.let_go" in events
    entry = storage.entry_of(handle.run_id)
    assert entry is not None and (entry.state, entry.failures) == ("ready", 0)


def test_a_worker_waits_for_a_server_that_is_away(
    url: str, storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.doubled.start([4], run_id="r", storage=storage)
    opened, tries = Cli.open, []

    def open_later(cli: Cli) -> CheckpointManager:
        tries.append(1)
        if len(tries) < 3:
            raise StorageUnavailableError("the server is away")
        return opened(cli)

    monkeypatch.setattr(Cli, "open", open_later)
    done = call("worker", JOBS, "--until-idle", "-s", url)
    events = [json.loads(line)["event"] for line in done.out.splitlines()]
    assert events[:3] == ["storage.error", "storage.error", "worker.start"]
    assert "run.completed" in events
    tries.clear()
    done = call("worker", JOBS, "--until-idle", "--patience", "0", "-s", url)
    assert (len(tries), done.code) == (1, 11) and "the server is away" in done.err
