"""Cost of a failure of a fleet: started over, and resumed from the last checkpoint.

The models count calls and tokens over both attempts.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from surehold import Fleet, Message
from surehold.errors import StepError
from surehold.testing.scripted import ScriptedModel


class Cost(NamedTuple):
    calls: int
    tokens: int


class Meter:
    """Models that count their calls; the participant fails once, in one round."""

    def __init__(self, rounds: int, failing: int | None) -> None:
        self.rounds = rounds
        self.failing = failing
        self.calls = 0
        self.tokens = 0

    def counted(self, messages: Sequence[Message], said: str) -> str:
        self.calls += 1
        self.tokens += sum(len(str(one["content"])) for one in messages) // 4 + len(said) // 4
        return said

    def manage(self, messages: Sequence[Message]) -> str:
        if "Judge the work" not in str(messages[-1]["content"]):
            return self.counted(messages, "Some facts, a plan or an answer, as models write them.")
        done = sum(str(one["content"]).startswith("To ") for one in messages)
        answers = {
            "is_request_satisfied": done == self.rounds,
            "is_in_loop": False,
            "is_progress_being_made": True,
            "next_speaker": "worker",
            "instruction_or_question": f"do part {done + 1}",
        }
        ledger = {key: {"reason": "so", "answer": one} for key, one in answers.items()}
        return self.counted(messages, json.dumps(ledger))

    def work(self, messages: Sequence[Message]) -> str:
        if self.failing is not None and f"do part {self.failing}" in str(messages[-1]["content"]):
            self.failing = None
            raise ConnectionError("no network")
        return self.counted(messages, "What a participant found out, in two or three sentences.")


async def measured(rounds: int, failing: int | None, *, resume: bool) -> Cost:
    meter = Meter(rounds, failing)
    with tempfile.TemporaryDirectory() as directory:
        manager, worker = ScriptedModel(meter.manage), ScriptedModel(meter.work)
        store = f"sqlite:///{directory}/runs.db"
        async with Fleet(manager, {"worker": worker}, store) as fleet:
            try:
                await fleet.run("Do it")
            except StepError:
                if resume:
                    await fleet.run(resume_from_checkpoint=fleet.current_checkpoint_id)
                else:
                    await fleet.run("Do it")
    return Cost(meter.calls, meter.tokens)


async def main() -> None:
    for failing, rounds in ((3, 5), (8, 9)):
        whole = await measured(rounds, None, resume=True)
        over = await measured(rounds, failing, resume=False)
        resumed = await measured(rounds, failing, resume=True)
        print(f"A failure in round {failing} of {rounds}:")
        for name, cost in (("never failed", whole), ("started over", over), ("resumed", resumed)):
            print(f"  {name:<13}{cost.calls:>4} calls {cost.tokens:>7,} tokens")
        # What comes after the failure: all of it again, or what is left.
        before = over.calls - whole.calls, over.tokens - whole.tokens
        calls = 1 - (resumed.calls - before[0]) / whole.calls
        tokens = 1 - (resumed.tokens - before[1]) / whole.tokens
        print(f"  the retry costs {calls:.0%} fewer calls, {tokens:.0%} fewer tokens\n")


if __name__ == "__main__":
    asyncio.run(main())
