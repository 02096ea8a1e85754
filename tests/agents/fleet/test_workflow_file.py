"""`workflow.yaml`: every key does what it says, and what is wrong is told with its line."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders.fleets import TEAM, last_of, ledger, manager, worker
from tests.builders.graphs import Heard

from surehold import (
    FilesystemStorage,
    MemoryStorage,
    SQLiteStorage,
    State,
    register_checkpoint_store,
)
from surehold.agents.fleet.execution import Backoff
from surehold.agents.fleet.fleet import Fleet
from surehold.agents.fleet.settings import (
    ApprovalSettings,
    CheckpointSettings,
    ParticipantSettings,
    Settings,
    ToolSettings,
    WorkflowSettings,
)
from surehold.agents.fleet.workflow_file import create_checkpoint_storage, read_workflow
from surehold.agents.models import model as models
from surehold.agents.models.model import Message, Reply, ToolCall
from surehold.agents.tools.definition import read_tool
from surehold.errors import NotFoundError, StepError, UsageError
from surehold.testing.scripted import ScriptedModel

Write = Callable[[str], Path]


class Provider:
    """The models of a file: the one named ``boss`` manages, any other works."""

    def __init__(self) -> None:
        self.rounds = 2
        self.judge: Any = None
        self.script: Any = None
        self.opened: list[tuple[str, dict[str, Any]]] = []
        self.seen: list[list[Message]] = []

    def __call__(self, name: str, **settings: Any) -> ScriptedModel:
        self.opened.append((name, settings))
        if name == "boss":
            return manager(self.rounds, judge=self.judge)
        inner = worker(name)._script

        def script(messages: Sequence[Message]) -> Reply | str:
            self.seen.append([*messages])
            made = self.script or inner
            return made(messages)  # type: ignore[no-any-return]

        return ScriptedModel(script, name=name)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    made = Provider()
    monkeypatch.setattr(models, "_factories", {"test": made})
    yield made


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "workflow.yaml") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


MODELS = """
fleet: {manager: {model: "test:boss"}}
defaults: {model: "test:hand"}
"""


async def ran(path: Path, **more: Any) -> tuple[Fleet, Any]:
    async with Fleet.from_yaml(path, **more) as fleet:
        return fleet, await fleet.run("Go")


# checkpointing


async def test_the_seeds_form_of_the_section_saves_to_files(
    write: Write, provider: Provider, tmp_path: Path
) -> None:
    path = write(
        MODELS
        + """
checkpointing:
  enabled: true                      # Enable/disable checkpointing
  storage_type: file                 # Options: file, memory
  storage_path: ./checkpoints        # Path for file storage
  cleanup_after_days: 30
  auto_resume_on_failure: false
"""
    )
    async with Fleet.from_yaml(path) as fleet:
        result = await fleet.run("Go")
        assert len(await fleet.list_checkpoints(result.run_id)) == 6
    assert [one.suffix for one in (tmp_path / "checkpoints").rglob("*fleet*.jsonl")] == [".jsonl"]


async def test_without_the_file_naming_any_the_storage_is_a_directory(
    write: Write, provider: Provider, tmp_path: Path
) -> None:
    await ran(write(MODELS))
    assert (tmp_path / "checkpoints").is_dir()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("checkpointing: {storage_type: file, storage_path: ./a}", FilesystemStorage),
        ("checkpointing: {storage_type: memory}", MemoryStorage),
        ("checkpointing: {storage_type: sqlite, storage_path: ./b}", SQLiteStorage),
        ("checkpointing: {storage_type: sqlite, storage_path: ./c/runs.db}", SQLiteStorage),
        ("checkpointing: {storage_type: 'sqlite:///d.db?compress=zstd'}", SQLiteStorage),
        ("checkpointing: {storage_type: 'file:e?compress=gzip'}", FilesystemStorage),
        ("workflow: {checkpointing: {storage_type: memory}}", MemoryStorage),
    ],
)
def test_a_storage_type_is_a_medium_or_a_url(text: str, kind: type, write: Write) -> None:
    storage = create_checkpoint_storage(read_workflow(write(text)))
    assert type(storage) is kind
    storage.close()


def test_a_storage_path_is_where_it_is(write: Write, tmp_path: Path) -> None:
    for kind, made in (("file", "x"), ("sqlite", "x/surehold.db")):
        text = f"checkpointing: {{storage_type: {kind}, storage_path: ./{kind}/x}}"
        storage = create_checkpoint_storage(read_workflow(write(text)))
        assert storage is not None
        State.new({"n": 1}).checkpoint(storage)
        storage.close()
        assert (tmp_path / kind / made).exists()


def test_a_storage_type_may_be_a_registered_name(write: Write) -> None:
    mine = MemoryStorage()
    register_checkpoint_store("mine", mine)
    assert create_checkpoint_storage(CheckpointSettings(storage_type="mine")) is mine
    assert read_workflow(write("checkpointing: {storage_type: mine}"))


async def test_not_enabled_nothing_is_saved_and_nothing_else_changes(
    write: Write, provider: Provider, tmp_path: Path
) -> None:
    path = write(MODELS + "checkpointing: {enabled: false}")
    assert create_checkpoint_storage(read_workflow(path)) is None
    fleet, result = await ran(path)
    assert await fleet.list_checkpoints() == [] and fleet.checkpointing is False
    assert {one.name for one in tmp_path.iterdir()} == {"workflow.yaml"}
    fleet, _ = await ran(path, checkpoint_storage=MemoryStorage())
    assert fleet.checkpointing is False
    _, saved = await ran(write(MODELS))
    assert (saved.answer, saved.rounds, saved.usage) == (
        *(result.answer, result.rounds, result.usage),
    )


async def test_cleanup_after_days(
    write: Write, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(MODELS + "checkpointing: {cleanup_after_days: 7}")
    _, old = await ran(path)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(UTC) + timedelta(days=8)

    monkeypatch.setattr("surehold.agents.fleet.checkpoints.datetime", Later)
    _, new = await ran(path)
    async with Fleet.from_yaml(path) as fleet:
        assert {one["workflow_id"] for one in await fleet.list_checkpoints()} == {new.run_id}
    path = write(MODELS + "checkpointing: {cleanup_after_days: null}")
    async with Fleet.from_yaml(path) as fleet:
        assert await fleet.cleanup() == 0
    assert old.run_id != new.run_id


async def test_auto_resume_on_failure(
    write: Write, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    fails = [True, True]

    def script(messages: Sequence[Message]) -> str:
        if fails:
            fails.pop()
            raise ConnectionError("no network")
        return "done"

    provider.script = script
    monkeypatch.setattr("surehold.agents.fleet.workflow_file.Backoff", lambda: Backoff(sleep=sleep))
    path = write(MODELS + "checkpointing: {auto_resume_on_failure: true}")
    _, result = await ran(path)
    assert (result.status, len(result.attempts), slept) == ("completed", 2, [1.0, 2.0])
    fails.append(True)
    with pytest.raises(StepError):
        await ran(write(MODELS + "checkpointing: {auto_resume_on_failure: false}"))


async def test_retention(write: Write, provider: Provider) -> None:
    path = write(MODELS + "checkpointing: {retention: {keep-last: 2}}")
    async with Fleet.from_yaml(path) as fleet:
        result = await fleet.run("Go")
        assert len(await fleet.list_checkpoints(result.run_id)) == 2


def test_the_section_may_stand_under_workflow_but_not_twice(write: Write) -> None:
    text = "workflow: {checkpointing: {enabled: false}, human_in_the_loop: {enabled: false}}"
    settings = read_workflow(write(text))
    assert not settings.checkpointing.enabled and not settings.human_in_the_loop.enabled
    path = write(
        """
        checkpointing:
          enabled: true
        workflow:
          checkpointing:
            enabled: true
        """
    )
    with pytest.raises(UsageError, match=r"workflow.yaml:6: checkpointing is a duplicate of line"):
        read_workflow(path)


# workflow, fleet.orchestrator


@pytest.mark.parametrize(
    "text",
    [
        "workflow: {max_rounds: 1}",
        "fleet: {manager: {model: 'test:boss'}, orchestrator: {max_round_count: 1}}",
        "workflow: {max_rounds: 5}\nfleet: {manager: {model: 'test:boss'},"
        " orchestrator: {max_round_count: 1}}",
    ],
)
async def test_max_rounds(text: str, write: Write, provider: Provider) -> None:
    text = text if "boss" in text else text + "\nfleet: {manager: {model: 'test:boss'}}"
    _, result = await ran(write(text + "\ndefaults: {model: 'test:hand'}"))
    assert (result.status, result.rounds) == ("max_rounds_reached", 1)


@pytest.mark.parametrize(
    ("text", "rounds", "resets"),
    [
        ("workflow: {max_stalls: 0, max_resets: 0}", 0, 0),
        ("workflow: {max_stalls: 2, max_resets: 0}", 2, 0),
        ("workflow: {max_stalls: 1, max_resets: 2}", 3, 2),
        ("fleet: {orchestrator: {max_stall_count: 2, max_reset_count: 1}}", 4, 1),
    ],
)
async def test_max_stalls_and_max_resets(
    text: str, rounds: int, resets: int, write: Write, provider: Provider
) -> None:
    provider.judge = lambda done, messages: ledger("coder", "try", progressing=False)
    text = text.replace("fleet: {", "fleet: {manager: {model: 'test:boss'}, ")
    if "boss" not in text:
        text += "\nfleet: {manager: {model: 'test:boss'}}"
    fleet, result = await ran(write(text + "\ndefaults: {model: 'test:hand'}"))
    assert (result.status, result.rounds, fleet.reset_count) == ("stalled", rounds, resets)


async def test_timeout_seconds(write: Write, provider: Provider) -> None:
    class Slow:
        name = "slow"

        async def respond(self, messages: Any, **more: Any) -> Reply:
            await asyncio.sleep(60)
            return Reply("never")

    models._factories["slow"] = lambda name, **settings: Slow()
    text = """
    workflow: {timeout_seconds: 0.2}
    fleet: {manager: {model: "test:boss"}}
    defaults: {model: "slow:x"}
    """
    _, result = await ran(write(text))
    assert result.status == "budget_exhausted"


# human_in_the_loop

TOOL = """
agents:
  coder:
    tools:
      - {name: shell, operation: code_execution}
"""


def using_tool(messages: Sequence[Message]) -> Reply | str:
    if messages[-1]["role"] == "tool":
        return str(messages[-1]["content"])
    return Reply(tool_calls=(ToolCall("1", "shell", {"command": "ls"}),))


def shell(command: str) -> str:
    """Runs a command."""
    return f"ran {command}"


@pytest.mark.parametrize(
    ("section", "waits"),
    [
        ("", True),
        ("human_in_the_loop: {enabled: false}", False),
        ("human_in_the_loop: {require_approval_for: [file_operations]}", False),
        ("human_in_the_loop: {require_approval_for: [shell]}", True),
        ("human_in_the_loop: {trusted_operations: [shell]}", False),
        ("human_in_the_loop: {trusted_operations: [code_execution]}", False),
    ],
)
async def test_which_operations_wait(
    section: str, waits: bool, write: Write, provider: Provider
) -> None:
    provider.script = using_tool
    provider.judge = lambda done, messages: ledger("coder", "go", satisfied=done > 0)
    path = write(f"{MODELS}{TOOL}\n{section}")
    if waits:
        _, result = await ran(path, tools={"shell": shell})
        assert result.status == "waiting"
    else:
        fleet, _ = await ran(path, tools={"shell": shell})
        assert last_of(fleet, "coder") == "ran ls"


@pytest.mark.parametrize("rejects", [True, False])
async def test_approval_timeout_seconds_and_auto_reject_on_timeout(
    rejects: bool, write: Write, provider: Provider
) -> None:
    provider.script = using_tool
    provider.judge = lambda done, messages: ledger("coder", "go", satisfied=done > 0)
    hitl = f"{{approval_timeout_seconds: 0.05, auto_reject_on_timeout: {rejects}}}"
    path = write(f"{MODELS}{TOOL}\nhuman_in_the_loop: {hitl}")

    async def never(request: Any) -> bool:
        await asyncio.sleep(60)
        return True

    call = ran(path, tools={"shell": shell}, approval_handler=never)
    if rejects:
        fleet, _ = await call
        assert "refused: no answer came in time" in str(last_of(fleet, "coder"))
    else:
        _, result = await call
        assert result.status == "waiting"


# fleet


async def test_the_manager_has_a_model_effort_and_instructions(
    write: Write, provider: Provider
) -> None:
    seen: list[str] = []

    def judge(done: int, messages: Sequence[Message]) -> str:
        seen.append(messages[0]["content"])
        return ledger(satisfied=True)

    provider.judge = judge
    text = """
    fleet:
      manager:
        model: test:boss
        reasoning: {effort: high}
        instructions: Be brief.
    defaults: {model: test:hand}
    """
    await ran(write(text))
    (settings,) = [settings for name, settings in provider.opened if name == "boss"]
    assert settings["thinking"] == "high"
    assert seen[0].endswith("Be brief.")


async def test_without_one_of_its_own_the_manager_has_the_default_model(
    write: Write, provider: Provider
) -> None:
    read = write("defaults: {model: 'test:boss'}")
    async with Fleet.from_yaml(read):
        assert [name for name, _ in provider.opened] == ["boss"] * 4
    assert "thinking" not in provider.opened[-1][1]


async def test_without_any_model_it_is_that_of_the_environment(
    write: Write, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREHOLD_MODEL", "test:boss")
    async with Fleet.from_yaml(write("")):
        assert {name for name, _ in provider.opened} == {"boss"}
    monkeypatch.delenv("SUREHOLD_MODEL")
    with pytest.raises(UsageError, match="no model is set"):
        Fleet.from_yaml(write(""))


@pytest.mark.parametrize(("enabled", "told"), [(True, 1), (False, 0)])
async def test_plan_review_enabled(
    enabled: bool, told: int, write: Write, provider: Provider
) -> None:
    heard = Heard()
    text = f"""
    fleet: {{manager: {{model: "test:boss"}}, plan_review: {{enabled: {enabled}}}}}
    defaults: {{model: "test:hand"}}
    """
    await ran(write(text), observer=heard)
    assert len(heard.of("fleet.plan")) == told


async def test_plan_review_require_human_approval(write: Write, provider: Provider) -> None:
    text = """
    fleet: {manager: {model: "test:boss"}, plan_review: {require_human_approval: true}}
    defaults: {model: "test:hand"}
    """
    async with Fleet.from_yaml(write(text)) as fleet:
        assert (await fleet.run("Go")).status == "waiting"
        (request,) = await fleet.pending()
        assert request.operation == "plan"


CALLBACKS = {
    "streaming_enabled": "model.text",
    "log_progress_ledger": "fleet.ledger",
    "log_tool_calls": "fleet.tool",
}


@pytest.mark.parametrize(("key", "event"), CALLBACKS.items())
@pytest.mark.parametrize("on", [True, False])
async def test_callbacks(key: str, event: str, on: bool, write: Write, provider: Provider) -> None:
    provider.script = using_tool
    provider.judge = lambda done, messages: ledger("coder", "go", satisfied=done > 0)
    text = f"""
    human_in_the_loop: {{enabled: false}}
    fleet: {{manager: {{model: "test:boss"}}, callbacks: {{{key}: {on}}}}}
    defaults: {{model: "test:hand"}}
    """
    heard = Heard()
    path = write(textwrap.dedent(text) + TOOL)
    await ran(path, tools={"shell": shell}, observer=heard)
    assert bool(heard.of(event)) is on


# defaults and agents


async def test_defaults_hold_for_whoever_has_none_of_its_own(
    write: Write, provider: Provider
) -> None:
    text = """
    fleet: {manager: {model: "test:boss"}}
    defaults: {model: "test:hand", tool_model: "test:tooled", temperature: 0.7, max_tokens: 99,
               top_p: 0.5}
    agents:
      plain: {}
      own: {agent: {model: "test:own", temperature: 0.1, max_tokens: 5, top_p: 0.9}}
      tooled: {tools: [{name: shell}]}
    """
    async with Fleet.from_yaml(write(text), tools={"shell": shell}) as fleet:
        assert fleet.participants == ("plain", "own", "tooled")
    usual = {"temperature": 0.7, "max_tokens": 99, "top_p": 0.5}
    assert provider.opened == [
        ("hand", usual),
        ("own", {"temperature": 0.1, "max_tokens": 5, "top_p": 0.9}),
        ("tooled", usual),
        ("boss", usual),
    ]


async def test_what_defaults_are_silent_about_has_the_values_that_are_documented(
    write: Write, provider: Provider
) -> None:
    async with Fleet.from_yaml(write(MODELS)):
        pass
    assert provider.opened[0] == ("hand", {"temperature": 0.2, "max_tokens": 4000, "top_p": 1.0})
    settings = Settings()
    assert msgspec.to_builtins(settings.limits) == {
        "rounds": 10,
        "stalls": 3,
        "resets": 2,
        "seconds": 300.0,
    }


async def test_an_agent_has_a_description_and_a_system_prompt(
    write: Write, provider: Provider
) -> None:
    provider.judge = lambda done, messages: ledger("poet", "go", satisfied=done > 0)
    text = """
    agents:
      poet:
        agent: {name: poet, description: writes verse}
        system_prompt: You are a poet.
    """
    fleet, _ = await ran(write(MODELS + textwrap.dedent(text)))
    assert fleet.context["available_agents"] == {"poet": "writes verse"}
    assert provider.seen[0][0] == {"role": "system", "content": "You are a poet."}


async def test_an_agent_may_have_a_file_of_its_own(
    write: Any, provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agents").mkdir()
    write("agent: {description: writes verse}\nsystem_prompt: Rhyme.\n", "agents/poet.yaml")
    path = write(MODELS + "agents: {poet: agents/poet.yaml}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    settings = read_workflow(path)
    assert settings.agents["poet"].system_prompt == "Rhyme."
    write("system_promt: Rhyme.\n", "agents/poet.yaml")
    with pytest.raises(UsageError, match=r"poet.yaml:1: agents.poet has no key 'system_promt'"):
        read_workflow(path)
    (tmp_path / "agents" / "poet.yaml").unlink()
    with pytest.raises(UsageError, match=r"workflow.yaml:\d+: .*poet.yaml cannot be read"):
        read_workflow(path)


async def test_a_tool_is_given_in_code_or_imported_and_may_be_turned_off(
    write: Write, provider: Provider
) -> None:
    provider.script = using_tool
    provider.judge = lambda done, messages: ledger("coder", "go", satisfied=done > 0)
    base = MODELS + "human_in_the_loop: {enabled: false}\nagents:\n  coder:\n    tools:\n"
    fleet, _ = await ran(write(base + "      - {name: shell}"), tools={"shell": shell})
    assert last_of(fleet, "coder") == "ran ls"
    with pytest.raises(UsageError, match="has no function"):
        Fleet.from_yaml(write(base + "      - {name: shell}"))
    path = write(
        base + "      - {name: shell, function: 'tests.agents.fleet.test_workflow_file:shell'}"
    )
    fleet, _ = await ran(path)
    assert last_of(fleet, "coder") == "ran ls"
    with pytest.raises(UsageError, match="'no_such:thing' cannot be imported"):
        Fleet.from_yaml(write(base + "      - {name: shell, function: 'no_such:thing'}"))
    fleet, _ = await ran(write(base + "      - {name: shell, enabled: false}"))
    assert "there is no tool 'shell'" in str(last_of(fleet, "coder"))


@pytest.mark.parametrize("on", [True, False])
async def test_runtime_stream(on: bool, write: Write, provider: Provider) -> None:
    heard = Heard()
    text = "".join(f"\n  {name}: {{runtime: {{stream: {on}}}}}" for name in TEAM)
    await ran(write(f"{MODELS}agents:{text}"), observer=heard)
    assert any(one["speaker"] == "researcher" for one in heard.of("model.text")) is on


@pytest.mark.parametrize(("on", "turns"), [(True, [1, 2]), (False, [1, 1])])
async def test_runtime_store(on: bool, turns: Any, write: Write, provider: Provider) -> None:
    provider.judge = lambda done, messages: ledger("coder", "go", satisfied=done > 1)
    fleet, _ = await ran(write(f"{MODELS}agents: {{coder: {{runtime: {{store: {on}}}}}}}"))
    said = [one["content"] for one in fleet.history_of("coder") if one["role"] == "assistant"]
    assert [text.split()[2] for text in said] == [f"{number}:" for number in turns]


@pytest.mark.parametrize(("on", "asked"), [(True, 2), (False, 3)])
async def test_runtime_checkpoint(on: bool, asked: int, write: Write, provider: Provider) -> None:
    fail = [True]

    def script(messages: Sequence[Message]) -> Reply | str:
        return using_tool(messages)

    def flaky(command: str) -> str:
        if fail:
            fail.pop()
            raise asyncio.CancelledError
        return "ran"

    async def tool(command: str) -> str:
        return flaky(command)

    provider.script = script
    provider.judge = lambda done, messages: ledger("coder", "go", satisfied=done > 0)
    text = f"agents: {{coder: {{runtime: {{checkpoint: {on}}}, tools: [{{name: shell}}]}}}}"
    path = write(f"{MODELS}human_in_the_loop: {{enabled: false}}\n{text}")
    made = msgspec.structs.replace(read_tool(tool), idempotent=True)
    async with Fleet.from_yaml(path, tools={"shell": made}) as fleet:
        with pytest.raises(asyncio.CancelledError):
            await fleet.run("Go")
        await fleet.run(resume_from_checkpoint=fleet.current_checkpoint_id)
    assert len(provider.seen) == asked


# What is wrong


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("workflow:\n  max_round: 3", 2, "no key 'max_round' (did you mean 'max_rounds'?)"),
        ("workflow:\n  max_rounds: many", 2, "workflow.max_rounds: Expected int, got str"),
        ("workflow:\n  max_rounds: 0", 2, "Expected int >= 1"),
        ("workflow:\n  timeout_seconds: -1", 2, "Expected float > 0"),
        ("workflow: 3", 1, "workflow is not a mapping"),
        ("checkpoint:\n  enabled: true", 1, "did you mean 'checkpointing'?"),
        ("checkpointing:\n  enabled: maybe", 2, "Expected bool, got str"),
        ("checkpointing:\n\n  storage_type: flie", 3, "did you mean 'file'?"),
        ("checkpointing:\n  storage_type: floppy", 2, "there are file, memory, sqlite"),
        ("checkpointing:\n  cleanup_after_days: 0", 2, "Expected int >= 1"),
        ("checkpointing:\n  retention:\n    keep_lst: 3", 3, "did you mean 'keep_last'?"),
        ("checkpointing:\n  retention:\n    keep-within: 3x", 3, "'3x' is not a positive age"),
        ("human_in_the_loop:\n  trusted: []", 2, "did you mean 'trusted_operations'?"),
        ("human_in_the_loop:\n  require_approval_for: [1]", 2, "Expected str, got int"),
        ("fleet:\n  manager:\n    reasoning:\n      efort: low", 4, "did you mean 'effort'?"),
        ("fleet:\n  manager:\n    reasoning:\n      effort: max", 4, "minimal, low, medium, high"),
        ("fleet:\n  callbacks:\n    streaming: true", 3, "'streaming_enabled'"),
        ("defaults:\n  temperature: 3", 2, "Expected float <= 2.0"),
        ("defaults:\n  top_p: 0", 2, "Expected float > 0"),
        ("agents: {}", 1, "agents names no participant"),
        ("agents:\n  a:\n    tools:\n      - nme: x", 4, "did you mean 'name'?"),
        ("agents:\n  a:\n    tools:\n      - enabled: true", 4, "missing required field name"),
        ("agents:\n  a:\n    runtime:\n      steam: true", 4, "did you mean 'stream'?"),
        ("agents:\n  a:\n    agent:\n      name: b", 4, "'b' is listed under the name 'a'"),
        ("workflow:\n  max_rounds: 1\n  max_rounds: 2", 3, "a duplicate of line 2"),
        ("workflow: [", 1, "this is not YAML"),
        ("- 1", 1, "the file is not a mapping"),
        ("workflow: {max_rounds: !!python/name:os.system x}", 1, "could not determine"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, says: str, write: Write) -> None:
    with pytest.raises(UsageError) as caught:
        read_workflow(write(text))
    assert says in str(caught.value)
    assert caught.value.line == line
    assert f"workflow.yaml:{line}: " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "no model is set for researcher"),
        ("fleet:\n  manager:\n    model: 'test:boss'", 3, "no model is set for researcher"),
        ("agents:\n  poet:\n    agent: {model: 'test:a'}", 1, "no model is set for the manager"),
        (
            "fleet: {manager: {model: 'test:boss'}}\nagents:\n  poet: {}",
            3,
            "no model is set for poet",
        ),
        ("# all\ndefaults:\n  model: 'floppy:a'", 3, "no provider 'floppy'"),
        ("defaults: {model: 'test:a'}\nfleet:\n  manager: {model: nobody}", 3, "no provider"),
        (
            "defaults: {model: 'test:a'}\nagents:\n  poet:\n    tools:\n      - name: write",
            4,
            "the tool 'write' of 'poet' has no function",
        ),
    ],
)
def test_what_is_wrong_when_the_fleet_is_made_is_told_with_its_line(
    text: str,
    line: int,
    says: str,
    write: Write,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SUREHOLD_MODEL", raising=False)
    with pytest.raises(UsageError, match=says) as caught:
        Fleet.from_yaml(write(text))
    assert caught.value.line == line
    assert f"workflow.yaml:{line}: " in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_workflow(tmp_path / "nothing.yaml")


def test_a_url_of_no_storage_is_told() -> None:
    with pytest.raises(NotFoundError, match="no storage has the scheme 'floppy'"):
        create_checkpoint_storage(CheckpointSettings(storage_type="floppy://a"))


def test_an_empty_file_means_the_defaults(write: Write) -> None:
    read, settings = read_workflow(write("")), Settings()
    for section in Settings.__struct_fields__:
        assert getattr(read, section) == getattr(settings, section)


def _keys(cls: type, at: str) -> Iterator[str]:
    for one in msgspec.structs.fields(cls):
        inner = one.type
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from _keys(inner, f"{at}{one.name}.")
        else:
            yield f"{at}{one.name}"


def test_every_key_has_a_test_here() -> None:
    text = Path(__file__).read_text()
    keys = {*_keys(Settings, ""), *_keys(ParticipantSettings, "")}
    assert len(keys) > 40
    missing = [key for key in keys if not re.search(rf"[ {{]{key.rpartition('.')[2]}:", text)]
    assert sorted(missing) == [f"fleet.callbacks.{key}" for key in sorted(CALLBACKS)]


def test_the_example_has_every_key_and_can_be_read() -> None:
    path = Path(__file__).parents[3] / "examples" / "workflow.yaml"
    text, settings = path.read_text(), read_workflow(path)
    assert Fleet.from_yaml(path, checkpoint_storage="memory://").name
    keys = {*_keys(Settings, ""), *_keys(ParticipantSettings, ""), *_keys(ToolSettings, "")}
    assert [key for key in keys if not re.search(rf"\b{key.rpartition('.')[2]}:", text)] == []
    assert (settings.checkpointing, settings.human_in_the_loop, settings.workflow) == (
        *(CheckpointSettings(), ApprovalSettings(), WorkflowSettings()),
    )
