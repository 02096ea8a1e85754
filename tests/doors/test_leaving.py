"""Leaving a run leaves user code alone: nothing is executed or recorded on the way out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any

import pytest

import surehold
from surehold import CheckpointManager, MemoryStorage, StateGraph, answer, pending, step, workflow
from surehold.errors import InDoubtError, Interrupted, ShapeError

done: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()


@step
def act(name: str) -> str:
    done.append(name)
    return name


@step
async def do(name: str) -> str:
    done.append(name)
    return name


def finally_() -> None:
    try:
        surehold.wait_for("approval")
        act("publish")
    finally:
        act("release")


def exit_() -> None:
    @contextmanager
    def reserved() -> Iterator[None]:
        try:
            yield
        finally:
            act("release")

    with reserved():
        surehold.wait_for("approval")
        act("publish")


def swallowed() -> None:
    try:
        surehold.wait_for("approval")
        act("publish")
    except BaseException as error:
        if not isinstance(error, Interrupted):
            raise
    act("release")


def another_error() -> None:
    try:
        surehold.wait_for("approval")
        act("publish")
    except BaseException as error:
        if isinstance(error, Interrupted):
            raise ValueError("hidden") from error
        raise
    act("release")


def generator() -> None:
    def parts() -> Iterator[None]:
        try:
            surehold.wait_for("approval")
            act("publish")
            yield
        finally:
            act("release")

    for _ in parts():
        pass


def in_a_thread() -> None:
    def work() -> None:
        try:
            surehold.wait_for("approval")
            act("publish")
        except BaseException as error:
            if not isinstance(error, Interrupted):
                raise

    thread = threading.Thread(target=copy_context().run, args=(work,))
    thread.start()
    thread.join()
    act("release")


@pytest.mark.parametrize(
    "body", [finally_, exit_, swallowed, another_error, generator, in_a_thread]
)
def test_a_plain_function_that_waits_does_nothing_more(body: Callable[[], None]) -> None:
    storage = MemoryStorage()

    @workflow(name="publish")
    def publish() -> None:
        act("reserve")
        body()

    for _ in range(2):  # a restart meanwhile changes nothing
        assert publish.run(run_id="r", storage=storage, wait=False).status == "waiting"
        assert done == ["reserve"]
    answer("r", "approval", "Ann", storage=storage)
    assert publish.run(run_id="r", storage=storage, wait=False).status == "completed"
    assert done == ["reserve", "publish", "release"]


async def gathered() -> None:
    await asyncio.gather(surehold.wait_for("approval"), do("beside"), return_exceptions=True)
    await do("publish")


async def grouped() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(do("beside"))
        group.create_task(surehold.wait_for("approval"))
    await do("publish")


async def branches() -> None:
    async def chain() -> None:
        await do("beside")

    await surehold.gather(surehold.wait_for("approval"), chain())
    await do("publish")


async def finally_async() -> None:
    await do("beside")
    try:
        await surehold.wait_for("approval")
    finally:
        await do("publish")


async def in_a_child() -> None:
    @workflow(name="child")
    async def child() -> None:
        with suppress(Interrupted):
            await surehold.wait_for("approval")

    await do("beside")
    await child()
    await do("publish")


@pytest.mark.parametrize("body", [gathered, grouped, branches, finally_async, in_a_child])
async def test_an_async_function_that_waits_does_nothing_more(body: Callable[[], Any]) -> None:
    storage = MemoryStorage()

    @workflow(name="publish")
    async def publish() -> None:
        await body()

    for _ in range(2):
        assert (await publish.run(run_id="r", storage=storage, wait=False)).status == "waiting"
        assert done == ["beside"]
    answer("r", "approval", "Ann", storage=storage)
    assert (await publish.run(run_id="r", storage=storage, wait=False)).status == "completed"
    assert done == ["beside", "publish"]


def head(storage: MemoryStorage) -> int:
    with CheckpointManager(storage) as saved:
        run = saved.reader.run("r")
        assert run is not None
        return run.seq


def test_a_function_that_does_not_fit_executes_and_records_nothing_more() -> None:
    storage = MemoryStorage()
    names = ["charge", "ship"]

    @workflow(name="order")
    def order() -> None:
        try:
            step(name=names[0])(lambda: done.append(names[0]))()
        except Exception:
            act("handle")
        finally:
            act("mail")
        if names[0] == "charge":
            raise ConnectionError("no network")

    with pytest.raises(ConnectionError):
        order.run(run_id="r", storage=storage)
    assert done == ["charge", "mail"]
    names[0], before = "pay", head(storage)
    for _ in range(2):
        with pytest.raises(ShapeError):
            order.resume("r", storage=storage)
    assert (done, head(storage)) == (["charge", "mail"], before)


def dies() -> None:
    raise InDoubtError("the connection broke")


def doubtful(storage: Any, in_doubt: str) -> None:
    """Leave call ``pay`` of a loop in doubt."""
    with pytest.raises(InDoubtError), surehold.run("r", storage=storage) as run:
        run.effect("pay", dies, in_doubt=in_doubt)


def test_a_loop_in_doubt_does_nothing_more_and_does_not_complete() -> None:
    storage = MemoryStorage()
    doubtful(storage, "ask")
    for _ in range(2):
        with pytest.raises(Interrupted), surehold.run("r", storage=storage) as run:
            try:
                run.effect("pay", dies)
            except BaseException:
                done.append("caught")
            run.call(act, "release")
    assert done == ["caught", "caught"]
    with pytest.raises(Interrupted), surehold.run("r", storage=storage) as run:
        try:
            run.effect("pay", dies)
        except BaseException:
            done.append("caught")
    assert [one.id for one in pending("r", storage=storage)] == ["pay@1"]


def test_doubt_that_fails_is_for_user_code_to_handle() -> None:
    storage = MemoryStorage()
    doubtful(storage, "fail")
    with surehold.run("r", storage=storage) as run:
        try:
            run.effect("pay", dies, in_doubt="fail")
        except InDoubtError:
            run.call(act, "reconcile")
    assert (run.status, done) == ("completed", ["reconcile"])


async def test_a_node_that_waits_does_nothing_more() -> None:
    graph = StateGraph("g", storage=MemoryStorage())

    async def node(state: Any) -> None:
        try:
            await surehold.interrupt("publish?")
            await do("publish")
        except BaseException as error:
            if not isinstance(error, Interrupted):
                raise
        await do("release")

    graph.add_node("node", node, retries=2)
    graph.set_entry_point("node")
    graph.set_exit_point("node")
    assert (await graph.run(run_id="r")).status == "waiting"
    assert done == []
    assert (await graph.resume("r", answer=True)).status == "completed"
    assert done == ["publish", "release"]


# Sagas


network: list[bool] = []


@step
def charge() -> None:
    done.append("charge")
    if not network:
        raise ConnectionError("no network")


def saga(call: Callable[..., Any]) -> None:
    network.clear()
    call(act, "reserve")
    try:
        call(charge)
        call(act, "ship")
    except ConnectionError:
        call(act, "cancel")
        raise


def directly(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


def as_function(storage: MemoryStorage, body: Callable[..., None]) -> None:
    @workflow(name="order")
    def order() -> None:
        body(directly)

    order.run(run_id="r", storage=storage)


def as_loop(storage: MemoryStorage, body: Callable[..., None]) -> None:
    with surehold.run("r", storage=storage) as run:
        body(run.call)


def as_item(storage: MemoryStorage, body: Callable[..., None]) -> None:
    with surehold.run("r", storage=storage) as run:
        for _ in run.each(["order"]):
            body(run.call)


@pytest.mark.parametrize("door", [as_function, as_loop, as_item])
def test_a_compensated_failure_is_an_outcome(door: Callable[..., None]) -> None:
    storage = MemoryStorage()
    for _ in range(3):
        with pytest.raises(ConnectionError, match="no network"):
            door(storage, saga)
        assert done == ["reserve", "charge", "cancel"]
    with CheckpointManager(storage) as saved:
        newest = saved.reader.newest_of("r")
    assert newest is not None
    assert (newest.status, newest.metadata["compensated"]) == ("failed", True)


@pytest.mark.parametrize("door", [as_function, as_loop, as_item])
def test_a_failure_with_nothing_after_it_is_tried_again(door: Callable[..., None]) -> None:
    storage = MemoryStorage()

    def body(call: Callable[..., Any]) -> None:
        call(act, "reserve")
        call(charge)

    network.clear()
    with pytest.raises(ConnectionError):
        door(storage, body)
    network.append(True)
    door(storage, body)
    assert done == ["reserve", "charge", "charge"]


async def test_siblings_that_end_later_do_not_make_a_failure_an_outcome() -> None:
    storage = MemoryStorage()
    network.clear()

    @step
    async def fails() -> None:
        if not network:
            raise ConnectionError("no network")

    async def chain() -> None:
        for name in ("a", "b"):
            await asyncio.sleep(0.01)
            await do(name)

    @workflow(name="both")
    async def both() -> None:
        await surehold.gather(fails(), chain())

    with pytest.raises(ConnectionError):
        await both.run(run_id="r", storage=storage)
    network.append(True)
    assert (await both.run(run_id="r", storage=storage)).status == "completed"
    assert done == ["a", "b"]
