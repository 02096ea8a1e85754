"""A user's program for type checkers: exactly the lines marked "wrong" are errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_type

import surehold


@dataclass
class Page:
    url: str
    words: int


@surehold.step
def fetch(url: str) -> Page:
    return Page(url, 3)


@surehold.step(retries=3, in_doubt="retry")
def pay(amount: int, idempotency_key: str = "") -> str:
    return f"{amount} {idempotency_key}"


@surehold.step(in_doubt="often")  # wrong
def shout(text: str) -> str:
    return text.upper()


@surehold.step
async def translate(text: str) -> str:
    return text


@surehold.workflow
def nightly(urls: list[str], limit: int = 3) -> list[Page]:
    assert_type(fetch("a"), Page)
    fetch(7)  # wrong
    assert_type(pay(5), str)
    pay("five")  # wrong
    pay(5, idempotency_key="order-7")
    return [fetch(url) for url in urls[:limit]]


@surehold.workflow(version=2)
async def report(topic: str) -> str:
    assert_type(await translate("a"), str)
    await translate(7)  # wrong
    assert_type(await surehold.gather(translate("a"), translate("b")), tuple[str, str])
    text, number = await surehold.gather(translate("a"), count("b"))
    print(text.upper(), number + 1)
    assert_type(await surehold.gather(*(translate(one) for one in topic)), list[str])
    outcomes = await surehold.gather(translate("a"), return_exceptions=True)
    assert_type(outcomes, list[str | Exception])
    await surehold.gather(7)  # wrong
    assert_type(await surehold.interrupt("Publish?", schema=bool), bool)
    assert_type(await surehold.interrupt("Which page?", schema=Page), Page)
    choice: Literal["yes", "no"] = await surehold.interrupt("?", schema=Literal["yes", "no"])
    assert_type(await surehold.effect("pay", pay, 5), str)
    assert_type(await surehold.effect("translate", translate, "a"), str)
    return topic + choice


async def count(text: str) -> int:
    return len(text)


def begin() -> None:
    assert_type(nightly.run(["a"]), surehold.RunResult[list[Page]])
    nightly.run(["a"], limit=2)
    nightly.run(5)  # wrong
    nightly.run(["a"], limt=2)  # wrong
    nightly.run()  # wrong
    result = nightly.run(["a"], run_id="nightly-11-16", storage="memory://", wait=False)
    assert_type(result, surehold.RunResult[list[Page]])
    nightly.run(["a"], run_id=7)  # wrong
    nightly.run(["a"], signals=False)
    nightly.start(["a"], queue="slow")
    nightly.options(queue="slow").start(["a"])
    nightly.options(queue="slow").start(5)  # wrong
    nightly.start(5)  # wrong
    assert_type(nightly.resume("nightly-11-16"), surehold.RunResult[list[Page]])
    nightly.stream("a", limit="b")  # wrong


def loop() -> None:
    with surehold.run("nightly-11-16") as run:
        for url in run.each(["a", "b"]):
            assert_type(url, str)
            assert_type(run.call(fetch, url), Page)
            assert_type(run.call(str.upper, url), str)
            assert_type(run.call(pay, 5), str)
            run.call(str.upper, 5)  # wrong
            run.call(fetch, url, words=3)  # wrong
            assert_type(run.effect("pay", pay, 5), str)
            run.effect("pay", pay, 5, in_doubt="often")  # wrong


async def awaited() -> None:
    result = await report.run("kelp")
    assert_type(result, surehold.RunResult[str])
    await report.run(5)  # wrong
    async with surehold.run("nightly-11-16") as run:
        async for url in run.each(["a", "b"]):
            assert_type(await run.call(fetch, url), Page)
            assert_type(await run.call(translate, url), str)
            await run.call(translate, 5)  # wrong
            assert_type(await run.effect("pay", pay, 5), str)
            assert_type(await run.effect("translate", translate, url), str)
