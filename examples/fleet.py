"""A fleet that fails in its third round and resumes without repeating paid calls.

The models follow a script, so this runs anywhere; replace them with `open_model("ollama:llama3.2")`
or another model.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence

from surehold import Fleet, Message
from surehold.errors import StepError
from surehold.testing.scripted import ScriptedModel

TURNS = ("researcher", "researcher", "analyst")
network = {"up": False}


def manage(messages: Sequence[Message]) -> str:
    """The replies of a manager: facts, a plan, a ledger before each round, the answer."""
    asked = str(messages[-1]["content"])
    if "Judge the work" not in asked:
        return f"(what a model says to: {asked[:40]}...)"
    done = sum(str(one["content"]).startswith("To ") for one in messages)
    answers = {
        "is_request_satisfied": done == len(TURNS),
        "is_in_loop": False,
        "is_progress_being_made": True,
        "next_speaker": TURNS[done % len(TURNS)],
        "instruction_or_question": f"do part {done + 1} of the plan",
    }
    return json.dumps({key: {"reason": "so", "answer": one} for key, one in answers.items()})


async def researcher(instruction: str) -> str:
    """Finds things out."""
    print("  researcher:", instruction)
    return "Sales rose by 3 % in May."


async def analyst(instruction: str) -> str:
    """Draws conclusions."""
    if not network["up"]:
        raise ConnectionError("no network")
    print("  analyst:", instruction)
    return "They will rise again in June."


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        participants = {"researcher": researcher, "analyst": analyst}
        store = f"sqlite:///{directory}/runs.db"
        async with Fleet(ScriptedModel(manage), participants, store) as fleet:
            try:
                await fleet.run("Analyze the sales data")
            except StepError as error:
                print("failed:", error.message)
            print(fleet.graph.explain_resume(fleet.workflow_id or ""))
        network["up"] = True
        async with Fleet(ScriptedModel(manage), participants, store) as fleet:  # another day
            (newest, *_) = await fleet.list_checkpoints()
            print("resuming from round", newest["current_round"], newest["status"])
            result = await fleet.run(resume_from_checkpoint=newest["checkpoint_id"])
            print(f"{result.status} in {result.rounds} rounds, {result.usage['calls']} model calls")


if __name__ == "__main__":
    asyncio.run(main())
