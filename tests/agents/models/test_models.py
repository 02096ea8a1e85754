"""Models: opened by name, called over HTTP, priced, and recorded as effects."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

from surehold import (
    AutonomousConfig,
    BaseAutonomousAgent,
    CheckpointConfig,
    GraphConfig,
    MemoryStorage,
    State,
    StateGraph,
    StateManager,
)
from surehold.agents.models import model as models
from surehold.agents.models.calls import ask
from surehold.agents.models.json_tool_calls import forced_schema, plain_turns, read_forced
from surehold.agents.models.model import Model, Reply, ToolCall, ToolSpec, open_model
from surehold.agents.models.prices import cost_of
from surehold.core.values import Usage
from surehold.errors import DecodeError, MissingExtraError, ShapeError, StepError, UsageError
from surehold.storage.base import RunQuery
from surehold.testing.scripted import ScriptedModel

ADD = ToolSpec(
    "add",
    "Add numbers.",
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
)
HELLO = [{"role": "user", "content": "Hello"}]


class Server:
    """An OpenAI-compatible server that answers what it was told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answers: list[Any] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.asked.append({"path": self.path, **json.loads(body)})
                answer = server.answers.pop(0)
                streamed = isinstance(answer, list)
                self.send_response(200 if not isinstance(answer, int) else answer)
                kind = "text/event-stream" if streamed else "application/json"
                self.send_header("Content-Type", kind)
                self.end_headers()
                if streamed:
                    lines = [f"data: {json.dumps(piece)}\n\n" for piece in answer]
                    self.wfile.write("".join([*lines, "data: [DONE]\n\n"]).encode())
                else:
                    self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *args: Any) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def completion(**message: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "mine-2026",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15},
    }


def tool_call(name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    made = {"id": "c1", "type": "function", "function": {"name": name, "arguments": text}}
    return {"content": None, "tool_calls": [made]}


async def test_any_openai_compatible_server_is_reached_by_its_address(server: Server) -> None:
    server.answers = [completion(content="Hi there")]
    model = open_model("openai", "mine", base_url=server.url, prices={"mine": (1.0, 2.0)})
    reply = await model.respond([{"role": "system", "content": "Be brief."}, *HELLO])
    assert (reply.text, reply.tool_calls, reply.model) == ("Hi there", (), "mine-2026")
    assert reply.usage == Usage(11, 4, (11 * 1.0 + 4 * 2.0) / 1e6)
    (asked,) = server.asked
    assert (asked["path"], asked["model"]) == ("/v1/chat/completions", "mine")
    assert [m["role"] for m in asked["messages"]] == ["system", "user"]
    assert isinstance(model, Model) and model.name == "mine"


async def test_a_server_that_the_environment_names_is_asked_by_chat_completions(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most servers that speak OpenAI's language have nothing else."""
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server.answers = [completion(content="Hi there")]
    assert (await open_model("openai:mine").respond(HELLO)).text == "Hi there"
    assert server.asked[0]["path"] == "/v1/chat/completions"
    for name in ("https://api.openai.com/v1", "https://eu.api.openai.com/v1"):
        monkeypatch.setenv("OPENAI_BASE_URL", name)
        opened: Any = open_model("openai", "gpt-5", api_key="none")
        assert type(opened.library).__name__ == "OpenAIResponsesModel"


@pytest.mark.parametrize(
    ("provider", "asked", "other"),
    [
        ("openai", "/v1/chat/completions", "openai-responses:mine asks at /v1/responses"),
        ("openai-responses", "/v1/responses", "openai-chat:mine asks at /v1/chat/completions"),
    ],
)
async def test_a_path_that_the_server_does_not_know_is_named_with_the_other(
    provider: str, asked: str, other: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    server.answers = [404] * 3
    with pytest.raises(UsageError, match=f"answered 404 Not Found to POST {asked}") as caught:
        await open_model(provider, "mine").respond(HELLO)
    assert other in str(caught.value) and server.asked[0]["path"] == asked


async def test_ollama_is_found_by_its_own_variable(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    server.answers = [completion(content='{"n": 1}'), completion(**tool_call("add", {"a": 2}))]
    monkeypatch.setenv("OLLAMA_HOST", server.url.removesuffix("/v1"))
    model = open_model("ollama", "llama3.2", temperature=0.5, max_tokens=9)
    assert (await model.respond(HELLO, schema=schema)).data == {"n": 1}
    assert (await model.respond(HELLO, tools=[ADD])).tool_calls[0].arguments == {"a": 2}
    first = server.asked[0]
    assert (first["model"], first["temperature"]) == ("llama3.2", 0.5)
    assert 9 in (first.get("max_tokens"), first.get("max_completion_tokens"))


async def test_arguments_that_are_no_json_reach_the_tool_as_wrong_ones(server: Server) -> None:
    server.answers = [completion(**tool_call("add", '{"a": '))]
    model = open_model("openai", "mine", base_url=server.url)
    (call,) = (await model.respond(HELLO, tools=[ADD])).tool_calls
    assert "a" not in call.arguments and call.arguments


async def test_tools_are_offered_and_their_calls_and_results_go_both_ways(server: Server) -> None:
    server.answers = [completion(**tool_call("add", {"a": 2}))]
    model = open_model("openai", "mine", base_url=server.url)
    history = [
        *HELLO,
        {
            "role": "assistant",
            "content": "I add",
            "tool_calls": [{"id": "c0", "name": "add", "arguments": {"a": 1}}],
        },
        {"role": "tool", "tool_call_id": "c0", "name": "add", "content": "3"},
        {"role": "user", "content": "And again"},
    ]
    reply = await model.respond(history, tools=[ADD])
    assert reply.tool_calls == (ToolCall("c1", "add", {"a": 2}),)
    assert reply.usage.cost_usd is None
    (asked,) = server.asked
    assert asked["tools"][0]["function"]["name"] == "add"
    assert [m["role"] for m in asked["messages"]] == ["user", "assistant", "tool", "user"]
    assert asked["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
    assert asked["messages"][2] == {"role": "tool", "tool_call_id": "c0", "content": "3"}


async def test_a_structured_answer_comes_as_json_or_through_a_tool(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"sum": {"type": "integer"}},
        "required": ["sum"],
        "additionalProperties": False,
    }
    server.answers = [
        completion(content='{"sum": 3}'),
        completion(**tool_call("answer", {"sum": 4})),
    ]
    model = open_model("openai", "mine", base_url=server.url)
    assert (await model.respond(HELLO, schema=schema)).data == {"sum": 3}
    second = await model.respond(HELLO, schema=schema, tools=[ADD])
    assert (second.data, second.tool_calls) == ({"sum": 4}, ())
    assert server.asked[0]["response_format"]["json_schema"]["schema"]["required"] == ["sum"]
    assert [t["function"]["name"] for t in server.asked[1]["tools"]] == ["add", "answer"]


async def test_text_is_streamed_as_it_comes(server: Server) -> None:
    def piece(**delta: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        base = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "mine"}
        return {**base, "choices": [choice]}

    server.answers = [[piece(role="assistant", content="Hel"), piece(content="lo")]]
    heard: list[str] = []
    model = open_model("openai", "mine", base_url=server.url)
    reply = await model.respond(HELLO, on_text=heard.append)
    assert (reply.text, "".join(heard), len(heard)) == ("Hello", "Hello", 2)


async def test_a_small_model_is_held_to_a_schema(server: Server) -> None:
    server.answers = [
        completion(content='{"tool": "add", "args": {"a": 2}}'),
        completion(content='{"final": "forty"}'),
        completion(content='{"final": '),
    ]
    model = open_model("openai", "mine", base_url=server.url, force_schema=True)
    first = await model.respond(HELLO, tools=[ADD])
    assert [(c.name, c.arguments) for c in first.tool_calls] == [("add", {"a": 2})]
    assert (await model.respond(HELLO, tools=[ADD])).text == "forty"
    with pytest.raises(DecodeError, match="is not JSON"):
        await model.respond(HELLO, tools=[ADD])
    sent = server.asked[0]["response_format"]["json_schema"]["schema"]
    assert sent["anyOf"][0]["properties"]["tool"] == {"const": "add"}
    assert "tools" not in server.asked[0]


def test_the_forced_schema_holds_every_way_on() -> None:
    from jsonschema import validate
    from jsonschema.exceptions import ValidationError

    schema = forced_schema([ADD], {"type": "object", "properties": {"sum": {"type": "integer"}}})
    validate({"tool": "add", "args": {"a": 1}}, schema)
    validate({"final": {"sum": 3}}, schema)
    for wrong in ({"tool": "other", "args": {}}, {"tool": "add", "args": {}}, {"final": "3"}, {}):
        with pytest.raises(ValidationError):
            validate(wrong, schema)
    assert read_forced('{"final": {"sum": 3}}', "c") == ('{"sum": 3}', {"sum": 3})


def test_a_conversation_with_tools_is_told_in_plain_turns() -> None:
    call = {"id": "c", "name": "add", "arguments": {"a": 1}}
    turns = plain_turns(
        [
            {"role": "system", "content": "Be brief."},
            *HELLO,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "name": "add", "content": "3"},
        ],
        [ADD],
    )
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user"]
    assert turns[0]["content"].startswith("Be brief.") and "- add: Add" in turns[0]["content"]
    assert turns[2]["content"] == '{"tool": "add", "args": {"a": 1}}'
    assert turns[3]["content"] == "add gave: 3"


# Opening


def test_the_extra_local_brings_all_that_a_local_model_needs() -> None:
    wanted = [one for one in requires("surehold") or () if "extra == 'local'" in one]
    assert any(one.startswith("pydantic-ai-slim[openai]") for one in wanted)
    assert any(one.startswith("xllamacpp") for one in wanted)


def test_an_unknown_provider_is_an_error_that_lists_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no provider 'nobody'.*anthropic.*local.*ollama.*openai"):
        open_model("nobody", "x")
    with pytest.raises(UsageError, match=r"no provider 'gpt-5' .a model is written PROVIDER:NAME"):
        open_model("gpt-5")
    with pytest.raises(UsageError, match="which model of ollama"):
        open_model("ollama")
    with pytest.raises(UsageError, match="names no provider"):
        open_model(None, "llama3.2")
    with pytest.raises(UsageError, match=r"has no setting 'tempo'.*temperature"):
        open_model("ollama", "llama3.2", tempo=1)
    with pytest.raises(UsageError, match="has no setting 'base_url'"):
        open_model("local", base_url="http://127.0.0.1")
    with pytest.raises(UsageError, match="no weights at"):
        open_model("local", "/nowhere/model.gguf")


@pytest.mark.parametrize(
    ("provider", "model"),
    [("ollama", "llama3.2"), ("ollama:llama3.2", None), (None, "ollama:llama3.2")],
)
def test_a_model_is_opened_by_provider_and_name(provider: Any, model: Any) -> None:
    assert open_model(provider, model).name == "llama3.2"


# The library of Google has a string that Python warns of when it is first compiled.
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@pytest.mark.parametrize("provider", ["openai", "anthropic", "google"])
def test_the_big_providers_are_opened_by_name(provider: str) -> None:
    assert open_model(provider, "some-model", api_key="key").name == "some-model"


# The library of Google has a string that Python warns of when it is first compiled.
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@pytest.mark.parametrize("provider", ["openai", "anthropic", "google", "openrouter"])
async def test_a_missing_key_is_said_before_a_run_is_begun(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"{provider.upper()}_API_KEY"
    for name in (variable, "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    manager = StateManager(MemoryStorage())
    config = AutonomousConfig(llm_provider=provider, model="some-model")
    agent = BaseAutonomousAgent(config, state_manager=manager, agent_id="asker")
    with pytest.raises(UsageError, match=f"{provider}:some-model needs an API key") as caught:
        await agent.run("go")
    assert f"set the variable {variable}, or give api_key" in str(caught.value)
    assert "pydantic" not in str(caught.value).lower()
    assert list(manager.storage.runs(RunQuery())) == []


def test_a_missing_package_is_named_by_the_pip_line_that_brings_it() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'pydantic-ai-slim\[groq\]'"):
        open_model("groq", "some-model")


@pytest.mark.parametrize("url", ["box:8080", "http://me:secret@box:eighty/v1", "::", "ftp://box"])
def test_an_address_that_names_no_server_is_refused_when_the_model_is_opened(url: str) -> None:
    with pytest.raises(UsageError, match=r"names no server \(write http://host:port") as caught:
        open_model("openai", "mine", base_url=url)
    assert "secret" not in str(caught.value)


# Reaching


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


async def refused(model: Model, on_text: Any = None) -> str:
    with pytest.raises(ConnectionError) as caught:
        await model.respond(HELLO, on_text=on_text)
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@pytest.mark.parametrize("provider", ["openai", "anthropic", "google"])
@pytest.mark.parametrize("on_text", [None, print])
async def test_a_server_that_is_not_there_is_named_with_its_address_and_no_password(
    provider: str, on_text: Any, closed_port: int
) -> None:
    url = f"http://me:secret@127.0.0.1:{closed_port}/v1?token=secret"
    told = await refused(open_model(provider, "mine", base_url=url, api_key="secret"), on_text)
    assert told == (
        f"the model {provider}:mine cannot be reached at 127.0.0.1:{closed_port}: Connection"
        " refused (is the server running? base_url says where it is)"
    )


@pytest.mark.parametrize("variable", ["OLLAMA_HOST", "OLLAMA_BASE_URL"])
async def test_an_ollama_that_is_not_there_is_named_with_its_variable(
    variable: str, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OLLAMA_HOST", "OLLAMA_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, f"http://127.0.0.1:{closed_port}")
    told = await refused(open_model("ollama", "llama3.2"))
    assert f"ollama:llama3.2 cannot be reached at 127.0.0.1:{closed_port}" in told
    assert f"is Ollama running? {variable} or base_url says" in told


async def test_a_variable_that_moved_a_provider_is_what_to_look_at(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{closed_port}/v1")
    told = await refused(open_model("openai", "mine", api_key="secret"))
    assert f"at 127.0.0.1:{closed_port}" in told and "OPENAI_BASE_URL says where" in told


async def test_an_answer_that_says_no_is_not_taken_for_a_server_that_is_away(
    server: Server,
) -> None:
    server.answers = [401]
    with pytest.raises(Exception, match="401") as caught:
        await open_model("openai", "mine", base_url=server.url).respond(HELLO)
    assert not isinstance(caught.value, ConnectionError)


async def test_an_agent_whose_model_is_away_says_where_it_looked(closed_port: int) -> None:
    config = AutonomousConfig(
        llm_provider="openai",
        model="mine",
        provider_config={"base_url": f"http://127.0.0.1:{closed_port}/v1"},
    )
    result = await BaseAutonomousAgent(config, agent_id="asker").run("go")
    assert result.status == "failed" and result.error is not None
    assert f"openai:mine cannot be reached at 127.0.0.1:{closed_port}" in result.error


async def test_the_environment_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_factories", {})
    models.register_provider("mine", lambda model, **settings: ScriptedModel(["hi"], name=model))
    monkeypatch.setenv("SUREHOLD_MODEL", "mine:small")
    model = open_model()
    assert (model.name, (await model.respond(HELLO)).text) == ("small", "hi")
    monkeypatch.delenv("SUREHOLD_MODEL")
    with pytest.raises(UsageError, match="no model is set"):
        open_model()
    with pytest.raises(UsageError, match="is not a name for a provider"):
        models.register_provider("a:b", ScriptedModel)


# Prices


def test_an_unknown_price_is_none_and_the_users_own_wins() -> None:
    usage = Usage(1_000_000, 1_000_000)
    known = cost_of(usage, "openai", "gpt-4o")
    assert known is not None and known > 0
    assert cost_of(usage, "openai", "gpt-4o", {"gpt-4o": (0.0, 0.0)}) == 0.0
    assert cost_of(usage, "openai", "gpt-4o", {"openai:gpt-4o": (1.0, 2.0)}) == 3.0
    assert cost_of(usage, "openai", "gpt-4o", base_url="http://127.0.0.1:1/v1") is None
    assert cost_of(usage, "ollama", "llama3.2") is None


# Recording


def graph_of(db: str, script: Any, log: Path, **more: Any) -> StateGraph:
    async def talk(state: State) -> dict[str, Any]:
        model = ScriptedModel(script, log=log, price=10.0)
        first = await ask(model, [*HELLO, *state["more"]])
        if state.secrets.get("fail"):
            raise ConnectionError("after the call")
        return {"text": first.text, "tokens": first.usage.tokens, "seconds": first.usage.seconds}

    graph = StateGraph(GraphConfig(checkpoint=CheckpointConfig(store=db, interval=1, **more)))
    graph.add_node("talk", talk)
    graph.set_entry_point("talk")
    graph.set_exit_point("talk")
    return graph


async def test_a_model_call_is_recorded_with_what_it_took_and_not_repeated(
    db: str, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    async with graph_of(db, ["one"], log, preserve=True) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"more": []}, run_id="r"), secrets={"fail": True})
        plan = graph.explain_resume("r")
        assert plan.reused == ("model@1",)
        assert (plan.saves.tokens, plan.saves.dollars) == (2, 2e-5)
    async with graph_of(db, ["another"], log, preserve=True) as graph:
        final = await graph.resume("r")
    assert (final["text"], final["seconds"] > 0) == ("one", True)
    assert len(log.read_text().splitlines()) == 1


async def test_another_conversation_at_the_same_place_is_refused(db: str, tmp_path: Path) -> None:
    async with graph_of(db, ["one"], tmp_path / "calls") as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"more": []}, run_id="r"), secrets={"fail": True})
        await graph.checkpoint("r", {"more": [{"role": "user", "content": "other"}]})
        with pytest.raises(ShapeError, match="other arguments"):
            await graph.resume("r")


# The scripted model


async def test_a_script_is_a_function_of_the_messages(tmp_path: Path) -> None:
    log = tmp_path / "log"
    model = ScriptedModel(["one", Reply("two")], log=log)
    assert isinstance(model, Model)
    said = {"role": "assistant", "content": "one"}
    assert (await model.respond([*HELLO, said])).text == "two"
    assert (await model.respond(HELLO)).text == "one"
    with pytest.raises(UsageError, match="reply 3"):
        await model.respond([*HELLO, said, said])
    assert len(log.read_text().splitlines()) == 2


async def test_a_script_gives_structured_answers_and_tokens() -> None:
    model = ScriptedModel(lambda messages: '{"n": 1}', price=1.0)
    reply = await model.respond(HELLO, schema={"type": "object"})
    assert reply.data == {"n": 1}
    assert reply.usage.tokens == 3 and reply.usage.cost_usd == pytest.approx(3e-6)
    assert (await ScriptedModel(["x"]).respond(HELLO)).usage.cost_usd is None
