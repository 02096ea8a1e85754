"""Recorded calls of async code.

$ python async_activity.py
"""

import asyncio

import surehold


@surehold.step
async def greet(name: str) -> str:
    print("greet", name)
    await asyncio.sleep(0)
    return f"Hello, {name}!"


@surehold.workflow
async def greeting(name: str) -> str:
    return await greet(name)


if __name__ == "__main__":
    print(asyncio.run(greeting.run("World", run_id="greeting-1")).value)
