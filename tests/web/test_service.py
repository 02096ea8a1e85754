"""Runs over HTTP: every door, every role, one run for one key, and no event missed or doubled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from starlette.testclient import TestClient
from tests.executors import jobs

import surehold
from surehold import CheckpointManager
from surehold.errors import StorageError, StorageFullError, StorageUnavailableError, UsageError
from surehold.executors import Worker, served_by
from surehold.storage.base import RecordQuery
from surehold.web import Caller, Tokens, openapi_of, service_app, types_of

HERE = "tests.executors.jobs"
CODE = [
    f"{HERE}:{name}"
    for name in (
        *("doubled", "doubled_async", "keyed", "counting", "make_agent", "make_fleet"),
        *("asks", "fails", "rests"),
    )
]
DOORS = {
    "doubled": {"numbers": [1, 2]},
    "doubled_async": {"numbers": [1, 2]},
    "counting": {"n": 1},
    "make_agent": {"task": "a question"},
    "make_fleet": {"task": "a question"},
}
TOKENS = {role: f"the-token-of-{role}-callers" for role in ("read", "answer", "operate")}


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckpointManager]:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as opened:
        monkeypatch.setitem(jobs.STORAGE, "here", opened.storage)
        yield opened


class Program(TestClient):
    """A program with a token."""

    def start(self, code: str, arguments: Any = None, **more: Any) -> Any:
        body = {"arguments": arguments or {}, **more.pop("options", {})}
        return self.post(f"/start/{code}", json=body, **more)

    def told(self, run_id: str, after: str = "") -> list[tuple[str, dict[str, Any]]]:
        """The events of a run after one, to the end of the stream."""
        answer = self.get(f"/runs/{run_id}/events", headers={"last-event-id": after})
        lines = [line.partition(": ") for line in answer.text.splitlines()]
        ids = [text for name, _, text in lines if name == "id"]
        return [*zip(ids, (json.loads(t) for n, _, t in lines if n == "data"), strict=True)]


def caller(
    manager: CheckpointManager, role: str = "operate", worker: Worker | None = None
) -> Program:
    tokens = Tokens({TOKENS[one]: Caller(one, one) for one in TOKENS})  # type: ignore[arg-type]
    app = service_app(CODE, manager, auth=tokens, worker=worker)
    made = Program(app, raise_server_exceptions=False)
    made.headers["authorization"] = f"Bearer {TOKENS[role]}"
    return made


@pytest.fixture
def http(manager: CheckpointManager) -> Program:
    return caller(manager)


def work(manager: CheckpointManager) -> None:
    """Execute what is ready."""
    Worker(manager.storage, served_by(CODE), concurrency=1).run(until_idle=True)


def queued(manager: CheckpointManager, run_id: str) -> dict[str, Any]:
    query = RecordQuery(run_id=run_id, kind="queued", notes=True, limit=1)
    return dict(next(iter(manager.storage.headers(query))).metadata)


@pytest.mark.parametrize("code", DOORS)
def test_every_door_is_started_executed_and_followed(
    http: Program, manager: CheckpointManager, code: str
) -> None:
    headers = {"idempotency-key": "order-7"}
    begun = [http.start(code, DOORS[code], headers=headers) for _ in range(2)]
    assert [one.status_code for one in begun] == [202, 202]
    assert begun[0].json() == begun[1].json()
    run_id = begun[0].json()["run_id"]
    assert http.get(f"/runs/{run_id}").json()["status"] == "queued"
    assert queued(manager, run_id)["by"] == "operate"
    work(manager)
    done = http.get(f"/runs/{run_id}").json()
    assert done["status"] == "completed" and done["over"]
    if "doubled" in code:
        assert done["value"] == ([2, 4] if code == "doubled" else [1, 2])
    else:
        assert done["state"]
    seen = http.told(run_id)
    assert seen[-1][1]["type"] == "run.completed"
    assert len(http.get("/runs").json()["runs"]) == 1


def test_one_key_begins_one_run_with_one_set_of_arguments(http: Program) -> None:
    headers = {"idempotency-key": '"k1"'}
    assert http.start("doubled", {"numbers": [1]}, headers=headers).status_code == 202
    other = http.start("doubled", {"numbers": [2]}, headers=headers)
    assert other.status_code == 409 and other.json()["error"] == "ConflictError"
    named = {"run_id": "a/b c?"}
    assert http.start("doubled", {"numbers": [1]}, options=named).json()["run_id"] == "a/b c?"
    assert http.start("doubled", {"numbers": [2]}, options=named).status_code == 409
    assert http.get("/runs/a%2Fb%20c%3F").json()["run_id"] == "a/b c?"


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("doubled", {"arguments": {}}),
        ("doubled", {"arguments": {"numbers": "x"}}),
        ("doubled", {"arguments": {"numbers": []}, "unknown": 1}),
        ("doubled", {"arguments": {"numbers": []}, "delay": -1}),
        ("make_agent", {"arguments": {"n": 1}}),
        ("make_fleet", {"arguments": {"task": ""}}),
        ("doubled", []),
        ("doubled", {"arguments": {"numbers": [[]]}}),
    ],
)
def test_what_does_not_fit_is_refused_and_begins_nothing(
    http: Program, code: str, body: Any
) -> None:
    refused = http.post(f"/start/{code}", json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["message"]
    assert http.get("/runs").json()["runs"] == []


def test_code_that_is_not_there_is_named(http: Program) -> None:
    refused = http.start("tripled")
    assert refused.status_code == 404 and "doubled" in refused.json()["hint"]
    assert http.get("/runs/none").status_code == 404
    assert http.post("/runs/none/cancel").status_code == 404
    assert {one["code"] for one in http.get("/code").json()["code"]} == {*CODE}


def test_parameters_may_have_the_names_of_options(
    http: Program, manager: CheckpointManager
) -> None:
    given = {"key": "a", "queue": "b", "delay": 7}
    run_id = http.start("keyed", given, options={"queue": "default", "key": "t"}).json()["run_id"]
    assert queued(manager, run_id)["queued"]["key"] == "t"
    work(manager)
    assert http.get(f"/runs/{run_id}").json()["value"] == "a b 7"


@pytest.mark.parametrize("role", TOKENS)
def test_a_role_may_do_what_it_says(manager: CheckpointManager, role: str) -> None:
    run_id = caller(manager).start("asks").json()["run_id"]
    work(manager)
    http = caller(manager, role)
    assert http.get(f"/runs/{run_id}").json()["waiting"][0]["name"] == "approval"
    assert [one["run_id"] for one in http.get("/pending").json()["pending"]] == [run_id]
    body = {"id": "approval", "value": "Ann"}
    said = http.post(f"/runs/{run_id}/answer", json=body).status_code
    started = http.start("asks").status_code
    requeued = http.post(f"/runs/{run_id}/cancel").status_code
    assert (said, started, requeued) == {
        "read": (403, 403, 403),
        "answer": (202, 403, 403),
        "operate": (202, 202, 202),
    }[role]
    if role == "answer":
        answers = RecordQuery(run_id=run_id, kind="answer", notes=True)
        assert [one.metadata["by"] for one in manager.storage.headers(answers)] == ["answer"]
        work(manager)
        assert http.get(f"/runs/{run_id}").json()["value"] == "Ann"
        again = http.post(f"/runs/{run_id}/answer", json=body)
        assert again.status_code == 404  # nothing waits any more


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer nobody"}, {"authorization": "x"}])
def test_who_has_no_token_is_told_nothing(
    manager: CheckpointManager, header: dict[str, str]
) -> None:
    http = caller(manager)
    http.headers.pop("authorization")
    for path in ("/runs", "/code", "/openapi.json", "/runs/x", "/runs/x/events"):
        refused = http.get(path, headers=header)
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
    assert http.get("/healthz").text == "ok\n"


def test_tokens_are_read_from_lines_and_checked() -> None:
    digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    Tokens.read(f"# callers\nci operate a-long-enough-token\n\nann read sha256:{digest}\n")
    for wrong in ("", "ci operate", "ci operate short", "ci admin a-long-enough-token"):
        with pytest.raises(UsageError):
            Tokens.read(wrong)


def test_events_continue_after_each_without_a_gap_or_a_double(
    http: Program, manager: CheckpointManager
) -> None:
    run_id = http.start("asks").json()["run_id"]
    work(manager)
    http.post(f"/runs/{run_id}/answer", json={"value": "Ann"})
    work(manager)
    seen = http.told(run_id)
    assert seen[-1][1]["type"] == "run.completed"
    ids = [id for id, _ in seen]
    assert len({*ids}) == len(ids) > 5
    for at, id in enumerate(ids):
        assert http.told(run_id, id) == seen[at + 1 :], id
    over = http.get(f"/runs/{run_id}/events", headers={"last-event-id": ids[-1]})
    assert over.status_code == 204
    assert http.get(f"/runs/{run_id}/events", headers={"last-event-id": "x"}).status_code == 400


def test_a_run_that_failed_for_good_is_over_and_is_queued_again(
    http: Program, manager: CheckpointManager
) -> None:
    run_id = http.start("fails").json()["run_id"]
    surehold.executors.set_queue(
        "default", surehold.core.policy.QueueSettings(attempts=1), storage=manager
    )
    work(manager)
    done = http.get(f"/runs/{run_id}").json()
    assert done["over"] and "no luck" in done["error"]
    assert http.told(run_id)  # the stream ends
    assert http.post(f"/runs/{run_id}/requeue").status_code == 202
    assert not http.get(f"/runs/{run_id}").json()["over"]


def test_a_message_keeps_its_key_and_its_sender(http: Program, manager: CheckpointManager) -> None:
    run_id = http.start("rests", {"seconds": 60}).json()["run_id"]
    body = {"topic": "mail", "value": {"n": 1}}
    sent = http.post(f"/runs/{run_id}/messages", json=body, headers={"idempotency-key": "m"})
    assert sent.status_code == 202
    query = RecordQuery(run_id=run_id, kind="message", notes=True)
    (told,) = (one.metadata for one in manager.storage.headers(query))
    assert (told["topic"], told["key"], told["by"]) == ("mail", "m", "operate")


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "components": document["components"]}


def test_the_document_describes_requests_and_answers(
    http: Program, manager: CheckpointManager
) -> None:
    document = http.get("/openapi.json").json()
    assert document == json.loads(json.dumps(openapi_of(CODE)))
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for ref in (text for text in json.dumps(document).split('"') if text.startswith("#/")):
        assert ref.rpartition("/")[2] in document["components"]["schemas"]
    run_id = http.start("doubled", {"numbers": [1]}).json()["run_id"]
    work(manager)
    for path, methods in document["paths"].items():
        if "get" not in methods or path in (
            "/runs/{run}/events",
            "/openapi.json",
            "/healthz",
            "/metrics",
        ):
            continue
        answer = http.get(path.replace("{run}", run_id))
        wanted = methods["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(answer.json(), resolved(document, wanted))
    start = document["paths"][f"/start/{HERE}:doubled"]["post"]["requestBody"]
    wanted = resolved(document, start["content"]["application/json"]["schema"])
    jsonschema.validate({"arguments": {"numbers": [1]}}, wanted)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"arguments": {"numbers": "one"}}, wanted)


def test_types_for_typescript_are_made_of_the_document() -> None:
    made = types_of(openapi_of([f"{HERE}:doubled"]))
    assert "arguments: { numbers: (number)[] }" in made
    assert 'path: "/runs/{run}"' in made and "response: RunOutcome" in made


def test_a_body_that_is_too_large_or_too_deep_is_refused(http: Program) -> None:
    refused = http.post("/start/doubled", content=b" " * (2 << 20))
    assert refused.status_code == 413
    refused = http.post("/start/doubled", content=b'{"arguments":' + b"[" * 100_000)
    assert refused.status_code == 400 and refused.json()["error"] == "UsageError"


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/none", 404), ("PUT", "/runs", 405)]
)
def test_a_request_that_is_not_in_the_list_is_refused_in_json(
    http: Program, method: str, path: str, status: int
) -> None:
    refused = http.request(method, path)
    assert refused.status_code == status and refused.json()["error"] == "NoSuchRequest"


@pytest.mark.parametrize("path", ["/runs", "/pending"])
def test_the_length_of_a_list_has_bounds(http: Program, path: str) -> None:
    for limit in (-5, 0, 501):
        refused = http.get(path, params={"limit": limit})
        assert refused.status_code == 400 and "from 1 to 500" in refused.json()["hint"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(StorageFullError("no room"), 507), (StorageUnavailableError("away"), 503)],
)
def test_an_error_of_the_storage_is_answered_logged_and_counted(
    manager: CheckpointManager,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: StorageError,
    status: int,
) -> None:
    def fails(*_: Any) -> None:
        raise error

    http = caller(manager)
    monkeypatch.setattr(type(manager.storage), "append", fails)
    refused = http.start("doubled", {"numbers": [1]})
    assert refused.status_code == status and refused.json()["error"] == type(error).__name__
    assert f"POST /start/doubled: {type(error).__name__}: {error.message}" in caplog.text
    counted = f'surehold_http_requests_total{{request="start",status="{status}"}} 1'
    assert counted in http.get("/metrics").text


def test_the_worker_of_the_process_is_in_its_metrics_and_its_health(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(manager.storage, served_by(CODE))
    http = caller(manager, worker=worker)
    http.start("doubled", {"numbers": [1]})
    worker.run(until_idle=True)
    text = http.get("/metrics").text
    assert 'surehold_http_requests_total{request="start",status="202"} 1' in text
    assert "surehold_worker_claimed_total 1" in text
    assert http.get("/healthz").text == "ok\n"
    monkeypatch.setattr(Worker, "is_healthy", False)
    assert http.get("/healthz").status_code == 503


def test_the_app_is_mounted_in_another_one(manager: CheckpointManager) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    auth = Tokens({TOKENS["operate"]: Caller("ci", "operate")})
    outer = Starlette(routes=[Mount("/durable", service_app(CODE, manager, auth=auth))])
    headers = {"authorization": f"Bearer {TOKENS['operate']}"}
    with TestClient(outer, headers=headers) as http:
        begun = http.post("/durable/start/doubled", json={"arguments": {"numbers": [1]}})
        work(manager)
        done = http.get(f"/durable/runs/{begun.json()['run_id']}").json()
        assert done["value"] == [2]
