"""A recorded program in the command line and on the page: calls as steps, answers as messages."""

from __future__ import annotations

import base64
import gzip
import html
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from tests.cli.conftest import call
from tests.model_server import ModelServer, model_server

import surehold
from surehold import CheckpointManager
from surehold.integrations.recorder import record_in_file
from surehold.views.run import Pasts, answer_of, call_words, read_run, spending, turns_of_calls
from surehold.views.waiting import how_to_resume
from surehold.web import app

SAID = [{"role": "user", "content": "What is kelp?"}]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": SAID}),
    ("/v1/responses", {"input": "What is kelp?"}),
    ("/v1/messages", {"messages": SAID, "max_tokens": 9}),
]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager("memory://") as opened:
        yield opened


def program(url: str, calls: int) -> None:
    """A conversation of so many turns with one model."""
    told = []
    with httpx.Client() as client:
        for number in range(calls):
            told.append({"role": "user", "content": f"question {number}"})
            body = {"model": "gpt-4o", "messages": told}
            found = client.post(f"{url}/v1/chat/completions", json=body).json()
            told.append(found["choices"][0]["message"])


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "body"), CALLS, ids=["chat", "responses", "messages"])
def test_what_was_asked_and_answered_is_read_from_the_record(
    server: ModelServer,
    manager: CheckpointManager,
    path: str,
    body: dict[str, Any],
    stream: bool,
    compress: bool,
) -> None:
    server.compress = compress
    with surehold.record("calls", storage=manager):
        httpx.post(server.url + path, json={"model": "gpt-4o", "stream": stream, **body})
        server.tools = lambda _: ("look_up", {"name": "kelp"})
        httpx.post(server.url + path, json={"model": "gpt-4o", "stream": stream, "n": 2, **body})
    view = read_run(manager, "calls", at=None, step=None, nested=False)
    said = [turn for turn, _ in turns_of_calls(view.calls)]
    assert [(one.role, one.text.replace(" ", "")) for one in said[:2]] == [
        ("user", "Whatiskelp?"),
        ("assistant", "answer1é€"),  # the server's words have no spaces in a stream of chat
    ]
    assert said[-1].calls == ('look_up({"name": "kelp"})',)


def test_calls_of_a_program_are_steps_with_their_cost(
    server: ModelServer, manager: CheckpointManager
) -> None:
    with surehold.record("talk", storage=manager, prices={"gpt-4o": (1000.0, 1000.0)}):
        program(server.url, 60)
    view = read_run(manager, "talk", at=None, step=None, nested=False)
    rows = [(one.header.step, one.header.node) for one in view.entries[1:4]]
    assert rows == [(60, "gpt-4o"), (59, "gpt-4o"), (58, "gpt-4o")]
    assert call_words(view.entries[1].notes[0], 60) == "answer 60 é€"
    assert view.newer is None and view.older is not None
    older = read_run(manager, "talk", at=view.older, step=None, nested=False)
    assert older.chosen.header.step == view.entries[-1].header.step - 1
    first = read_run(manager, "talk", at=None, step=3, nested=False)
    assert (first.chosen.header.step, first.place.seq, len(first.calls)) == (3, 1, 3)
    said = [turn.text for turn, _ in turns_of_calls(first.calls)]
    assert said == [
        "question 0",
        "answer 1 é€",
        "question 1",
        "answer 2 é€",
        "question 2",
        "answer 3 é€",
    ]
    past = Pasts(manager).of(view.run)
    assert [one.step for one in past.moments] == [0, *range(1, 61), 60]
    assert all(one.dollars > 0 for one in past.moments[1:61])
    assert [one.node for one in spending(past, view.run.seq)] == ["gpt-4o"]


def test_a_workflow_shows_each_step_once_whatever_it_wrote_of_it(
    manager: CheckpointManager,
) -> None:
    @surehold.step(in_doubt="ask")
    def mail(to: str) -> str:
        return f"sent to {to}"

    @surehold.step
    def fails() -> None:
        raise ValueError("no")

    @surehold.workflow
    def news(names: list[str]) -> None:
        for name in names:
            mail(name)
        with suppress(ValueError):
            fails()

    news.run(["ada", "eve"], run_id="news", storage=manager)
    view = read_run(manager, "news", at=None, step=None, nested=False)
    rows = [
        (one.header.node, one.error or call_words(one.notes[0], 40)) for one in view.entries[1:4]
    ]
    assert rows == [
        ("fails", "ValueError: no"),
        ("mail", '"sent to eve"'),
        ("mail", '"sent to ada"'),
    ]
    assert [one.kind for one in Pasts(manager).of(view.run).moments].count("effect") == 3


def test_the_page_shows_a_recorded_program_as_a_conversation(
    server: ModelServer, manager: CheckpointManager
) -> None:
    server.text = lambda body, number: f"<script>answer</script> {number}"
    with suppress(ValueError), surehold.record("talk", storage=manager):
        program(server.url, 3)
        raise ValueError("the end")
    page = TestClient(app(manager, auth=lambda _: "ada"), base_url="http://127.0.0.1")

    def text(path: str) -> str:
        answer = page.get(path)
        assert answer.status_code == 200, answer.text
        assert "<script>answer" not in answer.text
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())

    assert "<script>answer</script> 3" in text("/run?id=talk")
    told = text("/run?id=talk&tab=conversation")
    told = told[told.index("question 0") :]  # the list of steps has the answers too
    assert told.index("question 1") < told.index("answer</script> 2") < told.index("question 2")
    call = text("/run?id=talk&step=2")
    assert "Asked" in call and "Answered" in call and "As it was recorded" in call
    for tab in ("overview", "state", "timeline", "graph", "cost", "events", "raw"):
        for shape in ("delta", "full", "blame"):
            assert "talk" in text(f"/run?id=talk&step=2&tab={tab}&shape={shape}")
    assert page.get("/export?id=talk&form=html").status_code == 200


def test_a_failed_program_says_the_command_that_continues_it(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    command = [sys.executable, "-c", "raise SystemExit(3)", "two words"]
    subprocess.run(
        [sys.executable, "-m", "surehold", "-s", storage, "exec", "--run", "r", "--", *command],
        capture_output=True,
        check=False,
    )
    with CheckpointManager(storage) as manager:
        run = manager.reader.run("r")
        assert run is not None and run.status == "failed"
        told = how_to_resume(manager, run, {})
    assert told.startswith("surehold exec --run r -- ") and told.endswith("'two words'")
    for command in ("resume", "replay"):
        asked = call("-s", storage, command, "r")
        assert asked.code == 2 and "is of a recorded program" in asked.err
        assert told in asked.err and "surehold replay r -- COMMAND" in asked.err
    forked = call("-s", storage, "fork", "r")
    assert forked.code == 2 and "surehold replay r --from 1 -- COMMAND" in forked.err


def test_another_value_is_no_recorded_call() -> None:
    assert [answer_of(one) for one in (None, 3, {}, {"request": 1}, ["response"])] == [None] * 5


def test_a_compressed_answer_is_readable_in_its_file_and_loses_its_secrets(
    server: ModelServer, tmp_path: Path
) -> None:
    secret = "sk-ant-api03-" + "Zx9" * 20
    server.compress = True
    file = tmp_path / "talk.jsonl"
    for text, shown in (("Brown algae.", "Brown algae."), (f"Use {secret}.", "Use ")):
        server.text = lambda body, number, text=text: text
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": text[:3]}]}
        with record_in_file(file, "all", where="here"):
            live = httpx.post(f"{server.url}/v1/chat/completions", json=body)
        assert live.json()["choices"][0]["message"]["content"] == text
        kept = file.read_text(encoding="utf-8")
        assert shown in kept and secret not in kept
        with record_in_file(file, "none", where="here"), httpx.Client() as client:
            again = client.post(f"{server.url}/v1/chat/completions", json=body)
        said = again.json()["choices"][0]["message"]["content"]
        assert said.startswith(shown) and (said == text or secret not in said)
    assert "base64" not in kept and secret not in gzip_of(kept)


def test_the_file_of_a_recording_is_shown_as_a_conversation(
    server: ModelServer, tmp_path: Path
) -> None:
    file = tmp_path / "talk.jsonl"
    with record_in_file(file, "new", where="here"):
        program(server.url, 2)
    command = [sys.executable, "-m", "surehold", "show", str(file)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    words = [" ".join(line.split()) for line in shown.splitlines()]
    assert [line for line in words if "tokens" not in line] == [
        "user question 0",
        "assistant answer 1 é€",
        "user question 1",
        "assistant answer 2 é€",
    ]
    assert sum("gpt-4o 15 tokens" in line for line in words) == 2


def gzip_of(kept: str) -> str:
    """The bytes that a file keeps, decompressed."""
    found = re.findall(r'"base64": "([^"]+)"', kept)
    return "".join(gzip.decompress(base64.b64decode(one)).decode() for one in found)
