"""Two ways to answer at once: the quicker answer is taken, and the other call cancelled.

$ python racing_agents.py
"""

import asyncio

import surehold


@surehold.step
async def think_longer(question: str) -> str:
    print("think about", question)
    await asyncio.sleep(3600)  # a large model
    return "a long answer"


@surehold.step
async def respond_quickly(question: str) -> str:
    print("look up", question)
    return "a short answer"


@surehold.workflow
async def racing(question: str) -> str:
    return await surehold.race(think_longer(question), respond_quickly(question))


if __name__ == "__main__":
    print(asyncio.run(racing.run("tides", run_id="race-1")).value)
