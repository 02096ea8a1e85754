"""The example web service, with a real server on loopback, and its Dockerfile."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parents[2] / "examples" / "web_service"
RUN = "/reports/kelp-2026-11-16"
PATIENCE = 60.0


@contextmanager
def server(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """Uvicorn in a process of its own, on a port that the system chose."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        command = [sys.executable, "-m", "uvicorn", "service:app", "--app-dir", str(HERE)]
        process = subprocess.Popen(
            [*command, "--fd", str(listening.fileno()), "--log-level", "warning"],
            cwd=directory,
            env=os.environ | {"SUREHOLD_STORAGE": f"sqlite:///{directory}/runs.db"},
            pass_fds=[listening.fileno()],
        )
    try:
        # The socket listens already, so that requests wait until the server answers.
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
            yield process, client
    finally:
        process.terminate()
        process.wait(PATIENCE)


def until(client: httpx.Client, *statuses: str) -> dict[str, Any]:
    """Poll until the run exists and has one of these statuses, or any if none is given."""
    end = time.monotonic() + PATIENCE
    while True:
        reply = client.get(RUN)
        found: dict[str, Any] = reply.json() if reply.status_code == 200 else {}
        if found and (not statuses or found["status"] in statuses):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.02)


def told(client: httpx.Client, last: int) -> list[tuple[int, dict[str, Any]]]:
    """The events after the one with the id *last*, to the end of the stream."""
    seen: list[tuple[int, dict[str, Any]]] = []
    headers = {"last-event-id": str(last)}
    with client.stream("GET", f"{RUN}/events", headers=headers) as events:
        for line in events.iter_lines():
            if line.startswith("id: "):
                last = int(line.removeprefix("id: "))
            elif line.startswith("data: "):
                seen.append((last, json.loads(line.removeprefix("data: "))))
    return seen


def test_a_report_is_started_streamed_and_approved_over_http(tmp_path: Path) -> None:
    with server(tmp_path) as (_, client):
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get(RUN).status_code == 404
        assert client.post(RUN, json={"topic": "kelp"}).status_code == 202
        assert client.get(RUN).status_code == 200
        assert client.post(RUN, json={"topic": "kelp"}).status_code == 202
        assert client.post(RUN, json={"topic": "moss"}).status_code == 409
        assert client.post(RUN, json={}).status_code == 422
        seen = told(client, 0)
        written = [event for _, event in seen if event["type"] == "effect.complete"]
        assert [event["name"] for event in written] == ["write"] * 3
        assert seen[-1][1]["type"] == "run.waiting"
        half = len(seen) // 2
        assert told(client, seen[half][0]) == seen[half + 1 :]  # reconnected
        assert client.post(f"{RUN}/approval", json={"editor": "Ann"}).status_code == 202
        done = until(client, "completed")
        assert done["value"] == "summary of kelp, body of kelp, sources of kelp; approved by Ann"
        again = client.post(f"{RUN}/approval", json={"editor": "Bob"})
        assert again.status_code == 404 and "nothing named" in again.text


def test_a_run_that_was_accepted_is_executed_after_a_kill(
    tmp_path: Path,
) -> None:
    with server(tmp_path) as (process, client):
        assert client.post(RUN, json={"topic": "kelp"}).status_code == 202
        process.send_signal(signal.SIGKILL)  # what was accepted is recorded
        process.wait(PATIENCE)
    with server(tmp_path) as (_, client):
        assert until(client, "waiting")["waiting"] == ["approval"]
        client.post(f"{RUN}/approval", json={"editor": "Ann"})
        assert until(client, "completed")["value"].endswith("approved by Ann")


INSTRUCTIONS = {
    *("FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "ENV", "EXPOSE", "STOPSIGNAL"),
    *("HEALTHCHECK", "CMD"),
}


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, continued lines joined and comments left out."""
    text = (HERE / "Dockerfile").read_text("utf-8")
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def test_the_dockerfile_has_known_instructions_and_starts_the_service() -> None:
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS
    assert found[0][0] == "FROM"
    name, command = found[-1]
    assert name == "CMD"
    words = json.loads(command)
    assert words[:2] == ["uvicorn", "service:app"]


def test_the_dockerfile_copies_what_exists_and_all_that_the_wheel_needs() -> None:
    root = HERE.parents[1]
    copied = {
        source
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for source in shlex.split(rest)[:-1]
    }
    assert all((root / source).exists() for source in copied)
    assert {"pyproject.toml", "README.md", "LICENSE", "src"} <= copied


def test_the_dockerfile_runs_as_a_user_and_keeps_the_journal_outside() -> None:
    found = dict(instructions())
    assert found["USER"] == "app"
    assert found["VOLUME"] in found["ENV"], "the storage lies on the volume"


def test_the_dockerfile_pins_what_it_installs() -> None:
    found = instructions()
    for image in (rest for name, rest in found if name == "FROM"):
        assert re.match(r"python:\d+\.\d+\.\d+-slim-\w+( AS \w+)?$", image), image
    pinned = (HERE.parents[1] / "requirements" / "service.txt").read_text("utf-8")
    for package in ("uvicorn", "fastapi", "hatchling", "msgspec", "apsw"):
        assert re.search(rf"^{package}==\S+ .*\n +--hash=sha256:", pinned, re.MULTILINE), package
    for command in (rest for name, rest in found if name == "RUN"):
        assert "--require-hashes" in command or "--no-deps" in command


def test_the_health_check_of_the_dockerfile_asks_the_service(tmp_path: Path) -> None:
    _, _, command = dict(instructions())["HEALTHCHECK"].partition("CMD ")
    words = [sys.executable, *json.loads(command)[1:]]
    with server(tmp_path) as (process, client):
        words = [word.replace(":8000", f":{client.base_url.port}") for word in words]
        subprocess.run(words, check=True)
        process.terminate()
        process.wait(PATIENCE)
        assert subprocess.run(words, capture_output=True, check=False).returncode
