"""`holdfast ui` as people start it: a process, a link, a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli.conftest import call


@contextmanager
def served(storage: Path, home: Path, *words: str, port: int = 0) -> Iterator[Any]:
    """A page in a process of its own; gives the process and its link."""
    command = [sys.executable, "-m", "holdfast", "-s", f"sqlite:///{storage}", "ui", "--jsonl"]
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
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def test_the_link_signs_in_once_and_a_signal_stops_the_page(made: Path, tmp_path: Path) -> None:
    with served(made, tmp_path) as (process, link):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", link)
        with httpx.Client(follow_redirects=True) as browser:
            assert "report-mon" in browser.get(link).text
        assert httpx.get(link).status_code == 403
        process.send_signal(signal.SIGINT)
        assert process.wait(10) in (0, 130)


def test_a_signed_in_browser_stays_so_when_the_page_is_killed_and_started_again(
    made: Path, tmp_path: Path
) -> None:
    with httpx.Client(follow_redirects=True) as browser:
        with served(made, tmp_path) as (process, link):
            browser.get(link)
            process.kill()
            process.wait(10)
        address = link.partition("?")[0]
        port = int(address.rstrip("/").rpartition(":")[2])
        with served(made, tmp_path, port=port) as (_, _):
            assert "report-mon" in browser.get(address).text
    key = tmp_path / "holdfast" / "page.key"
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
