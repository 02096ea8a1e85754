"""Tests of a user whose model calls are answered from recordings in the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from tests.model_server import ModelServer, model_server

import surehold

CONFTEST = """\
import os, socket

if os.environ.get("CUT_OFF"):
    def refuse(*_):
        raise AssertionError("the network is cut off")
    socket.socket.connect = socket.socket.connect_ex = refuse
"""
SUITE = """\
import os
import httpx
import pytest

CHAT = os.environ["MODEL"] + "/v1/chat/completions"
KEY = {"Authorization": "Bearer sk-secret"}
SAID = os.environ.get("SAID", "hello")

def asked(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}

@pytest.mark.surehold
@pytest.mark.parametrize("n", ["0", "a/b", "a b", "long" * 80])
def test_blocking(n):
    body = asked(f"{SAID} {n}, ghp_{'a1B2' * 9}")
    found = httpx.post(CHAT, json=body, headers=KEY).json()
    assert found["choices"][0]["message"]["content"].startswith("answer")

@pytest.mark.surehold("shared.jsonl")
async def test_awaited():
    async with httpx.AsyncClient(headers=KEY) as client:
        found = await client.post(CHAT, json=asked(SAID))
    assert found.json()["model"] == "m"

class TestStream:
    @pytest.mark.surehold
    def test_stream(self):
        with httpx.stream("POST", CHAT, json=asked(SAID, stream=True)) as streamed:
            assert "[DONE]" in "".join(streamed.iter_text())

def test_without_a_model():
    assert True
"""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_mine.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    return tmp_path


def run(suite: Path, url: str, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    # The plugins by name: loading all that are installed takes most of a second.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(suite)]
    command += ["-p", "pytest_asyncio.plugin", "-p", "surehold.integrations.pytest_plugin"]
    command += ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"]
    if "-n" in options:
        command += ["-p", "xdist.plugin"]
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(
        command,
        env={**os.environ, "MODEL": url, **environ},
        cwd=suite,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_suite_is_recorded_once_and_replayed_without_a_network(
    server: ModelServer, suite: Path
) -> None:
    recorded = run(suite, server.url, "--surehold-record=new")
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    assert server.count == 6
    files = {path.relative_to(suite): path.read_text() for path in suite.rglob("*.jsonl")}
    assert Path("shared.jsonl") in files
    assert Path("recordings/test_mine/TestStream.test_stream.jsonl") in files
    assert Path("recordings/test_mine/test_blocking[0].jsonl") in files
    assert all("sk-secret" not in text for text in files.values())
    assert all("SECRET-COOKIE" not in text and "ghp_" not in text for text in files.values())

    cut = run(suite, "http://127.0.0.1:9", "-n", "2", CUT_OFF="1")
    assert cut.returncode == 0, cut.stdout + cut.stderr
    assert "7 passed" in cut.stdout
    assert {path.relative_to(suite): path.read_text() for path in suite.rglob("*.jsonl")} == files

    (suite / "shared.jsonl").unlink()
    changed = run(suite, "http://127.0.0.1:9", CUT_OFF="1", SAID="hullo")
    assert changed.returncode == 1 and "6 failed, 1 passed" in changed.stdout
    assert "body.messages[0].content" in changed.stdout
    assert 'now       "hullo"' in changed.stdout
    assert "there is no recording" in changed.stdout
    assert "pytest --surehold-record=new records one" in changed.stdout

    anew = run(suite, server.url, "--surehold-record=all", SAID="hullo")
    assert anew.returncode == 0 and server.count == 12
    text = (suite / "recordings/test_mine/TestStream.test_stream.jsonl").read_text()
    assert "hullo" in text and "hello" not in text


def test_a_test_replays_an_exported_run_and_a_run_by_its_id(
    server: ModelServer, suite: Path, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    with surehold.record("research-7", storage=storage):
        import httpx

        body = {"model": "m", "messages": ["hello"]}
        httpx.post(f"{server.url}/v1/chat/completions", json=body)
    with surehold.CheckpointManager(storage) as manager:
        manager.export_run("research-7", tmp_path / "research-7.surehold")
    (suite / "test_mine.py").write_text(
        f"""\
import httpx, pytest

def ask():
    body = {{"model": "m", "messages": ["hello"]}}
    found = httpx.post("http://localhost:9/v1/chat/completions", json=body)
    assert "answer 1" in found.json()["choices"][0]["message"]["content"]

@pytest.mark.surehold("research-7.surehold")
def test_file():
    ask()

@pytest.mark.surehold("research-7", storage={storage!r})
def test_run():
    ask()
"""
    )
    done = run(suite, "", CUT_OFF="1")
    assert done.returncode == 0, done.stdout
    assert server.count == 1


def test_pytest_finds_the_plugin_by_itself() -> None:
    (found,) = entry_points(group="pytest11", name="surehold")
    assert found.load().pytest_addoption


def test_a_failing_test_leaves_its_recording(server: ModelServer, suite: Path) -> None:
    (suite / "test_mine.py").write_text(
        SUITE.replace('startswith("answer")', 'startswith("other")')
    )
    done = run(suite, server.url, "--surehold-record=new", "-k", "blocking")
    assert done.returncode == 1 and server.count == 4
    assert [*suite.rglob("*.jsonl")] == []
