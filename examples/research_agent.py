"""A research agent that is killed in the middle of its work and resumes when started again.

Set SUREHOLD_MODEL (``ollama:llama3.2``, ``local``, ...) to have a real model do it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from surehold import (
    AutonomousConfig,
    BaseAutonomousAgent,
    FilesystemStorage,
    InputField,
    Message,
    Model,
    OutputField,
    Reply,
    Signature,
    StateManager,
    ToolCall,
    tool,
)
from surehold.testing.scripted import ScriptedModel

LIBRARY = {
    "kelp": "Kelp is a brown alga.",
    "holdfast": "A holdfast keeps kelp on its rock, whatever the sea does.",
    "sea urchin": "Urchins eat kelp.",
    "sea otter": "Otters eat urchins.",
}


class Report(Signature):
    """Research the question in the library and write a short report."""

    question: str = InputField("what is asked")
    report: str = OutputField("the report")
    sources: list[str] = OutputField("the pages it is made of")


@tool(read_only=True)
def search(topic: str) -> str:
    """Look a topic up in the library."""
    print(f"  searching for {topic}", flush=True)
    return LIBRARY.get(topic, "There is nothing about it.")


def script(messages: Sequence[Message]) -> Reply | str:
    """The scripted reply that stands in for a real model."""
    if messages[-1]["content"].startswith("Make a plan"):
        return '{"steps": ["Search the library", "Write the report"]}'
    topics = [*LIBRARY]
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn < len(topics):
        return Reply(tool_calls=(ToolCall(f"call_{turn}", "search", {"topic": topics[turn]}),))
    return '{"report": "Otters are good for kelp.", "sources": ["kelp", "sea otter"]}'


async def work(directory: str) -> None:
    model: Model | None = None  # the one that SUREHOLD_MODEL names
    if "SUREHOLD_MODEL" not in os.environ:
        model = ScriptedModel(script, price=2.0)
    agent = BaseAutonomousAgent(
        AutonomousConfig(max_cycles=12, checkpoint_frequency=5, resume_from_checkpoint=True),
        signature=Report(),
        state_manager=StateManager(FilesystemStorage(directory, compress=True)),
        agent_id="researcher",
        tools=[search],
        model=model,
        report=print,
    )
    result = await agent.run("What is good for kelp?")
    print(result.status, "|", result.answer, "|", result.budget)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, directory]
        print("The first start, until it is killed:")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout is not None
            for number, line in enumerate(first.stdout, 1):
                print(line, end="")
                if number == 3:
                    first.kill()
                    break
        print("The second:")
        subprocess.run(command, check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
    else:
        main()
