"""Leaving a run leaves user code alone: nothing is executed or recorded on the way out."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any

import pytest

import surehold
from surehold import CheckpointManager, MemoryStorage, StateGraph, answer, pending, step, workflow
from surehold.errors import InDoubtError, Interrupted, ShapeError, StorageUnavailableError

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


# Cancelled, stopped, and without a storage


async def held() -> None:
    try:
        await do("reserve")
        await asyncio.sleep(60 if "publish" not in done and len(done) == 1 else 0)
        await do("publish")
    finally:
        await asyncio.gather(do("release"))


async def held_in_a_branch() -> None:
    await surehold.gather(held())


async def held_and_hidden() -> None:
    with suppress(BaseException):
        await held()


async def as_async_function(body: Callable[[], Any], storage: Any) -> None:
    @workflow(name="held")
    async def made() -> None:
        await body()

    await made.run(run_id="r", storage=storage)


async def as_async_loop(body: Callable[[], Any], storage: Any) -> None:
    async with surehold.run("r", storage=storage):
        await body()


async def as_node(body: Callable[[], Any], storage: Any) -> None:
    graph = StateGraph("held", storage=storage)

    async def node(state: Any) -> None:
        await body()

    graph.add_node("node", node)
    graph.set_entry_point("node")
    graph.set_exit_point("node")
    async with graph:
        await graph.run(run_id="r")


@pytest.mark.parametrize("body", [held, held_in_a_branch, held_and_hidden])
@pytest.mark.parametrize("door", [as_async_function, as_async_loop, as_node])
async def test_a_cancelled_run_cleans_up_when_it_has_continued(door: Any, body: Any) -> None:
    storage = MemoryStorage()
    task = asyncio.ensure_future(door(body, storage))
    while not done:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["reserve"]
    done.append("continued")
    await door(body, storage)
    assert done == ["reserve", "continued", "publish", "release"]


async def test_an_item_that_hides_its_cancellation_is_not_completed() -> None:
    storage = MemoryStorage()

    async def work() -> Any:
        async with surehold.run("r", storage=storage) as run:
            async for item in run.each("ab"):
                try:
                    await do(f"begin {item}")
                    await asyncio.sleep(0 if "continued" in done else 60)
                    await do(f"end {item}")
                except BaseException:
                    run.state["hidden"] = item
        return run.state

    task = asyncio.ensure_future(work())
    while not done:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    done.append("continued")
    assert await work() == {}
    assert done == ["begin a", "continued", "end a", "begin b", "end b"]


async def test_a_time_limit_of_the_body_itself_ends_at_its_block() -> None:
    async with surehold.run("r", storage=MemoryStorage()):
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        await do("next")
    assert done == ["next"]


@pytest.mark.parametrize("door", [as_async_function, as_async_loop, as_node])
async def test_a_time_limit_around_a_recorded_call_breaks_the_call_off(door: Any) -> None:
    async def body() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await step(asyncio.sleep)(60)
        await do("next")

    async with asyncio.timeout(30):
        await door(body, MemoryStorage())
    assert done == ["next"]


@pytest.mark.parametrize("door", [as_async_function, as_async_loop, as_node])
@pytest.mark.parametrize("recorded", [True, False])
async def test_a_group_whose_failure_is_handled_is_no_cancellation(
    door: Any, recorded: bool
) -> None:
    async def refused() -> None:
        await asyncio.sleep(0)
        raise ConnectionError("no network")

    async def body() -> None:
        fails = step(refused, name="refused") if recorded else refused
        with suppress(BaseExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
        await do("next")
        try:
            async with asyncio.TaskGroup(), asyncio.TaskGroup() as inner:
                inner.create_task(fails())
        except* ConnectionError:
            await do("handled")

    storage = MemoryStorage()
    await door(body, storage)
    assert done == ["next", "handled"]
    await door(body, storage)
    assert done == ["next", "handled"]


def test_a_signal_between_two_calls_leaves_the_run_too() -> None:
    storage = MemoryStorage()

    @workflow(name="held")
    def made() -> None:
        act("reserve")
        try:
            act("publish")
            if done[-1] != "continued":
                os.kill(os.getpid(), signal.SIGINT)
            act("more")
        finally:
            act("release")

    with pytest.raises(KeyboardInterrupt):
        made.run(run_id="r", storage=storage)
    assert done == ["reserve", "publish"]
    done.append("continued")
    assert made.run(run_id="r", storage=storage).status == "completed"
    assert done == ["reserve", "publish", "continued", "more", "release"]


@pytest.mark.parametrize("door", ["function", "loop", "loop that saves"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_plain_code_hides_completes_no_run(number: int, door: str) -> None:
    storage, asked = MemoryStorage(), [number]

    def body() -> None:
        act("reserve")
        with suppress(KeyboardInterrupt, SystemExit):
            if asked:
                os.kill(os.getpid(), asked.pop())

    def start() -> str:
        if door == "function":
            return workflow(name="held")(body).run(run_id="r", storage=storage).status
        with surehold.run("r", storage=storage) as run:
            body()
            if door == "loop that saves":
                run.checkpoint(saved=True)
        return run.status

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        start()
    with CheckpointManager(storage) as manager:
        assert manager.reader.run("r").status == "interrupted"  # type: ignore[union-attr]
    assert start() == "completed"
    assert done == ["reserve"]


def test_a_signal_that_code_hides_on_its_way_to_other_calls_is_no_change_of_code() -> None:
    storage, asked = MemoryStorage(), [signal.SIGINT]

    @workflow
    def undo() -> None:
        act("release")

    @workflow
    def held() -> None:
        act("reserve")
        try:
            if len(done) > 1:
                os.kill(os.getpid(), asked.pop())
        except KeyboardInterrupt:
            undo()
        act("charge")
        surehold.wait_for("paid")

    assert held.run(run_id="r", storage=storage, wait=False).status == "waiting"
    with pytest.raises(KeyboardInterrupt):
        held.run(run_id="r", storage=storage, wait=False)
    assert not asked


async def test_a_signal_that_async_code_hides_before_a_call_is_awaited_stops_the_run() -> None:
    storage, asked = MemoryStorage(), [signal.SIGINT]

    @workflow
    async def held() -> None:
        await do("reserve")
        made = do("charge")
        with suppress(BaseException):
            if asked:
                os.kill(os.getpid(), asked.pop())
            await made

    with pytest.raises(KeyboardInterrupt):
        await held.run(run_id="r", storage=storage)
    with CheckpointManager(storage) as manager:
        assert manager.reader.run("r").status == "interrupted"  # type: ignore[union-attr]
    assert (await held.run(run_id="r", storage=storage)).status == "completed"


class Failing(MemoryStorage):
    """A storage that fails while *broken*."""

    broken = False
    breaks = False
    """Whether the next append is the last that succeeds."""

    def append(self, batches: Any) -> Any:
        if self.broken:
            raise StorageUnavailableError("the disk is gone")
        self.broken = self.breaks
        return super().append(batches)


@pytest.mark.parametrize("back", [False, True])
def test_a_call_that_could_not_be_recorded_leaves_the_run(back: bool) -> None:
    storage = Failing()

    @step
    def charge(number: int) -> int:
        done.append(f"charge {number}")
        if len(done) == 2:
            storage.broken = True
        return number

    @workflow(name="order")
    def order() -> int:
        act("reserve")
        try:
            charge(1)
        except Exception:
            storage.broken = not back
            act("cancel")
            raise
        return charge(2)

    with pytest.raises(StorageUnavailableError):
        order.run(run_id="r", storage=storage)
    assert done == ["reserve", "charge 1"]
    storage.broken = False
    assert order.run(run_id="r", storage=storage).value == 2
    assert done == ["reserve", "charge 1", "charge 1", "charge 2"]


def test_a_time_limit_that_could_not_be_recorded_leaves_the_run() -> None:
    storage = Failing()

    @workflow(name="late")
    def late() -> None:
        act("reserve")
        try:
            storage.breaks = True
            surehold.wait_for("approval", timeout=0.3)
        finally:
            act("release")

    with pytest.raises(StorageUnavailableError):
        late.run(run_id="r", storage=storage)
    assert done == ["reserve"]


def test_an_item_that_could_not_be_saved_leaves_the_run() -> None:
    storage = Failing()
    with pytest.raises(StorageUnavailableError), surehold.run("r", storage=storage) as run:
        act("reserve")
        try:
            for _ in run.each("ab"):
                storage.broken = True
        finally:
            act("release")
    assert done == ["reserve"]


@pytest.mark.parametrize("door", [as_async_function, as_async_loop, as_node])
async def test_branches_count_their_calls_apart_at_every_door(door: Any) -> None:
    storage, slow = MemoryStorage(), ["a"]

    async def branch(name: str) -> None:
        await asyncio.sleep(0.05 if name in slow else 0)
        await do(f"{name}1")
        await do(f"{name}2")

    async def body() -> None:
        await surehold.gather(branch("a"), branch("b"))
        if slow == ["a"]:
            raise ConnectionError("no network")

    with pytest.raises(Exception, match="no network"):
        await door(body, storage)
    slow[:] = ["b"]
    await door(body, storage)
    assert sorted(done) == ["a1", "a2", "b1", "b2"]


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


async def test_questions_of_tasks_that_begin_together_are_all_asked() -> None:
    """A person answers them in any order, without a start in between."""
    storage = MemoryStorage()

    @surehold.workflow
    async def work() -> list[str]:
        asked = [surehold.interrupt(f"about {name}", key=name) for name in "ab"]
        return [*await asyncio.gather(*map(asyncio.ensure_future, asked), return_exceptions=True)]

    waiting = await work.run(run_id="r", storage=storage)
    assert [one.question for one in waiting.waiting] == ["about a", "about b"]
    for one in waiting.waiting:
        surehold.answer("r", one.id, f"yes {one.question}", storage=storage)
    done = await work.run(run_id="r", storage=storage)
    assert done.value == ["yes about a", "yes about b"]
