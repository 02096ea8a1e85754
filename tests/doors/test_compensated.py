"""A run that failed and was compensated stays failed, and can be forked before the failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.builders.counting import Counting

import surehold
from surehold import CheckpointManager, StateGraph, step, workflow
from surehold.errors import NotFoundError

Start = Callable[[Counting, str], Any]

CALLS: list[str] = []
DOWN: list[bool] = []


def reserve() -> str:
    CALLS.append("reserve")
    return "seat"


def charge() -> str:
    CALLS.append("charge")
    if DOWN:
        raise ConnectionError("no network")
    return "receipt"


def release() -> None:
    CALLS.append("release")


@step
async def reserved() -> str:
    return reserve()


@step
async def charged() -> str:
    return charge()


@step
async def released() -> None:
    release()


def loop(storage: Counting, run_id: str) -> Any:
    with surehold.run(run_id, storage=storage) as run:
        for _ in run.each("ab"[: len(DOWN) + 1]):
            run.state["seat"] = run.call(reserve)
            try:
                run.state["receipt"] = run.effect("charge", charge)
            except ConnectionError:
                run.call(release)
                raise
    return run.state


def plain_function(storage: Counting, run_id: str) -> Any:
    reserved, charged, released = (step(one) for one in (reserve, charge, release))

    @workflow(name="plain")
    def book() -> Any:
        seat = reserved()
        try:
            return {"seat": seat, "receipt": charged()}
        except ConnectionError:
            released()
            raise

    with suppress(NotFoundError):
        return book.resume(run_id, storage=storage).value
    return book.run(run_id=run_id, storage=storage).value


async def booked() -> dict[str, Any]:
    seat = await reserved()
    try:
        return {"seat": seat, "receipt": await charged()}
    except ConnectionError:
        await released()
        raise


def function(storage: Counting, run_id: str) -> Any:
    book = workflow(name="book")(booked)

    async def main() -> Any:
        with suppress(NotFoundError):
            return (await book.resume(run_id, storage=storage)).value
        return (await book.run(run_id=run_id, storage=storage)).value

    return asyncio.run(main())


def graph(storage: Counting, run_id: str) -> Any:
    made = StateGraph("booking", storage=storage)
    made.add_node("book", lambda state: booked())
    made.set_entry_point("book")
    made.set_exit_point("book")

    async def main() -> Any:
        with suppress(NotFoundError):
            return (await made.resume(run_id)).state.to_dict()
        return (await made.run(run_id=run_id)).state.to_dict()

    return asyncio.run(main())


DOORS = [loop, plain_function, function, graph]


@pytest.mark.parametrize("start", DOORS)
def test_a_compensated_run_stays_failed_and_is_forked_before_the_call(start: Start) -> None:
    storage = Counting()
    CALLS.clear()
    DOWN[:] = [True]
    with pytest.raises(Exception, match="no network") as failed:
        start(storage, "r")
    assert CALLS == ["reserve", "charge", "release"]
    said = "\n".join([str(failed.value), *getattr(failed.value, "__notes__", ())])
    command, _, call = said.rpartition("surehold fork r --before ")
    assert command.endswith("to try again from before it: ")
    call = call.rstrip(")")
    DOWN.clear()
    appends = len(storage.appended)
    for _ in range(5):  # a supervisor may try as often as it likes
        with pytest.raises(Exception, match="no network"):
            start(storage, "r")
    assert CALLS == ["reserve", "charge", "release"] and len(storage.appended) == appends
    CALLS.clear()
    with CheckpointManager(storage) as manager:
        newest = manager.latest("r")
        assert newest is not None and newest.metadata["compensated"] is True
        manager.fork_from_checkpoint(newest.checkpoint_id, "again", before=call.strip("'"))
        with pytest.raises(NotFoundError, match="has recorded no call 'charge@77'"):
            manager.fork_from_checkpoint(newest.checkpoint_id, "none", before="charge@77")
    assert start(storage, "again") == {"seat": "seat", "receipt": "receipt"}
    assert CALLS == ["charge"]
    assert start(storage, "again") == {"seat": "seat", "receipt": "receipt"}
    assert CALLS == ["charge"]


def test_a_fork_before_a_call_has_those_that_had_begun() -> None:
    """A call beside the failed one, which began first and ended later, keeps its outcome."""
    storage = Counting()
    CALLS.clear()
    begun = asyncio.Event()

    async def slow() -> str:
        CALLS.append("slow")
        await begun.wait()
        return "slow"

    async def quick() -> str:
        CALLS.append("quick")
        begun.set()
        return "quick"

    @workflow(name="both")
    async def both() -> list[str]:
        pair = surehold.effect("slow", slow), surehold.effect("quick", quick)
        return await asyncio.gather(*pair)

    asyncio.run(both.run(run_id="r", storage=storage))
    with CheckpointManager(storage) as manager:
        newest = manager.latest("r")
        assert newest is not None
        manager.fork_from_checkpoint(newest.checkpoint_id, "again", before="quick@2")
    CALLS.clear()
    result = asyncio.run(both.resume("again", storage=storage))
    assert (result.value, CALLS) == (["slow", "quick"], ["quick"])
