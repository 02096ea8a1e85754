"""A program that keeps its own state: its drop-in is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.model_server import model_server

PROGRAM = """\
import os, sys
import agents, openai

agents.set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=os.environ["MODEL"] + "/v1", api_key="sk-secret")
model = agents.OpenAIResponsesModel(model="m", openai_client=client)
agent = agents.Agent(name="kelp", model=model)
session = agents.SQLiteSession("kelp", "session.db")
for question in ("What is kelp?", "And dulse?"):
    print(agents.Runner.run_sync(agent, question, session=session).final_output)
    if "crash" in sys.argv:
        os._exit(1)
"""


def test_a_session_on_disk_is_detected_and_its_drop_in_is_named(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)

    def start(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "surehold", "exec", "--run", "mine", "--"]
        return subprocess.run(
            [*command, sys.executable, "agent.py", *more],
            cwd=tmp_path,
            env={
                **os.environ,
                "MODEL": server.url,
                "SUREHOLD_STORAGE": f"sqlite:///{tmp_path}/runs.db",
            },
            capture_output=True,
            text=True,
            check=False,
        )

    with model_server() as server:
        assert start("crash").returncode == 1
        again = start()
        assert (again.returncode, server.count) == (8, 1), again.stderr
    assert "keeps its own" in again.stderr and "surehold.integrations.openai_agents" in again.stderr
