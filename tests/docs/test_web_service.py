"""The example web service, with a real server on loopback, and its Dockerfile."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from surehold.client import Client
from surehold.errors import ConflictError, NotFoundError, UsageError

HERE = Path(__file__).parents[2] / "examples" / "web_service"
RUN = "kelp-2026-11-16"
TOKEN = "a-token-of-these-tests"
PATIENCE = 60.0


@contextmanager
def server(directory: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """`surehold serve` in a process of its own, on a port that the system chose."""
    (directory / "tokens").write_text(f"shop operate {TOKEN}\n")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "surehold", "serve", "service"),
            *("--listen", "127.0.0.1:0", "--tokens", str(directory / "tokens"), *words),
        ],
        cwd=HERE,
        env=os.environ | {"SUREHOLD_STORAGE": f"sqlite:///{directory}/runs.db"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        events = (json.loads(line) for line in process.stdout)
        told = next(one for one in events if one["event"] == "serve.listen")
        with process.stdout, Client(told["facts"]["address"], TOKEN, patience=PATIENCE) as client:
            yield process, client
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_a_report_is_started_streamed_and_approved_over_http(tmp_path: Path) -> None:
    with server(tmp_path) as (_, client):
        with pytest.raises(NotFoundError):
            client.get(RUN)
        assert client.start("report", {"topic": "kelp"}, run_id=RUN) == RUN
        assert client.start("report", {"topic": "kelp"}, run_id=RUN) == RUN
        with pytest.raises(ConflictError):
            client.start("report", {"topic": "moss"}, run_id=RUN)
        with pytest.raises(UsageError):
            client.start("report", {})
        seen, written = [], 0
        for event in client.events(RUN):
            seen.append(event)
            written += event.type == "effect.complete"
            if event.type == "run.asked" or event.type == "run.waiting":
                break
        assert written == 3
        (waiting,) = client.get(RUN).waiting
        assert (waiting.name, client.pending().pending[0].run_id) == ("approval", RUN)
        client.answer(RUN, "Ann", id="approval")
        rest = [*client.events(RUN, after=seen[-1].id)]  # reconnected
        assert rest[-1].type == "run.completed"
        every = [*client.events(RUN)]
        assert every == [*seen, *rest] and len({one.id for one in every}) == len(every)
        done = client.get(RUN)
        assert done.value == "summary of kelp, body of kelp, sources of kelp; approved by Ann"
        assert [one.run_id for one in client.list(status="completed").runs] == [RUN]
        with pytest.raises(NotFoundError):
            client.answer(RUN, "Bob")


def test_a_run_that_was_accepted_is_executed_after_a_kill(tmp_path: Path) -> None:
    with server(tmp_path) as (process, client):
        client.start("report", {"topic": "kelp"}, run_id=RUN)
        process.send_signal(signal.SIGKILL)  # what was accepted is recorded
        process.wait(PATIENCE)
    with server(tmp_path) as (_, client):
        for event in client.events(RUN):
            if event.type == "run.waiting":
                client.answer(RUN, "Ann")
        assert str(client.get(RUN).value).endswith("approved by Ann")


def test_a_server_that_is_told_to_stop_ends_its_steps_and_leaves_nothing_held(
    tmp_path: Path,
) -> None:
    with server(tmp_path) as (process, client):
        client.start("report", {"topic": "kelp"}, run_id=RUN)
        next(one for one in client.events(RUN) if one.type == "effect.complete")
        process.terminate()
        assert process.wait(PATIENCE) == 0
    with server(tmp_path, "--concurrency", "0") as (_, client):
        left = client.get(RUN)
        assert not left.over and left.status in ("interrupted", "waiting")


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
    assert words[:3] == ["surehold", "serve", "service"]


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
    for package in ("uvicorn", "starlette", "hatchling", "msgspec", "apsw"):
        assert re.search(rf"^{package}==\S+ .*\n +--hash=sha256:", pinned, re.MULTILINE), package
    for command in (rest for name, rest in found if name == "RUN"):
        assert "--require-hashes" in command or "--no-deps" in command


def test_the_health_check_of_the_dockerfile_asks_the_service(tmp_path: Path) -> None:
    _, _, command = dict(instructions())["HEALTHCHECK"].partition("CMD ")
    words = [sys.executable, *json.loads(command)[1:]]
    with server(tmp_path) as (process, client):
        words = [word.replace(":8000", f":{client.port}") for word in words]
        subprocess.run(words, check=True)
        process.terminate()
        process.wait(PATIENCE)
        assert subprocess.run(words, capture_output=True, check=False).returncode
