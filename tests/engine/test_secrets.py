"""No secret reaches the disk, through whichever door it came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import pytest
from tests.builders.fleets import manager as boss
from tests.builders.fleets import team
from tests.fake_objects import FakeObjects

import surehold
from surehold import (
    Agent,
    AutonomousConfig,
    BaseAutonomousAgent,
    CheckpointConfig,
    CheckpointManager,
    Fleet,
    GraphConfig,
    HookManager,
    RedactionHook,
    Reply,
    State,
    StateGraph,
    StateManager,
    ToolCall,
    effect,
    interrupt,
    process_chain,
    process_parallel,
    step,
    tool,
    workflow,
)
from surehold.__main__ import main
from surehold.core.policy import Redactor, make_rules, redact_text
from surehold.core.values import decode, encode
from surehold.errors import Interrupted, ShapeError, SureholdError, UsageError, VetoError
from surehold.storage.base import RunQuery
from surehold.testing.scripted import ScriptedModel

SHAPED = "sk-proj-" + "A1b2C3d4E5f6G7h8I9j0" * 2
"""Found by what it looks like."""
NAMED = "plain-words-nobody-knows"
"""Found by what it is called."""
SECRETS = {"password": NAMED, "text": f"use {SHAPED}", "raw": SHAPED.encode()}

Node = Callable[[State], Any]
Door = Callable[[str], None]


def hooks() -> HookManager:
    made = HookManager()
    made.register_hook(RedactionHook())
    return made


def assert_clean(url: str, directory: Path, least: int = 1) -> None:
    """Search the files as they are, and the text of every record."""
    found = b"".join(p.read_bytes() for p in directory.rglob("*") if p.is_file())
    assert_no_secret_in(url, found, least)


def assert_no_secret_in(url: str, found: bytes, least: int) -> None:
    records = 0
    with CheckpointManager(url) as manager:
        reader = manager.reader
        for run in manager.storage.runs(RunQuery()):
            for record in reader.records(run.run_id, 1, run.seq):
                found += reader.sealer.open(record) + repr(record.header).encode()
                records += 1
    assert records >= least
    for secret in (SHAPED, NAMED):
        assert secret.encode() not in found
    assert encode(SHAPED.encode())[20:50] not in found
    assert b"[redacted:" in found


def in_graph(url: str, node: Node, **answers: Any) -> None:
    async def execute() -> None:
        config = GraphConfig(name="g", checkpoint=CheckpointConfig(interval=1, preserve=True))
        graph = StateGraph(config, manager=StateManager(url, hook_manager=hooks()))
        graph.add_node("n", node)
        graph.add_node("end", lambda state: None)
        graph.add_edge("n", "end")
        graph.set_entry_point("n")
        graph.set_exit_point("end")
        with suppress(Interrupted, SureholdError):
            await graph.execute(State.new({"in": 1}, run_id="r"))
            if answers:
                await graph.resume("r", **answers)
        await graph.close()

    asyncio.run(execute())


async def secrets(*_: Any) -> dict[str, Any]:
    return SECRETS


async def outcome(state: State) -> dict[str, Any]:
    assert await effect("login", secrets) == SECRETS
    return {"ok": 1}


async def outcome_of_retry(state: State) -> dict[str, Any]:
    await effect("login", secrets, in_doubt="retry")
    return {"ok": 1}


async def open_outcome(state: State) -> None:
    await effect("login", secrets)
    raise ValueError(f"refused: {SHAPED}")


async def arguments(state: State) -> None:
    await effect("login", secrets, SHAPED)


async def key(state: State) -> None:
    await effect("login", secrets, key=f"login {SHAPED}")


async def exception(state: State) -> None:
    async def fails() -> None:
        raise ConnectionError(f"401 for {SHAPED}")

    with suppress(ConnectionError):
        await effect("login", fails)


async def question(state: State) -> None:
    await interrupt({"Use this?": SECRETS}, key=SHAPED)


async def parallel(state: State) -> dict[str, Any]:
    await process_parallel([1, SHAPED], secrets)
    return {}


async def chain(state: State) -> dict[str, Any]:
    async def grow(item: int, value: dict[str, Any]) -> dict[str, Any]:
        return {**value, f"n{item}": SECRETS}

    await process_chain([1, 2], {}, grow)
    return {}


def whole_state(state: State) -> State:
    changed = state.merge(SECRETS).append("log", {"headers": [["Authorization", NAMED]]})
    return changed.at(tags=[SHAPED[:60]], metadata={"password": NAMED, "text": SHAPED})


def nested(url: str) -> None:
    inner = StateGraph(GraphConfig(name="in", checkpoint=CheckpointConfig(interval=1)))
    inner.add_node("i", lambda state: {"tmp": SECRETS})
    inner.add_node("j", lambda state: state.without("tmp"))
    inner.add_edge("i", "j")
    inner.set_entry_point("i")
    inner.set_exit_point("j")
    in_graph(url, inner)


def answer(url: str) -> None:
    async def asks(state: State) -> None:
        await interrupt("which?", key="first")
        await interrupt("and?", key="second")

    in_graph(url, asks)
    with CheckpointManager(url, hook_manager=hooks()) as manager:
        [waiting] = surehold.pending("r", storage=manager)
        surehold.answer("r", waiting.id, SECRETS, storage=manager)


def agent(url: str) -> None:
    @tool
    def login() -> dict[str, Any]:
        "Log in."
        return {"password": NAMED, "text": SHAPED}

    async def execute() -> None:
        call = ToolCall("c", "login", {"key": SHAPED})
        model = ScriptedModel([Reply(tool_calls=(call,)), f"the key: {SHAPED}"])
        await BaseAutonomousAgent(
            AutonomousConfig(planning_enabled=False),
            state_manager=StateManager(url, hook_manager=hooks()),
            agent_id="a",
            tools=[login],
            model=model,
        ).run(f"log in with {SHAPED}")

    asyncio.run(execute())


def own_loop(url: str) -> None:
    with (
        CheckpointManager(url, hook_manager=hooks()) as manager,
        surehold.run("r", storage=manager) as run,
    ):
        for _ in run.each([1, 2]):
            run.effect("login", lambda: SECRETS)
        run.state.update(SECRETS)
        run.checkpoint()


def marks(url: str) -> None:
    with CheckpointManager(url, hook_manager=hooks()) as manager:
        saved = manager.save_checkpoint(State.new({"n": 1}, run_id="r"))
        manager.tag(saved, SHAPED[:60])


def fork(url: str) -> None:
    with CheckpointManager(url) as manager:
        saved = manager.save_checkpoint(State.new({"n": 1}, run_id="r"))
    with CheckpointManager(url, hook_manager=hooks()) as manager:

        def change(loaded: Any, draft: Any) -> Any:
            from msgspec.structs import replace

            values = {**draft.values, **SECRETS}
            return replace(draft, values=values, natures={})

        manager.fork_from_checkpoint(saved, "other", change=change)


def langgraph(url: str) -> None:
    pytest.importorskip("langgraph")
    from langgraph.graph import END, START
    from langgraph.graph import StateGraph as TheirGraph

    from surehold.integrations.langgraph import SureholdSaver

    class Channels(TypedDict):
        text: str
        password: str

    builder = TheirGraph(Channels)
    builder.add_node("n", lambda state: {"text": SHAPED, "password": NAMED})
    builder.add_edge(START, "n")
    builder.add_edge("n", END)
    saver = SureholdSaver(CheckpointManager(url, hook_manager=hooks()))
    config: Any = {"configurable": {"thread_id": "t"}}
    builder.compile(checkpointer=saver).invoke({"text": "x", "password": NAMED}, config)
    saver.close()


def queued_graph(url: str) -> StateGraph:
    graph = StateGraph("g", manager=StateManager(url, hook_manager=hooks()))
    graph.add_node("n", lambda state: None)
    graph.set_entry_point("n")
    graph.set_exit_point("n")
    return graph


def queued_agent(url: str) -> Agent:
    manager = StateManager(url, hook_manager=hooks())
    return Agent("a", state_manager=manager, model=ScriptedModel(["done"]))


def queued_fleet(url: str) -> Fleet:
    return Fleet(boss(1), team(), storage=url, name="f", hook_manager=hooks())


QUEUED: dict[str, tuple[Callable[[str], Any], Any]] = {
    "graph": (queued_graph, SECRETS),
    "agent": (queued_agent, f"log in with {SHAPED}"),
    "fleet": (queued_fleet, f"log in with {SHAPED}"),
}


def queue(url: str, door: str, **options: Any) -> None:
    """Submit a run whose input has secrets, twice with the same idempotency key."""
    make, given = QUEUED[door]

    async def start() -> None:
        begun = make(url)
        for _ in range(2):
            await begun.start(given, idempotency_key="k", entry_point="app:made", **options)
        await begun.close()

    asyncio.run(start())


@step
def log_in(words: dict[str, Any]) -> dict[str, Any]:
    assert words["password"] == NAMED
    return SECRETS


@workflow(name="logs-in")
def logs_in(words: dict[str, Any]) -> Any:
    return log_in(words)


def executed_workflow(url: str) -> None:
    with CheckpointManager(url, hook_manager=hooks()) as manager:
        assert logs_in.run(SECRETS, run_id="r", storage=manager).status == "completed"
        assert logs_in.run(SECRETS, run_id="r", storage=manager).status == "completed"


def fleet(url: str) -> None:
    async def execute() -> None:
        made = queued_fleet(url)
        for _ in range(2):
            result = await made.run(f"log in with {SHAPED}", run_id="r")
        assert result.status == "completed"
        await made.close()

    asyncio.run(execute())


def queued_workflow(url: str) -> None:
    with CheckpointManager(url, hook_manager=hooks()) as manager:
        for _ in range(2):
            logs_in.start(SECRETS, idempotency_key="k", storage=manager)


def group(url: str) -> None:
    with CheckpointManager(url, hook_manager=hooks()) as manager:
        crew = surehold.group("crew", ["a", "b"], storage=manager)
        states = [State.new(SECRETS, run_id=run_id) for run_id in "ab"]
        crew.pin(crew.checkpoint(states).id)
        crew.fork("other")


def through(node: Node) -> Door:
    return lambda url: in_graph(url, node)


DOORS: dict[str, Door] = {
    "state": through(whole_state),
    "nested graph": nested,
    "effect outcome": through(outcome),
    "outcome of a retried effect": through(outcome_of_retry),
    "effects carried by a failure": through(open_outcome),
    "effect arguments": through(arguments),
    "effect key": through(key),
    "effect exception": through(exception),
    "question": through(question),
    "answer": answer,
    "answer with a resume": lambda url: in_graph(url, question, answer=SECRETS),
    "parallel results": through(parallel),
    "chain": through(chain),
    "own loop": own_loop,
    "agent": agent,
    "tag": marks,
    "fork": fork,
    "LangGraph": langgraph,
    "workflow": executed_workflow,
    "fleet": fleet,
    "group": group,
}
QUEUES: dict[str, Door] = {
    "queued workflow": queued_workflow,
    "queued graph": lambda url: queue(url, "graph"),
    "queued agent": lambda url: queue(url, "agent"),
    "queued fleet": lambda url: queue(url, "fleet"),
    "key of a queue": lambda url: queue(url, "graph", key=SHAPED),
}


@pytest.mark.parametrize("medium", ["sqlite", "file"])
@pytest.mark.parametrize("door", DOORS)
def test_a_secret_reaches_the_disk_through_no_door(door: str, medium: str, tmp_path: Path) -> None:
    url = f"{medium}:///{tmp_path / 'store'}"
    DOORS[door](url)
    assert_clean(url, tmp_path)


@pytest.mark.parametrize("door", QUEUES)
def test_a_queue_holds_no_secret_and_knows_the_same_input_again(door: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store'}"
    QUEUES[door](url)
    assert_clean(url, tmp_path)


def test_an_object_store_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "s3://bucket/runs"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    for door in ("state", "effect key", "answer", "tag", "fork", "workflow", "group"):
        with FakeObjects() as store:
            monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
            DOORS[door](url)
            written = [key.encode() + data for key, (data, *_) in store.objects.items()]
            assert_no_secret_in(url, b"".join(written), least=1)


def test_the_log_of_events_holds_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(state: State) -> None:
        surehold.emit("model.text", text=f"the key is {SHAPED}")
        raise ConnectionError(f"401 for {SHAPED}")

    graph = StateGraph(GraphConfig(name="g", observer="log"), storage=f"file:{tmp_path / 'runs'}")
    graph.add_node("n", fails)
    graph.set_entry_point("n")
    graph.set_exit_point("n")
    with caplog.at_level("DEBUG", "surehold"), suppress(SureholdError):
        graph.run_sync({}, run_id="r")
    assert "run.failed" in caplog.text and "model.text" in caplog.text
    assert SHAPED not in caplog.text


def test_a_killed_workflow_continues_with_the_arguments_that_it_is_given_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used: list[str] = []

    @step
    def note(words: dict[str, Any]) -> None:
        used.append(words["password"])
        if len(used) == 2:
            raise KeyboardInterrupt

    @workflow(name="notes")
    def notes(words: dict[str, Any]) -> None:
        note(words)
        note(words)

    url = f"sqlite:///{tmp_path / 'db'}"
    with CheckpointManager(url, hook_manager=hooks()) as manager:
        with suppress(KeyboardInterrupt):
            notes.run(SECRETS, run_id="r", storage=manager)
        for one in surehold.pending("r", storage=manager):
            surehold.answer("r", one.id, repeat=True, storage=manager)
        with pytest.raises(UsageError, match="other arguments"):
            notes.run({"password": 1}, run_id="r", storage=manager)
        with pytest.raises(ShapeError):
            notes.resume("r", storage=manager)
        assert "run r continues with redacted arguments (run(..., run_id='r')" in caplog.text
        assert notes.run(SECRETS, run_id="r", storage=manager).status == "completed"
    assert used == [NAMED] * 3
    assert_clean(url, tmp_path)


async def test_an_agent_continues_a_task_that_has_a_secret(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'db'}"

    def fails(messages: Any) -> str:
        raise ConnectionError("away")

    for script in (fails, ["done"]):
        model = ScriptedModel(script)
        async with Agent("a", storage=url, model=model, hook_manager=hooks()) as agent:
            with suppress(ConnectionError, SureholdError):
                await agent.run(f"log in with {SHAPED}")
    with CheckpointManager(url) as manager:
        assert [run.status for run in manager.storage.runs(RunQuery())] == ["completed"]
    assert_clean(url, tmp_path)


def test_an_exported_run_holds_no_secret(tmp_path: Path) -> None:
    url = f"file:///{tmp_path / 'store'}"
    in_graph(url, outcome)
    with CheckpointManager(url) as manager:
        manager.export_run("r", tmp_path / "run.surehold")
        other = f"file:///{tmp_path / 'other'}"
        with CheckpointManager(other) as target:
            target.import_run(tmp_path / "run.surehold")
    assert_clean(other, tmp_path)


def test_a_call_whose_key_is_a_secret_is_not_repeated(tmp_path: Path) -> None:
    calls: list[str] = []

    def charge(amount: str) -> str:
        calls.append(amount)
        return "paid"

    def attempt(then: str) -> None:
        with (
            CheckpointManager(f"sqlite:///{tmp_path / 'db'}", hook_manager=hooks()) as manager,
            surehold.run("r", storage=manager) as run,
        ):
            run.effect("charge", charge, "5", key=SHAPED)
            run.effect("charge", charge, "6", key=SHAPED[::-1])
            run.effect("charge", charge, "7", key=SHAPED + "x")
            if then:
                raise ValueError(then)

    with suppress(ValueError):
        attempt("stop")
    attempt("")
    assert calls == ["5", "6", "7"]


def test_a_note_whose_redaction_fails_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = hooks()
    with CheckpointManager(f"sqlite:///{tmp_path / 'db'}", hook_manager=made) as manager:
        saved = manager.save_checkpoint(State.new({"n": 1}, run_id="r"))
        monkeypatch.setattr(RedactionHook, "redact", lambda self, value: 1 / 0)
        with pytest.raises(VetoError, match="ZeroDivisionError while redacting"):
            manager.tag(saved, "fine")
        assert manager.list_checkpoints()[0].tags == ()


def test_values_of_every_type_are_redacted_in_their_text() -> None:
    redactor = Redactor(make_rules())
    value = {
        "bytes": SHAPED.encode(),
        "tuple": (SHAPED, 1),
        "lone": "\ud800" + SHAPED,
        "pairs": {(1, 2): SHAPED, "cookie": NAMED},
        "password": {"inner": (NAMED, b"plain-words")},
        "big": 1 << 80,
        "schema": {"password": {"type": "string", "minLength": 3}},
    }
    text = redact_text(encode(value), lambda tree: redactor.redact(tree)[0])
    made = decode(text)
    assert made["bytes"] == b"[redacted:api_key]"
    assert made["tuple"] == ("[redacted:api_key]", 1)
    assert made["lone"] == "\ud800[redacted:api_key]"
    assert made["pairs"] == {(1, 2): "[redacted:api_key]", "cookie": "[redacted:cookie]"}
    assert made["password"] == {"inner": ("[redacted:password]", b"[redacted:password]")}
    assert made["big"] == 1 << 80
    assert made["schema"] == value["schema"]
    unchanged = encode({"a": (1, b"x")})
    assert redact_text(unchanged, lambda tree: redactor.redact(tree)[0]) is unchanged


@pytest.mark.parametrize("door", ["python", "command"])
def test_an_answer_by_address_is_redacted_if_the_settings_say_so(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    (tmp_path / "surehold.toml").write_text(f'storage = "{url}"\nredact = true\n')
    monkeypatch.chdir(tmp_path)

    async def asks(state: State) -> dict[str, Any]:
        return {"said": await interrupt("the key?")}

    config = CheckpointConfig(store=url, interval=1, preserve=True)
    graph = StateGraph(GraphConfig(name="g", checkpoint=config))
    graph.add_node("asks", asks)
    graph.set_entry_point("asks")
    graph.set_exit_point("asks")
    assert graph.run_sync({}, run_id="r").status == "waiting"
    (waiting,) = surehold.pending("r")
    if door == "python":
        surehold.answer("r", waiting.id, f"it is {SHAPED}")
    else:
        assert main(["answer", "r", f"it is {SHAPED}"]) == 0
    assert surehold.pending("r") == []
    assert_clean(url, tmp_path)
