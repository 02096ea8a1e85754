"""Many calls at once; the results in order.

$ python parallel.py
"""

import asyncio

import surehold


@surehold.step
async def hello(name: str) -> str:
    print("hello", name)
    await asyncio.sleep(0)
    return f"Hello, {name}!"


@surehold.workflow
async def everyone(names: list[str]) -> list[str]:
    return await asyncio.gather(*map(hello, names))


if __name__ == "__main__":
    print(asyncio.run(everyone.run(["a", "b", "c", "d", "e"], run_id="everyone-1")).value)
