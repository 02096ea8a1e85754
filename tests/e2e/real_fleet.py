"""A fleet on a real, very small model that is killed twice; run as a program, it prints its end.

It forks before the model is loaded, as `graph_victim` does. Such a model finds neither the end of
a sentence nor that of a task by itself, so that instructions are kept short, and two rounds are
enough.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.builders.fleets import rounds_done
from tests.crash.graph_victim import Killer, in_a_child

import surehold.agents.models.pydantic_ai  # noqa: F401 - before forking
from surehold import open_storage
from surehold.agents.fleet.fleet import Fleet
from surehold.agents.fleet.participants import ModelParticipant
from surehold.agents.fleet.settings import Limits
from surehold.agents.models.model import Message, Reply, open_model

RUN = "real"
KILLS = (3, 5)
"""Appends after which it is killed: when the plan is recorded, and in the middle of round 2."""
ROUNDS = 2


class Counted:
    """A real model whose calls are counted in a file."""

    name = "local"

    def __init__(self, log: Path) -> None:
        self._brief = open_model("local", max_tokens=30)
        self._whole = open_model("local", max_tokens=260)
        self._log = log

    async def respond(
        self,
        messages: Sequence[Message],
        *,
        schema: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> Reply:
        with self._log.open("a") as file:
            file.write(f"{len(messages)}\n")
        if schema is None:
            return await self._brief.respond(messages, **how)
        short = copy.deepcopy(dict(schema))
        instruction = short["properties"]["instruction_or_question"]["properties"]["answer"]
        instruction["maxLength"] = 60
        reply = await self._whole.respond(messages, schema=short, **how)
        if isinstance(reply.data, dict):
            reply.data["is_request_satisfied"]["answer"] = rounds_done(messages) >= ROUNDS
        return reply


def execute(base: Path, number: int) -> dict[str, Any]:
    """Start the run, or go on with it; it is killed after append *number*, 0 for never."""
    storage = open_storage(f"sqlite:///{base}/runs.db")
    Killer(storage, number, "after")

    async def main() -> dict[str, Any]:
        model = Counted(base / "calls")
        brief = "Answer in one short sentence."
        crew = {
            name: ModelParticipant(model, description=what, instructions=brief)
            for name, what in (("researcher", "finds things out"), ("writer", "writes the text"))
        }
        limits = Limits(stalls=9)
        async with Fleet(model, crew, storage, limits=limits) as fleet:
            fleet.set_workflow_id(RUN)
            result = await fleet.run("Write one sentence about the sea.")
            verdicts = await fleet.graph.manager.verify(RUN)
        return {
            "answer": result.answer,
            "rounds": result.rounds,
            "status": result.status,
            "calls": result.usage["calls"],
            "tokens": result.usage["input_tokens"] + result.usage["output_tokens"],
            "problems": [text for one in verdicts for text in one.problems],
        }

    end = asyncio.run(main())
    storage.close()
    return end


def main() -> None:
    base = Path(sys.argv[1])
    base.mkdir(parents=True)
    ends = [in_a_child(base / "out", execute, base, number) for number in (*KILLS, 0)]
    calls = len((base / "calls").read_text().splitlines())
    print(
        json.dumps({"statuses": [status for status, _ in ends], "end": ends[-1][1], "calls": calls})
    )


if __name__ == "__main__":
    main()
