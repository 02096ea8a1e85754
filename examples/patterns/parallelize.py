"""A task is split, its parts are worked on at once, and the results put together.

$ python parallelize.py
"""

import asyncio

import surehold


@surehold.step
async def split(text: str) -> list[str]:
    print("split")
    return text.split()


@surehold.step
async def work(word: str) -> int:
    print("work", word)
    await asyncio.sleep(0)
    return len(word)


@surehold.workflow
async def count(text: str) -> int:
    return sum(await surehold.gather(*map(work, await split(text))))


if __name__ == "__main__":
    print(asyncio.run(count.run("kelp dulse laver", run_id="count-1")).value)
