"""`surehold ui` as people start it: a process, a link, a signal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from tests.cli.conftest import call

from surehold import CheckpointManager, pending
from surehold.web.server import Timely


@contextmanager
def served(storage: Path, home: Path, *words: str, port: int = 0) -> Iterator[Any]:
    """A page in a process of its own; gives the process and its link."""
    command = [sys.executable, "-m", "surehold", "-s", f"sqlite:///{storage}", "ui", "--jsonl"]
    process = subprocess.Popen(
        [*command, "--port", str(port), *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(home)},
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


async def test_a_connection_that_sends_no_whole_request_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("surehold.web.server.MOST_SECONDS", 0.2)

    async def site(_scope: Any, _receive: Any, send: Any) -> None:
        await asyncio.sleep(0.5)  # longer than headers may take: an answer has no limit
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    config = uvicorn.Config(site, http=Timely, lifespan="off", timeout_keep_alive=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        for begins in (b"", b"GET / HTTP/1.1\r\nhost:", WHOLE, WHOLE + b"GET /"):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(begins)
            answer = await asyncio.wait_for(reader.read(), 30)
            assert answer.endswith(b"ok") == begins.startswith(WHOLE), begins
            writer.close()
        server.should_exit = True
        await serving


async def test_connections_beyond_half_of_the_files_are_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("surehold.web.server.most_connections", lambda: 2)

    async def site(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = uvicorn.Server(uvicorn.Config(site, http=Timely, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        held = [await asyncio.open_connection(*bound.getsockname()) for _ in range(2)]
        while len(server.server_state.connections) < 2:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        with suppress(ConnectionError):
            writer.write(WHOLE)
            assert await asyncio.wait_for(reader.read(), 30) == b""
        held[0][1].write(WHOLE)
        assert b"204" in await asyncio.wait_for(held[0][0].readline(), 30)
        for _, one in (*held, (reader, writer)):
            one.close()
        server.should_exit = True
        await serving


WHOLE = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


def test_the_link_signs_in_once_and_a_signal_stops_the_page(made: Path, tmp_path: Path) -> None:
    with served(made, tmp_path) as (process, link):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", link)
        with httpx.Client(follow_redirects=True) as browser:
            assert "report-mon" in browser.get(link).text
        assert httpx.get(link).status_code == 403
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)


def test_a_signed_in_browser_stays_so_when_the_page_is_killed_and_started_again(
    made: Path, tmp_path: Path
) -> None:
    with httpx.Client(follow_redirects=True) as browser:
        with served(made, tmp_path) as (process, link):
            browser.get(link)
            process.kill()
            process.wait(60)
        address = link.partition("?")[0]
        port = int(address.rstrip("/").rpartition(":")[2])
        with served(made, tmp_path, port=port) as (_, _):
            assert "report-mon" in browser.get(address).text
    key = tmp_path / "surehold" / "page.key"
    assert key.stat().st_mode & 0o077 == 0


def test_a_record_is_streamed_from_where_the_browser_was(made: Path, tmp_path: Path) -> None:
    with served(made, tmp_path) as (_, link), httpx.Client(follow_redirects=True) as browser:
        browser.get(link)
        address = f"{link.partition('?')[0]}api/events?id=report-mon"
        ids: list[int] = []
        with browser.stream("GET", address, headers={"last-event-id": "12"}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    ids.append(int(line[4:]))
                if len(ids) == 3:
                    break
    assert ids == [13, 14, 15]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--listen", "0.0.0.0"), "--auth token"),
        (("--listen", "0.0.0.0", "--auth", "token"), "--host NAME"),
        (("--listen", "::", "--auth", "x", "--host", "a"), "token, or proxy:HEADER"),
        (("--auth", "proxy:"), "token, or proxy:HEADER"),
        (("--port", "70000"), "65535"),
    ],
)
def test_what_would_be_unsafe_is_refused(
    made: Path, words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: pytest.fail("it was served"))
    result = call("-s", f"sqlite:///{made}", "ui", "--port", "0", *words)
    assert result.code == 2
    assert says in result.err


def test_a_busy_port_is_named(made: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        result = call("-s", f"sqlite:///{made}", "ui", "--port", port)
    assert result.code == 2
    assert port in result.err and "--port 0" in result.err


def test_a_misspelt_storage_is_not_created(tmp_path: Path) -> None:
    result = call("-s", f"sqlite:///{tmp_path}/typo.db", "ui")
    assert result.code == 10
    assert not (tmp_path / "typo.db").exists()


@pytest.mark.figures
def test_an_approval_is_told_to_other_browsers_and_the_command_within_a_second(
    made: Path, tmp_path: Path
) -> None:
    storage = shutil.copy(made, tmp_path / "runs.db")
    with served(storage, tmp_path) as (_, link), httpx.Client(follow_redirects=True) as browser:
        page = link.partition("?")[0]
        token = re.search(r'form_token" value="(\w+)"', browser.get(link).text)
        assert token is not None
        fields = {"id": "report-wed", "waiting": "approve@6", "how": "approve"}
        told: list[float] = []
        opened = threading.Event()

        def listen() -> None:
            with browser.stream("GET", f"{page}api/changes?after=x") as answer:
                for line in answer.iter_lines():
                    if line == "event: reset":  # what was written so far was looked at
                        opened.set()
                    if '"kind":"answer"' in line and '"report-wed"' in line:
                        told.append(time.monotonic())
                        return

        listener = threading.Thread(target=listen)
        listener.start()
        assert opened.wait(300)
        began = time.monotonic()
        answer = browser.post(
            f"{page}act/answer",
            data={"form_token": token[1], **fields},
            headers={"origin": page.rstrip("/")},
        )
        assert answer.status_code == 200
        listener.join(300)
        with CheckpointManager(f"sqlite:///{storage}") as manager:
            assert pending(storage=manager) == []
    assert told and told[0] - began < 1.0


def send(port: int, request: bytes, *, whole: bool = True) -> Any:
    """A connection that sends bytes as they are; with *whole*, the answer."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(request)
    if not whole:
        return connection
    with connection:
        return connection.makefile("rb").read(200_000)


@pytest.mark.parametrize(
    "path", ["/static/x/../../server.py", "/static/x/..%2f..%2fserver.py", "/../../../etc/passwd"]
)
def test_a_path_that_leads_out_is_not_found_as_it_is_sent(
    made: Path, tmp_path: Path, path: str
) -> None:
    with served(made, tmp_path) as (_, link):
        port = int(link.partition("/?")[0].rpartition(":")[2])
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
        said = send(port, head.encode())
    assert said.split(b" ", 2)[1] in (b"401", b"404")
    assert b"import" not in said and b"root:" not in said


def test_slow_clients_do_not_keep_others_out(made: Path, tmp_path: Path) -> None:
    with served(made, tmp_path) as (_, link):
        port = int(link.partition("/?")[0].rpartition(":")[2])
        head = b"GET / HTTP/1.1\r\nHost: 127.0.0.1"  # and never the rest
        slow = [send(port, head, whole=False) for _ in range(50)]
        body = b"POST /act/fork HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nx"
        slow += [send(port, body, whole=False) for _ in range(50)]
        with httpx.Client(follow_redirects=True, timeout=60) as browser:
            assert "report-mon" in browser.get(link).text
        for connection in slow:
            connection.close()
