"""What an attacker sends is refused, and what a model writes is only ever text."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.web.conftest import BASE, TOKEN, Browser, Open

import surehold
from surehold import CheckpointManager
from surehold.engine.runs import pending
from surehold.errors import UsageError
from surehold.web import app

SCRIPT = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@pytest.fixture
def stranger(manager: CheckpointManager) -> Any:
    """A browser that is not signed in."""
    with TestClient(app(manager, auth=TOKEN), base_url=BASE) as client:
        yield client


PATHS = ["/", "/run?id=report-mon", "/waiting", "/storage", "/api/runs", "/api/events?id=crawl"]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_signing_in(stranger: TestClient, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert "report" not in answer.text


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], f"{TOKEN}x"])
def test_a_wrong_token_is_refused(stranger: TestClient, token: str) -> None:
    answer = stranger.get(f"/?token={token}")
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_token_signs_in_once_and_leaves_the_address(stranger: TestClient) -> None:
    answer = stranger.get(f"/run?id=report-mon&token={TOKEN}", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/run?id=report-mon"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    stranger.cookies.clear()
    assert stranger.get(f"/?token={TOKEN}").status_code == 403


def test_signing_in_cannot_lead_to_another_site(stranger: TestClient) -> None:
    answer = stranger.get(f"{BASE}//evil.example/?token={TOKEN}", follow_redirects=False)
    assert answer.headers["location"].startswith("/evil.example/")


def test_a_forged_or_expired_cookie_is_refused(stranger: TestClient, page: Browser) -> None:
    name, value = next(iter(page.cookies.items()))
    expiry, nonce, signature = value.split(".")
    for forged in (f"{int(expiry) + 1}.{nonce}.{signature}", f"{expiry}.{nonce}.", "x", "..."):
        assert stranger.get("/", headers={"cookie": f"{name}={forged}"}).status_code == 401


def test_a_cookie_expires_and_outlives_a_restart_with_the_same_key() -> None:
    from surehold.web.sessions import COOKIE_DAYS, Sessions

    now = [1000.0]
    first = Sessions(b"k" * 32, "ada", clock=lambda: now[0])
    cookie = first.exchange(first.new_token())
    assert cookie is not None
    again = Sessions(b"k" * 32, "ada", clock=lambda: now[0])
    assert again.user_of(cookie) == "ada"
    assert Sessions(b"x" * 32, "ada", clock=lambda: now[0]).user_of(cookie) is None
    now[0] += COOKIE_DAYS * 86_400
    assert again.user_of(cookie) is None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4653", "127.0.0.1.evil.io", ""])
def test_a_wrong_host_is_refused(page: Browser, host: str) -> None:
    assert page.get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {},
    ],
)
def test_a_post_from_elsewhere_is_refused(
    page: Browser, manager: CheckpointManager, headers: dict[str, str]
) -> None:
    fields = {"form_token": page.form_token(), **APPROVE}
    assert page.post("/act/answer", data=fields, headers=headers).status_code == 403
    assert len(pending(storage=manager)) == 1


APPROVE = {"id": "report-wed", "waiting": "approve@6", "how": "approve"}


@pytest.mark.parametrize("token", ["", "0" * 64])
def test_a_form_without_its_token_is_refused(
    page: Browser, manager: CheckpointManager, token: str
) -> None:
    assert page.submit("/act/answer", form_token=token, **APPROVE).status_code == 403
    assert len(pending(storage=manager)) == 1


def test_the_form_token_of_another_session_is_refused(
    page: Browser, manager: CheckpointManager, open_page: Open
) -> None:
    other = open_page(manager)
    assert page.submit("/act/answer", form_token=other.form_token(), **APPROVE).status_code == 403


def test_read_only_changes_nothing(manager: CheckpointManager, open_page: Open) -> None:
    page = open_page(manager, read_only=True)
    assert page.post("/act/answer", data=APPROVE, headers={"origin": BASE}).status_code == 403
    assert "Approve" not in page.get("/waiting").text
    assert "form_token" not in page.get("/run?id=report-mon").text
    assert len(pending(storage=manager)) == 1


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(page: Browser, method: str) -> None:
    assert page.request(method, "/").status_code == 405


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_ten_megabytes_is_refused(page: Browser, chunked: bool) -> None:
    body = b"x" * 10_000_000
    sent: Any = iter([body[:500_000]] * 20) if chunked else body
    answer = page.post("/act/fork", content=sent, headers={"origin": BASE})
    assert answer.status_code == 413


async def test_a_client_that_sends_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from surehold.web import guard
    from surehold.web.guard import Guard

    monkeypatch.setattr(guard, "MOST_SECONDS", 0.01)

    async def inner(*_: Any) -> None:
        raise AssertionError("it was let in")

    async def never() -> Any:
        await asyncio.Event().wait()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    door = Guard(inner, auth=lambda _: "ada", key=b"k", hosts=["127.0.0.1"], read_only=False)
    headers = [(b"host", b"127.0.0.1"), (b"origin", b"http://127.0.0.1")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/act/fork",
        "headers": headers,
        "query_string": b"",
        "scheme": "http",
        "server": ("127.0.0.1", 1),
    }
    await door(scope, never, send)
    assert sent[0]["status"] == 408


def test_a_form_of_ten_thousand_fields_is_refused(page: Browser) -> None:
    body = b"&".join(b"x%d=1" % at for at in range(10_000))
    assert page.post("/act/fork", content=body, headers={"origin": BASE}).status_code == 413


def test_a_post_to_an_asset_is_checked_too(stranger: TestClient) -> None:
    assert stranger.post("/static/x/page.css", headers={"origin": BASE}).status_code == 401


@pytest.mark.parametrize("path", ["/", "/nothing", "/api/runs", "/run?id=nothing"])
def test_every_answer_carries_the_strict_headers(page: Browser, path: str) -> None:
    headers = page.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_nothing_is_inline_and_nothing_comes_from_elsewhere(page: Browser) -> None:
    for path in ("/", "/run?id=report-mon", "/waiting", "/storage", "/health", "/compare"):
        text = page.get(path).text
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", text), path
        assert not re.search(r'(?:src|href|action)="(?:https?:)?//', text), path


def test_templates_never_turn_escaping_off() -> None:
    import surehold.web

    assert surehold.web.__file__ is not None
    for file in (Path(surehold.web.__file__).parent / "templates").iterdir():
        text = file.read_text("utf-8")
        assert "|safe" not in text and "autoescape" not in text, file.name


@pytest.fixture
def hostile(tmp_path: Path, open_page: Open) -> Any:
    """A page over a run all of whose texts are an attack."""
    with CheckpointManager(f"sqlite:///{tmp_path}/hostile.db") as manager:

        def tool() -> str:
            return SCRIPT

        def bad() -> str:
            raise RuntimeError(SCRIPT)

        with surehold.run(SCRIPT, storage=manager) as run:
            run.call(tool)
            run.checkpoint(
                node=SCRIPT, messages=[{"role": SCRIPT, "content": SCRIPT}], **{SCRIPT: SCRIPT}
            )
        with pytest.raises(RuntimeError), surehold.run("failing", storage=manager) as run:
            run.checkpoint(done=1)
            run.call(bad)
        latest = manager.latest(SCRIPT)
        assert latest is not None
        manager.tag(latest.checkpoint_id, "<script>tag</script>")
        yield open_page(manager)


def test_script_in_state_tool_output_tag_run_id_and_error_is_text(hostile: Browser) -> None:
    from urllib.parse import quote

    run = f"/run?id={quote(SCRIPT)}"
    pages = [
        "/",
        "/waiting",
        "/storage",
        "/health",
        "/run?id=failing",
        "/run?id=failing&tab=events",
    ]
    pages += [f"{run}&tab={tab}" for tab in ("conversation", "state", "effects", "cost", "events")]
    pages += [f"{run}&tab=raw", f"{run}&tab=state&shape=full", f"{run}&tab=state&shape=blame"]
    pages += [f"{run}&tab=timeline", f"{run}&tab=graph", "/queues", "/run?id=failing&tab=graph"]
    pages += [
        f"/act/{action}?id={quote(SCRIPT)}"
        for action in ("verify", "forget", "repair", "resume", "requeue")
    ]
    pages += [f"/act/{action}?checkpoint={quote(SCRIPT)}" for action in ("fork", "rewind", "tag")]
    pages += [f"/compare?a={quote(SCRIPT)}&b=failing", f"/run?id={quote('<script>x')}"]
    pages += [f"/?search={quote(SCRIPT)}", f"/?name={quote(SCRIPT)}"]
    shown = 0
    for path in pages:
        answer = hostile.get(path)
        assert answer.status_code in (200, 404), (path, answer.text)
        assert answer.headers["content-type"].startswith("text/html")
        assert not re.search(r"<script>|<img src=x| onerror=alert\(1\)>", answer.text), path
        shown += "&lt;script&gt;" in answer.text
    assert shown > len(pages) / 2


def test_a_file_is_not_named_after_the_run_and_runs_nothing(hostile: Browser) -> None:
    from urllib.parse import quote

    for form in ("surehold", "json", "html"):
        answer = hostile.get(f"/export?id={quote(SCRIPT)}&form={form}")
        assert answer.headers["content-disposition"] == f'attachment; filename="run.{form}"'
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script|<img| onerror=alert\(1\)>", answer.text)
    assert "&lt;script&gt;" in answer.text


def test_who_did_it_is_text_too(manager: CheckpointManager) -> None:
    from surehold.web import app

    site = app(manager, auth=lambda _: SCRIPT)
    with TestClient(site, base_url=BASE) as client:
        client.__class__ = Browser
        assert client.submit("/act/forget", id="crawl", keep_last="5").status_code == 303  # type: ignore[attr-defined]
        text = client.get("/run?id=crawl&tab=events").text
    assert "&lt;script&gt;alert(1)" in text and "<script>alert" not in text


def test_json_is_never_html(hostile: Browser) -> None:
    answer = hostile.get("/api/runs")
    assert answer.headers["content-type"] == "application/json"


def test_the_password_of_the_storage_is_never_sent(manager: CheckpointManager) -> None:
    from surehold.web.application import build

    site = build(
        manager,
        auth=lambda _: "ada",
        key=b"k",
        hosts=["127.0.0.1"],
        read_only=False,
        address="postgresql://ada:hunter2@db.example/runs",
    )
    with TestClient(site, base_url=BASE) as client:
        for path in ("/", "/run?id=report-tue", "/act/resume?id=report-tue", "/storage"):
            text = client.get(path).text
            assert "db.example" in text and "hunter2" not in text


@pytest.mark.parametrize("auth", ["short", None, 3])
def test_a_page_without_a_sound_sign_in_is_refused(manager: CheckpointManager, auth: Any) -> None:
    with pytest.raises(UsageError):
        app(manager, auth=auth)


HOSTILE = "pay \u202elive\x1b[31m\u200b"


@pytest.mark.parametrize("path", ["/", "/run?id=r", "/storage", "/health", "/queues", "/waiting"])
def test_no_mark_of_a_journal_turns_or_hides_text_on_the_page(path: str, open_page: Open) -> None:
    manager = CheckpointManager("memory://")
    with surehold.run("r", storage=manager, name=HOSTILE) as run:
        run.checkpoint(text=HOSTILE)
    text = open_page(manager).get(path).text
    assert not set(text) & set("\u202e\x1b\u200b")
    assert path in ("/health", "/queues", "/waiting") or "pay \\u202elive\\x1b[31m" in text


def test_a_form_gives_such_marks_back_unchanged(open_page: Open) -> None:
    manager = CheckpointManager("memory://")
    with surehold.run("r", storage=manager) as run:
        run.checkpoint(text=HOSTILE, number=1)
    latest = manager.list_checkpoints("r")[-1]
    form = open_page(manager).get("/act/fork", params={"checkpoint": latest.checkpoint_id}).text
    assert not set(form) & set("\u202e\x1b\u200b")
    value = re.search(r'name="k-text" value="([^"]*)"', form)
    assert value is not None and html.unescape(value[1]) == HOSTILE.replace("\x1b", "")
    assert "&#27;" in value[1]  # a browser reads it; Python's html module drops it
