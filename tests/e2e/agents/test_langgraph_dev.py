"""The recipe for LangGraph's server: `langgraph dev` is killed, and a thread goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers import free_port

from surehold import CheckpointManager

RECIPE = Path(__file__).parents[3] / "examples" / "frameworks" / "langgraph_dev"


@contextmanager
def developing(directory: Path) -> Iterator[str]:
    """The address of LangGraph's server, which is killed at the end of the block."""
    programs, port = Path(sys.executable).parent, free_port()
    command = [str(programs / "langgraph"), "dev", "--no-browser", "--no-reload"]
    environment = {**os.environ, "LANGSMITH_TRACING": "false"}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    with (directory / "out.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        while not _is_up(f"http://127.0.0.1:{port}"):
            assert process.poll() is None, (directory / "out.log").read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ok", timeout=60) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def _post(url: str, body: dict[str, Any]) -> Any:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read())


def _say(url: str, thread: str, text: str) -> list[str]:
    said = {"messages": [{"role": "user", "content": text}]}
    body = {"assistant_id": "chat", "input": said}
    ended = _post(f"{url}/threads/{thread}/runs/wait", body)
    return [one["content"] for one in ended["messages"]]


def test_a_thread_of_langgraph_dev_goes_on_after_the_server_was_killed(tmp_path: Path) -> None:
    place = tmp_path / "app"
    shutil.copytree(RECIPE, place, ignore=shutil.ignore_patterns("__pycache__", ".langgraph_api"))
    with developing(place) as url:
        thread = _post(f"{url}/threads", {})["thread_id"]
        assert _say(url, thread, "hello") == ["hello", "You said: hello"]
    with CheckpointManager(f"sqlite:///{place}/threads.db") as manager:
        newest = manager.latest(thread)
        assert newest is not None and newest.status == "completed"
    with developing(place) as url:
        _post(f"{url}/threads", {"thread_id": thread})  # the server's own list is in its memory
        assert _say(url, thread, "again")[-3:] == ["You said: hello", "again", "You said: again"]
