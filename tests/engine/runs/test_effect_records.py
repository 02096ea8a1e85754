"""Records of effects under cancellation, failing siblings, repeated calls and racing answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.builders.graphs import line

import surehold
from surehold import (
    CheckpointManager,
    ParallelNode,
    SQLiteStorage,
    State,
    StateGraph,
    StateManager,
    answer,
    approve,
    effect,
    interrupt,
    pending,
    register_type,
    reject,
)
from surehold.engine.runs import view_note
from surehold.engine.runs.effects.recorded_error import read_error
from surehold.errors import (
    ConflictError,
    Interrupted,
    LeaseHeldError,
    NotFoundError,
    RunError,
    StepError,
    UsageError,
)
from surehold.storage.base import Batch


class Crash(BaseException):
    """The end of the process, as far as the code of a node can tell."""


class Slow(SQLiteStorage):
    """A storage that takes its time with the records of effects."""

    slow = 0.3

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        result = super().append(batches)
        if any(one.header.kind == "effect" for batch in batches for one in batch.records):
            time.sleep(self.slow)
        return result


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


def in_doubt(storage: Any) -> list[str]:
    return [one.id for one in pending("r", storage=storage) if one.kind == "effect"]


async def dies(graph: StateGraph, start: bool = True) -> None:
    """Execute until a node raises `Crash`, and leave no checkpoint of that."""
    manager = graph.manager
    save = manager.save_draft

    async def dying(subject: Any, **options: Any) -> str:
        if subject.place.kind == "interrupt":
            raise Crash
        return await save(subject, **options)

    manager.save_draft = dying  # type: ignore[method-assign]
    try:
        with pytest.raises(Crash):
            await (graph.execute(State.new({}, run_id="r")) if start else graph.resume("r"))
    finally:
        manager.save_draft = save  # type: ignore[method-assign]
    manager.face.journal.invalidate("r")


async def test_repeat_is_a_permission_for_one_attempt(db: str) -> None:
    calls: list[str] = []

    async def charge(idempotency_key: str) -> str:
        calls.append(idempotency_key)
        if len(calls) < 3:
            raise Crash
        return "receipt"

    async def pay(state: State) -> dict[str, Any]:
        return {"r": await effect("charge", charge)}

    async with line(pay, store=db, interval=1, preserve=True) as graph:
        await dies(graph)
        answer("r", "charge", repeat=True, storage=graph.manager.storage)
        assert in_doubt(graph.manager.storage) == []
        await dies(graph, start=False)
        assert in_doubt(graph.manager.storage) == ["charge@1"]
        assert (await graph.resume("r")).status == "waiting"
        assert len(calls) == 2
        answer("r", "charge", repeat=True, storage=graph.manager.storage)
        assert (await graph.resume("r"))["r"] == "receipt"
    assert len(set(calls)) == 1


@pytest.mark.parametrize("policy", ["retry", "ask"])
async def test_an_outcome_survives_a_sibling_that_fails_during_its_commit(
    tmp_path: Path, policy: Any
) -> None:
    calls: list[int] = []
    broken = [True]
    charged = asyncio.Event()

    async def charge(n: int) -> dict[str, int]:
        calls.append(n)
        charged.set()
        return {"receipt": n}

    async def item(n: int) -> Any:
        if n == 0:
            return await effect("charge", charge, n, in_doubt=policy)
        await charged.wait()
        await asyncio.sleep(0.05)  # the outcome is being committed
        if broken:
            raise ConnectionError("item 1 fails")
        return n

    manager = StateManager(Slow(tmp_path / "runs.db"))
    graph = line(ParallelNode("items", item, into="out", max_workers=2), interval=1, preserve=True)
    graph = StateGraph(graph.config, manager=manager)
    graph.add_node("p", ParallelNode("items", item, into="out", max_workers=2))
    graph.set_entry_point("p")
    graph.set_exit_point("p")
    with pytest.raises(StepError):
        await graph.execute(State.new({"items": [0, 1]}, run_id="r"))
    broken.clear()
    assert (await graph.resume("r"))["out"] == [{"receipt": 0}, 1]
    assert calls == [0]
    await manager.close()


async def test_an_intent_survives_a_sibling_that_fails_during_its_commit(tmp_path: Path) -> None:
    calls: list[str] = []
    broken = [True]
    writing = asyncio.Event()

    async def charge() -> str:
        calls.append("charge")
        return "ok"

    async def fail() -> None:
        await writing.wait()
        await asyncio.sleep(0.05)
        if broken:
            raise ConnectionError("lookup failed")

    async def pay() -> Any:
        writing.set()
        return await effect("charge", charge, in_doubt="ask")

    async def node(state: State) -> dict[str, Any]:
        await asyncio.gather(fail(), pay())
        return {"ok": 1}

    manager = StateManager(Slow(tmp_path / "runs.db"))
    template = line(node, interval=1, preserve=True)
    graph = StateGraph(template.config, manager=manager)
    graph.add_node("n", node)
    graph.set_entry_point("n")
    graph.set_exit_point("n")
    with pytest.raises(StepError):
        await graph.execute(State.new({}, run_id="r"))
    await asyncio.sleep(0.5)
    broken.clear()
    try:
        await graph.resume("r")
    except Interrupted:
        assert in_doubt(manager.storage) == ["charge@1"]
    assert len(calls) <= 1
    await manager.close()


async def test_an_effect_cancelled_by_a_timeout_that_the_node_handles_stays_in_doubt(
    db: str,
) -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    async def node(state: State) -> dict[str, Any]:
        try:
            await asyncio.wait_for(effect("charge", slow), 0.05)
        except TimeoutError:
            return {"r": "continued"}
        return {}

    seen: list[list[str]] = []

    def later(state: State) -> None:
        with CheckpointManager(db) as manager:
            reader = manager.reader
            run = reader.run("r")
            assert run is not None
            from surehold.engine.runs import open_notes

            seen.append([note.content.id for note in open_notes(reader, run).waiting()])

    async with line(node, later, store=db, interval=1, preserve=True) as graph:
        await graph.execute(State.new({}, run_id="r"))
    assert seen == [["charge@1"]]


@pytest.mark.parametrize("key", [None, "order-7"])
async def test_a_retry_loop_keeps_one_idempotency_key(db: str, key: str | None) -> None:
    keys: list[str] = []

    async def charge(idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if len(keys) < 3:
            raise ConnectionError("sent, no reply")
        return "ok"

    async def node(state: State) -> dict[str, Any]:
        for _ in range(5):
            try:
                return {"r": await effect("charge", charge, key=key)}
            except ConnectionError:
                pass
        return {"r": "gave up"}

    async with line(node, store=db, interval=1, preserve=True) as graph:
        assert (await graph.execute(State.new({}, run_id="r")))["r"] == "ok"
    assert len(keys) == 3 and len(set(keys)) == 1


class Declined(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"declined {code}")
        self.code = code


register_type(Declined, "tests.Declined", encode=lambda e: e.code, decode=Declined)


class Unregistered(ConnectionError):
    """A class that was not given to `register_type`."""


class Refused(Exception):
    """A class that its arguments alone do not make, and whose code must not be called again."""

    made = 0

    def __init__(self, order: str, *, code: int) -> None:
        super().__init__(f"{order} refused")
        self.order, self.code, self.open_socket = order, code, object()
        Refused.made += 1


@pytest.mark.parametrize(
    ("error", "caught", "facts"),
    [
        (Declined(51), Declined, {"code": 51}),
        (FileNotFoundError(2, "gone", "/x"), FileNotFoundError, {"errno": 2, "filename": "/x"}),
        (KeyError("sku"), KeyError, {"args": ("sku",)}),
        (Unregistered(111, "line 3"), Unregistered, {"errno": 111, "strerror": "line 3"}),
        (Refused("sku", code=7), Refused, {"order": "sku", "code": 7, "made": 1}),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "no"), UnicodeDecodeError, {"reason": "no"}),
    ],
)
async def test_a_recorded_exception_comes_back_as_it_was(
    db: str, error: Exception, caught: type[Exception], facts: dict[str, Any]
) -> None:
    calls: list[int] = []
    crash = [True]
    seen: list[Exception] = []

    async def charge() -> None:
        calls.append(1)
        raise error

    async def node(state: State) -> dict[str, Any]:
        try:
            await effect("charge", charge)
        except Exception as raised:
            seen.append(raised)
        if crash:
            raise Crash
        return {}

    async with line(node, store=db, interval=1, preserve=True) as graph:
        await dies(graph)
        crash.clear()
        await graph.resume("r")
    assert len(calls) == 1
    assert isinstance(seen[1], caught)
    assert {name: getattr(seen[1], name) for name in facts} == facts
    assert type(seen[1]) is type(error)


def test_an_exception_of_a_class_that_is_not_there_is_told_by_its_name_and_base() -> None:
    written = {"bases": ["ConnectionError", "OSError"], "args": ["x"], "class": "gone:Gone"}
    error = read_error("Gone", "x", written, "effect e")
    assert isinstance(error, RunError) and isinstance(error, ConnectionError)
    assert (type(error).__name__, error.error_type) == ("Gone", "Gone")
    assert type(read_error("Odd", "x", {"bases": [], "args": ["x"]}, "effect e")) is RunError


async def test_of_two_people_who_answer_at_once_only_the_first_is_heard(db: str) -> None:
    async def charge() -> None:
        raise Crash

    async def pay(state: State) -> dict[str, Any]:
        return {"r": await effect("charge", charge)}

    go = threading.Event()

    class Paused(SQLiteStorage):
        def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
            go.wait(300)
            return super().append(batches)

    async with line(pay, store=db, interval=1, preserve=True) as graph:
        await dies(graph)
        second = CheckpointManager(Paused(db.removeprefix("sqlite:///")))
        told: list[BaseException] = []

        def late() -> None:
            try:
                answer("r", "charge", repeat=True, storage=second)
            except BaseException as error:
                told.append(error)

        thread = threading.Thread(target=late)
        thread.start()
        answer("r", "charge", "receipt", storage=db)
        go.set()
        await asyncio.to_thread(thread.join)
        assert [type(error) for error in told] == [NotFoundError]
        assert (await graph.resume("r"))["r"] == "receipt"
        second.storage.close()


async def test_a_question_is_approved_or_rejected_by_its_run_alone(db: str) -> None:
    async def ask(state: State) -> dict[str, Any]:
        return {"said": await interrupt("deploy?", schema=bool)}

    async with line(ask, store=db, interval=1, preserve=True) as graph:
        for run_id, say, said in (("a", approve, True), ("b", reject, False)):
            with pytest.raises(Interrupted):
                await graph.execute(State.new({}, run_id=run_id))
            say(run_id, storage=db)
            assert (await graph.resume(run_id))["said"] is said
        with pytest.raises(NotFoundError, match="waits for no answer"):
            approve("a", storage=db)


def test_an_answer_is_one_thing(db: str) -> None:
    with pytest.raises(UsageError, match="takes one of"):
        answer("r", "charge", storage=db)


async def test_a_completed_run_that_was_not_deleted_is_deleted_under_its_lease(db: str) -> None:
    from surehold.storage.base import Leasing, this_process

    async with line(lambda state: {"n": 1}, store=db, interval=1, preserve=True) as graph:
        await graph.execute(State.new({}, run_id="r"))
    # As if its process had died before the journal was deleted, and the id were in use again.
    storage = SQLiteStorage(db.removeprefix("sqlite:///"))
    assert isinstance(storage, Leasing)
    lease = storage.take_lease("r", this_process(), now=time.time(), ttl=60)
    async with line(lambda state: {"n": 1}, store=db, interval=1) as graph:
        with pytest.raises(LeaseHeldError):
            await graph.resume("r")
        storage.release_lease(lease)
        assert (await graph.resume("r"))["n"] == 1
        with pytest.raises(NotFoundError):
            await graph.resume("r")
    storage.close()


def test_the_question_about_an_effect_names_its_arguments_without_secrets(db: str) -> None:
    """Two payments in flight can be told apart."""

    class Client:
        def __repr__(self) -> str:
            raise AssertionError("the repr of an object may hold its secrets")

    key = "sk-ant-api03-" + "q" * 30

    def pay(client: Client, invoice: int, api_key: str, note: str, lines: list[str]) -> None:
        raise Crash

    for number in (2, 3):
        with suppress(Crash), surehold.run(f"r{number}", storage=db) as run:
            run.effect("pay", pay, Client(), number, "hunter2", f"by {key}", lines=["x" * 500] * 99)
    shown = {one.run_id: one.inputs for one in surehold.pending(storage=db)}
    assert shown["r2"].startswith("client=<Client>, invoice=2, api_key='[redacted:api_key]'")
    assert "invoice=3" in shown["r3"]
    assert all(len(text) <= 300 for text in shown.values())
    assert all("hunter2" not in text and "q" * 9 not in text for text in shown.values())


async def test_arguments_are_kept_where_a_door_is_told_to_and_nowhere_else(db: str) -> None:
    """Redacted: of effects unless told otherwise, of what may be repeated only if told so."""

    def look(page: str, token: str = "t-1") -> str:
        return page

    kept = surehold.step(record_arguments=True)(look)
    with surehold.run("loop", storage=db) as run:
        run.call(kept, "a")
        run.call(look, "b")
        run.effect("told", look, "c")
        run.effect("untold", look, "d", record_arguments=False)
        run.effect("again", look, "e", in_doubt="retry", record_arguments=True)
    async with surehold.run("awaited", storage=db):
        await effect("told", look, "f")
        await effect("untold", look, "g", record_arguments=False)
    with CheckpointManager(db) as manager:
        notes = [
            view_note(manager.reader, record)
            for run_id in ("loop", "awaited")
            for record in manager.storage.read(run_id)
            if record.header.kind == "effect"
        ]
    shown = {(note.name, note.value): note.inputs for note in notes if note.state == "done"}
    assert shown == {
        ("look", "a"): "page='a'",
        ("look", "b"): "",
        ("told", "c"): "page='c'",
        ("untold", "d"): "",
        ("again", "e"): "page='e'",
        ("told", "f"): "page='f'",
        ("untold", "g"): "",
    }
