"""A suite of tests of a real agent, recorded once and replayed with the network cut off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.model_server import ModelServer, model_server

CALLS = 4
CUT = """\
import os, socket

if os.environ.get("CUT_OFF"):
    def refuse(*_):
        raise AssertionError("the network is cut off")
    socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""
SUITE = """\
import os
import pytest
from smolagents import OpenAIServerModel, Tool, ToolCallingAgent

class LookUp(Tool):
    name = "look_up"
    description = "Looks a name up."
    inputs = {"name": {"type": "string", "description": "The name."}}
    output_type = "string"

    def forward(self, name: str) -> str:
        return f"{name} is an alga"

@pytest.mark.surehold
@pytest.mark.parametrize("n", range(int(os.environ["TESTS"])))
def test_agent(n):
    url = os.environ["MODEL"] + "/v1"
    model = OpenAIServerModel(model_id="m", api_base=url, api_key="sk-secret")
    agent = ToolCallingAgent(tools=[LookUp()], model=model, verbosity_level=0)
    assert agent.run(f"Which algae are there? ({n})") == "done"
"""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    def tools(body: dict[str, Any]) -> Any:
        looked = json.dumps(body).count("is an alga")
        if looked < CALLS - 1:
            return "look_up", {"name": f"kelp {looked}"}
        return "final_answer", {"answer": "done"}

    with model_server() as made:
        made.tools = tools
        yield made


def run(folder: Path, url: str, tests: int, *options: str, **more: str) -> tuple[float, float]:
    """Seconds of the suite, and of its tests alone."""
    report = folder / "report.xml"
    command = [
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        f"--junitxml={report}",
        "-o",
        "junit_duration_report=call",
    ]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command, *options, "test_agent.py"],
        cwd=folder,
        env={**os.environ, "MODEL": url, "TESTS": str(tests), **more},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert f"{tests} passed" in done.stdout
    cases = ElementTree.parse(report).iter("testcase")
    return seconds, sum(float(case.attrib["time"]) for case in cases)


@pytest.mark.parametrize(
    ("tests", "delay"), [(4, 0.0), pytest.param(30, 1.5, marks=pytest.mark.long)], ids=["4", "30"]
)
def test_a_suite_is_replayed_without_a_network(
    server: ModelServer, tmp_path: Path, tests: int, delay: float
) -> None:
    """With 1.5 s for a model call, as of a small hosted model, a replay is 20 times as fast."""
    server.delay = lambda: delay
    (tmp_path / "conftest.py").write_text(CUT)
    (tmp_path / "test_agent.py").write_text(SUITE)
    live, of_tests = run(tmp_path, server.url, tests, "--surehold-record=new")
    assert server.count == tests * CALLS
    replayed, again = run(tmp_path, "http://127.0.0.1:9", tests, CUT_OFF="1")
    assert server.count == tests * CALLS
    files = [*tmp_path.glob("recordings/test_agent/*.jsonl")]
    assert len(files) == tests and all(b"sk-secret" not in path.read_bytes() for path in files)
    print(
        f"{tests} tests: {live:.1f} s live, {replayed:.1f} s replayed ({live / replayed:.0f} x);"
        f" the tests alone {of_tests:.1f} s and {again:.1f} s ({of_tests / again:.0f} x)"
    )
    if delay and os.getloadavg()[0] <= (os.cpu_count() or 1) + 1:  # else others take the time
        assert of_tests / again >= 20
